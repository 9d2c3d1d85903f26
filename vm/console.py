"""Kernel messages: which of them are splats, and what a dying guest's console says."""

from __future__ import annotations

import hashlib
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
_COMPLAINT = re.compile(
    rf"({_CAUSE.pattern[1:-1]}|INFO: task .*|rcu: INFO: .*|Out of memory: Killed.*|Memory cgroup out of memory: .*"
    r"|Kernel panic - not syncing: .*|\S*Error: .*|perpatch: the agent ended with .*)"
)


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


def complaint(text: str) -> str:
    """The first line of a console that says what went wrong, "" where none does: a Python error counts as well."""
    found = _COMPLAINT.search(text)
    return found[1].strip()[:300] if found else ""


_FRAME = re.compile(r"^ (?!\? )(\w[\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+", re.M)
_TOLD_BY = re.compile(r"^(?:dump_stack|panic|show_stack|die|__warn|nmi_panic|oops_end|asm_|exc_|do_nmi)")


def fingerprint(text: str) -> str:
    """Eight letters for a crash, the same in every case that meets it: its first complaint and its call trace.

    Without addresses, numbers and names of tasks, which differ from guest to guest; "" where nothing crashed.
    """
    what = complaint(text)
    if not what:
        return ""
    what = re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+|\S*:\d+ blocked", "", what.partition(" at ")[0] or what)
    trace = text.partition("Call Trace:")[2]
    frames = [name for name in _FRAME.findall(trace) if not _TOLD_BY.match(name)][:4]
    return hashlib.sha256(" ".join([what, *frames]).encode()).hexdigest()[:8]


def tail(text: str, lines: int = 40) -> str:
    """The end of a console, where the trace stands."""
    return "\n".join(text.splitlines()[-lines:])


def last(console: Path) -> str:
    """The last line of a console log, for a report of one line."""
    lines = [line.strip() for line in read(console).splitlines() if line.strip()]
    return lines[-1] if lines else "none"
