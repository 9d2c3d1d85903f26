"""The two books that all sockets share, read exactly: what TCP has charged and what the cgroup has."""

from selftests.lib import books, sock
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
