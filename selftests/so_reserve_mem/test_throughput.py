"""The cover letter's flow over a 100 ms round trip under pressure, in virtual time."""

from collections.abc import Callable

import pytest

from selftests.lib import flow, link, sock
from selftests.lib.pressure import Pressure

pytestmark = pytest.mark.virtual_time
Figure = Callable[[str, float, str], None]

CLAMPED = 463  # kbit/s: four segments a round trip
LETTER = 3500  # kbit/s: what the cover letter promises, "~3.5Mbps"
FRESH = 4220  # kbit/s: the initial window, which nothing has clamped yet


def goodput(sockets: sock.Sockets, pressure: Pressure, receiver: int = 0, sender: int = 0, stall: float = 0) -> float:
    """Steady goodput in kbit/s with so many bytes reserved at each end, the reader stalled at first if wanted."""
    link.delay(50)  # before the handshake, which measures the first round trip
    a, b = sockets.pair()
    if receiver:
        sock.reserve(b, receiver)
    if sender:
        sock.reserve(a, sender)
    pressure.on()
    return flow.steady(a, b, stall)


def test_stalled(sockets: sock.Sockets, pressure: Pressure, figure: Figure) -> None:
    """Without a reservation a receiver that stalled for 5 s is held to four segments a round trip (cover letter)."""
    rate = goodput(sockets, pressure, stall=5)
    figure("goodput", rate, "kbit/s")
    assert rate == pytest.approx(CLAMPED, rel=0.03)


@pytest.mark.introduced_by("so-reserve-mem", "rcv_ssthresh")
@pytest.mark.red_on("drop-grow-window")
def test_stalled_with_reservation(sockets: sock.Sockets, pressure: Pressure, figure: Figure) -> None:
    """With 100 KB reserved at the receiver the same flow reaches the 3.5 Mbit/s of the cover letter."""
    rate = goodput(sockets, pressure, receiver=100_000, stall=5)
    figure("goodput", rate, "kbit/s")
    assert rate == pytest.approx(LETTER, rel=0.1)


def test_fresh(sockets: sock.Sockets, pressure: Pressure, figure: Figure) -> None:
    """Without a reservation a fresh connection keeps its initial window under pressure."""
    rate = goodput(sockets, pressure)
    figure("goodput", rate, "kbit/s")
    assert rate == pytest.approx(FRESH, rel=0.03)


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("grow-window-clamps")
@pytest.mark.parametrize(
    ("receiver", "sender"),
    [(16 << 10, 0), (100_000, 0), (0, 100_000), (100_000, 100_000)],
    ids=["16KiB-rx", "100KB-rx", "100KB-tx", "100KB-both"],
)
def test_fresh_is_not_slower(
    sockets: sock.Sockets, pressure: Pressure, figure: Figure, receiver: int, sender: int
) -> None:
    """Reserving is never slower than not reserving: a fresh connection keeps its goodput."""
    rate = goodput(sockets, pressure, receiver, sender)
    figure("goodput", rate, "kbit/s")
    assert rate >= FRESH * 0.97


@pytest.mark.introduced_by("so-reserve-mem", "rcv_ssthresh")
@pytest.mark.red_on("drop-grow-window")
def test_fresh_with_a_large_reservation(sockets: sock.Sockets, pressure: Pressure, figure: Figure) -> None:
    """With 1 MiB reserved at the receiver the window of a fresh connection opens under pressure."""
    rate = goodput(sockets, pressure, receiver=1 << 20)
    figure("goodput", rate, "kbit/s")
    assert rate >= 2 * FRESH
