"""A child cgroup v2 with the memory controller, one for each case."""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


class Cgroup:
    """One cgroup below the root. Sockets are charged to the cgroup of the task that creates or accepts them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, value: int | str) -> None:
        """Write a control file, such as memory.max in bytes."""
        (self.path / name).write_text(f"{value}\n")

    def read(self, name: str, key: str) -> int:
        """One value of a flat-keyed file such as memory.stat or memory.events."""
        for line in (self.path / name).read_text().splitlines():
            if line.startswith(f"{key} "):
                return int(line.split()[1])
        raise KeyError(f"{self.path / name}: no {key}")

    def sock(self) -> int:
        """memory.stat `sock` in bytes; 5.10 shows it in steps of more than 32 pages a CPU."""
        return self.read("memory.stat", "sock")

    def current(self) -> int:
        """memory.current in bytes: what is charged, with up to 64 pages a CPU that are charged in advance."""
        return int((self.path / "memory.current").read_text())

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Leave for the root cgroup, whose sockets are charged to nobody, and come back."""
        move(ROOT)
        try:
            yield
        finally:
            move(self.path)


def move(path: Path) -> None:
    """Move this process, all its threads, into a cgroup."""
    (path / "cgroup.procs").write_text("0\n")


def current() -> Path:
    """The cgroup v2 that this process is in."""
    return ROOT / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()


def remove(path: Path) -> None:
    """Remove an empty cgroup if it is there; OSError if it is not empty.

    A process that has just ended may still count for a moment.
    """
    for left in reversed(range(50)):
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if not left:
                raise
            time.sleep(0.02)


def enter(undo: ExitStack, name: str) -> Cgroup:
    """Make a cgroup and move in; the stack moves back and removes it. OSError without the memory controller."""
    if not (ROOT / "cgroup.procs").exists():
        _mount()
    control = ROOT / "cgroup.subtree_control"
    if "memory" not in control.read_text().split():
        control.write_text("+memory\n")
    before = current()
    own = Cgroup(ROOT / name)
    own.path.mkdir()
    undo.callback(remove, own.path)
    move(own.path)
    undo.callback(move, before)
    return own


def split(undo: ExitStack, parent: Cgroup, *names: str) -> list[Cgroup]:
    """Make children with the memory controller; this process moves into the first, as inner nodes hold none."""
    children = [Cgroup(parent.path / name) for name in names]
    for child in children:
        child.path.mkdir()
        undo.callback(remove, child.path)
    undo.callback(move, parent.path)
    move(children[0].path)
    parent.write("cgroup.subtree_control", "+memory")
    undo.callback(parent.write, "cgroup.subtree_control", "-memory")
    return children


def _mount() -> None:
    with suppress(FileExistsError):
        ROOT.mkdir(parents=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"none", bytes(ROOT), b"cgroup2", 0, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(ROOT))
