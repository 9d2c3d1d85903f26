"""Stage 6: the matrix (cases x steps), one verdict a cell; every output is a view of it (see output.py)."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from vm.cases import Case
from vm.image import Image
from vm.released import slug
from vm.reports import Cell
from vm.series import Series
from vm.source import Source
from vm.subject import Subject
from vm.verdict import Verdict, red

# Verdicts that no case is to blame for.
STEPS_OWN = {Verdict.NO_APPLY, Verdict.NO_BUILD, Verdict.NO_BOOT, Verdict.INFRA}


@dataclass
class Step:
    """What became of one column: its image, or the verdict that took its place and why.

    number: of a step of the series; None for a kernel that was built elsewhere, whose subject says what it carries only
    once it is there.
    """

    subject: Subject
    title: str
    number: int | None = None
    image: Image | None = None
    verdict: Verdict | None = None
    reason: str = ""
    log: str = ""

    @property
    def name(self) -> str:
        """base, 1/3, debian:6.1."""
        return self.subject.name

    @property
    def dir(self) -> str:
        """Where its logs are below the results directory."""
        return f"step-{self.number}" if self.number is not None else slug(self.name)


@dataclass
class Run:
    """Everything that a run found; written as it stands when the run is interrupted.

    accel, accel_why: the accelerator of functional guests and why. versions: host tools. began: ISO 8601, UTC.
    repeat: how often each case runs on each step; times: what came of it each time, cells: of all times together.
    rerun: the cells that the host's trouble took and that were run once more. coverage: see covered.py.
    how: the words of pytest's command line that say what is tested and with what, but for the step and the case.
    """

    series: Series
    source: Source | None
    cases: list[Case]
    steps: list[Step]
    began: str
    strict_skips: bool = False
    accel: str = ""
    accel_why: str = ""
    guest: str = "warm"
    flavour: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False
    trouble: str = ""
    repeat: int = 1
    how: tuple[str, ...] = ()
    times: dict[tuple[str, str], list[Cell]] = field(default_factory=dict)
    rerun: list[Cell] = field(default_factory=list)
    coverage: dict[str, Any] | None = None

    def add(self, cell: Cell) -> None:
        """Take a cell; as many of a case on a step as it was to run, what comes after them is ignored."""
        key = cell.case, cell.step
        times = self.times.setdefault(key, [])
        if len(times) < self.repeat:
            times.append(cell)
            self.cells[key] = together(times)

    def run_again(self, cell: Cell) -> bool:
        """Whether a cell that the host's trouble took may be run once more; it is remembered."""
        if cell.verdict is not Verdict.INFRA or any((c.case, c.step) == (cell.case, cell.step) for c in self.rerun):
            return False
        self.rerun.append(cell)
        return True

    def lose(self, step: Step, verdict: Verdict, reason: str, log: str = "") -> None:
        """A step that has no guest: its cells that have not arrived get the step's verdict."""
        step.verdict, step.reason, step.log = verdict, reason, log
        for case in self.cases:
            self._fill(Cell(case.nodeid, step.name, verdict, reason, console=log))

    def close(self) -> None:
        """Name every cell that never arrived: nothing may be missing from the table."""
        for step in self.steps:
            for case in self.cases:
                why = "interrupted" if self.interrupted else "no result arrived"
                self._fill(Cell(case.nodeid, step.name, Verdict.LOST, why))

    def _fill(self, cell: Cell) -> None:
        """Put a cell wherever one has not arrived."""
        for _ in range(self.repeat - len(self.times.get((cell.case, cell.step), ()))):
            self.add(cell)

    def red_cells(self) -> list[Cell]:
        """The cells that fail the run, in table order."""
        order = [self.cells.get((c.nodeid, s.name)) for c in self.cases for s in self.steps]
        return [cell for cell in order if cell and red(cell.verdict, self.strict_skips)]

    def crashes(self) -> dict[str, list[Cell]]:
        """The red cells of each crash that more than one of them met: one finding, not many."""
        met: dict[str, list[Cell]] = {}
        for cell in self.red_cells():
            met.setdefault(cell.crash, []).append(cell)
        return {crash: cells for crash, cells in met.items() if crash and len(cells) > 1}

    def exit_status(self) -> int:
        """0 all as expected, 1 some verdict red, 3 the host failed, 130 interrupted."""
        if self.interrupted:
            return 130
        verdicts = {cell.verdict for cell in self.red_cells()} | {s.verdict for s in self.steps if s.verdict}
        if self.trouble or verdicts & {Verdict.INFRA}:
            return 3
        return 1 if verdicts else 0

    def reproducer(self, cell: Cell) -> str:
        """The command that boots the same image and runs the same case in it; "" where no case is to blame."""
        if cell.verdict in STEPS_OWN or (cell.verdict is Verdict.LOST and not cell.console):
            return ""
        step = next(s for s in self.steps if s.name == cell.step)
        where = (
            ("--step", str(step.number) if step.number else "base")
            if step.number is not None
            else ("--kernel", step.name)
        )
        return shlex.join([".venv/bin/pytest", cell.case, *where, *self.how])

    def counts(self) -> dict[str, int]:
        """How many cells have which verdict, in the order of Verdict."""
        have = [cell.verdict for cell in self.cells.values()]
        return {str(v): have.count(v) for v in Verdict if v in have}

    def warned(self) -> list[Step]:
        """Steps that brought compiler warnings which the step before did not have."""
        return [s for s in self.steps if s.image and s.image.new_warnings]

    def as_json(self) -> dict[str, Any]:
        """The run as docs/results.schema.json describes it."""
        return {
            "schema": 4,
            "began": self.began,
            "seconds": round(self.seconds, 1),
            "exit_status": self.exit_status(),
            "interrupted": self.interrupted,
            "trouble": self.trouble,
            "guest": self.guest,
            "flavour": self.flavour,
            "repeat": self.repeat,
            "rerun": [{"case": c.case, "step": c.step, "reason": c.reason} for c in self.rerun],
            "accelerator": {"name": self.accel, "why": self.accel_why},
            "versions": self.versions,
            "series": {
                "name": self.series.name,
                "title": self.series.title,
                "cover_letter": self.series.cover_letter,
                "patches": [{"id": p.id, "title": p.title} for p in self.series.patches],
            },
            "base": {"label": self.source.label, "commit": self.source.commit, "tree": self.source.tree}
            if self.source
            else None,
            "steps": [_step(s) for s in self.steps],
            "cases": [
                {
                    "id": c.nodeid,
                    "says": c.says,
                    "introduced_by": list(c.introduced_by) if c.introduced_by else None,
                    "red_on": list(c.red_on),
                    "known_issues": [issue for issue, _ in c.known_issues],
                }
                for c in self.cases
            ],
            "cells": [
                _json_cell(cell, self)
                for c in self.cases
                for s in self.steps
                if (cell := self.cells.get((c.nodeid, s.name)))
            ],
            **({"coverage": self.coverage} if self.coverage else {}),
        }


