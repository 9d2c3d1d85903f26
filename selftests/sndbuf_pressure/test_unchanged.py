"""What a writer sees without pressure, without SO_SNDBUF, or once a short write is history: poll() goes by sndbuf."""

import select
import socket

import pytest

from selftests.lib import sock
from selftests.lib.pressure import Pressure, TcpMem
from selftests.sndbuf_pressure.ends import SNDBUF, sized


def writable(s: socket.socket, milliseconds: int = 0) -> bool:
    """What poll() says about writing."""
    poll = select.poll()
    poll.register(s, select.POLLOUT)
    return bool(poll.poll(milliseconds))


@pytest.mark.red_on("full-is-writable")
def test_a_third_of_sndbuf(sockets: sock.Sockets) -> None:
    """Without pressure a writer with SO_SNDBUF is writable when a third of sndbuf is free, and not before."""
    a, b = sized(sockets.pair())
    sock.push(a)
    seen = set()
    while (queued := sock.meminfo(a).wmem_queued) > 0:
        free = queued <= 2 * (sock.meminfo(a).sndbuf - queued)
        assert writable(a) == free, f"{queued} queued, sndbuf {sock.meminfo(a).sndbuf}"
        seen.add(free)
        assert sock.eventually(lambda: len(b.recv(4096, socket.MSG_DONTWAIT)) > 0)
    assert seen == {True, False}


@pytest.mark.red_on("full-is-short")
def test_raised_sndbuf_makes_room(sockets: sock.Sockets) -> None:
    """Without pressure who has filled sndbuf is writable as soon as SO_SNDBUF is raised."""
    a, _ = sized(sockets.pair())
    sock.push(a)
    assert not writable(a)
    a.setsockopt(socket.SOL_SOCKET, sock.SO_SNDBUFFORCE, 4 * SNDBUF)
    assert writable(a)


@pytest.mark.red_on("ignores-lock")
def test_without_so_sndbuf(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Without SO_SNDBUF, who is refused memory with nothing queued is writable: sndbuf alone counts."""
    sizes = range(1000, 5000, 500)
    pairs = [sockets.pair() for _ in sizes]
    pressure.on(above_max=True)
    refused = [a for (a, _), size in zip(pairs, sizes, strict=True) if not sock.push(a, size)]
    assert all(writable(a) for a in refused)
    if refused:
        return
    pytest.skip("grants the first page above tcp_mem[2], as 6.0 and later do")


@pytest.mark.red_on("kept-over-send")
def test_a_whole_write_is_the_last_word(sockets: sock.Sockets, pressure: Pressure, tcp_mem: TcpMem) -> None:
    """Once a write has gone through, an earlier one that pressure cut short does not count any more."""
    a, _ = sized(sockets.pair(rcvbuf=16 << 10))
    pressure.on(above_max=True)
    sock.push(a)
    tcp_mem.restore()
    assert sock.push(a, 256 << 10) == 256 << 10
    assert writable(a)


@pytest.mark.red_on("kept-over-disconnect")
def test_forgotten_by_disconnect(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A connection does not inherit the short write of the one that its socket had before."""
    a, _ = sized(sockets.pair())
    listener = sockets.listener()
    pressure.on(above_max=True)
    sock.push(a)
    sock.disconnect(a)
    pressure.off()
    a.connect(listener.getsockname())
    assert writable(a, 100)
