"""Kernels that are wrong on purpose: one small fault each on top of a series (patches/mutants/SERIES).

Faults share one image where they can: schemata.patch has all of them compiled in, and at most one is active, chosen in
a resumed guest. Any other fault, such as one that only a debug flavour shows, is a patch of its own, ID.patch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vm import flavour, tables
from vm.cases import Case
from vm.errors import Mistake
from vm.paths import PATCHES
from vm.series import Patch, Series, known
from vm.series import load as load_series

MUTANTS = PATCHES / "mutants"
NONE = "none"  # what the kernel calls it when no fault is active
_RELEASED = re.compile(r"\d+\.\d+")  # red_on may name a released kernel as well ("6.1")
_FAULT = re.compile(r"\bMUTANT\((\w+)\)")
_LISTED = re.compile(r"^\+\tM\((\w+)\)", re.M)


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault: which patch it breaks, what a user sees, and the patch that brings it.

    name: what the kernel calls it, "" where the patch holds nothing else. flavour: the debug flavour without which
    nobody can see it. hard: takes a race, or a state that is rare. equivalent: why nobody can see it at all. diff: the
    fault as if it stood alone, where it was not written by hand.
    """

    id: str
    breaks: str
    what: str
    patch: Patch
    name: str = ""
    flavour: str = ""
    hard: bool = False
    equivalent: str = ""
    diff: str = ""


def load(series: Series) -> list[Mutant]:
    """The mutants of a series, from patches/mutants/SERIES/mutants.toml; Mistake where something is amiss there."""
    where = MUTANTS / series.name
    file = where / "mutants.toml"
    if not file.is_file():
        raise Mistake(f"{series.name}: no mutants: {file} does not exist")
    schemata = where / "schemata.patch"
    mail = schemata.read_bytes() if schemata.is_file() else b""
    there = names(mail.decode(), str(schemata))

    def make(row: dict[str, Any]) -> Mutant:
        series.step_of(row["breaks"])
        flavour.load(row.get("flavour", ""))
        own, name = where / f"{row['id']}.patch", row["id"].replace("-", "_")
        if own.is_file() == (name in there):
            raise ValueError(f"it has to be either in {schemata.name} or in {own.name}")
        if name in there:
            there.remove(name)
            return Mutant(**row, name=name, patch=Patch("schemata", "all faults, one active", mail))
        return Mutant(**row, patch=Patch(row["id"], row["what"], own.read_bytes()))

    found = list(tables.rows(file, "mutant", make))
    if there:
        raise Mistake(f"{file}: no row for {', '.join(sorted(there))}, which {schemata.name} has")
    return found


def names(mail: str, file: str = "schemata.patch") -> set[str]:
    """What the kernel calls the faults of schemata.patch; Mistake where its list and its code do not agree."""
    listed, used = set(_LISTED.findall(mail)), {name for _, name in _uses(mail)}
    if listed != used:
        raise Mistake(f"{file}: listed, or used, but not both: {', '.join(sorted(listed ^ used))}")
    return listed


def _uses(mail: str) -> list[tuple[int, str]]:
    """Each line that asks for a fault, and which."""
    lines = enumerate(mail.splitlines())
    return [
        (n, name)
        for n, line in lines
        if line.startswith("+") and "#define" not in line
        for name in _FAULT.findall(line)
    ]


def fault(mutant: Mutant) -> str:
    """A fault as a diff: the lines around each place that asks for it, or all of a patch that holds nothing else."""
    if mutant.diff:
        return mutant.diff
    mail = mutant.patch.mail.decode()
    lines = mail.splitlines()
    if not mutant.name:
        return "\n".join(lines[next(n for n, line in enumerate(lines) if line.startswith("diff --git")) :])
    parts = []
    for n in (n for n, name in _uses(mail) if name == mutant.name):
        head = next(k for k in range(n, 0, -1) if lines[k].startswith("@@"))
        file = next(line for line in reversed(lines[:head]) if line.startswith("+++ b/"))
        end = next((k for k in range(n, len(lines)) if lines[k].startswith(("@@", "diff "))), len(lines))
        parts.append([f"{file} {lines[head]}", *lines[max(head + 1, n - 3) : min(end, n + 4)]])
    return "\n".join(line for part in parts for line in part)


def everywhere() -> dict[str, Mutant]:
    """The mutants of all series: a case that series share, or an invariant, names those of each."""
    return {m.id: m for name in known() if (MUTANTS / name).is_dir() for m in load(load_series(name))}


def check(cases: list[Case]) -> None:
    """Mistake where red_on names no mutant, or one that nobody can see."""
    named = {word for c in cases for word in c.red_on if not _RELEASED.fullmatch(word)}
    there = everywhere()
    if unknown := sorted(named - set(there)):
        raise Mistake(f"red_on names {', '.join(unknown)}: no such mutant")
    if unseen := sorted(word for word in named if there[word].equivalent):
        raise Mistake(f"red_on names {', '.join(unseen)}: said to be equivalent in mutants.toml")
