"""Whether it costs throughput to wake a writer rarely: the thread did not see any difference between the designs."""

from collections.abc import Callable

import pytest

from selftests.lib import link, sock, writer
from selftests.lib.pressure import Pressure, TcpMem
from selftests.sndbuf_pressure import ends

pytestmark = pytest.mark.virtual_time

SPINS = 90  # per cent of the CPU


@pytest.mark.introduced_by("sndbuf-pressure-v2", "effective-sndbuf")
@pytest.mark.introduced_by("sndbuf-pressure-onebit", "cut-short")
@pytest.mark.red_on("never-drains")
@pytest.mark.parametrize(("round_trip", "expected"), [(100, 429), (10, 4284)])
def test_goodput(
    sockets: sock.Sockets,
    pressure: Pressure,
    tcp_mem: TcpMem,
    figure: Callable[[str, float, str], None],
    round_trip: int,
    expected: float,
) -> None:
    """Between tcp_mem[1] and [2], a writer that waits for its wake-ups moves as much with either design."""
    for _ in range(ends.CROWD):
        sockets.pair()
    link.delay(round_trip // 2)
    pair = ends.sized(sockets.pair())
    ends.crowded(pressure, tcp_mem)
    with ends.reading(pair[1]):
        warm_up = writer.cost(pair[0], 1)
        assert warm_up.share < SPINS, "spins"  # what a spinning writer moves takes long to find out
        cost = writer.cost(pair[0], 40)
    goodput = 8 * cost.bytes / cost.seconds / 1e3
    figure("goodput", goodput, "kbit/s")
    figure("EAGAIN per send", cost.refused / max(cost.sends, 1), "")
    figure("CPU", cost.share, "%")
    assert goodput == pytest.approx(expected, rel=0.02)
