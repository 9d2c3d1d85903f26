"""Measured intervals: while one lasts, nothing may come from outside the guest, or virtual time is not its own.

Under icount the clock counts instructions and skips idle time. A guest that waits for its disk, 9p or the host's end of
a port is idle, so the clock leaps to the next timer: how far, the host decides.
"""

import hashlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# A row of /proc/interrupts with a number: a device. Those of the CPU itself (LOC, RES, TLB) have letters.
_DEVICE = re.compile(r"\s*(\d+):((?:\s+\d+)+)\s+(.*)")
# Interrupt 0 is the timer, which is inside; 2 is the cascade. 4 is the console's, which is written to by polling.
_INSIDE = {"0", "2"}
WORK = 2_000  # rounds of a hash: about 3 ms of virtual time, so a timer tick or three
STEADY = 0.05  # of it: what those ticks may add


class Disturbed(RuntimeError):
    """Something outside of the guest took part in what was measured, so there is no figure."""


def interrupts(text: str) -> dict[str, int]:
    """How often each device has interrupted so far, by its name, from /proc/interrupts."""
    rows = (_DEVICE.fullmatch(line) for line in text.splitlines())
    return {
        f"{row[1]} {row[3].strip()}": sum(map(int, row[2].split())) for row in rows if row and row[1] not in _INSIDE
    }


def work() -> float:
    """Virtual seconds that a fixed piece of work takes: as many whenever the clock counts instructions."""
    began = time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"", b"", WORK)
    return time.monotonic() - began


@contextmanager
def measured() -> Iterator[None]:
    """What is measured in this block is the guest's own; else Disturbed says what leaked in, in place of a figure."""
    before, paced = interrupts(Path("/proc/interrupts").read_text()), work()
    yield
    after, pace = interrupts(Path("/proc/interrupts").read_text()), work()
    leaked = [
        f"{name}: {count - before.get(name, 0)} times" for name, count in after.items() if count > before.get(name, 0)
    ]
    if leaked:
        raise Disturbed(f"not measured: a device outside of the guest was waited for meanwhile: {', '.join(leaked)}")
    if abs(pace / paced - 1) > STEADY:
        raise Disturbed(f"not measured: the same work took {paced:.6f} s before and {pace:.6f} s after: the clock does "
                        "not count instructions")  # fmt: skip
