"""Runs cases against deliberate faults, and fills the table of what catches what (see kills.py, mutate.py)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from vm import arch, flavour
from vm.cases import Case, groups
from vm.errors import Infra, StepFailed
from vm.guest import selftests_tar
from vm.image import Builder
from vm.kernel import Guests, MakeRuns, Runs, assemble
from vm.kills import NO_GUEST, Row, Table
from vm.mutants import NONE, Mutant
from vm.reports import Cell
from vm.series import Patch, Series
from vm.single import every_30_s
from vm.source import Source
from vm.subject import step_subject
from vm.verdict import Verdict, red

Say = Callable[[str], None]
Result = TypeVar("Result")


class Kernels:
    """The kernels that a campaign needs, each built when first asked for, from any thread."""

    def __init__(
        self, under_test: Series, find: Callable[[], Source], logs: Path, say: Say, guests: MakeRuns = Guests
    ) -> None:
        self.series, self.find, self.logs, self.say, self.guests = under_test, find, logs, say, guests
        self.stopping = threading.Event()
        self._builder: Builder | None = None
        self._made: dict[tuple[str, str], Runs] = {}
        self._lock = threading.Lock()

    def get(self, patch: Patch | None, kind: str) -> Runs:
        """The last step, with one more patch where it is given, in a flavour. StepFailed where there is no image."""
        key = patch.id if patch else "", kind
        if key not in self._made:
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
        return self.guests(assemble(image, step_subject(faulty, last), flavour=flavoured), logs, self.stopping)

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
        """First the cases that name a fault, then the others on those that are still alive.

        What killed runs with no fault active afterwards. Where that is red as well the fault goes on with what is left.
        """
        began, before = time.monotonic(), self.table.seconds
        row = {m.id: self.table.rows.get(m.id) or Row(m.id) for m in self.chosen}
        for phase in [self._named] if self.table.mode == "named" else [self._named, self._others]:
            self._baseline()  # of what an interrupted campaign has left
            while work := [(m, cases, row[m.id]) for m in self.chosen if (cases := self._left(row[m.id], phase(m)))]:
                for tried in self._at_once([partial(self._try, *of_one) for of_one in work]):
                    self.table.rows[tried.id] = tried
                    self.table.seconds = before + time.monotonic() - began
                    self.kept()
                self._baseline()
        self.table.rows = row | self.table.rows  # those that no case was there for, too
        self.table.seconds = before + time.monotonic() - began

    def _left(self, row: Row, cases: list[Case]) -> list[Case]:
        """What of these cases is still wanted of a fault."""
        if row.no_guest[0] or (self.table.mode == "first" and row.kills):
            return []
        return [c for c in cases if c.nodeid not in row.kills and c.nodeid not in row.held]

    def _likely_first(self, mutant: Mutant, cases: list[Case]) -> list[Case]:
        """Cases that have killed most faults of the same patch come first, where one kill is enough."""
        if self.table.mode != "first":
            return cases
        same = {m.id for m in self.chosen if m.breaks == mutant.breaks}
        killed = Counter(case for row in list(self.table.rows.values()) if row.id in same for case in row.kills)
        return sorted(cases, key=lambda c: (mutant.id not in c.red_on, -killed[c.nodeid]))

    def _order(self, cases: list[Case]) -> list[list[Case]]:
        """Cases by guest, as they were collected: the long groups are not the ones that see most.

        Where one kill is enough the first case goes alone: it kills as a rule, and to collect the others costs seconds.
        """
        alone = 1 if self.table.mode == "first" else 0
        shared = sorted(groups(cases[alone:]), key=lambda group: cases.index(group[0]))
        return [*([case] for case in cases[:alone]), *shared]

    def _named(self, mutant: Mutant) -> list[Case]:
        """The cases that say that they see it."""
        return [c for c in self.every if mutant.id in c.red_on]

    def _others(self, mutant: Mutant) -> list[Case]:
        """The rest of the suite."""
        return [c for c in self.suite if mutant.id not in c.red_on]

    def _baseline(self) -> None:
        """Run what killed with no fault active, where it has not been; what is red then as well has killed nothing."""
        needed: dict[str, tuple[Mutant, dict[str, Case]]] = {}
        by_id = {c.nodeid: c for c in (*self.suite, *self.every)}
        tried = [(m, self.table.rows[m.id]) for m in self.chosen if m.id in self.table.rows]
        for m, row in tried:
            have = self.table.baseline.setdefault(kernel_of(m), {})
            missing = {case: by_id[case] for case in row.kills if case not in have}
            needed.setdefault(kernel_of(m), (m, {}))[1].update(missing)
        work = [(m, group) for m, cases in needed.values() for group in groups(list(cases.values()))]
        if work:
            self.say(f"with no fault active: {sum(len(group) for _, group in work)} cases that killed")
        for m, cells in self._at_once([partial(self._clean, *of_one) for of_one in work]):
            for cell in cells:
                if cell.verdict is Verdict.INFRA or cell.verdict in NO_GUEST:
                    raise Infra(f"with no fault active: {cell.case}: {cell.verdict}: {cell.reason}")
                if red(cell.verdict):
                    self.say(f"red with no fault active: {cell.case} {cell.verdict}: {cell.reason}")
                self.table.baseline[kernel_of(m)][cell.case] = str(cell.verdict)
            self.kept()
        for m, row in tried:
            row.compare(self.table.baseline[kernel_of(m)])

    def _clean(self, m: Mutant, group: list[Case]) -> tuple[Mutant, list[Cell]]:
        runs, tar = self.kernels.get(m.patch if m.name else None, m.flavour), selftests_tar(NONE if m.name else "")
        return m, list(runs.run(flavour.patient(group, flavour.load(m.flavour)), tar))

    def _try(self, m: Mutant, cases: list[Case], row: Row) -> Row:
        """Run cases with a fault active, until the first kill if that is enough."""
        began = time.monotonic()
        try:
            runs, tar = self.kernels.get(m.patch, m.flavour), selftests_tar(m.name)
            patient = flavour.patient(self._likely_first(m, cases), flavour.load(m.flavour))
            for group in self._order(patient):
                with closing(runs.run(group, tar)) as cells:
                    for cell in cells:
                        if cell.verdict in NO_GUEST:
                            raise StepFailed(str(cell.verdict), cell.reason)
                        row.add(cell)
                        if not self._left(row, cases):
                            break
                if not self._left(row, cases):
                    break
            if self.kernels.stopping.is_set():
                return row
            # A result that did not arrive must not be waited for for ever.
            row.held |= {c.nodeid: str(Verdict.LOST) for c in self._left(row, cases)}
        except StepFailed as e:
            if m.name:  # its image is that of all the others, and none is active before a case: no fault's doing
                raise Infra(f"{m.patch.title}: {e.verdict}: {e.reason}") from None
            row.no_guest = e.verdict, e.reason
        row.seconds = round(row.seconds + time.monotonic() - began, 1)
        word = "killed" if row.by() else "UNKNOWN" if row.trouble() else "ALIVE"
        what = row.by() or row.trouble() or f"{m.what}: {len(row.held)} cases held"
        self.say(f"{word:7} {m.id} ({m.breaks}): {what} [{row.seconds:.0f} s]")
        return row

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
