"""The reservation is not reclaimed: whatever went through the socket, it is there again when the queues are empty."""

import socket
import time
from contextlib import suppress

import pytest

from selftests.lib import books, sock
from selftests.lib.pressure import Pressure

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZES = [64 << 10, 4 << 20]


def end(s: socket.socket, peer: socket.socket) -> None:
    """Let the peer finish: on a FIN the kernel reclaims what is not reserved."""
    peer.shutdown(socket.SHUT_WR)
    assert s.recv(1) == b""


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("size", SIZES)
def test_after_traffic(sockets: sock.Sockets, size: int) -> None:
    """After 1 MiB each way and the peer's FIN, forward_alloc has the whole reservation."""
    a, b = sockets.pair()
    sock.reserve(a, size)
    sock.transfer(a, b, 1 << 20)
    sock.transfer(b, a, 1 << 20)
    end(a, b)
    assert sock.eventually(lambda: sock.meminfo(a).wmem_queued == 0)
    assert sock.meminfo(a).fwd_alloc >= size


@option
@pytest.mark.red_on("charge-uncounted")
def test_gives_back_the_rest(sockets: sock.Sockets) -> None:
    """After 1 MiB each way and the peer's FIN, less than a page beyond the reservation is still charged."""
    size = SIZES[0]
    a, b = sockets.pair()
    sock.reserve(a, size)
    sock.transfer(a, b, 1 << 20)
    sock.transfer(b, a, 1 << 20)
    assert sock.eventually(lambda: sock.meminfo(a).wmem_queued == 0)
    end(a, b)
    assert size <= sock.meminfo(a).fwd_alloc < size + sock.PAGE


@option
@pytest.mark.red_on("reclaim-spares-a-page")
def test_gives_back_one_page(sockets: sock.Sockets) -> None:
    """A reservation of a single page is given back like any other."""
    s = sockets.open()
    sock.reserve(s, sock.PAGE)
    sock.reserve(s, 0)
    assert sock.meminfo(s).fwd_alloc == 0


@option
@pytest.mark.red_on("reclaims-what-is-in-use")
def test_decrease_takes_nothing_in_use(sockets: sock.Sockets) -> None:
    """What unread data takes up is not given back by a decrease, though it is more than remains reserved."""
    a, b = sockets.pair()
    sock.reserve(b, 8192)
    assert sock.push(a, 32 << 10) == 32 << 10
    used = sock.meminfo(b).rmem_alloc
    sock.reserve(b, 4096)
    m = sock.meminfo(b)
    assert m.rmem_alloc == used > 32 << 10
    assert m.fwd_alloc >= 0


@option
@pytest.mark.red_on("uncharge-eats-reservation")
def test_uncharge_above_two_mib(sockets: sock.Sockets) -> None:
    """The reclaim of 1 MiB that begins at 2 MiB of forward_alloc spares a reservation of 4 MiB."""
    a, b = sockets.pair()
    sock.reserve(a, 4 << 20)
    sock.transfer(a, b, 64 << 10, chunk=4096)
    assert sock.meminfo(a).fwd_alloc >= 4 << 20


