"""The cases and the deliberate breaks, held against each other without running anything."""

import re

import pytest

from selftests.lib import profiler
from vm import arch, mutants, series
from vm.cases import Case
from vm.paths import SELFTESTS
from vm.plugin import EVERY_CASE, collect


@pytest.fixture(scope="module", params=series.known())
def under_test(request: pytest.FixtureRequest) -> series.Series:
    return series.load(request.param)


@pytest.fixture(scope="module")
def cases(under_test: series.Series) -> list[Case]:
    return collect(under_test.name, EVERY_CASE)


def test_every_case_says_what_it_proves(cases: list[Case]) -> None:
    assert [c.nodeid for c in cases if not c.says.rstrip().endswith((".", ")"))] == []


def test_every_case_of_a_patch_names_the_break_that_turns_it_red(cases: list[Case]) -> None:
    assert [c.nodeid for c in cases if c.introduced_by and not c.red_on] == []


def test_breaks_and_cases_know_each_other(cases: list[Case], under_test: series.Series) -> None:
    named = {word for c in cases for word in c.red_on if not re.fullmatch(r"\d+\.\d+", word)}
    assert named - set(mutants.everywhere()) == set()
    assert {m.id for m in mutants.load(under_test) if not m.equivalent} - named == set()


def test_the_breaks_name_nobody(under_test: series.Series) -> None:
    for mutant in mutants.load(under_test):
        assert b"Signed-off-by" not in mutant.patch.mail
        assert b"From: perpatch developers <perpatch@example.org>" in mutant.patch.mail


def test_the_cases_count_instructions_as_the_guest_clock_does() -> None:
    assert 1 << arch.load().icount_shift == profiler.INSTRUCTION


def test_no_module_of_the_cases_grows_past_what_a_reader_takes_in() -> None:
    assert [p.name for p in SELFTESTS.rglob("*.py") if len(p.read_text().splitlines()) > 300] == []
