"""The host's pytest plugin with guests that are made up: what pytest shows for each verdict."""

from pathlib import Path

import pytest

from vm import cases, plugin, single
from vm.errors import Mistake
from vm.plugin import EVERY_CASE, collect
from vm.reports import Cell
from vm.verdict import Verdict

pytest_plugins = ["pytester"]

CASES = """
import pytest
@pytest.mark.introduced_by("so-reserve-mem", "sndbuf")
@pytest.mark.red_on("x")
def test_a():
    "A holds."
def test_b():
    "B holds."
@pytest.mark.introduced_by("another-series", "x")
def test_not_ours():
    "Another's."
"""
MARKS = """
def pytest_configure(config):
    for mark in ("introduced_by", "red_on", "fresh", "virtual_time", "timeout"):
        config.addinivalue_line("markers", mark)
"""


def report(when: str, outcome: str = "passed") -> dict[str, object]:
    data: dict[str, object] = {"when": when, "outcome": outcome, "longrepr": "E  boom" if outcome == "failed" else None}
    data |= {"nodeid": "selftests/test_x.py::test_a", "location": ("selftests/test_x.py", 1, "test_a"), "keywords": {}}
    return data | {
        "user_properties": [],
        "sections": [],
        "duration": 0.0,
        "start": 0.0,
        "stop": 0.0,
        "$report_type": "TestReport",
    }


def shown(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, cells: list[Cell], *args: str
) -> pytest.RunResult:
    (pytester.path / "selftests").mkdir()
    (pytester.path / "selftests/conftest.py").write_text(MARKS)
    (pytester.path / "selftests/test_x.py").write_text(CASES)
    monkeypatch.setattr(single, "cells_of_step", lambda *_: iter(cells))
    monkeypatch.setattr(cases, "known", lambda: ["so-reserve-mem", "another-series"])
    return pytester.inline_run("selftests", *args, plugins=[plugin])


A, B = "selftests/test_x.py::test_a", "selftests/test_x.py::test_b"
GOOD = tuple(report(when) for when in ("setup", "call", "teardown"))
BAD = (report("setup"), report("call", "failed"), report("teardown"))


@pytest.mark.parametrize(
    ("cell", "passed", "skipped", "failed"),
    [
        (Cell(A, "2/3", Verdict.PASS, reports=GOOD), 1, 0, 0),
        (Cell(A, "1/3", Verdict.XFAIL, "assert", reports=BAD), 0, 1, 0),
        (Cell(A, "0/3", Verdict.ABSENT, "not there", reports=BAD), 0, 1, 0),
        (Cell(A, "2/3", Verdict.FAIL, "assert", reports=BAD), 0, 0, 1),
        (Cell(A, "1/3", Verdict.XPASS, "early", reports=GOOD), 0, 0, 1),
        (Cell(A, "2/3", Verdict.SPLAT, "WARNING", reports=GOOD, kmsg=("4,WARNING",)), 0, 0, 1),
        (Cell(A, "2/3", Verdict.PANIC, "Oops"), 0, 0, 1),
        (Cell(A, "2/3", Verdict.HANG, "stuck", reports=GOOD[:1]), 0, 0, 1),
        (Cell(A, "2/3", Verdict.INFRA, "killed"), 0, 0, 1),
    ],
)
def test_each_verdict_is_what_pytest_shows(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, cell: Cell, passed: int, skipped: int, failed: int
) -> None:
    result = shown(pytester, monkeypatch, [cell])
    assert [len(x) for x in result.listoutcomes()] == [passed, skipped, failed]


def test_x_stops_at_the_first_red_one(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Cell(A, "2/3", Verdict.PANIC, "Oops"), Cell(B, "2/3", Verdict.PASS, reports=GOOD)]
    result = shown(pytester, monkeypatch, cells, "-x")
    assert [len(x) for x in result.listoutcomes()] == [0, 0, 1]
    assert result.ret == 2 or result.ret == 1


def test_a_mark_that_names_no_known_series_is_a_usage_error(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "known", lambda: ["so-reserve-mem"])
    (pytester.path / "selftests").mkdir()
    (pytester.path / "selftests/conftest.py").write_text(MARKS)
    (pytester.path / "selftests/test_x.py").write_text(CASES)
    assert pytester.inline_run("selftests", "--collect-only", plugins=[plugin]).ret == pytest.ExitCode.USAGE_ERROR


def test_cases_of_another_series_are_deselected(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    result = shown(pytester, monkeypatch, [], "--collect-only")
    deselected = [call.items for call in result.getcalls("pytest_deselected")]
    assert [[i.name for i in items] for items in deselected] == [["test_not_ours"]]


def test_junit_survives_what_a_guest_says(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import xml.etree.ElementTree as ET

    cell = Cell(A, "2/3", Verdict.PANIC, "Oops \x1b[31m\x00", text="\x07")
    shown(pytester, monkeypatch, [cell], f"--junitxml={tmp_path}/j.xml")
    assert ET.parse(tmp_path / "j.xml").getroot()[0].get("failures") == "1"


def test_the_summary_names_a_skip(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # as it comes out of JSON: a list where pytest had a tuple
    skipped = report("setup", "skipped") | {"longrepr": ["selftests/test_x.py", 1, "Skipped: no netem"]}
    cell = Cell(A, "2/3", Verdict.SKIP, "no netem", reports=(skipped, report("teardown")))
    shown(pytester, monkeypatch, [cell], "-rs")


@pytest.mark.parametrize(
    ("words", "there"), [([], False), (["-m", "virtual_time"], False), (["-m", "MARK"], True), (EVERY_CASE, True)]
)
@pytest.mark.parametrize(
    ("mark", "series"), [("sweep", "so-reserve-mem"), ("scale", "sndbuf-pressure-v2"), ("profile", "so-reserve-mem")]
)
def test_what_takes_minutes_has_to_be_asked_for(words: list[str], there: bool, mark: str, series: str) -> None:
    words = [word.replace("MARK", mark) for word in words]
    assert any(f"test_{mark}" in c.nodeid for c in collect(series, words)) is there


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--setp", "base"], "unrecognized arguments: --setp"),
        (["-m", "nomark"], "Unknown marker.*nomark"),
        (["-k", "a and"], "Wrong expression passed to '-k'"),
        (["selftests/none.py"], "file or directory not found: selftests/none.py"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(words: list[str], said: str) -> None:
    with pytest.raises(Mistake, match=said) as raised:
        collect("so-reserve-mem", words)
    assert "\n" not in str(raised.value)


def test_a_case_that_series_share_is_judged_by_the_one_under_test(pytester: pytest.Pytester) -> None:
    item = pytester.getitem(
        """
        import pytest
        @pytest.mark.introduced_by("one", "a")
        @pytest.mark.introduced_by("two", "b")
        def test_x(): pass
    """,
        "test_x",
    )
    assert cases.of_item(item, "one").introduced_by == ("one", "a")
    assert cases.of_item(item, "two").introduced_by == ("two", "b")
    other = cases.of_item(item, "three").introduced_by
    assert other and other[0] != "three"