@option
@pytest.mark.red_on("partial-reclaim-eats-reservation")
@pytest.mark.parametrize("size", SIZES)
def test_under_pressure(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """Under pressure, where every allocation reclaims first, the reservation stays."""
    a, b = sockets.pair()
    sock.reserve(a, size)
    pressure.on()
    for _ in range(8):
        sock.transfer(a, b, 8192, chunk=1448)
        sock.transfer(b, a, 8192, chunk=1448)
        assert sock.spare(a) >= size
    time.sleep(1)  # the delayed ACK's timer reclaims too
    assert sock.meminfo(a).fwd_alloc >= size


@option
@pytest.mark.red_on("reclaim-eats-reservation", "reclaim-uncounted")
def test_after_eagain(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A sender that ran into EAGAIN under pressure has its whole reservation again once it has drained."""
    size = 1 << 20
    a, b = sockets.pair()
    sock.reserve(a, size)
    pressure.on()
    sent = sock.push(a)
    assert sock.spare(a) >= size
    while sent:
        sent -= sock.drain(b)
        time.sleep(0.01)
    end(a, b)
    assert sock.meminfo(a).wmem_queued == 0
    assert sock.meminfo(a).fwd_alloc >= size


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.known_issue("zerocopy-eats-reservation", symptom=r"assert \d+ >= 1048576")
def test_after_zerocopy(sockets: sock.Sockets) -> None:
    """MSG_ZEROCOPY sends give back what they took (released kernels lose it for good)."""
    size, chunk = 1 << 20, bytes(64 << 10)
    a, b = sockets.pair()
    a.setsockopt(socket.SOL_SOCKET, sock.SO_ZEROCOPY, 1)
    sock.reserve(a, size)
    for _ in range(16):
        a.send(chunk, sock.MSG_ZEROCOPY)
        sock.drain(b)
    end(a, b)
    assert sock.eventually(lambda: sock.meminfo(a).wmem_queued == 0)
    assert sock.meminfo(a).fwd_alloc >= size


@option
@pytest.mark.red_on("errqueue-eats-reservation", "reclaim-eats-reservation", "reclaims-a-page-too-much")
@pytest.mark.known_issue("errqueue-eats-reservation", symptom=r"assert \d+ >= 65536")
def test_after_timestamps(sockets: sock.Sockets) -> None:
    """Unread transmit timestamps, which count in rmem_alloc but are not charged, do not cost reserved memory."""
    size = 64 << 10
    a, b = sockets.pair()
    a.setsockopt(socket.SOL_SOCKET, sock.SO_TIMESTAMPING, sock.TX_SOFTWARE_TIMESTAMPS)
    sock.reserve(a, size)
    for _ in range(100):
        sock.transfer(a, b, 100)
    assert sock.meminfo(a).rmem_alloc > 0, "no timestamp came"
    end(a, b)
    with suppress(BlockingIOError):
        while True:
            a.recvmsg(1, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    assert sock.meminfo(a).rmem_alloc == 0
    assert sock.meminfo(a).fwd_alloc >= size


@option
@pytest.mark.red_on("no-forward-alloc")
def test_receives_above_tcp_mem_max(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Above tcp_mem[2] both ends go on with what they have reserved, and nothing is dropped."""
    a, b = sockets.pair()
    for s in (a, b):
        sock.reserve(s, 256 << 10)
    pressure.on(above_max=True)
    start = time.monotonic()
    sock.transfer(a, b, 256 << 10, chunk=4096)
    assert time.monotonic() - start < 0.2, "took a retransmission timeout"


@option
@pytest.mark.red_on("child-inherits-charged")
def test_child_of_a_listener_that_reserved(sockets: sock.Sockets) -> None:
    """What a listener is charged for is not taken for its children's: they keep what they have reserved."""
    size = SIZES[0]
    listener = sockets.listener()
    sock.reserve(listener, SIZES[1])
    client, child = sockets.connect(listener)
    sock.reserve(child, size)
    sock.transfer(client, child, 1 << 20)
    end(child, client)
    assert sock.meminfo(child).fwd_alloc >= size


@option
@pytest.mark.red_on("refused-charge-counted")
def test_after_refused_charges(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Charges that were refused above tcp_mem[2] are not taken for charges: the reservation is whole afterwards."""
    size = 8192
    a, b = sockets.pair()
    sock.reserve(a, size)
    pressure.on(above_max=True)
    for _ in range(8):
        sock.push(a, size)
        assert sock.eventually(lambda: sock.drain(b) < 0 or sock.meminfo(a).wmem_queued == 0, 300)
    pressure.off()
    end(a, b)
    assert sock.meminfo(a).fwd_alloc >= size


@option
@pytest.mark.red_on("uncharge-past-two-mib", "uncharge-keeps-all")
def test_two_mib_beyond_the_reservation(sockets: sock.Sockets) -> None:
    """What a socket holds beyond its reservation is less than 2 MiB, also if exactly that much had been charged."""
    size, unread = sock.PAGE, 6 << 20
    for _ in range(3):
        a, b = sockets.pair(rcvbuf=4 * unread)
        sock.reserve(b, size)
        assert sock.push(a, unread) == unread
        charged = sock.spare(b)
        while sock.meminfo(b).rmem_alloc:
            sock.drain(b)
        left = sock.meminfo(b).fwd_alloc - size
        assert 0 <= left < 2 << 20, f"{left} bytes beyond the {size} reserved, {charged} were charged"
        size = charged - (2 << 20)  # the same data again is 2 MiB to the page beyond this


@option
@pytest.mark.red_on("partial-reclaim-takes-all")
def test_partial_reclaim_leaves_a_page(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Under pressure an allocation leaves one page beyond the reservation (5.10 sk_mem_reclaim_partial())."""
    if books.batched():
        pytest.skip("since 6.0 there is no partial reclaim (mainline 4890b686f408)")
    size = 8192
    a, b = sockets.pair()
    sock.reserve(a, size)
    pressure.on()
    sock.transfer(a, b, 8 * size)
    assert sock.meminfo(a).fwd_alloc > size + sock.PAGE
    a.send(b"x")
    assert sock.spare(a) == size + sock.PAGE
