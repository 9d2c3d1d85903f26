"""The cover letter's throughput as a sweep, beside what the buffers afford: size, side, round trip, zone, beginning.

What a connection moves in a round trip is the smaller of two things: the window that its receiver offers, and what its
sender may queue. Under pressure both are frozen where the pressure found them; a reservation lifts the one at its own
side (patch 2 the queue, patch 3 the window).
"""

import os
import socket
from collections.abc import Callable, Sequence

import pytest

from selftests.lib import flow, link, sock
from selftests.lib.pressure import Pressure

RTTS = pytest.mark.parametrize("rtt", [10, 50, 100, 200])
pytestmark = [pytest.mark.virtual_time, pytest.mark.sweep, pytest.mark.timeout(600), RTTS]
Figure = Callable[[str, float, str], None]
Curve = Callable[[str, Sequence[tuple[float, float]], str], None]

SIZES = (0, 16 << 10, 64 << 10, 100_000, 256 << 10, 1 << 20)  # bytes reserved
SIDES = ("rx", "tx", "both")
ROUND_TRIPS = 40
BOUND = 0.05  # of the model
# A receiver that fell behind acknowledges late (40 ms): that outlasts a short round trip, and moves the figure.
BOUND_BEHIND = {10: 0.35, 50: 0.10, 100: 0.05, 200: 0.05}
FRESH, BEHIND = 45, 4  # segments of window: the initial one, and what is left to a receiver that fell behind
SNDBUF, QUEUE = 46080, 34  # bytes of an initial sndbuf (Debian's kernels: more), and the segments that it holds
SEGMENT_TRUESIZE = 2304  # bytes that a queued segment takes of the receiver's reservation


# Mainline's version of the patches affords less of the same bytes (both sides reserved: sndbuf falls to what is unused
# of them) or more (the window, since 6.6, by what the data really take): on those kernels this share at least.
MERGED, AFFORDS = (5, 16), 0.75


