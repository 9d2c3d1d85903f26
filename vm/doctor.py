"""What is there and what is missing on this host, and the exact mend for each."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from vm import apt, arch, qemu, root, vng
from vm.errors import Infra, Mistake
from vm.image import NEEDS_FREE, compiler
from vm.paths import VM, cache


@dataclass(frozen=True)
class Finding:
    """One line of the table. good: True, False, or None for something that the project can do without."""

    what: str
    good: bool | None
    found: str
    mend: str = ""


def examine(base: str) -> list[Finding]:
    """Look at everything that a run on kernel version `base` needs; nothing is changed or downloaded."""
    data = arch.load()
    return [
        _missing_packages(),
        _asked("qemu", lambda: qemu.version(data.qemu), "apt-get install qemu-system-x86"),
        _asked("virtme-ng", _vng_version, "make setup"),
        _nine_p(data.qemu),
        _kvm(),
        _asked("compiler", lambda: compiler(data), "apt-get install gcc"),
        Finding(
            "ccache",
            True if shutil.which("ccache") else None,
            shutil.which("ccache") or "none",
            "apt-get install ccache",
        ),
        _asked("root image", lambda: f"{len(root.distributions())} python packages, {root.key()}", "make setup"),
        _disk(),
        _source(base),
    ]


def _asked(what: str, ask: object, mend: str) -> Finding:
    try:
        return Finding(what, True, str(ask()))  # type: ignore[operator]
    except Infra as e:
        return Finding(what, False, str(e), mend)


def _missing_packages() -> Finding:
    done = subprocess.run(
        ["sh", str(VM / "setup.sh"), "missing"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    words = done.stdout.split()
    mend = f"apt-get install {' '.join(words)}" if words else ""
    return Finding("programs", not words, f"missing: {' '.join(words)}" if words else "all there", mend)


def _vng_version() -> str:
    said = subprocess.run([vng.program(), "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return said.stdout.strip()


def _nine_p(program: str) -> Finding:
    try:
        said = subprocess.run(
            [program, "-device", "help"], capture_output=True, text=True, stdin=subprocess.DEVNULL
        ).stdout
    except FileNotFoundError:
        said = ""
    if "virtio-9p-pci" in said:
        return Finding("9p in QEMU", True, "virtio-9p-pci")
    return Finding("9p in QEMU", None, "none: no perpatch shell, no --guest vng", "install a QEMU built with virtfs")


def _kvm() -> Finding:
    device = Path("/dev/kvm")
    if not device.exists():
        return Finding("kvm", None, "no /dev/kvm: TCG in virtual time is used")
    if not os.access(device, os.R_OK | os.W_OK):
        return Finding("kvm", None, "/dev/kvm may not be opened by this user: TCG is used", "add the user to group kvm")
    answers = sorted((cache() / "accel").glob("*.json"), key=lambda p: p.stat().st_mtime)
    if not answers:
        return Finding("kvm", None, "/dev/kvm opens; whether Linux runs under it is found out at the first boot")
    import json

    return Finding("kvm", None, json.loads(answers[-1].read_text())["why"])


def _disk() -> Finding:
    cache().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(cache()).free
    found = f"{free >> 30} GiB free for {cache()}"
    return Finding(
        "disk", free > 3 * NEEDS_FREE, found, "" if free > 3 * NEEDS_FREE else "perpatch clean, or PERPATCH_CACHE=DIR"
    )


def _source(base: str) -> Finding:
    have = sorted((cache() / "sources").glob(f"linux-source-{base}_*/source.json"))
    if os.environ.get("PERPATCH_TREE"):
        return Finding("source", True, f"PERPATCH_TREE={os.environ['PERPATCH_TREE']}")
    if have:
        return Finding("source", True, f"{have[-1].parent.name}, in the cache")
    try:
        suite = apt.suites_of(f"linux-source-{base}")[0]
        apt.mirror("security" in suite)
        return Finding("source", True, f"linux-source-{base} of {suite}, through this machine's apt mirror")
    except (apt.Unavailable, Mistake) as e:
        return Finding("source", False, f"none for linux {base}: {e}", "give --tree PATH or --tarball PATH#SHA256")
