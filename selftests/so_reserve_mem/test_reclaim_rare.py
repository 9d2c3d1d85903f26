"""The reservation is not reclaimed on paths that few connections take: zerocopy, loss, reset, repair, fast open."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

from selftests.lib import link, sock
from selftests.lib.pressure import Pressure
from selftests.so_reserve_mem import uses

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZE = 512 << 10
TCP_REPAIR, TCP_REPAIR_QUEUE = 19, 20
RECV_QUEUE, SEND_QUEUE = 1, 2
MSG_FASTOPEN = 0x20000000


def reserving(sockets: sock.Sockets) -> tuple[socket.socket, socket.socket]:
    """A connection both of whose ends have reserved."""
    ends = sockets.pair()
    for s in ends:
        sock.reserve(s, SIZE)
    return ends


def read_error_queue(s: socket.socket) -> None:
    """Throw the notifications of MSG_ZEROCOPY away."""
    with suppress(BlockingIOError):
        while True:
            s.recvmsg(1, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)


def assert_whole(*ends: socket.socket) -> None:
    """Empty the queues, let both ends finish (a FIN makes the kernel reclaim), and see the reservation of each."""

    def settled() -> bool:
        for s in ends:
            read_error_queue(s)
        return uses.settled(*ends)

    assert settled(), f"not drained: {[sock.meminfo(s) for s in ends]}"
    for s in ends:
        s.shutdown(socket.SHUT_WR)
    assert settled(), f"not drained: {[sock.meminfo(s) for s in ends]}"
    for s in ends:
        assert_has_all(s)


def assert_has_all(s: socket.socket) -> None:
    """An idle socket has its whole reservation in forward_alloc, and getsockopt() still says so."""
    free = sock.meminfo(s).fwd_alloc
    assert free >= SIZE, f"FWD_ALLOC is {free}, {SIZE - free} less than the {SIZE} bytes reserved"
    assert sock.reserved(s) == SIZE


def send_zerocopy(a: socket.socket, b: socket.socket, pattern: list[tuple[int, int]], rounds: int = 16) -> None:
    """Send (size, flags) again and again; the receiver reads, the sender reads its notifications."""
    a.setsockopt(socket.SOL_SOCKET, sock.SO_ZEROCOPY, 1)
    for _ in range(rounds):
        for size, flags in pattern:
            with suppress(BlockingIOError):
                a.send(bytes(size), flags | socket.MSG_DONTWAIT)
        sock.drain(b)
        read_error_queue(a)


ZEROCOPY = {
    "small": [(100, sock.MSG_ZEROCOPY)],
    "page_and_a_byte": [(4097, sock.MSG_ZEROCOPY)],
    "large": [(200_000, sock.MSG_ZEROCOPY)],  # only this loses more than was left over
    "zerocopy_then_plain": [(9000, sock.MSG_ZEROCOPY | uses.MSG_MORE), (9000, 0)],
    "plain_then_zerocopy": [(9000, uses.MSG_MORE), (9000, sock.MSG_ZEROCOPY)],
}
EATEN = pytest.mark.known_issue("zerocopy-eats-reservation", symptom="FWD_ALLOC is .* less than")
every_pattern = pytest.mark.parametrize(
    "pattern", [pytest.param(p, id=name, marks=EATEN if name == "large" else ()) for name, p in ZEROCOPY.items()]
)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@every_pattern
def test_zerocopy(sockets: sock.Sockets, pattern: list[tuple[int, int]]) -> None:
    """MSG_ZEROCOPY sends of any size, alone or in one packet with plain ones, give back what they took."""
    a, b = reserving(sockets)
    send_zerocopy(a, b, pattern)
    assert_whole(a, b)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@every_pattern
@pytest.mark.parametrize("above_max", [False, True], ids=["pressure", "above_max"])
def test_zerocopy_under_pressure(
    sockets: sock.Sockets, pressure: Pressure, pattern: list[tuple[int, int]], above_max: bool
) -> None:
    """Under pressure MSG_ZEROCOPY sends give back what they took."""
    a, b = reserving(sockets)
    pressure.on(above_max)
    send_zerocopy(a, b, pattern, rounds=4)
    assert_whole(a, b)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize(
    "flags", [pytest.param(0, id="plain"), pytest.param(sock.MSG_ZEROCOPY, id="zerocopy", marks=EATEN)]
)
def test_reset_by_peer(sockets: sock.Sockets, flags: int) -> None:
    """A reset that drops a full send queue leaves the reservation with the socket."""
    a, b = reserving(sockets)
    a.setsockopt(socket.SOL_SOCKET, sock.SO_ZEROCOPY, 1)
    with suppress(BlockingIOError):
        while True:
            a.send(bytes(16384), flags | socket.MSG_DONTWAIT)
    sock.abort(b)
    assert sock.eventually(lambda: sock.meminfo(a).wmem_queued == 0)
    read_error_queue(a)
    assert_has_all(a)


@option
@pytest.mark.red_on("reclaim-eats-reservation", "disconnect-gives-back")
@pytest.mark.parametrize("full", ["send", "receive"])
def test_disconnect(sockets: sock.Sockets, full: str) -> None:
    """connect(AF_UNSPEC) drops what is queued, either way, and keeps the reservation, also for the next connection."""
    a, b = reserving(sockets)
    sock.push(*((a, 1 << 62) if full == "send" else (b, 256 << 10)))
    sock.disconnect(a)
    assert_has_all(a)
    listener = sockets.listener()
    a.connect(listener.getsockname())
    c = sockets.keep(listener.accept()[0])
    sock.transfer(a, c, 1 << 20)
    sock.transfer(c, a, 1 << 20)
    c.shutdown(socket.SHUT_WR)
    assert uses.settled(a, c)
    assert_has_all(a)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("percent", [1, 5])
def test_loss(sockets: sock.Sockets, defer: ExitStack, percent: int) -> None:
    """Retransmissions and gaps in the receive queue cost no reserved memory."""
    a, b = reserving(sockets)
    try:
        link.lose(percent)
        defer.callback(link.lose, 0)  # the books are settled over the same link
    except RuntimeError as e:
        if "unknown" not in str(e):
            raise
        pytest.skip(f"kernel without netem: nothing gets lost: {e}")
    before = retransmitted(a)
    for _ in range(50):  # what netem drops is chance: until it was something of ours
        uses.full_both_ways(a, b)
        if retransmitted(a) > before:
            break
    assert retransmitted(a) > before, "nothing was lost"
    assert_whole(a, b)


def retransmitted(s: socket.socket) -> int:
    """tcpi_total_retrans."""
    return int.from_bytes(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[100:104], "little")


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("queue", [RECV_QUEUE, SEND_QUEUE], ids=["receive", "send"])
def test_repair(sockets: sock.Sockets, queue: int) -> None:
    """Data put into a queue with TCP_REPAIR is charged to the reservation and given back."""
    a, _ = reserving(sockets)
    try:
        a.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except OSError as e:
        pytest.skip(f"kernel without TCP_REPAIR: {e.strerror}")
    a.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
    for _ in range(8):
        assert a.send(bytes(5000)) == 5000
    m = sock.meminfo(a)
    assert m.fwd_alloc + m.wmem_queued + m.rmem_alloc >= SIZE
    assert max(m.wmem_queued, m.rmem_alloc) >= 40_000
    a.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
    assert sock.drain(a) == (40_000 if queue == RECV_QUEUE else 0)
    sock.disconnect(a)  # the peer knows nothing of these bytes
    assert_has_all(a)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("size", [1, 1000, 60_000])
def test_fast_open(sockets: sock.Sockets, sysctl: Callable[[str, str], None], size: int) -> None:
    """A client that reserved before MSG_FASTOPEN has it all after data that went out with the SYN."""
    sysctl("net.ipv4.tcp_fastopen", str(0x1 | 0x2 | 0x4 | 0x200))  # client, server, without a cookie
    listener = sockets.listener()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_FASTOPEN, 16)
    a = sockets.open()
    sock.reserve(a, SIZE)
    a.sendto(bytes(size), MSG_FASTOPEN, listener.getsockname())
    b = sockets.keep(listener.accept()[0])
    assert uses.settled(a, b)
    b.shutdown(socket.SHUT_WR)
    assert uses.settled(a, b)
    assert_has_all(a)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("seconds", [1, 70])
def test_idle(sockets: sock.Sockets, pressure: Pressure, seconds: int) -> None:
    """Timers that fire on an idle connection under pressure (delayed ACK, keepalive) leave the reservation alone."""
    a, b = reserving(sockets)
    for s in (a, b):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option_name, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5)):
            s.setsockopt(socket.IPPROTO_TCP, option_name, value)
    pressure.on()
    sock.transfer(a, b, 1448)
    sock.transfer(b, a, 20_000)
    time.sleep(seconds)
    for s in (a, b):
        assert_has_all(s)
