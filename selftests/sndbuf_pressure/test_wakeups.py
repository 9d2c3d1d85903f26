"""No wake-up of a writer with SO_SNDBUF is lost when memory is granted again, whichever way it waits.

Without any patch that holds because poll() never waits; only an edge-triggered epoll does, and is not woken in time.
Half a minute of virtual time passes between the EAGAIN and the end of the pressure: until then each retry of the
kernel's own has been refused, and the next window probe or retransmission, whose ACK would wake anybody, is far away.
"""

import ctypes
import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest

from selftests.lib import link, sock, writer
from selftests.lib.pressure import Pressure, TcpMem
from selftests.sndbuf_pressure import ends

pytestmark = pytest.mark.virtual_time

LEVEL = tuple(way for way in writer.WAYS if way != "epoll-et")
POLLING = tuple(way for way in LEVEL if way != "blocking")
SOON = 1  # second; a blocking writer looks again within 0.2, the retry of the patches comes within 0.5
Open = Callable[[int], list[ends.Ends]]
Finish = Callable[[], None]
Send = Callable[[socket.socket], None]


@pytest.fixture
def nothing(sockets: sock.Sockets) -> Open:
    """Nothing was sent yet: no ACK will ever come."""
    return lambda count: [ends.sized(sockets.pair()) for _ in range(count)]


@pytest.fixture
def unread(sockets: sock.Sockets) -> Open:
    """The peer does not read, its window is zero and much is queued: only window probes bring ACKs."""
    return lambda count: ends.unread(sockets, count)


@pytest.fixture
def lost(sockets: sock.Sockets, veth: link.Veth) -> Open:
    """Much is in flight, and all of it is lost: no ACK comes while the retransmissions back off."""

    def opened(count: int) -> list[ends.Ends]:
        with veth.there():
            listener = sockets.listener(address=veth.theirs)
        pairs = [ends.sized(sockets.connect(listener)) for _ in range(count)]
        link.lose(100, veth.device)
        for a, _ in pairs:
            sock.push(a, 256 << 10)
        return pairs

    return opened


@pytest.fixture
def over(pressure: Pressure) -> Finish:
    """The pressure ends."""
    return pressure.off


@pytest.fixture
def ebbs(tcp_mem: TcpMem) -> Finish:
    """Less than tcp_mem[2] is allocated again, though TCP stays under pressure: what is asked for is granted."""
    return lambda: ends.ebb(tcp_mem)


def waiting(
    ways: tuple[str, ...], queue: Open, pressure: Pressure, defer: ExitStack
) -> tuple[list[writer.Writer], list[ends.Ends]]:
    """Writers, one for each way, that were refused memory above tcp_mem[2] half a minute ago and wait by now."""
    writers, pairs = refused(ways, queue, pressure, defer)
    time.sleep(30)
    for w in writers:
        w.start()
    time.sleep(0.3)
    if any(w.wrote for w in writers):
        assert int(os.uname().release.split(".")[0]) >= 6, "memory was granted above tcp_mem[2]"
        pytest.skip("kernel grants some memory above tcp_mem[2], as 6.0 and later do: nobody has to wait")
    return writers, pairs


def refused(
    ways: tuple[str, ...], queue: Open, pressure: Pressure, defer: ExitStack
) -> tuple[list[writer.Writer], list[ends.Ends]]:
    """Writers that have just been refused memory above tcp_mem[2]."""
    pairs = queue(len(ways))
    writers = [writer.Writer(defer, a, way) for (a, _), way in zip(pairs, ways, strict=True)]
    pressure.on(above_max=True)
    for w in writers:
        sock.push(w.s)
        assert sock.meminfo(w.s).wmem_queued < ends.SNDBUF, "sndbuf is full: nothing was refused"
    return writers, pairs


def late(writers: list[writer.Writer], begin: float) -> dict[str, str]:
    """Those that did not write within SOON from begin, and when they did."""
    wrote = {w.way: w.end() for w in writers}
    return {
        way: "never" if not end else "too early" if end <= begin else f"after {end - begin:.2f} s"
        for way, end in wrote.items()
        if not begin < end < begin + SOON
    }


def unacked(writers: list[writer.Writer], begin: float) -> None:
    """RuntimeError if an ACK came between begin and the wake-up of a writer: it may have been that."""
    acked = {w.way: round(w.acked - begin, 2) for w in writers}
    if max(acked.values()) >= 0:
        raise RuntimeError(f"an ACK came meanwhile: {acked}")


def woken_without_an_ack(
    ways: tuple[str, ...], queue: Open, finish: Finish, pressure: Pressure, defer: ExitStack
) -> None:
    """Assert that writers are woken when memory is granted again; RuntimeError if it may have been by an ACK."""
    writers, _ = waiting(ways, queue, pressure, defer)
    begin = time.monotonic()
    finish()
    assert late(writers, begin) == {}
    unacked(writers, begin)


