"""What comes out of a guest: its JSON lines as events, its deadline, and how it ended."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from vm import console, stuck
from vm.cases import Case
from vm.stuck import Stuck

BOOT_CPU = 120.0  # QEMU CPU seconds for boot, imports and the dummy session (12-18 s were measured under TCG)
RESUME_CPU = 15.0  # to resume and collect (1.1 s was measured)
IDLE_SECONDS = 30.0  # a guest may want no CPU for so long, or twice its budget: a disk may be slow, a case may sleep
WALL_CEILING = 20.0  # where the host gives it so little that n CPU seconds take 20 n, no verdict is to be had


class Alive(Stuck, Protocol):
    """What a running guest must answer, whoever launched it."""

    def starved_seconds(self) -> float:
        """Seconds that its QEMU has waited for a CPU of the host."""

    def ended(self) -> str:
        """Wait for the end of QEMU; "" where it left by itself with status 0, else status and last words."""


@dataclass(frozen=True)
class Event:
    """Something that arrived from a guest, or the news that nothing more will.

    kind: collected, start, told, report, end, error, done; or the guest's end: panic, hang, died, infra.
    data: the message as the guest sent it (see vm/inside/reporter.py); for an end: {"why": one line, "console": path,
    "since": the byte of it at which the running case began}.
    """

    kind: str
    data: dict[str, Any]


class Deadline:
    """A budget of QEMU CPU seconds. A guest that wants no CPU has less than for ever, too; a slow host is no fault."""

    def __init__(self, guest: Alive, cpu: float, idle: float | None = None) -> None:
        """cpu: seconds. idle: wall seconds that the guest may want no CPU at all; default: twice cpu, or more."""
        self.guest, self.cpu, self.idle = guest, cpu, idle
        self.start()

    def start(self, cpu: float | None = None) -> None:
        """Begin anew, with another budget where one is given."""
        self.cpu = cpu or self.cpu
        self._cpu0, self._wall0 = self.guest.cpu_seconds(), time.monotonic()
        self._starved0 = self.guest.starved_seconds()

    def over(self) -> tuple[str, str] | None:
        """("hang" or "infra", why the time is up), or None."""
        used, waited = self.guest.cpu_seconds() - self._cpu0, time.monotonic() - self._wall0
        idle = waited - used - (self.guest.starved_seconds() - self._starved0)
        if used > self.cpu:
            return "hang", f"no end after {self.cpu:.0f} s of QEMU's CPU time"
        if idle > (self.idle or max(IDLE_SECONDS, 2 * self.cpu)):
            return "hang", f"no end after {waited:.0f} s, in {idle:.0f} of which the guest wanted no CPU"
        if waited > max(IDLE_SECONDS, self.cpu * WALL_CEILING):
            return "infra", f"no end after {waited:.0f} s, in which the host gave QEMU {used:.1f} s of CPU"
        return None


FROM_GUEST = ("collected", "start", "told", "report", "end", "error", "done")


def events(
    guest: Alive,
    cases: list[Case],
    log: Path,
    stopping: threading.Event,
    allowed: float = RESUME_CPU,
    order: dict[str, Any] | None = None,
    keep: bool = False,
) -> Iterator[Event]:
    """Every event of a guest; the last is done, panic, hang, died or infra (none when stopping).

    allowed: QEMU CPU seconds until the first case begins. order: for a guest that has still to boot, sent when it is
    ready: nobody would read it before, and it is more than a port holds. keep: a guest that hangs is to live on: do not
    ask it what would end it.
    """
    budget = {c.nodeid: c.timeout for c in cases}
    deadline, expected, offset = Deadline(guest, allowed), -1, 0
    for line in guest.port.lines():
        if stopping.is_set():
            return
        late = deadline.over()
        if late:
            yield _late(guest, log, offset, *late, keep)
            return
        if line is None:
            continue
        message = _parse(line)
        if message is None or (expected >= 0 and message["n"] != expected):
            why = f"not line {max(expected, 0)} of ours on the port, but {line[:80]!r}"
            yield Event("died", {"why": why, "console": str(log), "since": offset})
            return
        expected = message["n"] + 1
        if "ready" in message and order:
            guest.port.send(order)
        kind = next((k for k in FROM_GUEST if k in message), "other")
        if kind == "start":
            deadline.start(budget.get(message["start"]))
            offset = log.stat().st_size
        yield Event(kind, message)
        if kind == "done":
            return
    yield _end(guest, log, offset)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        # Twice: a lone surrogate is legal in JSON's escapes, but nothing that we write could hold it.
        text = json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8", "replace")
        message = json.loads(text)
    except ValueError:
        return None
    except RecursionError:  # brackets without end
        return None
    return message if isinstance(message, dict) and _is_ours(message) else None


def _is_ours(message: dict[str, Any]) -> bool:
    """Whether what vm/inside/reporter.py would have sent is there, of the right kind: a guest may send anything."""
    if not isinstance(message.get("n"), int):
        return False
    of_kind = {
        "collected": lambda m: _texts(m["collected"]),
        "start": lambda m: isinstance(m["start"], str),
        "told": lambda m: isinstance(m.get("anew"), bool),
        "report": lambda m: isinstance(m["report"], dict),
        "end": lambda m: isinstance(m["end"], str) and _texts(m.get("kmsg")) and _seconds(m.get("seconds")),
    }
    kind = next((k for k in FROM_GUEST if k in message), "")
    return kind not in of_kind or of_kind[kind](message)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _end(guest: Alive, log: Path, offset: int) -> Event:
    """The port was closed before the guest was done: did the kernel die, the guest leave, or somebody kill QEMU?

    offset: bytes of the console that had been written when the running case began; a cause before is not its own.
    """
    bad = guest.ended()
    why = console.death(console.read(log, offset))
    if why:
        return Event("panic", {"why": why, "console": str(log), "since": offset})
    if bad:
        return Event("infra", {"why": f"qemu ended with {bad}"})
    said = console.complaint(console.read(log, offset)) or console.last(log)
    return Event("died", {"why": f"the guest switched itself off: {said}", "console": str(log), "since": offset})


def _late(guest: Alive, log: Path, offset: int, kind: str, why: str, keep: bool) -> Event:
    """The guest's time is up: ask it before it is blamed, and say with it what the kernel had complained of."""
    complaint = console.complaint(console.read(log, offset))
    if kind == "hang":
        kind, standing = stuck.examine(guest, log, keep)
        why = f"{why}: {standing}"
    return Event(kind, {"why": f"{why}: {complaint}" if complaint else why, "console": str(log), "since": offset})
