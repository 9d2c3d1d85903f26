"""The kernel's function profiler on a few functions: how often each was called, and what that took.

What the profiler costs is taken off. A part of it lies within what it measures: it reads the clock after it has caught
the entry of a function, and again after it has caught the return. That part is the same for every function, and is
measured on one whose own cost is known.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

TRACING = Path("/sys/kernel/tracing")
ENABLED, FILTER, GRAPH_TIME, TABLE = (
    TRACING / name
    for name in ("function_profile_enabled", "set_ftrace_filter", "options/graph-time", "trace_stat/function0")
)
INSTRUCTION = 2  # ns of virtual time, by icount_shift in vm/arch/x86_64.toml
# What comes between: a function is not to pay for the packets that are received when an interrupt hits it.
INTERRUPTS = ("__sysvec_apic_timer_interrupt", "__do_softirq")
# One without a branch, and what it executes between its entry and the end of its return.
KNOWN, KNOWN_INSTRUCTIONS = "__x64_sys_umask", 10
ROUNDS, CALLS = 5, 200  # of calibration: a round lasts less than a tick of the timer, so that some have none


@dataclass(frozen=True)
class Spent:
    """Calls of a function, and the instructions of all of them, with what they call; 0 where nothing is timed."""

    calls: float = 0
    instructions: float = 0

    def over(self, count: float) -> "Spent":
        """For one of so many."""
        return Spent(self.calls / count, self.instructions / count)


class Profiler:
    """The profiler; on() switches it on for a few functions. SKIP on a kernel without it.

    timed: whether it knows instructions too. overhead: what it adds to each call, in instructions.
    """

    def __init__(self, undo: ExitStack) -> None:
        if not ENABLED.exists():
            pytest.skip("needs CONFIG_FUNCTION_PROFILER")
        self.timed = GRAPH_TIME.exists()  # comes with CONFIG_FUNCTION_GRAPH_TRACER
        self.overhead = 0.0
        undo.callback(FILTER.write_text, "\n")
        if self.timed:
            undo.callback(GRAPH_TIME.write_text, "1")
            GRAPH_TIME.write_text("0")  # what another function of the filter took, called from one, is not its own
            self.overhead = self._calibrated()

    @contextmanager
    def on(self, *functions: str) -> Iterator[dict[str, Spent]]:
        """Profile these functions, none of which calls another, in the block; when it ends the dictionary is filled."""
        spent: dict[str, Spent] = {}
        FILTER.write_text(" ".join((*functions, *INTERRUPTS)))
        ENABLED.write_text("1")
        try:
            yield spent
        finally:
            ENABLED.write_text("0")
        spent |= self._table()

    def _calibrated(self) -> float:
        mask = os.umask(0)
        found = []
        for _ in range(ROUNDS):
            with self.on(KNOWN) as spent:
                for _ in range(CALLS):
                    os.umask(mask)
            found.append(spent[KNOWN].instructions / spent[KNOWN].calls - KNOWN_INSTRUCTIONS)
        return min(found)

    def _table(self) -> dict[str, Spent]:
        rows = [line.split() for line in TABLE.read_text().splitlines()[2:]]
        return {name: self._row(int(hits), *rest) for name, hits, *rest in rows}

    def _row(self, hits: int, microseconds: str = "0", *_: str) -> Spent:
        return Spent(hits, float(microseconds) * 1000 / INSTRUCTION - hits * self.overhead)


def kernel_instructions() -> float:
    """What the kernel has executed so far: the guest's time less what /proc/stat says was idle, and user time.

    Idle time is counted by the clock and ends with an interrupt, so what is done in one is none of it. The share of
    user time is sampled by the tick. Nothing else moves the clock: a host that waits does not.
    """
    user, nice, _, idle, iowait = map(int, Path("/proc/stat").read_text().split()[1:6])
    return (time.clock_gettime(time.CLOCK_MONOTONIC) - (user + nice + idle + iowait) / 100) * 1e9 / INSTRUCTION
