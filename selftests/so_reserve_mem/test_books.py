"""Where a reservation is charged, and when it is given back."""

import pytest

from selftests.lib import books, sock
from selftests.lib.cgroup import Cgroup

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZE = 4 << 20  # whole in memory.stat, which shows what is more than 32 pages a CPU
sizes = pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.red_on("round-down")), SIZE])


def charge(own_cgroup: Cgroup) -> int:
    """memory.stat `sock`, exact."""
    books.settle()
    return own_cgroup.sock()


@option
@pytest.mark.red_on("drop-memcg-charge")
@sizes
def test_memcg(sockets: sock.Sockets, own_cgroup: Cgroup, size: int) -> None:
    """The cgroup's `sock` grows by the reservation rounded up to pages."""
    s = sockets.open()
    sock.reserve(s, size)
    assert charge(own_cgroup) == -(-size // sock.PAGE) * sock.PAGE


@option
@pytest.mark.red_on("drop-global-charge")
@sizes
def test_sockstat(sockets: sock.Sockets, size: int) -> None:
    """TCP `mem` in /proc/net/sockstat grows by the pages reserved."""
    s = sockets.open()
    before = books.tcp_pages()
    sock.reserve(s, size)
    assert books.tcp_pages() - before == -(-size // sock.PAGE)


@option
@pytest.mark.red_on("no-forward-alloc")
@sizes
def test_forward_alloc(sockets: sock.Sockets, size: int) -> None:
    """The reservation lies in sk_forward_alloc, SO_MEMINFO's FWD_ALLOC."""
    s = sockets.open()
    sock.reserve(s, size)
    assert sock.meminfo(s).fwd_alloc == -(-size // sock.PAGE) * sock.PAGE


@option
@pytest.mark.red_on("decrease-keeps-charge")
def test_decrease_gives_back(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Decreasing the reservation of an idle socket gives the difference back at once, everywhere."""
    s = sockets.open()
    before = books.tcp_pages()
    for size in (SIZE, 1 << 20, 0):
        sock.reserve(s, size)
        assert sock.meminfo(s).fwd_alloc == size
        assert books.tcp_pages() - before == size // sock.PAGE
        assert charge(own_cgroup) == size


@option
@pytest.mark.red_on("close-leaks")
def test_close_gives_back(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Closing an idle socket gives its reservation back at once."""
    s = sockets.open()
    before = books.tcp_pages()
    sock.reserve(s, SIZE)
    s.close()
    assert books.tcp_pages() == before
    assert charge(own_cgroup) == 0


@option
@pytest.mark.red_on("close-leaks")
def test_orphan_keeps_until_destroyed(sockets: sock.Sockets) -> None:
    """A closed socket with unsent data keeps its reservation until the last byte is acknowledged."""
    before = books.tcp_pages()
    a, b = sockets.pair()
    sock.reserve(a, SIZE)
    sock.push(a)
    a.close()
    assert books.tcp_pages() - before >= SIZE // sock.PAGE
    assert sock.eventually(lambda: sock.drain(b) == 0 and books.tcp_pages() - before < SIZE // sock.PAGE)


@option
@pytest.mark.red_on("decrease-keeps-charge")
@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_no_drift(sockets: sock.Sockets, own_cgroup: Cgroup, size: int) -> None:
    """Reserving and releasing 200 times leaves the books where they were."""
    s = sockets.open()
    before = books.tcp_pages()
    for _ in range(200):
        sock.reserve(s, size)
        sock.reserve(s, 0)
    assert (sock.meminfo(s).fwd_alloc, books.tcp_pages(), charge(own_cgroup)) == (0, before, 0)


@option
@pytest.mark.red_on("close-leaks")
def test_no_drift_over_sockets(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """200 sockets that reserve a page and are closed leave the books where they were."""
    before = books.tcp_pages()
    for _ in range(200):
        s = sockets.open()
        sock.reserve(s, 4096)
        s.close()
    assert (books.tcp_pages(), charge(own_cgroup)) == (before, 0)
