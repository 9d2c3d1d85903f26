"""Patch 2 at its edges: what the queues take up is not unused, and a refused charge only ever shrinks sndbuf."""

import socket
from collections.abc import Callable

import pytest

from selftests.lib import books, link, sock
from selftests.lib.pressure import Pressure
from selftests.so_reserve_mem.test_sndbuf import push_and_drain

SIZE = 256 << 10
AT_ONCE = socket.MSG_DONTWAIT | sock.MSG_ZEROCOPY  # a copy is charged by the page fragments that it happens to fill
Squeezed = Callable[[int, int], socket.socket]


@pytest.fixture
def squeezed(
    sockets: sock.Sockets, sysctl: Callable[[str, str], None], veth: link.Veth, pressure: Pressure
) -> Squeezed:
    """squeezed(sndbuf, reserved): a sender above tcp_mem[2] that gets no ACK for a minute, which would raise sndbuf."""

    def sender(sndbuf: int, reserved: int) -> socket.socket:
        sysctl("net.ipv4.tcp_wmem", f"4096 4608 {sndbuf}")
        with veth.there():
            listener = sockets.listener(address=veth.theirs)
        a, _ = sockets.connect(listener)
        a.setsockopt(socket.SOL_SOCKET, sock.SO_ZEROCOPY, 1)
        sock.reserve(a, reserved)
        link.delay(60_000, veth.device)
        pressure.on(above_max=True)
        return a

    return sender


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
def test_refused_charge_counts_the_queue(squeezed: Squeezed) -> None:
    """A charge that is refused above tcp_mem[2] leaves less than the reservation for sndbuf: a part is queued."""
    if books.batched():
        pytest.skip("seen on 6.1: sndbuf stays; since 6.0 tcp_wmem[0] is granted to all (mainline 849b425cd091)")
    a = squeezed(20_000, 8192)
    a.send(bytes(32 << 10), AT_ONCE)
    assert sock.meminfo(a).sndbuf <= 8192 - 512  # an empty packet takes 768


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("refused-charge-raises")
def test_refused_charge_does_not_raise(squeezed: Squeezed) -> None:
    """A charge that is refused above tcp_mem[2] does not make sndbuf larger than it was, whatever is reserved."""
    a = squeezed(5000, 24 << 10)
    assert sock.meminfo(a).sndbuf == 5000
    a.send(bytes(32 << 10), AT_ONCE)
    assert sock.meminfo(a).sndbuf <= 5000


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("grant-of-all")
def test_queues_what_is_charged(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Above tcp_mem[2] what is granted is what is left of the reservation, not all that was asked for."""
    if books.batched():
        pytest.skip("since 6.0 tcp_wmem[0] is granted to everybody (mainline 849b425cd091)")
    asked = sock.PAGE - 512  # with an empty packet more than a page, and less than the smallest sndbuf
    a, _ = sockets.pair()
    sock.reserve(a, 2 * sock.PAGE)
    sock.reserve(a, sock.PAGE)  # which gives back what the handshake has left
    pressure.on(above_max=True)
    assert 0 < a.send(bytes(asked), socket.MSG_DONTWAIT) < asked
