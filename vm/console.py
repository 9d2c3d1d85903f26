"""Kernel messages: which of them are splats, and what a dying guest's console says."""

from __future__ import annotations

import re
from pathlib import Path

# What makes a passing case a SPLAT. The patterns are the kernel's own words (kernel/panic.c, lib/bug.c,
# kernel/locking/lockdep.c, kernel/rcu/tree_stall.h, mm/kasan/report.c, mm/kmemleak.c, kernel/hung_task.c).
_BAD = re.compile(
    r"WARNING: |BUG: |Oops|general protection fault|kernel BUG at|possible (?:recursive|circular) locking"
    r"|suspicious RCU usage|rcu: INFO: \w+ (?:self-)?detected|self-detected stall|UBSAN: |kmemleak: \d+ new"
    r"|INFO: task .* blocked for more than|soft lockup|hard LOCKUP|refcount_t: |Out of memory: Killed"
    r"|Memory cgroup out of memory: Killed|perpatch: kernel messages were lost"
)
_DEATH = re.compile(r"Kernel panic - not syncing: (.*)")
_CAUSE = re.compile(r"(BUG: .*|kernel BUG at .*|general protection fault.*|Oops: .*|WARNING: .*)")


def splats(kmsg: list[str]) -> tuple[str, ...]:
    """The bad ones among lines "level,text" of /dev/kmsg, without the level, in order."""
    texts = [line.partition(",")[2] for line in kmsg]
    return tuple(text for text in texts if _BAD.search(text))


def read(console: Path, offset: int = 0) -> str:
    """A console log, from a byte offset, as printable text; nothing of one that is not there."""
    try:
        return printable(console.read_bytes()[offset:])
    except OSError:
        return ""


def printable(raw: bytes) -> str:
    """What a console said, without the control characters that a terminal acts on."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\n\t\x20-\x7e\u00a0-\ud7ff]", "", raw.decode(errors="replace"))


def death(text: str) -> str | None:
    """Why the kernel died, in one line, or None where the console shows no panic: the first cause, then the panic."""
    panic = _DEATH.search(text)
    if not panic:
        return None
    cause = _CAUSE.search(text[: panic.start()])
    return f"{cause[1].strip()} (panic: {panic[1].strip()})" if cause else f"panic: {panic[1].strip()}"


def tail(text: str, lines: int = 40) -> str:
    """The end of a console, where the trace stands."""
    return "\n".join(text.splitlines()[-lines:])


def last(console: Path) -> str:
    """The last line of a console log, for a report of one line."""
    lines = [line.strip() for line in read(console).splitlines() if line.strip()]
    return lines[-1] if lines else "none"
