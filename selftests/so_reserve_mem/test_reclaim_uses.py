"""The reservation is not reclaimed, whatever an application does with the connection, pressure or none."""

import socket

import pytest

from selftests.lib import sock
from selftests.lib.pressure import Pressure
from selftests.so_reserve_mem import uses

option = pytest.mark.introduced_by("so-reserve-mem", "option")
every_use = pytest.mark.parametrize("use", uses.ALL, ids=lambda use: use.__name__)
SIZE = 512 << 10


def reserving(sockets: sock.Sockets) -> tuple[socket.socket, socket.socket]:
    """A connection both of whose ends have reserved."""
    ends = sockets.pair()
    for s in ends:
        sock.reserve(s, SIZE)
    return ends


def assert_whole(*ends: socket.socket) -> None:
    """Empty the queues, let both ends finish (a FIN makes the kernel reclaim), and see the reservation of each."""
    assert uses.settled(*ends), f"not drained: {[sock.meminfo(s) for s in ends]}"
    for s in ends:
        s.shutdown(socket.SHUT_WR)
    assert uses.settled(*ends), f"not drained: {[sock.meminfo(s) for s in ends]}"
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
