"""Patch 2 at its edges: what the queues take up is not unused, and a refused charge only ever shrinks sndbuf."""

import socket
from collections.abc import Callable

import pytest

from selftests.lib import link, sock
from selftests.lib.pressure import Pressure
from selftests.so_reserve_mem.test_sndbuf import push_and_drain

SIZE, SMALL = 256 << 10, 20_000
AT_ONCE = socket.MSG_DONTWAIT | sock.MSG_ZEROCOPY  # a copy is charged by the page fragments that it happens to fill
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def unacknowledged(sockets: sock.Sockets, sysctl: Callable[[str, str], None], veth: link.Veth) -> Ends:
    """A sender that gets no ACK for a minute, with a sndbuf of SMALL, and its peer."""
    sysctl("net.ipv4.tcp_wmem", f"4096 16384 {SMALL}")
    with veth.there():
        listener = sockets.listener(address=veth.theirs)
    a, b = sockets.connect(listener)
    a.setsockopt(socket.SOL_SOCKET, sock.SO_ZEROCOPY, 1)
    link.delay(60_000, veth.device)
    return a, b


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
def test_refused_charge_counts_the_queue(unacknowledged: Ends, pressure: Pressure, size: int) -> None:
    """A charge that is refused above tcp_mem[2] leaves less than the reservation for sndbuf: a part is queued."""
    a, _ = unacknowledged
    sock.reserve(a, size)
    pressure.on(above_max=True)
    a.send(bytes(24 << 10), AT_ONCE)
    assert sock.meminfo(a).sndbuf <= size - 512  # an empty packet takes 768


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("grant-of-all")
def test_queues_what_is_charged(unacknowledged: Ends, pressure: Pressure) -> None:
    """Above tcp_mem[2] nothing is queued that is not charged: what is granted is what is left of the reservation."""
    a, _ = unacknowledged
    sock.reserve(a, 8192)
    pressure.on(above_max=True)
    sent = a.send(bytes(12 << 10), AT_ONCE)
    m = sock.meminfo(a)
    assert 0 < sent <= m.wmem_queued <= sock.spare(a)
    assert m.fwd_alloc >= 0


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("refused-charge-raises")
def test_refused_charge_does_not_raise(unacknowledged: Ends, pressure: Pressure) -> None:
    """A charge that is refused above tcp_mem[2] does not make sndbuf larger than it was, whatever is reserved."""
    a, _ = unacknowledged
    before = sock.meminfo(a).sndbuf
    assert before == SMALL
    sock.reserve(a, before + 2 * sock.PAGE)
    pressure.on(above_max=True)
    a.send(bytes(32 << 10), AT_ONCE)
    assert sock.meminfo(a).sndbuf <= before
