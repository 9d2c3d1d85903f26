"""What a case owes when it ends: no TCP page, no byte of its cgroup, no word from the kernel."""

import errno
import functools
import os
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from selftests.lib import cgroup, sock
from selftests.lib.cgroup import Cgroup

SPLAT = re.compile(
    r"WARNING:|BUG:|Oops|general protection|rcu.*stall|out of memory|too many orphaned|underflow|suspicious"
)
OUT_OF_MEMORY = re.compile(r"TCP: out of memory")
KERN_ERR = 3


class Leak(AssertionError):
    """Memory is still charged after the case has closed everything."""


class Splat(AssertionError):
    """The kernel complained while the case ran."""


def tcp_pages() -> int:
    """Pages charged to TCP, machine-wide: `mem` of /proc/net/sockstat."""
    for line in Path("/proc/thread-self/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            return int(line.split()[-1])
    raise RuntimeError("books: no TCP in /proc/net/sockstat")


class Ledger:
    """Opened when the case starts, checked after its sockets are closed."""

    def __init__(self, undo: ExitStack, cgroup: Cgroup) -> None:
        self._cgroup = cgroup
        self._kmsg = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        undo.callback(os.close, self._kmsg)
        os.lseek(self._kmsg, 0, os.SEEK_END)
        if batched():
            settle()
        _kmemleak()  # so that what is there before the first case is not blamed on it
        self._pages = tcp_pages()
        self.out_of_memory_expected = False

    def check(self) -> None:
        """Raise Splat or Leak if anything is left; waits up to 6 s of virtual time for the last timers."""
        back = sock.eventually(self._sockstat_is_back) and self._memcg_is_back()
        if splat := self.complaints() + unreferenced():
            raise Splat("\n".join(splat))
        if not back:
            raise Leak(f"{tcp_pages() - self._pages:+} TCP pages in /proc/net/sockstat, "
                       f"{self._cgroup.sock()} bytes of sock in the cgroup's memory.stat")  # fmt: skip

    def _sockstat_is_back(self) -> bool:
        if batched():
            settle()
        return abs(tcp_pages() - self._pages) <= slack()

    def _memcg_is_back(self) -> bool:
        settle()
        return self._cgroup.sock() == 0 or sock.eventually(lambda: self._cgroup.sock() == 0)

    def complaints(self) -> list[str]:
        """Kernel messages since the case began that no healthy kernel prints."""
        said = [text for level, text in self._messages() if self._is_splat(level, text)]
        return [text for text in said if text.strip("= ")]  # KASAN and KCSAN begin with a line of "="

    def _is_splat(self, level: int, text: str) -> bool:
        if self.out_of_memory_expected and OUT_OF_MEMORY.search(text):
            return False
        return level <= KERN_ERR or SPLAT.search(text) is not None

    def _messages(self) -> list[tuple[int, str]]:
        messages: list[tuple[int, str]] = []
        while True:
            try:
                record = os.read(self._kmsg, 8192).decode(errors="replace")
            except BlockingIOError:
                return messages
            except BrokenPipeError:  # overwritten before it was read; what follows is still there
                continue
            prefix, _, text = record.partition(";")
            messages.append((int(prefix.split(",")[0]) & 7, text.splitlines()[0]))


@functools.cache
def _kmemleak() -> Path | None:
    """The control file of a kernel with kmemleak; what leaked during the boot is not the cases'."""
    file = Path("/sys/kernel/debug/kmemleak")
    if not file.exists():
        return None
    for order in ("scan=off", "scan", "clear"):
        file.write_text(order)
    return file


def unreferenced() -> list[str]:
    """What kmemleak finds now, a line an object with whose it is; nothing on a kernel without kmemleak."""
    if not (file := _kmemleak()):
        return []
    time.sleep(6)  # younger objects are not reported (mm/kmemleak.c MSECS_MIN_AGE)
    for _ in range(2):  # once more: a pointer may have been on its way from one place to another
        file.write_text("scan")
    objects = file.read_text().split("unreferenced object ")[1:]
    file.write_text("clear")
    return [f"kmemleak: {' '.join(o.split())[:300]}" for o in objects]


@functools.cache
def batched() -> bool:
    """Whether the kernel counts sockstat in batches of 256 pages a CPU (mainline since 6.0), seen by charging few."""
    with ExitStack() as closing:
        sender, _ = sock.Sockets(closing).pair()
        before = tcp_pages()
        sock.push(sender, 96 << 10)
        return not 16 <= tcp_pages() - before < 200


@functools.cache
def _drain() -> socket.socket:
    """A socket whose reservation is charged to a cgroup that no case limits."""
    here = cgroup.current()
    aside = cgroup.ROOT / "drain"
    aside.mkdir()  # it stays as long as the guest
    cgroup.move(aside)
    try:
        return socket.socket()
    finally:
        cgroup.move(here)


def settle() -> None:
    """Make the caches of the counters give up what they hold back, on each CPU.

    5.10 adds to memory.stat when more than 32 pages have piled up on a CPU. One uncharge of more than that makes it
    exact, and it is done with plain data, so that it does not depend on what is under test. Later kernels collect
    memory.stat when it is read if that much has moved in the cgroup, else every 2 s. Since 6.0 each CPU adds to
    sockstat after 256 pages, which only a reservation charges at once. RuntimeError where tcp_mem is too low for it.
    """
    cpus = os.sched_getaffinity(0)
    with ExitStack() as undo:
        undo.callback(os.sched_setaffinity, 0, cpus)
        for cpu in cpus:
            if len(cpus) > 1:
                os.sched_setaffinity(0, {cpu})
            _settle_by_data()
            if batched() and not slack():
                _settle_by_reservation()


def _settle_by_reservation() -> None:
    try:
        for size in (2 << 20, 0):
            sock.reserve(_drain(), size)
    except OSError as e:
        raise RuntimeError(f"books: sockstat cannot be made exact: {e.strerror}: is tcp_mem lowered?") from None


@functools.cache
def slack() -> int:
    """Pages by which sockstat may be off after settle(): none, but where it is batched and nobody can reserve."""
    if batched():
        try:
            sock.reserve(_drain(), 0)
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP:  # booted with cgroup.memory=nosocket
                raise
            return 256 * (os.cpu_count() or 1)
    return 0


def _settle_by_data() -> None:
    with ExitStack() as closing:
        sender, receiver = sock.Sockets(closing).pair(rcvbuf=2 << 20)
        sender.setsockopt(socket.SOL_SOCKET, sock.SO_SNDBUFFORCE, 1 << 20)
        sock.push_whole(sender, 512 << 10)
        # The last uncharge has to be the big one. As a rule that is the receiver's, but not where nothing has arrived
        # yet: over a link with delay, or on loopback when ksoftirqd has not come to it.
        for s in sorted((sender, receiver), key=sock.spare):
            sock.abort(s)
