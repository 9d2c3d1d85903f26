"""A guest whose time is up: what stands, the case, the kernel or QEMU; and its state, kept before the guest ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from vm import console
from vm.qemu import Port, QemuGone

ANSWER_CPU = 10.0  # QEMU CPU seconds that a living kernel has to answer; showing 100 tasks took it 0.3
ANSWER_WALL = 30.0  # and wall seconds, should QEMU not run at all


class Stuck(Protocol):
    """What can be asked of a guest that does not go on."""

    port: Port

    def cpu_seconds(self) -> float:
        """CPU seconds that its QEMU has used."""

    def nmi(self) -> None:
        """Have the kernel panic and show where it is; raises QemuGone where it does not."""

    def dump(self, file: Path) -> None:
        """Write its memory into a file; raises QemuGone where that is not possible."""


def examine(guest: Stuck, log: Path, keep: bool = False) -> tuple[str, str]:
    """("hang" or "infra", in words what stands), most likely first; what was learnt is on the console or beside it.

    keep: whoever attaches gdb wants the guest as it is, not as an NMI leaves it.
    """
    used = guest.cpu_seconds()
    if hears(guest, log, "dump"):
        return "hang", "the kernel answers: its tasks are on the console"
    if keep:
        return "hang", "the kernel does not answer"
    try:
        guest.nmi()
    except QemuGone:
        pass
    else:
        return "hang", "the kernel does not answer: an NMI shows on the console where it is"
    if guest.cpu_seconds() - used < 0.05:
        return "infra", "qemu does not run, nor answers: was it stopped?"
    memory = log.with_suffix(".memory")
    try:
        guest.dump(memory)
    except QemuGone as e:
        return "hang", f"the kernel answers nothing, not an NMI either, and qemu gives no dump: {e}"
    return "hang", f"the kernel answers nothing, not an NMI either: its memory is in {memory}"


def hears(guest: Stuck, log: Path, word: str) -> bool:
    """Whether the guest's pulse (vm/inside/agent.py) answers a word on the console."""
    offset = log.stat().st_size if log.is_file() else 0
    try:
        guest.port.ask(word)
    except OSError:
        return False
    used, began = guest.cpu_seconds(), time.monotonic()
    while time.monotonic() - began < ANSWER_WALL and guest.cpu_seconds() - used < ANSWER_CPU:
        if f"perpatch: heard {word}" in console.read(log, offset):
            return True
        time.sleep(0.05)
    return False
