"""Patch 2 at its edges: what the queues take up is not unused, and a refused charge only ever shrinks sndbuf."""

import socket
from contextlib import suppress

import pytest

from selftests.lib import sock
from selftests.lib.pressure import Pressure
from selftests.so_reserve_mem.test_sndbuf import push_and_drain

SIZE = 256 << 10


@pytest.mark.introduced_by("so-reserve-mem", "sndbuf")
@pytest.mark.red_on("sndbuf-is-whole-reservation", "unused-ignores-receive-queue")
def test_unread_data_is_not_for_sending(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Under pressure sndbuf is raised to what unread data leaves of the reservation, and no further."""
    a, b = sockets.pair()
    sock.reserve(a, SIZE)
    pressure.on()
    assert sock.push(b, 32 << 10) == 32 << 10
    unread = sock.meminfo(a).rmem_alloc
    assert unread >= 32 << 10
    assert SIZE // 2 <= max(push_and_drain(a, b, rounds=5)) <= SIZE - unread


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("sndbuf-floor-is-whole-reservation", "sndbuf-floor-adds-up")
@pytest.mark.parametrize("size", [12 << 10, 16 << 10])
def test_refused_charge_counts_the_queue(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """A charge that is refused above tcp_mem[2] leaves less than the reservation for sndbuf: a part is queued."""
    a, _ = sockets.pair()
    sock.reserve(a, size)
    pressure.on(above_max=True)
    with suppress(BlockingIOError):
        a.send(bytes(32768), socket.MSG_DONTWAIT)
    m = sock.meminfo(a)
    assert m.sndbuf <= size - 512, f"{m}"


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("refused-charge-raises")
def test_refused_charge_does_not_raise(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A charge that is refused above tcp_mem[2] does not make sndbuf larger than it was, whatever is reserved."""
    a, _ = sockets.pair()
    a.setsockopt(socket.SOL_SOCKET, sock.SO_ZEROCOPY, 1)
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    before = sock.meminfo(a).sndbuf
    sock.reserve(a, before + 8 * sock.PAGE)
    pressure.on(above_max=True)
    a.send(bytes(1 << 18), socket.MSG_DONTWAIT | sock.MSG_ZEROCOPY)
    assert sock.meminfo(a).sndbuf <= before
