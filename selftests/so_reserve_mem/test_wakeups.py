"""Under pressure a writer that has used up its reservation waits, and is woken when the peer has read."""

import socket
import threading
import time
from contextlib import ExitStack

import pytest

from selftests.lib import sock, writer
from selftests.lib.pressure import Pressure

pytestmark = [
    pytest.mark.virtual_time,  # what has begun to wait within 0.1 s does so on any machine
    pytest.mark.introduced_by("so-reserve-mem", "option"),
    pytest.mark.parametrize("above_max", [False, True], ids=["above-pressure", "above-max"]),
    pytest.mark.red_on("raise-without-wakeup"),
]
RESERVED = 100_000
SECONDS = 30.0  # virtual


def connected(sockets: sock.Sockets) -> tuple[socket.socket, socket.socket]:
    """A writer with little reserved and a reader with much, since above tcp_mem[2] nothing else arrives."""
    a, b = sockets.pair()
    sock.reserve(a, RESERVED)
    sock.reserve(b, 1 << 20)
    return a, b


def tell_when(ready: writer.Wait, returned: list[float]) -> None:
    """Wait, and keep the time at which that ended with a yes."""
    if ready(2 * SECONDS):
        returned.append(time.monotonic())


@pytest.mark.parametrize("way", [way for way in writer.WAYS if way != "blocking"])
def test_waiting_writer(sockets: sock.Sockets, pressure: Pressure, defer: ExitStack, way: str, above_max: bool) -> None:
    """A writer that was told EAGAIN under pressure is told once it can write, and then it can."""
    a, b = connected(sockets)
    pressure.on(above_max)
    ready = writer.waiting(defer, a, way)
    assert ready(0), "not writable with nothing queued"
    for _ in range(3):
        sock.fill(a)
        assert not ready(0), "writable right after EAGAIN"
        # poll() and select() look again when the time is over: what tells a wake-up is when they return.
        returned: list[float] = []
        thread = threading.Thread(target=tell_when, args=(ready, returned))
        thread.start()
        time.sleep(0.1)  # now it waits
        assert sock.drain(b)
        read = time.monotonic()
        thread.join()
        assert returned and returned[0] < read + SECONDS, f"not woken in {SECONDS:.0f} s although the peer has read"
        assert sock.push(a), "woken, but EAGAIN again"


def test_blocking_writer(sockets: sock.Sockets, pressure: Pressure, above_max: bool) -> None:
    """A send() that blocks under pressure goes on whenever the peer has read, to the last byte."""
    a, b = connected(sockets)
    pressure.on(above_max)
    size, left = 1 << 20, 1 << 20
    a.settimeout(SECONDS)
    b.settimeout(SECONDS)
    thread = threading.Thread(target=a.sendall, args=(bytes(size),))
    thread.start()
    while left:
        time.sleep(0.1)  # now it is blocked
        left -= len(b.recv(left))
    thread.join()