def together(times: list[Cell]) -> Cell:
    """One cell of what came of a case each time: the first where all agree, else FLAKY, but lost is lost."""
    if len(times) == 1:
        return times[0]
    verdicts = Counter(cell.verdict for cell in times)
    missing = [cell for cell in times if cell.verdict in (Verdict.LOST, Verdict.INFRA)]
    if len(verdicts) == 1 or missing:
        return replace((missing or times)[0], times=tuple(times))
    rare = next(cell for cell in times if cell.verdict is verdicts.most_common()[-1][0])
    said = ", ".join(f"{verdict} {count} of {len(times)}" for verdict, count in verdicts.most_common())
    why = f"{said}: {rare.reason}" if rare.reason else said
    return replace(rare, verdict=Verdict.FLAKY, reason=why, figures=(), curves=(), times=tuple(times))


def _step(step: Step) -> dict[str, Any]:
    image = step.image
    return {
        "step": step.number,
        "name": step.name,
        "title": step.title,
        "patches": sorted(step.subject.patches),
        "known_issues": sorted(step.subject.issues),
        "verdict": str(step.verdict) if step.verdict else None,
        "reason": step.reason,
        "log": step.log,
        "kernel": {
            "key": image.key,
            "release": image.release,
            "version": image.version,
            "sha256": image.sha256,
            "config_sha256": image.config_sha256,
            "compiler": image.compiler,
            "build_seconds": image.seconds,
            "objects": image.objects,
            "new_warnings": list(image.new_warnings),
        }
        if image
        else None,
    }


def _json_cell(cell: Cell, run: Run) -> dict[str, Any]:
    bad = red(cell.verdict, run.strict_skips)
    return {
        "case": cell.case,
        "step": cell.step,
        "verdict": str(cell.verdict),
        "red": bad,
        "reason": cell.reason,
        "reproducer": run.reproducer(cell) if bad else "",
        "seconds": cell.seconds,
        "figures": list(cell.figures),
        "curves": list(cell.curves),
        "text": cell.text,
        "console": cell.console,
        "crash": cell.crash,
        "kmsg": list(cell.kmsg),
        "times": [
            {"verdict": str(t.verdict), "reason": t.reason, "seconds": t.seconds, "text": t.text, "console": t.console}
            for t in cell.times
        ],
    }
