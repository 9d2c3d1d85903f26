"""The same contract with the memory controller on cgroup v1: the account is memory.kmem.tcp, if it has a limit."""

import errno
from contextlib import ExitStack

import pytest

from selftests.lib import books, cgroup, cgroup1, link, sock
from selftests.lib.cgroup1 import LIMIT, Cgroup1
from selftests.lib.charges import Charges
from selftests.lib.pressure import TcpMem

option = pytest.mark.introduced_by("so-reserve-mem", "option")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def own_cgroup(undo_last: ExitStack, tcp_mem: TcpMem) -> Cgroup1:
    """The case's cgroup, of v1 and without a limit."""
    link.unshare(undo_last)
    return cgroup1.enter(undo_last)


@option
@pytest.mark.red_on("accept-root-cgroup")
@pytest.mark.parametrize("size", [4096, 0])
def test_without_limit(sockets: sock.Sockets, size: int) -> None:
    """Where memory.kmem.tcp.limit_in_bytes has not been set TCP has no account, so it is EOPNOTSUPP, even for 0."""
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, sockets.open(), size)


@option
@pytest.mark.red_on("accept-root-cgroup")
def test_opened_before_the_limit(sockets: sock.Sockets, own_cgroup: Cgroup1) -> None:
    """A socket that was opened before the limit was set is on no account, and stays so."""
    s = sockets.open()
    own_cgroup.write(LIMIT, 64 * MIB)
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, s, 4096)
    sock.reserve(sockets.open(), 4096)


@option
@pytest.mark.red_on("drop-memcg-charge", "charge-memory-on-v1")
def test_charged(sockets: sock.Sockets, own_cgroup: Cgroup1) -> None:
    """kmem.tcp.usage_in_bytes and sockstat move by the reservation rounded up to pages, up and down."""
    own_cgroup.write(LIMIT, 64 * MIB)
    s, charges = sockets.open(), Charges(own_cgroup)
    for size in (1, 4 * MIB, 8 * MIB, MIB, 5000, 0):
        sock.reserve(s, size)
        pages = -(-size // sock.PAGE) * sock.PAGE
        assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (pages, pages)
        charges.are(pages)


@option
@pytest.mark.red_on("close-leaks")
def test_close_gives_back(sockets: sock.Sockets, own_cgroup: Cgroup1) -> None:
    """Closing an idle socket gives its reservation back at once."""
    own_cgroup.write(LIMIT, 64 * MIB)
    s, charges = sockets.open(), Charges(own_cgroup)
    sock.reserve(s, 4 * MIB)
    s.close()
    charges.are(0)


@option
@pytest.mark.red_on("drop-memcg-charge", "enomem-keeps-global", "charge-memory-on-v1", "charge-forces-on-v1")
def test_limit(sockets: sock.Sockets, own_cgroup: Cgroup1) -> None:
    """A reservation may fill the limit to the page; one page more is ENOMEM, counts as failed and leaves nothing."""
    own_cgroup.write(LIMIT, 16 * MIB)
    s, charges = sockets.open(), Charges(own_cgroup)
    before = own_cgroup.number(cgroup1.FAILED)
    for _ in range(1000):
        sock.refuses(errno.ENOMEM, sock.reserve, s, 16 * MIB + 1)
    assert own_cgroup.number(cgroup1.FAILED) - before == 1000
    charges.are(0)
    sock.reserve(s, 16 * MIB)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 16 * MIB + 1)
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (16 * MIB, 16 * MIB)
    charges.are(16 * MIB)


@option
@pytest.mark.red_on("drop-memcg-charge", "charge-memory-on-v1")
def test_limit_of_the_parent(sockets: sock.Sockets, own_cgroup: Cgroup1, defer: ExitStack) -> None:
    """A nested cgroup is bound by the limit of its parent, and both levels count."""
    own_cgroup.write(LIMIT, 16 * MIB)
    inner = own_cgroup.child(defer, "inner")
    inner.write(LIMIT, 64 * MIB)
    cgroup.move(inner.path)
    defer.callback(cgroup.move, own_cgroup.path)
    s, levels = sockets.open(), (Charges(own_cgroup), Charges(inner))
    sock.refuses(errno.ENOMEM, sock.reserve, s, 32 * MIB)
    for size in (0, 8 * MIB):
        sock.reserve(s, size)
        for level in levels:
            level.are(size)


@option
@pytest.mark.red_on("charge-memory-on-v1")
def test_limit_of_other_memory(sockets: sock.Sockets, own_cgroup: Cgroup1) -> None:
    """memory.limit_in_bytes does not bound a reservation, and memory.usage_in_bytes does not count it."""
    own_cgroup.write(LIMIT, 64 * MIB)
    s, before = sockets.open(), own_cgroup.number("memory.usage_in_bytes")
    own_cgroup.write("memory.limit_in_bytes", before + 8 * MIB)
    sock.reserve(s, 32 * MIB)
    assert own_cgroup.number("memory.usage_in_bytes") < before + 4 * MIB
    assert sock.reserved(s) == 32 * MIB


@option
@pytest.mark.red_on("enomem-keeps-charge", "ignore-tcp-mem")
def test_refused_by_tcp_mem(sockets: sock.Sockets, own_cgroup: Cgroup1, tcp_mem: TcpMem) -> None:
    """What tcp_mem[1] refuses is not left on the account."""
    own_cgroup.write(LIMIT, 64 * MIB)
    s, charges = sockets.open(), Charges(own_cgroup)
    pages = books.tcp_pages() + 1024
    tcp_mem.write(pages, pages, pages + 100000)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 8 * MIB)
    tcp_mem.restore()
    charges.are(0)


@option
@pytest.mark.red_on("accept-root-cgroup")
def test_root_cgroup(sockets: sock.Sockets, own_cgroup: Cgroup1) -> None:
    """A socket of the root cgroup is EOPNOTSUPP, though others have an account."""
    own_cgroup.write(LIMIT, 64 * MIB)
    cgroup.move(cgroup1.ROOT)
    s = sockets.open()
    cgroup.move(own_cgroup.path)
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, s, 4096)
