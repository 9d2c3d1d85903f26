"""The two books that all sockets share, read exactly: what TCP has charged and what the cgroup has."""

import errno
import socket
from contextlib import ExitStack

from selftests.lib import books, sock, task
from selftests.lib.cgroup import Cgroup


class Charges:
    """Both books since this was made: sockstat's TCP `mem` and the cgroup's `sock`."""

    def __init__(self, cgroup: Cgroup) -> None:
        self._cgroup = cgroup
        books.settle()
        self._pages = books.tcp_pages()
        self._sock = cgroup.sock()

    def now(self) -> tuple[int, int]:
        """Bytes more than at the start in (sockstat, memory.stat)."""
        return (books.tcp_pages() - self._pages) * sock.PAGE, self._cgroup.sock() - self._sock

    def are(self, size: int) -> None:
        """Assert that both books show size bytes more than at the start, no page more or less."""
        books.settle()
        sock.eventually(lambda: self.now() == (size, size))
        assert self.now() == (size, size), f"sockstat, memory.stat: {self.now()} instead of {size} each"


def kills_by_growing(undo: ExitStack, s: socket.socket, home: Cgroup, limited: Cgroup) -> int:
    """Processes that the OOM killer took while s grew until limited's memory.max refused more with ENOMEM.

    A process stays in home to be killed. We grow s from outside, since a cgroup that is full may have us killed for a
    page of our own; the limit is gone when we are back.
    """
    task.Task(undo, lambda: None).result()

    def grow() -> None:
        for size in range(16 << 10, 8 << 20, 16 << 10):  # the OOM killer leaves requests of more than 32 KiB alone
            sock.reserve(s, size)

    with home.outside():
        try:
            sock.refuses(errno.ENOMEM, grow)
            return limited.read("memory.events", "oom_kill")
        finally:
            limited.write("memory.max", "max")
