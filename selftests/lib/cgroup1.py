"""The memory controller on a cgroup v1 hierarchy, where TCP has a counter and a limit of its own."""

import ctypes
import errno
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from selftests.lib import books
from selftests.lib.cgroup import Cgroup, move

ROOT = Path("/run/cgroup1")
LIMIT, USAGE, FAILED = (f"memory.kmem.tcp.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "failcnt"))


class Cgroup1(Cgroup):
    """One cgroup v1. Its sockets are charged to it only if they are created after a limit was set."""

    def sock(self) -> int:
        """memory.kmem.tcp.usage_in_bytes, exact at any time."""
        return self.number(USAGE)

    def number(self, name: str) -> int:
        """A control file with one number."""
        return int((self.path / name).read_text())

    def child(self, undo: ExitStack, name: str) -> "Cgroup1":
        """A cgroup below this one."""
        child = Cgroup1(self.path / name)
        child.path.mkdir()
        undo.callback(child.path.rmdir)
        return child


def enter(undo: ExitStack) -> Cgroup1:
    """Take the memory controller from cgroup v2, make a cgroup and move in; the stack moves back and removes it.

    The first case of a guest does that for all: it needs a guest where no cgroup v2 has had the controller yet.
    Skips where the kernel has none for v1.
    """
    if not ROOT.exists():
        _mount()
    root = Cgroup1(ROOT)
    if not (ROOT / LIMIT).exists():
        pytest.skip(f"kernel without {LIMIT}: TCP has no account of its own in cgroup v1")
    if root.number("memory.use_hierarchy") == 0:  # until 5.10 a choice, and it has to be made before the first child
        root.write("memory.use_hierarchy", 1)
    aside = Cgroup1(ROOT / "drain")
    if books.batched() and not aside.path.exists():
        # Then what makes sockstat exact is a reservation: here on an account that no case looks at.
        aside.path.mkdir()  # it stays as long as the guest
        aside.write(LIMIT, 1 << 30)
        move(aside.path)
        books.settle()
        move(ROOT)
    own = root.child(undo, "case")
    move(own.path)
    undo.callback(move, ROOT)
    return own


def _mount() -> None:
    ROOT.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", bytes(ROOT), b"cgroup", 0, b"memory") != 0:
        code = ctypes.get_errno()
        ROOT.rmdir()
        if code in (errno.EINVAL, errno.ENODEV):
            pytest.skip(f"kernel without the memory controller of cgroup v1: mount: {os.strerror(code)}")
        if code == errno.EBUSY:
            pytest.skip("no guest of its own: cgroup v2 has the memory controller in use")
        raise OSError(code, os.strerror(code), str(ROOT))
