"""Kernels that are wrong on purpose: one small fault each on top of a series, and the cases that must see it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vm import flavour, output
from vm.cases import Case
from vm.errors import Mistake
from vm.matrix import Run
from vm.paths import PATCHES
from vm.reports import Cell
from vm.run import Listener, Options, Pipeline, prepare
from vm.series import Patch, Series, known
from vm.series import load as load_series
from vm.single import every_30_s
from vm.verdict import Verdict

MUTANTS = PATCHES / "mutants"
_RELEASED = re.compile(r"\d+\.\d+")  # red_on may name a released kernel as well ("6.1")


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault: which patch it breaks, what is wrong in one line, and the change as a mail.

    flavour: the debug flavour without which nobody can see it.
    """

    id: str
    breaks: str
    what: str
    mail: bytes
    flavour: str = ""


def load(series: Series) -> list[Mutant]:
    """The mutants of a series, from patches/mutants/SERIES/mutants.toml; Mistake where something is amiss there."""
    where = MUTANTS / series.name
    file = where / "mutants.toml"
    if not file.is_file():
        raise Mistake(f"{series.name}: no mutants: {file} does not exist")
    rows = tomllib.loads(file.read_text())["mutant"]
    for row in rows:
        series.step_of(row["breaks"])
        if not (where / f"{row['id']}.patch").is_file():
            raise Mistake(f"{file}: {row['id']}: no {row['id']}.patch beside it")
        flavour.load(row.get("flavour", ""))
    try:
        return [Mutant(mail=(where / f"{row['id']}.patch").read_bytes(), **row) for row in rows]
    except TypeError as e:
        raise Mistake(f"{file}: a mutant has id, breaks, what and perhaps flavour: {e}") from None


def everywhere() -> set[str]:
    """Ids of the mutants of all series: a case that series share, or an invariant, names those of each."""
    return {m.id for name in known() if (MUTANTS / name).is_dir() for m in load(load_series(name))}


def with_fault(series: Series, mutant: Mutant) -> Series:
    """The series with the fault as one more patch; it shares the series' build directory, so little is compiled."""
    return replace(series, patches=(*series.patches, Patch(mutant.id, mutant.what, mutant.mail)))


class Telling(Listener):
    """A line now and then while a mutant's kernel is built, and one for each guest that is booted."""

    def __init__(self, mutant: Mutant, say: Callable[[str], None]) -> None:
        self._id, self._to = mutant.id, say
        self._now_and_then = every_30_s(self.say)

    def say(self, text: str) -> None:  # noqa: D102
        self._to(f"{self._id}: {text}")

    def building(self, step: str, objects: int, what: str) -> None:  # noqa: D102
        self._now_and_then(objects, what)

    def booted(self, step: str, kind: str, seconds: float) -> None:  # noqa: D102
        if seconds:
            self.say(f"booted and saved ({kind}, {seconds:.0f} s)")


def try_one(
    series: Series, mutant: Mutant, cases: list[Case], options: Options, results: Path, listener: Listener
) -> Run:
    """Run the cases that name a mutant on the kernel that has it."""
    faulty = with_fault(series, mutant)
    naming = [c for c in cases if mutant.id in c.red_on]
    options = replace(options, flavour=mutant.flavour)
    run = prepare(faulty, naming, [len(faulty.patches)], options)
    Pipeline(run, options, results / mutant.id, listener).fill()
    output.write(run, results / mutant.id)
    return run


def judge(run: Run) -> tuple[bool, str]:
    """Whether every case that names the mutant turned red by its own doing, and in one line what happened."""
    step = run.steps[0]
    if step.verdict:
        return False, f"{step.verdict}: {step.reason}"
    if not run.cases:
        return False, "no case names it in red_on"
    alive = [f"{c.case.split('::')[1]} {c.verdict}" for c in run.cells.values() if not _kill(c)]
    if alive:
        return False, f"not red: {', '.join(sorted(alive))}"
    return True, f"{len(run.cases)} of {len(run.cases)} cases red"


def _kill(cell: Cell) -> bool:
    """Red by the fault's own doing: a guest that left in the middle of the case counts, trouble of ours does not."""
    died = cell.verdict is Verdict.LOST and cell.console != ""
    return died or cell.verdict in (Verdict.FAIL, Verdict.SPLAT, Verdict.PANIC, Verdict.HANG)


def campaign(
    series: Series, chosen: list[Mutant], cases: list[Case], options: Options, results: Path, say: Callable[[str], None]
) -> bool:
    """Try each mutant in turn, one line each; whether all were killed by all the cases that name them."""
    named = {word for c in cases for word in c.red_on if not _RELEASED.fullmatch(word)}
    unknown = sorted(named - everywhere())
    if unknown:
        raise Mistake(f"red_on names {', '.join(unknown)}: no such mutant")
    good = True
    for mutant in chosen:
        run = try_one(series, mutant, cases, options, results, Telling(mutant, say))
        if run.interrupted:
            raise KeyboardInterrupt
        killed, why = judge(run)
        good &= killed
        word = "killed" if killed else "ALIVE "
        say(f"{word} {mutant.id} ({mutant.breaks}): {mutant.what}: {why} [{run.seconds:.0f} s]")
    return good
