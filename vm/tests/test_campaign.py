"""A campaign, with kernels that are made up: what runs on what, when it stops, and how it goes on."""

import dataclasses
import json
import tarfile
from base64 import b64decode
from collections.abc import Generator
from io import BytesIO
from pathlib import Path

import pytest

from vm import chosen, mutate, series
from vm.campaign import Campaign, Kernels
from vm.cases import Case
from vm.errors import Infra, Mistake, StepFailed
from vm.kernel import Runs
from vm.kills import Row, Table
from vm.mutants import Mutant
from vm.reports import Cell
from vm.series import Patch
from vm.verdict import Verdict

SERIES = series.load("so-reserve-mem")
SCHEMATA = Patch("schemata", "all faults", b"")
A, B = (Mutant(id, "option", f"{id} is wrong", SCHEMATA, id) for id in "ab")
OWN = Mutant("own", "option", "it is wrong", Patch("own", "", b""))
ONE, TWO, THREE = (Case(f"selftests/x/test_y.py::test_{n}", "") for n in ("one", "two", "three"))
ONE = dataclasses.replace(ONE, red_on=("a",))
SUITE = [ONE, TWO, THREE]
KNOWN = [A, B, OWN]


class Fake(Kernels):
    """Kernels on which cases are red as told: (fault, case) -> verdict; what ran is written down."""

    def __init__(self, red: dict[tuple[str, str], Verdict], tmp: Path) -> None:
        super().__init__(SERIES, lambda: pytest.fail("no source is needed"), tmp, lambda text: None)
        self.red, self.ran, self.made = red, list[tuple[str, str]](), list[str]()

    def make(self, patch: Patch | None, kind: str) -> Runs:
        self.made.append(patch.id if patch else "")
        if patch and ("", patch.id) in self.red:
            raise StepFailed(str(self.red["", patch.id]), "because")
        return FakeKernel(self, patch.id if patch else "")


class FakeKernel:
    def __init__(self, of: Fake, patch: str) -> None:
        self.of, self.patch = of, patch

    def run(self, group: list[Case], tar: str) -> Generator[Cell, None, None]:
        with tarfile.open(fileobj=BytesIO(b64decode(tar))) as files:
            entry = files.extractfile(chosen.WHERE)
            assert entry
            active = json.load(entry).get("mutant", self.patch)
        for case in group:
            name = case.nodeid.rpartition("_")[2]
            self.of.ran.append((active, name))
            yield Cell(case.nodeid, "4/4", self.of.red.get((active, name), Verdict.PASS), "because", console="log")


def run(kernels: Kernels, mode: str, *faults: Mutant, table: Table | None = None) -> Table:
    table = table or Table("s", mode)
    Campaign(table, list(faults), SUITE, SUITE, kernels, 1, lambda: None).fill()
    return table


def test_the_first_kill_ends_a_fault(tmp_path: Path) -> None:
    kernels = Fake({("a", "one"): Verdict.FAIL, ("b", "two"): Verdict.PANIC}, tmp_path)
    table = run(kernels, "first", A, B)
    assert kernels.ran[:2] == [("a", "one"), ("none", "one")], "the case that names it comes first, then without it"
    assert [name for fault, name in kernels.ran if fault == "a"] == ["one"]
    assert [name for fault, name in kernels.ran if fault == "b"] == ["one", "two"]
    assert [name for fault, name in kernels.ran if fault == "none"] == ["one", "two"], "what has killed"
    assert table.rows["a"].by() == "x/test_y.py::test_one FAIL"
    assert table.rows["b"].by() == "x/test_y.py::test_two PANIC"
    assert kernels.made == ["schemata"]


def test_all_goes_on_and_named_does_not_begin_with_others(tmp_path: Path) -> None:
    kernels = Fake({("a", "one"): Verdict.FAIL, ("a", "three"): Verdict.SPLAT}, tmp_path)
    assert len(run(kernels, "all", A).rows["a"].kills) == 2
    kernels = Fake({("a", "one"): Verdict.FAIL, ("b", "two"): Verdict.FAIL}, tmp_path)
    table = run(kernels, "named", A, B)
    assert {name for _, name in kernels.ran} == {"one"}
    assert table.rows["a"].by() and not table.rows["b"].by()


def test_a_case_that_is_red_anyway_kills_nothing(tmp_path: Path) -> None:
    kernels = Fake({("a", "one"): Verdict.FAIL, ("none", "one"): Verdict.FAIL}, tmp_path)
    table = run(kernels, "first", A)
    assert table.rows["a"].by() == ""
    assert [name for fault, name in kernels.ran if fault == "a"] == ["one", "two", "three"]


def test_a_fault_of_its_own_patch_is_compared_with_the_series(tmp_path: Path) -> None:
    kernels = Fake({("own", "two"): Verdict.HANG}, tmp_path)
    assert run(kernels, "first", OWN).rows["own"].by() == "x/test_y.py::test_two HANG"
    assert kernels.made == ["own", ""]
    assert ("", "two") in kernels.ran


