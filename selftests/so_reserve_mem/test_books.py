"""Where a reservation is charged, and when it is given back."""

import pytest

from selftests.lib import books, sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZE = 4 << 20  # whole in memory.stat, which shows what is more than 32 pages a CPU
sizes = pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.red_on("round-down")), SIZE])


@option
@pytest.mark.red_on("drop-memcg-charge")
@sizes
def test_memcg(sockets: sock.Sockets, own_cgroup: Cgroup, size: int) -> None:
    """The cgroup's `sock` grows by the reservation rounded up to pages."""
    s = sockets.open()
    sock.reserve(s, size)
    books.settle()
    assert sock.eventually(lambda: own_cgroup.sock() == -(-size // sock.PAGE) * sock.PAGE)


@option
@pytest.mark.red_on("drop-global-charge")
@sizes
def test_sockstat(sockets: sock.Sockets, size: int) -> None:
    """TCP `mem` in /proc/net/sockstat grows by the pages reserved."""
    s = sockets.open()
    books.settle()
    before = books.tcp_pages()
    sock.reserve(s, size)
    books.settle()
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
@pytest.mark.red_on("close-leaks")
def test_close_gives_back(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Closing an idle socket gives its reservation back at once."""
    s, charges = sockets.open(), Charges(own_cgroup)
    sock.reserve(s, SIZE)
    s.close()
    charges.are(0)


@option
@pytest.mark.red_on("close-leaks", "orphan-gives-back")
def test_orphan_keeps_until_destroyed(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A closed socket with unsent data keeps its reservation until the last byte is acknowledged."""
    charges = Charges(own_cgroup)
    a, b = sockets.pair()
    sock.reserve(a, SIZE)
    sock.fill(a)
    a.close()
    assert min(charges.now()) >= SIZE
    assert sock.eventually(lambda: sock.drain(b) == 0 and charges.now()[0] < SIZE)
    b.close()
    charges.are(0)