def model(rtt: int, rx: int, tx: int, stalled: bool) -> float:
    """kbit/s that a connection makes under pressure over rtt milliseconds, by the bytes reserved at each side.

    The window is half of what is unused when a segment has come. sndbuf is what is unused when a third of it is free.
    """
    window = max(BEHIND if stalled else FRESH, (rx - SEGMENT_TRUESIZE) // 2 // sock.MSS)
    sndbuf = max(SNDBUF, tx - 2 * SNDBUF // 3)
    return 8 * min(window, QUEUE * sndbuf // SNDBUF) * sock.MSS / rtt


def bound(rtt: int, stalled: bool) -> float:
    """How far goodput may be from the model, as a share of it."""
    return BOUND_BEHIND[rtt] if stalled else BOUND


def hold(rates: dict[int, float], afforded: dict[int, float], off: float) -> None:
    """Assert that each size makes what it affords within that share, or on kernels with the feature enough of it."""
    merged = tuple(map(int, os.uname().release.split(".")[:2])) >= MERGED
    for size, wanted in afforded.items():
        rate = rates[size]
        good = rate >= AFFORDS * wanted if merged else abs(rate - wanted) <= off * wanted
        assert good, f"{size} reserved: {rate:.0f} kbit/s where {wanted:.0f} are afforded"


def ends_of(side: str, size: int) -> tuple[int, int]:
    """Bytes reserved at the receiver and at the sender."""
    return size * (side != "tx"), size * (side != "rx")


def opened(sockets: sock.Sockets, rx: int, tx: int) -> tuple[socket.socket, socket.socket]:
    """Sender and receiver with so many bytes reserved, if any."""
    a, b = sockets.pair()
    for end, size in ((a, tx), (b, rx)):
        if size:
            sock.reserve(end, size)
    return a, b


def goodput(ends: tuple[socket.socket, socket.socket], rtt: int, stalled: bool) -> float:
    """Steady goodput in kbit/s; stalled: after nobody has read until the sender had to stop. The flow is over then."""
    trip = rtt / 1000
    if stalled:
        sock.fill(ends[0], pause=0.1 + 2 * trip)
    rate = flow.filling(*ends, warm_up=ROUND_TRIPS // 2 * trip, seconds=ROUND_TRIPS * trip)
    for end in ends:
        sock.abort(end)
    return rate


def of_patch(side: str, stalled: bool, patch: str, fault: str) -> object:
    """A row of parameters, the patch from which on the model holds for it, and the break that shows."""
    marks = [pytest.mark.introduced_by("so-reserve-mem", patch), pytest.mark.red_on(fault)]
    if not stalled:
        marks.append(pytest.mark.known_issue("clamps-unreserved", symptom=r"\b0 reserved: "))
    return pytest.param(side, stalled, marks=marks, id=f"{side}-{'stalled' if stalled else 'fresh'}")


@pytest.mark.parametrize(
    ("side", "stalled"),
    [
        of_patch("rx", False, "option", "grow-window-clamps"),
        of_patch("tx", False, "sndbuf", "drop-sndbuf-raise"),
        of_patch("both", False, "rcv_ssthresh", "drop-grow-window"),
        of_patch("rx", True, "rcv_ssthresh", "drop-grow-window"),
        of_patch("both", True, "rcv_ssthresh", "drop-grow-window"),
    ],
)
def test_under_pressure(
    sockets: sock.Sockets, pressure: Pressure, figure: Figure, curve: Curve, rtt: int, side: str, stalled: bool
) -> None:
    """Between tcp_mem[1] and [2] goodput is what the reserved memory affords, within a bound (cover letter)."""
    link.delay(rtt // 2)
    flows = {size: opened(sockets, *ends_of(side, size)) for size in SIZES}
    pressure.on()
    rates = {size: goodput(ends, rtt, stalled) for size, ends in flows.items()}
    afforded = {size: model(rtt, *ends_of(side, size), stalled) for size in SIZES}
    for size, rate in rates.items():
        figure(f"{size}", rate, "kbit/s")
    curve("goodput", list(rates.items()), "kbit/s")
    curve("model", list(afforded.items()), "kbit/s")
    hold(rates, afforded, bound(rtt, stalled))


@pytest.mark.introduced_by("so-reserve-mem", "rcv_ssthresh")
@pytest.mark.red_on("drop-grow-window")
@pytest.mark.parametrize("stalled", [False, True], ids=["fresh", "stalled"])
def test_above_max(sockets: sock.Sockets, pressure: Pressure, figure: Figure, rtt: int, stalled: bool) -> None:
    """Above tcp_mem[2] the same holds for who has reserved 256 KiB or more at both ends; what others get is luck."""
    link.delay(rtt // 2)
    flows = {(side, size): opened(sockets, *ends_of(side, size)) for side in SIDES for size in SIZES}
    pressure.on(above_max=True)
    rates = {at: goodput(ends, rtt, stalled) for at, ends in flows.items()}
    for (side, size), rate in rates.items():
        figure(f"{side} {size}", rate, "kbit/s")
    enough = {size: model(rtt, size, size, stalled) for size in SIZES if size >= 256 << 10}
    hold({size: rates["both", size] for size in enough}, enough, bound(rtt, stalled))


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.parametrize("stalled", [False, True], ids=["fresh", "stalled"])
@pytest.mark.parametrize(
    "side",
    [
        pytest.param("rx", marks=pytest.mark.red_on("window-only-reserved")),
        pytest.param("tx", marks=pytest.mark.red_on("sndbuf-only-reserved")),
        pytest.param("both", marks=pytest.mark.red_on("window-only-reserved", "sndbuf-only-reserved")),
    ],
)
def test_without_pressure(
    sockets: sock.Sockets, sysctl: Callable[[str, str], None], figure: Figure, rtt: int, side: str, stalled: bool
) -> None:
    """Without pressure a reservation changes nothing: buffers grow far beyond it, as they do without."""
    for name in ("rmem", "wmem"):
        sysctl(f"net.ipv4.tcp_{name}", f"4096 65536 {1 << 20}")  # or else most of the time goes into moving data
    link.delay(rtt // 2)
    sizes = (0, 100_000)
    rates = [goodput(opened(sockets, *ends_of(side, size)), rtt, stalled) for size in sizes]
    for size, rate in zip(sizes, rates, strict=True):
        figure(f"{size}", rate, "kbit/s")
    assert rates[1] == pytest.approx(rates[0], rel=BOUND)
