"""The KVM probe against QEMUs that are shell scripts: one that hangs, one that prints, one that ends."""

from dataclasses import replace
from pathlib import Path

import pytest

from vm import accel, arch
from vm.image import Image

QEMU = """#!/usr/bin/env python3
import json, socket, sys, time
words = sys.argv
serial = words[words.index("-serial") + 1].removeprefix("file:")
fd = int(next(w for w in words if w.startswith("socket,id=qmp")).split("fd=")[1])
monitor = socket.socket(fileno=fd)
open(serial, "w").close()
if "{how}" == "refuses":
    sys.exit("Could not access KVM kernel module: Permission denied")
monitor.sendall(b'{{"QMP": {{}}}}\\n')
monitor.recv(4096)
monitor.sendall(b'{{"return": {{}}}}\\n')
if "{how}" == "prints":
    open(serial, "a").write("Linux version 5.10\\n" * 9)
if "{how}" != "ends":
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "name", "why"),
    [
        ("prints", "kvm", "this kernel boots under it"),
        ("hangs", "icount", "kvm opens, but Linux printed nothing"),
        ("ends", "icount", "qemu ended under kvm"),
        ("refuses", "icount", "Permission denied"),
    ],
)
def test_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, name: str, why: str) -> None:
    fake = tmp_path / "qemu"
    fake.write_text(QEMU.format(how=how))
    fake.chmod(0o755)
    monkeypatch.setattr(accel, "PROBE_SECONDS", 3.0)
    image = Image("k", str(tmp_path), "s", "gcc", "c", (), (), 0.0, 0)
    found = accel.probe(replace(arch.load("x86_64"), qemu=str(fake)), image, tmp_path / "root", tmp_path / "console")
    assert found.name == name
    assert why in found.why
