"""Which accelerator: KVM is a rumour until a Linux guest has printed something under it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from vm.arch import Arch
from vm.image import Image
from vm.paths import cache
from vm.qemu import Machine, Qemu, QemuGone, version

DEVICE = Path("/dev/kvm")
PROBE_SECONDS = 8.0  # wall; a guest under a KVM that works prints its first line within one


@dataclass(frozen=True)
class Accel:
    """The accelerator of functional guests ("kvm" or "icount"), and in one line why. Measured guests are icount."""

    name: str
    why: str


def choose(wanted: str, arch: Arch, image: Image, root: Path) -> Accel:
    """auto: KVM where this very kernel boots under it, else TCG in virtual time; kvm, tcg: as told."""
    if wanted == "tcg":
        return Accel("icount", "tcg: as asked for")
    if wanted == "kvm":
        return Accel("kvm", "kvm: as asked for, not probed")
    if not DEVICE.exists():
        return Accel("icount", f"tcg: no {DEVICE} here")
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return Accel("icount", f"tcg: {DEVICE} may not be opened by this user: join the group kvm")
    return _remembered(arch, image, root)


def _remembered(arch: Arch, image: Image, root: Path) -> Accel:
    """The probe's answer, kept for this host: host kernel, QEMU and CPU flags name it."""
    flags = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("flags")), "")
    key = hashlib.sha256(f"{platform.release()} {version(arch.qemu)} {flags}".encode()).hexdigest()[:24]
    record = cache() / "accel" / f"{key}.json"
    if record.is_file():
        return Accel(**json.loads(record.read_text()))
    answer = probe(arch, image, root, record.with_suffix(".console"))
    record.parent.mkdir(parents=True, exist_ok=True)
    half = record.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps({"name": answer.name, "why": answer.why}))
    half.rename(record)
    return answer


def probe(arch: Arch, image: Image, root: Path, console: Path) -> Accel:
    """Boot the kernel under KVM until it has printed its first line, or the deadline."""
    line = Machine(arch, "kvm", append="ignore_loglevel").line(image, root)
    with Qemu(line, console) as qemu:
        try:
            qemu.connect(PROBE_SECONDS)
        except QemuGone as e:
            return Accel("icount", f"tcg: kvm does not start: {str(e).splitlines()[-1]}")
        until = time.monotonic() + PROBE_SECONDS
        while time.monotonic() < until:
            if console.read_bytes().count(b"\n") > 3:
                return Accel("kvm", "kvm: this kernel boots under it")
            if qemu.process.poll() is not None:
                return Accel("icount", "tcg: qemu ended under kvm before Linux printed anything")
            time.sleep(0.05)
    return Accel("icount", f"tcg: kvm opens, but Linux printed nothing in {PROBE_SECONDS:.0f} s")
