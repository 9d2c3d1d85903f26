"""Whether it costs throughput to wake a writer rarely: the thread did not see any difference between the designs.

There is none where the window of the receiver limits the flow. There is where the queue of the sender does.
"""

from collections.abc import Callable

import pytest

from selftests.lib import flow, link, sock, writer
from selftests.lib.pressure import Pressure, TcpMem
from selftests.sndbuf_pressure import ends

pytestmark = pytest.mark.virtual_time

SPINS = 90  # per cent of the CPU
WINDOW = 65536  # bytes: what a receiver offers on a fresh connection
v2 = pytest.mark.introduced_by("sndbuf-pressure-v2", "effective-sndbuf")
onebit = pytest.mark.introduced_by("sndbuf-pressure-onebit", "cut-short")
round_trips = pytest.mark.parametrize("round_trip", [100, 10])
Goodput = Callable[[int, int, float], float]


@pytest.fixture
def goodput(
    sockets: sock.Sockets, pressure: Pressure, tcp_mem: TcpMem, figure: Callable[[str, float, str], None]
) -> Goodput:
    """goodput(idle pairs, round trip in ms, seconds) in kbit/s, between tcp_mem[1] and [2]."""

    def measure(crowd: int, round_trip: int, seconds: float) -> float:
        for _ in range(crowd):
            sockets.pair()
        link.delay(round_trip // 2)
        sender, receiver = ends.sized(sockets.pair())
        ends.crowded(pressure, tcp_mem)
        with flow.reading(receiver):
            warm_up = writer.cost(sender, 2)
            assert warm_up.share < SPINS, "spins"  # what a spinning writer moves takes long to find out
            cost = writer.cost(sender, seconds)
        rate = 8 * cost.bytes / cost.seconds / 1e3
        figure("goodput", rate, "kbit/s")
        figure("EAGAIN per send", cost.refused / max(cost.sends, 1), "")
        figure("CPU", cost.share, "%")
        figure("window", sock.snd_wnd(sender), "B")
        return rate

    return measure


@v2
@onebit
@pytest.mark.red_on("never-waits")
@round_trips
def test_limited_by_the_window(goodput: Goodput, round_trip: int) -> None:
    """Where each may have little, the receiver's window is four segments, and both designs fill it.

    A writer that spins moves 426 kbit/s over 100 ms and 4,385 over 10 ms.
    """
    assert goodput(ends.CROWD, round_trip, 40) == pytest.approx(4284 * 10 / round_trip, rel=0.03)


@v2
@pytest.mark.red_on("never-waits", "never-drains")
@pytest.mark.parametrize(("round_trip", "spinning"), [(100, 4823), (10, 49632)])
def test_limited_by_the_queue(goodput: Goodput, round_trip: int, spinning: float) -> None:
    """Where each may queue somewhat more than a window, a third of it is wake-up enough to move what a spin moves."""
    assert goodput(40, round_trip, 20) == pytest.approx(spinning, rel=0.05)


@onebit
@pytest.mark.red_on("never-waits")
@round_trips
def test_limited_by_tcp_wmem_0(goodput: Goodput, round_trip: int) -> None:
    """Where each may queue somewhat more than a window, waiting until almost all has drained halves the goodput.

    What does not fit into the window takes a second round trip, and only then the writer is woken.
    """
    assert goodput(40, round_trip, 20) == pytest.approx(8 * WINDOW / (2 * round_trip), rel=0.02)
