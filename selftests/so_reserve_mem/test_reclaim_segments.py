"""The reservation is not reclaimed by what only single segments bring about: gaps, pruning, reneging, zero windows."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from selftests.lib import rawpeer, sock
from selftests.lib.pressure import Pressure, snmp
from selftests.lib.rawpeer import SEGMENT, Peer

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZE = 256 << 10
Scenario = Callable[[Peer], None]


def filled_gap(peer: Peer) -> None:
    """The first segment comes last."""
    for n in [*range(1, 20), 0]:
        peer.send(n * SEGMENT, bytes(SEGMENT))
    peer.sent = 20 * SEGMENT


def backwards(peer: Peer) -> None:
    """Every segment comes before the one that it follows."""
    for n in reversed(range(20)):
        peer.send(n * SEGMENT, bytes(SEGMENT))
    peer.sent = 20 * SEGMENT


def overlapping(peer: Peer) -> None:
    """Segments that repeat half of what was there, in and out of order."""
    half = SEGMENT // 2
    for n in (0, 1, 2, 6, 5, 4, 6, 3, 2, 0):
        peer.send(n * half, bytes(SEGMENT))
    peer.sent = 8 * half


def one_byte_gaps(peer: Peer) -> None:
    """Many segments of one byte out of order, which are joined into few."""
    for n in [*range(2, 60, 2), *range(1, 60, 2), 0]:
        peer.send(n, b"x")
    peer.sent = 60


def outside_the_window(peer: Peer) -> None:
    """Data far beyond the window, which is dropped."""
    for n in range(10):
        peer.send((1 << 28) + n * SEGMENT, bytes(SEGMENT))


def unacknowledged(peer: Peer) -> None:
    """Nothing is acknowledged for 5 s, so that the timer retransmits."""
    assert peer.kernel.send(bytes(20_000), socket.MSG_DONTWAIT)
    time.sleep(5)
    assert sock_retransmits(peer.kernel) > 0
    receive_all(peer)


def partly_acknowledged(peer: Peer) -> None:
    """Acknowledgements that end in the middle of a packet."""
    peer.kernel.send(bytes(8000), socket.MSG_DONTWAIT)
    for upto in (1, 700, 1447, 1449, 3000):
        peer.ack(upto)
        time.sleep(1)
    receive_all(peer)


def selectively_acknowledged(peer: Peer) -> None:
    """SACK blocks that split and join packets of the retransmit queue."""
    peer.kernel.send(bytes(12_000), socket.MSG_DONTWAIT)
    for begin in (7000, 5100, 3000, 1500):
        peer.sack(begin, begin + 900)
    time.sleep(1)
    receive_all(peer)


def reneged(peer: Peer) -> None:
    """All but the head is selectively acknowledged, and then not acknowledged after all."""
    sent = peer.kernel.send(bytes(12_000), socket.MSG_DONTWAIT)
    peer.sack(1460, sent)
    peer.ack(1460)
    time.sleep(3)
    receive_all(peer)


def zero_window(peer: Peer) -> None:
    """The peer closes its window for a while; the kernel probes it."""
    window, peer.window = peer.window, 0
    peer.ack(0)
    sock.push(peer.kernel)
    time.sleep(5)
    peer.window = window
    receive_all(peer)


def small_window(peer: Peer) -> None:
    """The peer takes half a segment at a time."""
    peer.window = 700
    peer.ack(0)
    peer.kernel.send(bytes(6000), socket.MSG_DONTWAIT)
    receive_all(peer)
    peer.window = 65535


ALL: tuple[Scenario, ...] = (
    filled_gap, backwards, overlapping, one_byte_gaps, outside_the_window, unacknowledged, partly_acknowledged,
    selectively_acknowledged, reneged, zero_window, small_window,
)  # fmt: skip
every_scenario = pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.__name__)


def receive_all(peer: Peer) -> None:
    """Acknowledge until the kernel's send queue is empty."""

    def received() -> bool:
        peer.receive()
        return sock.meminfo(peer.kernel).wmem_queued == 0

    assert sock.eventually(received, 200), f"not sent: {sock.meminfo(peer.kernel)}"


def sock_retransmits(s: socket.socket) -> int:
    """tcpi_total_retrans."""
    return int.from_bytes(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[100:104], "little")


def assert_whole(peer: Peer) -> None:
    """Read all, let the peer finish (a FIN makes the kernel reclaim), and see the reservation."""
    sock.drain(peer.kernel)
    peer.send(peer.sent, b"", rawpeer.ACK | rawpeer.FIN)
    assert finished(peer.kernel), "the FIN was not accepted"
    m = sock.meminfo(peer.kernel)
    assert m.rmem_alloc == 0 == m.wmem_queued
    assert m.fwd_alloc >= SIZE, f"FWD_ALLOC is {m.fwd_alloc}, {SIZE - m.fwd_alloc} less than the {SIZE} bytes reserved"
    assert sock.reserved(peer.kernel) == SIZE


def finished(s: socket.socket) -> bool:
    """Whether the next read returns the end of the stream."""
    try:
        return s.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@every_scenario
def test_without_pressure(sockets: sock.Sockets, defer: ExitStack, scenario: Scenario) -> None:
    """However the segments come, the reservation is whole once the queues are empty."""
    peer = Peer(defer, sockets)
    sock.reserve(peer.kernel, SIZE)
    scenario(peer)
    assert_whole(peer)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@every_scenario
@pytest.mark.parametrize("above_max", [False, True], ids=["pressure", "above_max"])
def test_under_pressure(
    sockets: sock.Sockets, defer: ExitStack, pressure: Pressure, scenario: Scenario, above_max: bool
) -> None:
    """Under pressure too, however the segments come, the reservation is whole once the queues are empty."""
    peer = Peer(defer, sockets)
    sock.reserve(peer.kernel, SIZE)
    pressure.on(above_max)
    scenario(peer)
    assert_whole(peer)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("ordered", [True, False], ids=["receive_queue", "out_of_order"])
@pytest.mark.parametrize("size", [100, 500, SEGMENT])
def test_pruned(sockets: sock.Sockets, defer: ExitStack, ordered: bool, size: int) -> None:
    """What the kernel collapses or prunes because rcvbuf is full is given back to the reservation."""
    peer = Peer(defer, sockets)
    sock.reserve(peer.kernel, SIZE)
    peer.kernel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the window has been announced already
    peer.send(60_000, b"x")  # a gap keeps what follows off the fast path, which does not look at rcvbuf
    called = snmp("TcpExt", "PruneCalled")
    for n in range(40):
        peer.send(n * (size + 1 - ordered) + 1 - ordered, bytes(size))
    assert snmp("TcpExt", "PruneCalled") > called, "nothing was pruned"
    m = sock.meminfo(peer.kernel)
    assert m.fwd_alloc + m.rmem_alloc >= SIZE, f"{m}: less than the {SIZE} bytes reserved"
    peer.send(0, b"", rawpeer.RST | rawpeer.ACK)
    sock.disconnect(peer.kernel)  # empties the queues
    assert sock.meminfo(peer.kernel).fwd_alloc >= SIZE
    assert sock.reserved(peer.kernel) == SIZE