@pytest.mark.parametrize("verdict", [Verdict.NO_BUILD, Verdict.NO_BOOT])
def test_no_guest_is_the_compilers_or_the_boots_kill(verdict: Verdict, tmp_path: Path) -> None:
    kernels = Fake({("", "own"): verdict, ("a", "one"): Verdict.FAIL}, tmp_path)
    table = run(kernels, "first", OWN, A)
    assert table.rows["own"].by().endswith("(because)")
    assert table.rows["a"].by(), "the campaign goes on"
    assert run(Fake({("own", "one"): verdict}, tmp_path), "first", OWN).rows["own"].no_guest[0] == verdict


@pytest.mark.parametrize("verdict", [Verdict.NO_BUILD, Verdict.NO_BOOT])
def test_an_image_of_many_faults_that_does_not_work_kills_none(verdict: Verdict, tmp_path: Path) -> None:
    for red in ({("", "schemata"): verdict}, {("a", "one"): verdict}):
        kernels = Fake(red, tmp_path)
        with pytest.raises(Infra, match=f"all faults: {verdict}: because"):
            run(kernels, "first", A, B)


def test_what_killed_most_comes_first(tmp_path: Path) -> None:
    kernels = Fake({(fault, "three"): Verdict.FAIL for fault in "ab"}, tmp_path)
    run(kernels, "first", A, B)
    assert [name for fault, name in kernels.ran if fault == "b"] == ["three"]
    elsewhere = dataclasses.replace(B, breaks="sndbuf")
    kernels = Fake({(fault, "three"): Verdict.FAIL for fault in "ab"}, tmp_path)
    run(kernels, "first", A, elsewhere)
    assert [name for fault, name in kernels.ran if fault == "b"] == ["one", "two", "three"], "of another patch"


def test_a_sample_is_spread_over_all() -> None:
    many = [dataclasses.replace(A, id=str(n)) for n in range(10)]
    assert [m.id for m in mutate.spread(many, 4)] == ["0", "2", "5", "7"]
    assert mutate.spread(many, 0) == mutate.spread(many, 10) == mutate.spread(many, 99) == many
    assert mutate.spread([], 3) == []


def test_a_host_that_fails_ends_it(tmp_path: Path) -> None:
    kernels = Fake({("none", "one"): Verdict.INFRA, ("a", "one"): Verdict.FAIL}, tmp_path)
    with pytest.raises(Infra, match="with no fault active"):
        run(kernels, "first", A)
    assert kernels.stopping.is_set()


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    red = {("a", "one"): Verdict.FAIL, ("b", "two"): Verdict.FAIL}
    table = run(Fake(red, tmp_path), "first", A)
    again = Fake(red, tmp_path)
    run(again, "first", A, B, table=table)
    assert {fault for fault, _ in again.ran} == {"none", "b"}
    assert ("none", "one") not in again.ran, "that had its verdict"
    assert set(table.rows) == {"a", "b"}


def test_it_goes_on_before_what_killed_was_compared(tmp_path: Path) -> None:
    red = {("a", "one"): Verdict.FAIL, ("none", "one"): Verdict.FAIL}
    table = Table("s", "first", rows={"a": Row("a", {ONE.nodeid: ("FAIL", "")})})
    again = Fake(red, tmp_path)
    run(again, "first", A, table=table)
    assert again.ran == [("none", "one"), ("a", "two"), ("a", "three")]
    assert table.rows["a"].by() == ""


def test_a_result_that_did_not_arrive_is_none(tmp_path: Path) -> None:
    class Silent(Fake):
        def make(self, patch: Patch | None, kind: str) -> Runs:
            kernel = FakeKernel(self, "")
            kernel.run = lambda group, tar: (cell for cell in ())  # type: ignore[method-assign]
            return kernel

    table = run(Silent({}, tmp_path), "first", A)
    assert "3 of 3 cases did not run" in table.rows["a"].trouble()


def test_results_of_another_campaign_are_not_gone_on_with(tmp_path: Path) -> None:
    table = mutate.begun(tmp_path, SERIES, KNOWN, "first")
    table.write(tmp_path / "kill.json")
    assert mutate.begun(tmp_path, SERIES, KNOWN, "first") == table
    with pytest.raises(Mistake, match="another"):
        mutate.begun(tmp_path, SERIES, KNOWN, "named")
    with pytest.raises(Mistake, match="another"):
        other = (*SERIES.patches, Patch("other", "", b"another mail"))
        mutate.begun(tmp_path, dataclasses.replace(SERIES, patches=other), KNOWN, "first")


def test_what_nobody_can_see_is_tried_if_asked_for() -> None:
    unseen = dataclasses.replace(B, equivalent="It does nothing.")
    assert mutate.choose([A, unseen], [], False) == [A]
    assert mutate.choose([A, unseen], [], True) == [A, unseen]
    assert mutate.choose([A, unseen], ["b"], False) == [unseen]
    with pytest.raises(Mistake, match="not known: one of a, b"):
        mutate.choose([A, unseen], ["c"], False)
