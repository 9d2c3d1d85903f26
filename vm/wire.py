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

from vm import console
from vm.cases import Case
from vm.qemu import Port, QemuGone

BOOT_CPU = 120.0  # QEMU CPU seconds for boot, imports and the dummy session (12-18 s were measured under TCG)
RESUME_CPU = 15.0  # to resume and collect (1.1 s was measured)
WALL_CEILING = 20.0  # a deadline of n CPU seconds is also one of 20 n wall seconds, for a guest that sits idle


class Alive(Protocol):
    """What a running guest must answer, whoever launched it."""

    port: Port

    def cpu_seconds(self) -> float:
        """CPU seconds that its QEMU has used."""

    def dump(self) -> None:
        """Make a stuck kernel show on the console where it is; raises QemuGone where that is not possible."""

    def ended(self) -> str:
        """Wait for the end of QEMU; "" where it left by itself with status 0, else status and last words."""


@dataclass(frozen=True)
class Event:
    """Something that arrived from a guest, or the news that nothing more will.

    kind: collected, start, told, report, end, error, done; or the guest's end: panic, hang, died, infra.
    data: the message as the guest sent it (see vm/inside/reporter.py); for an end: {"why": one line}.
    """

    kind: str
    data: dict[str, Any]


class Deadline:
    """A budget of QEMU CPU seconds with a wall-clock ceiling."""

    def __init__(self, guest: Alive, cpu: float) -> None:
        self.guest, self.cpu = guest, cpu
        self.start()

    def start(self, cpu: float | None = None) -> None:
        """Begin anew, with another budget where one is given."""
        self.cpu = cpu or self.cpu
        self._cpu0, self._wall0 = self.guest.cpu_seconds(), time.monotonic()

    def over(self) -> str | None:
        """Why the time is up, or None."""
        used, waited = self.guest.cpu_seconds() - self._cpu0, time.monotonic() - self._wall0
        if used > self.cpu:
            return f"no end after {self.cpu:.0f} s of QEMU's CPU time"
        if waited > self.cpu * WALL_CEILING:
            return f"no end after {waited:.0f} s, of which QEMU used {used:.1f} s of CPU: idle for ever, or starved"
        return None


FROM_GUEST = ("collected", "start", "told", "report", "end", "error", "done")


def events(
    guest: Alive,
    cases: list[Case],
    log: Path,
    stopping: threading.Event,
    allowed: float = RESUME_CPU,
    order: dict[str, Any] | None = None,
) -> Iterator[Event]:
    """Every event of a guest; the last is done, panic, hang, died or infra (none when stopping).

    allowed: QEMU CPU seconds until the first case begins. order: for a guest that has still to boot, sent when it is
    ready: nobody would read it before, and it is more than a port holds.
    """
    budget = {c.nodeid: c.timeout for c in cases}
    deadline, expected, offset = Deadline(guest, allowed), -1, 0
    for line in guest.port.lines():
        if stopping.is_set():
            return
        why = deadline.over()
        if why:
            _dump(guest)
            yield Event("hang", {"why": why, "console": str(log)})
            return
        if line is None:
            continue
        message = _parse(line)
        if message is None or (expected >= 0 and message["n"] != expected):
            why = f"not line {max(expected, 0)} of ours on the port, but {line[:80]!r}"
            yield Event("died", {"why": why, "console": str(log)})
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
        return Event("panic", {"why": why, "console": str(log)})
    if bad:
        return Event("infra", {"why": f"qemu ended with {bad}"})
    return Event("died", {"why": f"the guest switched itself off: {console.last(log)}", "console": str(log)})


def _dump(guest: Alive) -> None:
    try:
        guest.dump()
    except QemuGone:  # the dump is a courtesy; that the guest hangs is what is reported
        pass
