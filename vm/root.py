"""The warm guest's root: a squashfs with this Python, the libraries that cases use, busybox, iproute2, the agent.

Nothing of the host is visible to a series under test, and image + kernel + one QEMU line is a reproducer.
The interpreter is the one that runs us, so that what the host's pytest compiled (assert rewriting) serves the guest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from vm.errors import Infra
from vm.paths import VM, cache, locked

# What cases may import in the guest; their own requirements come along.
LIBRARIES = ("pytest", "scapy", "hypothesis")
TOOLS = ("ip", "tc", "ss")
# Parts of the standard library that no case can need, to keep the image small.
_WITHOUT = (
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "distutils",
)


def distributions(names: tuple[str, ...] = LIBRARIES) -> dict[str, str]:
    """Installed distributions that `names` need, name -> version, requirements included; Infra where one lacks."""
    found: dict[str, str] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            dist = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise Infra(f"python package {name}: not installed: run 'make setup'") from None
        found[name] = dist.version
        for need in dist.requires or []:
            if ";" not in need:  # extras and markers for other platforms
                todo.append(re.split(r"[\s<>=!~\[(]", need, maxsplit=1)[0])
    return dict(sorted(found.items()))


def _tool(name: str) -> Path:
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if not path:
        raise Infra(f"{name}: not installed: 'perpatch doctor' says which package has it")
    return Path(path).resolve()


def key() -> str:
    """The name of the root image: interpreter, library versions, tools, and the guest side of this project."""
    h = hashlib.sha256(f"{sys.version} {sys.base_prefix} {distributions()}".encode())
    for file in sorted((VM / "inside").glob("*")):
        if file.is_file():
            h.update(file.name.encode() + file.read_bytes())
    for name in ("busybox", *TOOLS):
        stat = _tool(name).stat()
        h.update(f"{name} {stat.st_size} {int(stat.st_mtime)}".encode())
    return h.hexdigest()[:24]


def image() -> Path:
    """The squashfs file, made if the cache lacks it."""
    file = cache() / "roots" / f"{key()}.squashfs"
    if whole(file):
        return file
    with locked(file.parent / "lock"), tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        if whole(file):
            return file
        top, half = Path(scratch) / "root", Path(scratch) / "half.squashfs"
        _populate(top)
        pack = ["mksquashfs", str(top), str(half), "-comp", "lz4", "-all-root", "-no-progress", "-quiet", "-noappend"]
        try:
            done = subprocess.run(pack, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise Infra("mksquashfs: not installed: 'perpatch doctor' says which package has it") from None
        if done.returncode:
            raise Infra(f"root image: mksquashfs failed: {done.stderr.strip()}")
        half.rename(file)
        file.with_suffix(".sha256").write_text(_sum(file))
    return file


def whole(file: Path) -> bool:
    """Whether it is there as it was made: a guest whose root is damaged dies of what no patch has done."""
    known = file.with_suffix(".sha256")
    return file.is_file() and known.is_file() and known.read_text() == _sum(file)


def _sum(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _populate(top: Path) -> None:
    for sub in ("bin", "sbin", "proc", "sys", "dev", "run", "tmp", "etc", "root", "var/tmp", "mnt", "lib/modules"):
        (top / sub).mkdir(parents=True)
    binaries = [Path(sys._base_executable).resolve(), *(_tool(n) for n in TOOLS)]  # type: ignore[attr-defined]
    shutil.copy(_tool("busybox"), top / "bin/busybox")
    for applet in (
        "sh",
        "mount",
        "poweroff",
        "reboot",
        "mkdir",
        "cat",
        "ls",
        "dmesg",
        "ps",
        "sysctl",
        "uname",
        "modprobe",
    ):
        (top / "bin" / applet).symlink_to("busybox")
    (top / "sbin/modprobe").symlink_to("/bin/busybox")  # where the kernel looks for it
    for name in TOOLS:
        shutil.copy(_tool(name), top / "sbin" / name)
    stdlib = Path(sysconfig.get_path("stdlib", vars={"base": sys.base_prefix}))
    _copy_python(top, stdlib)
    binaries += stdlib.glob("lib-dynload/*.so")
    site = top / "lib/perpatch"
    for name in distributions():
        _copy_distribution(name, site)
    binaries += site.rglob("*.so")
    for library in sorted(_libraries(binaries)):
        _place(top, library)
    inside = site / "vm/inside"
    inside.mkdir(parents=True)
    for file in (VM / "inside").glob("*.py"):
        shutil.copy(file, inside)
    (site / "vm/__init__.py").touch()
    shutil.copy(VM / "inside/init", top / "init")
    (top / "init").chmod(0o755)
    (top / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (top / "etc/group").write_text("root:x:0:\n")
    (top / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")  # scapy complains on the console without one
    (top / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    _compile(site)


def _copy_python(top: Path, stdlib: Path) -> None:
    def skip(where: str, names: list[str]) -> set[str]:
        gone = {n for n in names if n.startswith("config-") or n.endswith((".opt-1.pyc", ".opt-2.pyc", ".a"))}
        return gone | (set(_WITHOUT) if Path(where) == stdlib else {n for n in names if n in ("tests", "idle_test")})

    target = top / stdlib.relative_to("/")
    shutil.copytree(stdlib, target, ignore=skip, symlinks=True)
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    _place(top, python)
    (top / "bin/python").symlink_to(python)


def _copy_distribution(name: str, site: Path) -> None:
    for file in importlib.metadata.distribution(name).files or []:
        source = Path(str(file.locate()))
        if file.parts[0] == ".." or not source.is_file() or "test" in file.parts[1:2]:
            continue
        target = site / Path(*file.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def _libraries(binaries: list[Path]) -> set[Path]:
    """Shared libraries (and the loader) that the binaries need, as ldd resolves them here."""
    done = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return {Path(p) for p in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.M)}


def _place(top: Path, file: Path) -> None:
    target = top / file.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(file, target)


def _compile(site: Path) -> None:
    # unchecked: the guest need not stat and compare; nothing in a squashfs changes.
    command = [sys.executable, "-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash", str(site)]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
