"""How window and sndbuf move under pressure, with and without a reservation, drawn over time."""

import socket
import time
from collections.abc import Callable, Sequence

import pytest

from selftests.lib import flow, link, sock
from selftests.lib.pressure import Pressure

pytestmark = pytest.mark.virtual_time
Curve = Callable[[str, Sequence[tuple[float, float]], str], None]
Look = Callable[[socket.socket], dict[str, float]]

SECONDS = 3
STEP = 0.02  # between two points: five a round trip


def watched(ends: tuple[socket.socket, socket.socket], look: Look) -> dict[str, list[tuple[float, float]]]:
    """What look() sees of the sender, by name, over the seconds since the receiver began to read."""
    sender, receiver = ends
    seen: dict[str, list[tuple[float, float]]] = {}
    start = time.monotonic()

    def note() -> None:
        now = time.monotonic() - start
        for name, value in look(sender).items():
            points = seen.setdefault(name, [])
            if not points or now >= points[-1][0] + STEP:
                points.append((now, value))

    flow.fill(sender, receiver, SECONDS, note)
    return seen


@pytest.mark.introduced_by("so-reserve-mem", "rcv_ssthresh")
@pytest.mark.red_on("drop-grow-window")
def test_window(sockets: sock.Sockets, pressure: Pressure, curve: Curve) -> None:
    """The window of a receiver that fell behind opens again as far as its reservation affords, else stays at 4 MSS."""
    link.delay(50)
    flows = {size: sockets.pair() for size in (0, 100_000)}
    sock.reserve(flows[100_000][1], 100_000)
    pressure.on()
    last = {}
    for size, ends in flows.items():
        sock.fill(ends[0], pause=0.3)
        points = watched(ends, lambda s: {"window": sock.snd_wnd(s)})["window"]
        curve(f"window, {size} reserved", points, "B")
        last[size] = points[-1][1]
    assert last[0] < 5 * sock.MSS  # four, rounded up to what the window scale can say
    assert last[100_000] >= 40_000


@pytest.mark.introduced_by("so-reserve-mem", "sndbuf")
@pytest.mark.red_on("drop-sndbuf-raise")
def test_sndbuf(sockets: sock.Sockets, pressure: Pressure, curve: Curve) -> None:
    """sndbuf stays where the pressure found it, and what is queued below it; with a reservation both go on growing."""
    link.delay(50)
    flows = {size: sockets.pair() for size in (0, 1 << 20)}
    for size, (sender, receiver) in flows.items():
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for end in (sender, receiver) if size else ():
            sock.reserve(end, size)  # at the receiver too, or its window would be the limit
    pressure.on()
    highest = {}
    for size, ends in flows.items():
        seen = watched(ends, lambda s: {"sndbuf": sock.meminfo(s).sndbuf, "wmem_queued": sock.meminfo(s).wmem_queued})
        for name, points in seen.items():
            curve(f"{name}, {size} reserved", points, "B")
        highest[size] = max(value for _, value in seen["sndbuf"])
    assert highest[0] < 128 << 10
    assert highest[1 << 20] > 512 << 10
