"""Measured intervals: while one lasts, nothing may come from outside the guest, or virtual time is not its own.

Under icount the clock counts instructions and skips idle time. A guest that waits for its disk, 9p or the host's end of
a port is idle, so the clock leaps to the next timer: how far, the host decides.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A row of /proc/interrupts with a number: a device. Those of the CPU itself (LOC, RES, TLB) have letters.
_DEVICE = re.compile(r"\s*(\d+):((?:\s+\d+)+)\s+(.*)")
# Interrupt 0 is the timer, which is inside; 2 is the cascade.
_INSIDE = {"0", "2"}
# Where the clock counts instructions, so does the TSC: one a nanosecond, whatever the host's runs at (QEMU's icount).
_MHZ = re.compile(r"^cpu MHz\s*:\s*(\S+)", re.MULTILINE)
VIRTUAL, CALIBRATED = 1000.0, 2.0  # MHz, and how far from it the kernel's calibration may be


class Disturbed(RuntimeError):
    """Something outside of the guest took part in what was measured, so there is no figure."""


def interrupts(text: str) -> dict[str, int]:
    """How often each device has interrupted so far, by its name, from /proc/interrupts."""
    rows = (_DEVICE.fullmatch(line) for line in text.splitlines())
    return {
        f"{row[1]} {row[3].strip()}": sum(map(int, row[2].split())) for row in rows if row and row[1] not in _INSIDE
    }


def virtual(cpuinfo: str) -> bool:
    """Whether the clock is the guest's own, from /proc/cpuinfo; taken for granted where that says no frequency."""
    found = _MHZ.search(cpuinfo)
    return not found or abs(float(found[1]) - VIRTUAL) < CALIBRATED


@contextmanager
def measured() -> Iterator[None]:
    """What is measured in this block is the guest's own; else Disturbed says what leaked in, in place of a figure."""
    if not virtual(Path("/proc/cpuinfo").read_text()):
        raise Disturbed("not measured: the clock is the host's: it does not count instructions")
    before = interrupts(Path("/proc/interrupts").read_text())
    yield
    after = interrupts(Path("/proc/interrupts").read_text())
    came = {name: count - before.get(name, 0) for name, count in after.items()}
    if leaked := [f"{name} ({times} times)" for name, times in came.items() if times]:
        raise Disturbed(f"not measured: a device outside of the guest was waited for meanwhile: {', '.join(leaked)}")
