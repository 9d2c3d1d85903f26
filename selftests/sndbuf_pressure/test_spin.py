"""What a writer costs that polls and sends, zone by zone: the spin of the thread, and what becomes of it.

CPU shares are of virtual time, so of instructions.
"""

from contextlib import nullcontext

import pytest

from selftests.lib import flow, sock, writer
from selftests.lib.pressure import Pressure, TcpMem
from selftests.sndbuf_pressure import ends
from selftests.sndbuf_pressure.ends import Figure, far, show

pytestmark = pytest.mark.virtual_time

SECONDS = 2
IDLE = 2  # per cent of the CPU: as much as the thread says that is left of the spin
SPINS = 90  # per cent of the CPU

v2 = pytest.mark.introduced_by("sndbuf-pressure-v2", "effective-sndbuf")
onebit = pytest.mark.introduced_by("sndbuf-pressure-onebit", "cut-short")
peer = pytest.mark.parametrize("reads", [True, False], ids=["reading", "not-reading"])
sized_or_not = pytest.mark.parametrize("so_sndbuf", [True, False], ids=["so_sndbuf", "default"])


@pytest.fixture
def crowd(sockets: sock.Sockets) -> None:
    """Idle connections, whose number makes each one's fair share of tcp_mem[2] small."""
    for _ in range(ends.CROWD):
        sockets.pair()


def measure(figure: Figure, pair: ends.Ends, reads: bool, seconds: float = SECONDS, phase: str = "") -> writer.Cost:
    """What the writer does and costs; everything is reported, in a phase of its own where a case measures twice."""
    with flow.reading(pair[1]) if reads else nullcontext():
        cost = writer.cost(pair[0], seconds)
    show(figure, cost, phase)
    return cost


@pytest.mark.red_on("full-is-writable")
@sized_or_not
@peer
def test_below_pressure(sockets: sock.Sockets, figure: Figure, reads: bool, so_sndbuf: bool) -> None:
    """Without pressure poll() says writable only if send() takes something."""
    assert measure(figure, far(sockets, so_sndbuf), reads).refused == 0


@pytest.mark.red_on("full-is-writable")
@pytest.mark.usefixtures("crowd")
@peer
def test_between_without_so_sndbuf(
    sockets: sock.Sockets, pressure: Pressure, tcp_mem: TcpMem, figure: Figure, reads: bool
) -> None:
    """Between tcp_mem[1] and [2], a writer without SO_SNDBUF does not spin, though it is refused its share."""
    pair = far(sockets, so_sndbuf=False)
    ends.crowded(pressure, tcp_mem)
    cost = measure(figure, pair, reads)
    assert cost.refused == 0
    assert cost.share <= IDLE


@pytest.mark.red_on("full-is-writable")
@peer
def test_above_without_so_sndbuf(sockets: sock.Sockets, pressure: Pressure, figure: Figure, reads: bool) -> None:
    """Above tcp_mem[2], a writer without SO_SNDBUF does not spin with sends of 64 KB."""
    pair = far(sockets, so_sndbuf=False)
    pressure.on(above_max=True)
    cost = measure(figure, pair, reads)
    assert cost.refused == 0
    assert cost.share <= IDLE


@v2
@onebit
@pytest.mark.red_on("never-waits")
@pytest.mark.usefixtures("crowd")
def test_between_and_nobody_reads(sockets: sock.Sockets, pressure: Pressure, tcp_mem: TcpMem, figure: Figure) -> None:
    """Between tcp_mem[1] and [2], a writer with SO_SNDBUF whose peer does not read costs 2 % of the CPU at most."""
    pair = far(sockets)
    ends.crowded(pressure, tcp_mem)
    cost = measure(figure, pair, reads=False)
    assert cost.bytes > 0
    assert cost.share <= IDLE


def flowing(figure: Figure, pair: ends.Ends) -> writer.Cost:
    """What a writer costs whose peer reads, over so many round trips that it repeats; fails early if it spins."""
    with flow.reading(pair[1]):
        cost = writer.cost(pair[0], 1)
        if cost.share < SPINS:
            return measure(figure, pair, reads=False, seconds=20)
    show(figure, cost)
    raise AssertionError(f"{cost.share:.1f} % of the CPU, {cost.refused} EAGAINs in {cost.seconds:.1f} s: spins")


@v2
@pytest.mark.red_on("never-waits")
@pytest.mark.usefixtures("crowd")
def test_between(sockets: sock.Sockets, pressure: Pressure, tcp_mem: TcpMem, figure: Figure) -> None:
    """Between tcp_mem[1] and [2], a writer with SO_SNDBUF whose peer reads costs 2 % of the CPU at most."""
    pair = far(sockets)
    ends.crowded(pressure, tcp_mem)
    cost = flowing(figure, pair)
    assert cost.share <= IDLE
    assert cost.refused <= 4 * cost.sends


@onebit
@pytest.mark.red_on("never-waits")
@pytest.mark.usefixtures("crowd")
def test_spins_between_now_and_then(sockets: sock.Sockets, pressure: Pressure, tcp_mem: TcpMem, figure: Figure) -> None:
    """Between tcp_mem[1] and [2], with a peer that reads, the spin is less by far, but not gone.

    What is guaranteed below tcp_wmem[0] is refused all the same: the new segment is counted as queued before its data
    is asked for, so with one more in flight there is more than tcp_wmem[0].
    """
    pair = far(sockets)
    ends.crowded(pressure, tcp_mem)
    cost = flowing(figure, pair)
    assert IDLE < cost.share < SPINS / 2


@v2
@onebit
@pytest.mark.red_on("never-waits")
def test_above_with_something_queued(sockets: sock.Sockets, pressure: Pressure, figure: Figure) -> None:
    """Above tcp_mem[2] with much queued, a writer with SO_SNDBUF costs 2 % of the CPU at most."""
    pair = ends.unread(sockets, 1)[0]
    pressure.on(above_max=True)
    assert measure(figure, pair, reads=False).share <= IDLE


@v2
@pytest.mark.red_on("empty-is-writable", "counts-empty-skb", "wakes-unasked")
@peer
def test_above_with_nothing_queued(sockets: sock.Sockets, pressure: Pressure, figure: Figure, reads: bool) -> None:
    """Above tcp_mem[2] with nothing queued, a writer with SO_SNDBUF sleeps until memory is granted."""
    pair = far(sockets)
    pressure.on(above_max=True)
    cost = measure(figure, pair, reads)
    assert (cost.polls, cost.refused) == (2, 1), "woken for nothing"
    assert cost.share <= IDLE


@onebit
@pytest.mark.red_on("never-waits")
def test_spins_above_once_drained(sockets: sock.Sockets, pressure: Pressure, figure: Figure) -> None:
    """Above tcp_mem[2] a writer with SO_SNDBUF sleeps with much queued, and still spins once that has drained."""
    pair = ends.unread(sockets, 1)[0]
    pressure.on(above_max=True)
    assert measure(figure, pair, reads=False, seconds=1, phase="much queued").share <= IDLE
    assert sock.eventually(lambda: sock.drain(pair[1]) < 0 or sock.meminfo(pair[0]).wmem_queued == 0, 300)
    assert measure(figure, pair, reads=False, seconds=1, phase="drained").share >= SPINS