@pytest.mark.red_on("no-retry-when-empty")
@pytest.mark.parametrize("end", ["over", "ebbs"])
def test_woken_with_nothing_queued(
    request: pytest.FixtureRequest, nothing: Open, pressure: Pressure, defer: ExitStack, end: str
) -> None:
    """Whoever waits to write is woken within a second when memory is granted again, though no ACK will ever come."""
    woken_without_an_ack(writer.WAYS, nothing, request.getfixturevalue(end), pressure, defer)


@pytest.mark.red_on("no-retry", "retries-once")
@pytest.mark.parametrize("end", ["over", "ebbs"])
@pytest.mark.parametrize("queue", [pytest.param("unread", marks=pytest.mark.red_on("probe-puts-off-retry")), "lost"])
def test_woken_without_an_ack(
    request: pytest.FixtureRequest, pressure: Pressure, defer: ExitStack, queue: str, end: str
) -> None:
    """Whoever waits to write, with something queued, is woken within a second when memory is granted again."""
    woken_without_an_ack(LEVEL, request.getfixturevalue(queue), request.getfixturevalue(end), pressure, defer)


@pytest.mark.introduced_by("sndbuf-pressure-v2", "effective-sndbuf")
@pytest.mark.introduced_by("sndbuf-pressure-onebit", "cut-short")
@pytest.mark.red_on("no-retry")
@pytest.mark.parametrize("end", ["over", "ebbs"])
@pytest.mark.parametrize("queue", ["unread", "lost"])
def test_edge_triggered_woken_without_an_ack(
    request: pytest.FixtureRequest, pressure: Pressure, defer: ExitStack, queue: str, end: str
) -> None:
    """Nor does an edge-triggered epoll need an ACK, with something queued."""
    woken_without_an_ack(("epoll-et",), request.getfixturevalue(queue), request.getfixturevalue(end), pressure, defer)


def nothing_sent(s: socket.socket) -> None:
    """A send of nothing, which goes through even under pressure."""
    assert s.send(b"", socket.MSG_DONTWAIT) == 0


def byte_sent(s: socket.socket) -> None:
    """A send that goes through."""
    assert s.send(b"x", socket.MSG_DONTWAIT) == 1


def faulty_sent(s: socket.socket) -> None:
    """A send of what cannot be read, which fails once memory is granted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.send(s.fileno(), ctypes.c_void_p(1), 1, socket.MSG_DONTWAIT) != -1 or ctypes.get_errno() != errno.EFAULT:
        raise RuntimeError(f"no EFAULT: {os.strerror(ctypes.get_errno())}")


@pytest.mark.parametrize(
    ("queue", "send"),
    [
        pytest.param("nothing", nothing_sent, marks=pytest.mark.red_on("send-forgets-sleepers")),
        pytest.param("nothing", faulty_sent, marks=pytest.mark.red_on("send-forgets-sleepers")),
        pytest.param("unread", nothing_sent, marks=pytest.mark.red_on("send-forgets-sleepers", "send-clears-the-bit")),
        pytest.param("unread", faulty_sent, marks=pytest.mark.red_on("send-forgets-sleepers", "send-clears-the-bit")),
        pytest.param("unread", byte_sent, marks=pytest.mark.red_on("send-forgets-sleepers", "send-clears-the-bit")),
    ],
)
def test_woken_though_another_thread_sent(
    request: pytest.FixtureRequest, pressure: Pressure, defer: ExitStack, queue: str, send: Send
) -> None:
    """Whoever polls is woken within a second of the end of pressure, whatever another thread has sent meanwhile.

    Whether that went through or failed, the thread that sleeps since an earlier write was cut short has to hear of it.
    """
    writers, _ = waiting(POLLING, request.getfixturevalue(queue), pressure, defer)
    if send is nothing_sent:
        for w in writers:
            send(w.s)
        time.sleep(0.1)
    begin = time.monotonic()
    pressure.off()
    if send is not nothing_sent:
        for w in writers:
            send(w.s)
    assert late(writers, begin) == {}
    unacked(writers, begin)


@pytest.mark.red_on("drained-in-silence")
@pytest.mark.parametrize("end", ["over", "ebbs"])
def test_woken_with_an_ack(
    request: pytest.FixtureRequest, unread: Open, pressure: Pressure, defer: ExitStack, end: str
) -> None:
    """Whoever waits to write is woken within a second when memory is granted again and the peer reads."""
    writers, pairs = waiting(writer.WAYS, unread, pressure, defer)
    begin = time.monotonic()
    request.getfixturevalue(end)()
    for _, b in pairs:
        sock.drain(b)
    assert late(writers, begin) == {}


def drained(sender: socket.socket, receiver: socket.socket) -> bool:
    """Read, and say whether nothing is queued any more."""
    sock.drain(receiver)
    return sock.meminfo(sender).wmem_queued == 0


@pytest.mark.red_on("never-drains", "drained-in-silence")
def test_woken_by_room_under_pressure(unread: Open, pressure: Pressure, defer: ExitStack) -> None:
    """Whoever polls is woken when all that was queued has drained, though memory is still refused."""
    writers, pairs = refused(writer.WAYS, unread, pressure, defer)
    for pair in pairs:
        assert sock.eventually(partial(drained, *pair), 60)
    asleep = [w.way for w in writers if w.wait and not w.wait(SOON / 10)]
    assert asleep == []
