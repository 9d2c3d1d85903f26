"""The reservation is not reclaimed, whatever an application does with the connection, pressure or none."""

import socket

import pytest

from selftests.lib import sock
from selftests.lib.pressure import Pressure
from selftests.lib.vmpressure import MemcgPressure
from selftests.so_reserve_mem import uses

option = pytest.mark.introduced_by("so-reserve-mem", "option")
every_use = pytest.mark.parametrize("use", uses.ALL, ids=lambda use: use.__name__)
SIZE = 512 << 10
# After these a kernel that loses count of forced charges is seen to keep what it should give back.
FORCED = (
    uses.full_both_ways, uses.coalesced, uses.one_large_send, uses.peeked, uses.truncated, uses.high_rcvlowat,
    uses.smaller_rcvbuf, uses.smaller_sndbuf, uses.not_sent_lowat, uses.sent_after_shutdown,
)  # fmt: skip


def reserving(sockets: sock.Sockets, size: int = SIZE) -> tuple[socket.socket, socket.socket]:
    """A connection both of whose ends have reserved."""
    ends = sockets.pair()
    for s in ends:
        sock.reserve(s, size)
    return ends


def finish(*ends: socket.socket) -> None:
    """Empty the queues and let both ends finish: a FIN makes the kernel reclaim what it may."""
    assert uses.settled(*ends), f"not drained: {[sock.meminfo(s) for s in ends]}"
    for s in ends:
        s.shutdown(socket.SHUT_WR)
    assert uses.settled(*ends), f"not drained: {[sock.meminfo(s) for s in ends]}"


def assert_whole(*ends: socket.socket) -> None:
    """Finish, and see the reservation of each end."""
    finish(*ends)
    for name, s in zip("ab", ends, strict=True):
        free = sock.meminfo(s).fwd_alloc
        assert free >= SIZE, f"{name} has {free} of the {SIZE} bytes that it reserved"
        assert sock.reserved(s) == SIZE


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@every_use
def test_without_pressure(sockets: sock.Sockets, use: uses.Use) -> None:
    """Once the queues are empty again, each end has its whole reservation in forward_alloc."""
    ends = reserving(sockets)
    use(*ends)
    assert_whole(*ends)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@every_use
@pytest.mark.parametrize("above_max", [False, True], ids=["pressure", "above_max"])
def test_under_pressure(sockets: sock.Sockets, pressure: Pressure, use: uses.Use, above_max: bool) -> None:
    """Under pressure too each end has its whole reservation once the queues are empty, and while they are not."""
    ends = reserving(sockets)
    pressure.on(above_max)
    use(*ends)
    for m in map(sock.meminfo, ends):
        assert m.fwd_alloc + m.wmem_queued + m.rmem_alloc >= SIZE, f"{m}: less than the {SIZE} bytes reserved"
    assert_whole(*ends)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@every_use
def test_under_memcg_pressure(sockets: sock.Sockets, memcg_pressure: MemcgPressure, use: uses.Use) -> None:
    """Where only the cgroup is under pressure, each end has its whole reservation once the queues are empty."""
    ends = reserving(sockets)
    memcg_pressure.renew()
    use(*ends)
    memcg_pressure.renew()
    assert_whole(*ends)


@option
@pytest.mark.red_on("forced-charge-uncounted")
@pytest.mark.parametrize("use", FORCED, ids=lambda use: use.__name__)
def test_surplus_is_given_back(sockets: sock.Sockets, use: uses.Use) -> None:
    """What a socket was charged beyond its reservation of one page is given back, but for a page or two."""
    ends = reserving(sockets, sock.PAGE)
    use(*ends)
    finish(*ends)
    for m in map(sock.meminfo, ends):
        assert sock.PAGE <= m.fwd_alloc <= 3 * sock.PAGE, f"FWD_ALLOC {m.fwd_alloc}, {sock.PAGE} reserved"
