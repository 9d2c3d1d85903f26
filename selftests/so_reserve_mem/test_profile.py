"""What a reservation saves: calls of the functions that charge a socket and take a charge back, and their instructions.

The flows are the cover letter's: ten, as tcp_stream drives them, over a round trip of 100 ms. A kernel without
CONFIG_FUNCTION_GRAPH_TRACER (the flavour `profile` has it) counts the calls, but times nothing.
"""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from selftests.lib import flow, interval, link, sock
from selftests.lib.pressure import Pressure, TcpMem
from selftests.lib.profiler import Profiler, Spent, kernel_instructions

pytestmark = [pytest.mark.virtual_time, pytest.mark.profile, pytest.mark.timeout(600)]
Figure = Callable[[str, float, str], None]
Flows = list[tuple[socket.socket, socket.socket]]

FLOWS = 10
RESERVED = (0, 100_000, 1 << 20)  # bytes at each end; 100 KB is what the letter reserves for its throughput
PROFILED = {"raise": "__sk_mem_raise_allocated", "reduce": "__sk_mem_reduce_allocated"}
CHARGE = "mem_cgroup_charge_skmem"  # what each "raise" calls once; perf shows it apart
WARM_UP, SECONDS = 2.0, 3.0  # twenty round trips, then thirty for each measurement
PLENTY = 1 << 18  # pages: all flows may reserve, and nothing is under pressure before pressure.on()


@dataclass(frozen=True)
class Cost:
    """What a MB costs: instructions of the whole kernel, and what each function takes; rate in Mbit/s."""

    rate: float
    kernel: float
    spent: dict[str, Spent]

    def share(self, name: str) -> float:
        """Of the kernel's instructions, in per cent."""
        return 100 * self.spent[name].instructions / self.kernel if self.kernel else 0


def cost(profiler: Profiler, flows: Flows) -> Cost:
    """Measured twice: the whole kernel without the profiler, which would be a part of it, then the functions."""
    flow.many(flows, WARM_UP)
    with interval.measured():
        before = kernel_instructions()
        moved = flow.many(flows, SECONDS) / 1e6
        kernel = (kernel_instructions() - before) / moved
    with profiler.on(*PROFILED.values()) as spent:
        profiled = flow.many(flows, SECONDS) / 1e6
    per_mb = {name: spent.get(function, Spent()).over(profiled) for name, function in PROFILED.items()}
    return Cost(8 * moved / SECONDS, kernel, per_mb)


def add_itself(found: dict[int, Cost], profiler: Profiler, unreserved: Flows) -> None:
    """What "raise" takes without CHARGE, which costs the same whoever makes the call."""
    with profiler.on(CHARGE) as spent:
        flow.many(unreserved, SECONDS)
    charge = spent[CHARGE].over(spent[CHARGE].calls).instructions
    for c in found.values():
        calls, instructions = c.spent["raise"].calls, c.spent["raise"].instructions
        c.spent["raise itself"] = Spent(calls, instructions - calls * charge)


@pytest.fixture
def costs(
    sockets: sock.Sockets,
    sysctl: Callable[[str, str], None],
    tcp_mem: TcpMem,
    pressure: Pressure,
    defer: ExitStack,
    figure: Figure,
) -> Callable[[bool], dict[int, Cost]]:
    """costs(under pressure): by the bytes that each end has reserved; figures say the same."""

    def opened(size: int) -> Flows:
        flows = [sockets.pair() for _ in range(FLOWS)]
        for end in (end for ends in flows for end in ends if size):
            sock.reserve(end, size)
        return flows

    def measure(under_pressure: bool) -> dict[int, Cost]:
        profiler = Profiler(defer)
        for name in ("rmem", "wmem") if not under_pressure else ():
            sysctl(f"net.ipv4.tcp_{name}", f"4096 65536 {RESERVED[-1]}")  # so that 1 MiB covers all that is queued
        tcp_mem.write(PLENTY, PLENTY, PLENTY)
        link.delay(50)
        flows = {size: opened(size) for size in RESERVED}
        if under_pressure:
            pressure.on()
        found = {}
        for size, ends in flows.items():
            found[size] = cost(profiler, ends)
        add_itself(found, profiler, flows[0])
        show(figure, found, profiler)
        return found

    return measure


def show(figure: Figure, found: dict[int, Cost], profiler: Profiler) -> None:
    """Report calls, and instructions where there are any."""
    for size, c in found.items():
        figure(f"goodput, {size} reserved", c.rate, "Mbit/s")
        for name, spent in c.spent.items():
            if name in PROFILED:
                figure(f"{name}, {size} reserved: calls", spent.calls, "/MB")
            if profiler.timed:
                figure(f"{name}, {size} reserved: instructions", spent.instructions, "/MB")
                figure(f"{name}, {size} reserved: share", c.share(name), "%")
                figure(f"{name}, {size} reserved: drop of share", found[0].share(name) - c.share(name), "%")
        if profiler.timed:
            figure(f"kernel, {size} reserved: instructions", c.kernel, "/MB")
    if profiler.timed:
        figure("taken off for the profiler", profiler.overhead, "instructions a call")


def saved(found: dict[int, Cost], size: int) -> float:
    """The share of charges that a reservation does away with."""
    return 1 - found[size].spent["raise"].calls / found[0].spent["raise"].calls


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("partial-reclaim-eats-reservation")
def test_under_pressure(costs: Callable[[bool], dict[int, Cost]]) -> None:
    """Under pressure each allocation reclaims and charges; 100 KB reserved do away with four fifths of that, or more.

    "On a system suffering memory pressure constantly, the savings should be more" (cover letter).
    """
    found = costs(True)
    assert saved(found, 100_000) >= 0.8
    assert saved(found, 1 << 20) >= 0.98


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("partial-reclaim-eats-reservation")
def test_without_pressure(costs: Callable[[bool], dict[int, Cost]]) -> None:
    """Without pressure a reservation as large as the buffers saves all charges: less than 1 % of all instructions.

    It is the timer of delayed ACKs that reclaims then. A reservation that is in use all the time, as 100 KB are here,
    saves next to nothing. "Not a whole lot" (cover letter).
    """
    found = costs(False)
    assert saved(found, 1 << 20) >= 0.98
    assert found[0].share("raise itself") < 1
