"""Runs cases against deliberate faults, and fills the table of what catches what (see kills.py, mutate.py)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from vm import arch, flavour
from vm.cases import Case, groups
from vm.errors import Infra, StepFailed
from vm.guest import selftests_tar
from vm.image import Builder
from vm.kills import NO_GUEST, Row, Table
from vm.mutants import NONE, Mutant
from vm.reports import Cell
from vm.series import Patch, Series
from vm.single import Kernel, every_30_s
from vm.source import Source
from vm.subject import step_subject
from vm.verdict import Verdict, red

Say = Callable[[str], None]
Result = TypeVar("Result")


class Runs(Protocol):
    """What runs a group of cases: single.Kernel."""

    def run(self, group: list[Case], tar: str) -> Generator[Cell, None, None]:
        """Cells as they come."""


class Kernels:
    """The kernels that a campaign needs, each built when first asked for, from any thread."""

    def __init__(self, under_test: Series, find: Callable[[], Source], logs: Path, say: Say) -> None:
        self.series, self.find, self.logs, self.say = under_test, find, logs, say
        self.stopping = threading.Event()
        self._builder: Builder | None = None
        self._made: dict[tuple[str, str], Runs] = {}
        self._lock = threading.Lock()

    def get(self, patch: Patch | None, kind: str) -> Runs:
        """The last step, with one more patch where it is given, in a flavour. StepFailed where there is no image."""
        key = patch.id if patch else "", kind
        with self._lock:  # one build at a time
            if key not in self._made:
                self._made[key] = self.make(patch, kind)
            return self._made[key]

    def make(self, patch: Patch | None, kind: str) -> Runs:
        """Build it; the guests boot when cases are run."""
        flavoured = flavour.load(kind)
        faulty = replace(self.series, patches=(*self.series.patches, *([patch] if patch else [])))
        last, logs = len(faulty.patches), self.logs / "-".join([patch.id if patch else NONE, *([kind] if kind else [])])
        logs.mkdir(parents=True, exist_ok=True)
        self._builder = Builder(self.find(), flavour.build_as(faulty, flavoured), arch.load(), logs)
        image = self._builder.image(last, every_30_s(self.say))
        return Kernel(image, step_subject(faulty, last), logs, flavoured, self.stopping)

    def stop(self) -> None:
        """Let no further guest or build begin, and end those that run."""
        self.stopping.set()
        if self._builder:
            self._builder.stop()


class Campaign:
    """Fills a kill table; what the table has already is not run again.

    suite: the cases that are run on a fault that those which name it did not kill; every: all there are. kept: called
    whenever there is something new in the table.
    """

    def __init__(
        self,
        table: Table,
        chosen: list[Mutant],
        suite: list[Case],
        every: list[Case],
        kernels: Kernels,
        jobs: int,
        kept: Callable[[], None],
    ) -> None:
        self.table, self.chosen, self.suite, self.every, self.kernels = table, chosen, suite, every, kernels
        self.jobs, self.kept, self.say = jobs, kept, kernels.say

    def fill(self) -> None:
        """First the cases that name a fault, then the others on those that are still alive."""
        began, before = time.monotonic(), self.table.seconds
        todo = [(m, Row(m.id)) for m in self.chosen if m.id not in self.table.rows]
        if len(todo) < len(self.chosen):
            self.say(f"{len(self.chosen) - len(todo)} faults had their result before")
        phases = [self._named] if self.table.mode == "named" else [self._named, self._others]
        for phase in phases:
            work = [(m, cases, row) for m, row in todo if self._open(row) and (cases := phase(m))]
            self._baseline([(m, cases) for m, cases, _ in work])
            for m, row in self._at_once([partial(self._try, *of_one) for of_one in work]):
                self.table.seconds = before + time.monotonic() - began
                if phase is phases[-1] or not self._open(row):
                    self._done(m, row)
        for m, row in todo:  # those that no phase had a case for
            if m.id not in self.table.rows:
                self._done(m, row)

    def _named(self, mutant: Mutant) -> list[Case]:
        """The cases that say that they see it."""
        return [c for c in self.every if mutant.id in c.red_on]

    def _others(self, mutant: Mutant) -> list[Case]:
        """The rest of the suite."""
        return [c for c in self.suite if mutant.id not in c.red_on]

    def _open(self, row: Row) -> bool:
        """Whether more cases are wanted of a fault."""
        return not row.no_guest[0] and (self.table.mode != "first" or not row.kills)

    def _done(self, mutant: Mutant, row: Row) -> None:
        self.table.rows[row.id] = row
        self.kept()
        word = "killed" if row.by() else "UNKNOWN" if row.trouble() else "ALIVE"
        what = row.by() or row.trouble() or f"{mutant.what}: {len(row.held)} cases held"
        self.say(f"{word:7} {row.id} ({mutant.breaks}): {what} [{row.seconds:.0f} s]")

    def _baseline(self, wanted: list[tuple[Mutant, list[Case]]]) -> None:
        """Run with no fault active what is wanted with one, and was not yet."""
        needed: dict[str, tuple[Mutant, dict[str, Case]]] = {}
        for m, cases in wanted:
            have = self.table.baseline.setdefault(kernel_of(m), {})
            missing = {c.nodeid: c for c in cases if c.nodeid not in have}
            needed.setdefault(kernel_of(m), (m, {}))[1].update(missing)
        work = [(m, group) for m, cases in needed.values() for group in groups(list(cases.values()))]
        have_all, count = sum(map(len, self.table.baseline.values())), sum(len(group) for _, group in work)
        self.say(f"with no fault active: {count} cases to run, {have_all} had their verdict before")
        for m, cells in self._at_once([partial(self._clean, *of_one) for of_one in work]):
            for cell in cells:
                if cell.verdict is Verdict.INFRA or cell.verdict in NO_GUEST:
                    raise Infra(f"with no fault active: {cell.case}: {cell.verdict}: {cell.reason}")
                if red(cell.verdict):
                    self.say(f"red with no fault active: {cell.case} {cell.verdict}: {cell.reason}")
                self.table.baseline[kernel_of(m)][cell.case] = str(cell.verdict)
            self.kept()

    def _clean(self, m: Mutant, group: list[Case]) -> tuple[Mutant, list[Cell]]:
        runs, tar = self.kernels.get(m.patch if m.name else None, m.flavour), selftests_tar(NONE if m.name else "")
        return m, list(runs.run(flavour.patient(group, flavour.load(m.flavour)), tar))

    def _try(self, m: Mutant, cases: list[Case], row: Row) -> tuple[Mutant, Row]:
        """Run cases with a fault active, until the first kill if that is enough."""
        began, baseline = time.monotonic(), self.table.baseline[kernel_of(m)]
        try:
            runs, tar = self.kernels.get(m.patch, m.flavour), selftests_tar(m.name)
            patient = flavour.patient(cases, flavour.load(m.flavour))
            # In the order in which they were collected: the long groups are not the ones that see most.
            for group in sorted(groups(patient), key=lambda group: patient.index(group[0])):
                with closing(runs.run(group, tar)) as cells:
                    for cell in cells:
                        if cell.verdict in NO_GUEST:
                            raise StepFailed(str(cell.verdict), cell.reason)
                        row.add(cell, baseline.get(cell.case, "LOST"))
                        if not self._open(row):
                            break
                if not self._open(row):
                    break
        except StepFailed as e:
            row.no_guest = e.verdict, e.reason
        row.seconds = round(row.seconds + time.monotonic() - began, 1)
        return m, row

    def _at_once(self, todo: list[Callable[[], Result]]) -> Iterator[Result]:
        """Results as they come, of so many at a time; where whoever reads them stops, all of it stops."""
        with ThreadPoolExecutor(self.jobs) as pool:
            futures = [pool.submit(work) for work in todo]
            try:
                for future in as_completed(futures):
                    yield future.result()
            except BaseException:
                self.kernels.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def kernel_of(m: Mutant) -> str:
    """The kernel that a fault's baseline runs on, in words."""
    return " ".join(["schemata" if m.name else "series", *([m.flavour] if m.flavour else [])])
