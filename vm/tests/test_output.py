import json
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest

from vm import output
from vm.cases import Case
from vm.image import Image
from vm.matrix import Run, Step
from vm.paths import REPO
from vm.reports import Cell
from vm.series import Patch, Series
from vm.source import Source
from vm.subject import step_subject
from vm.verdict import Verdict

SAMPLES = Path(__file__).parent / "samples"
S = Series("a-series", "net: a title with | and <b>", (Patch("one", "net: one", b""),), declared=True)
A = Case("selftests/x/test_a.py::test_a[1]", "A holds.", ("a-series", "one"), ("a-break",))
B = Case("selftests/x/test_b.py::test_b", "B holds.")


def image(*warnings: str) -> Image:
    return Image("k", "/nowhere", "s", "gcc 12", "c", warnings, warnings, 1.0, 2)


def a_run(verdict: Verdict = Verdict.PASS, reason: str = "", text: str = "") -> Run:
    steps = [
        Step(step_subject(S, 0), "base", 0, image()),
        Step(step_subject(S, 1), "net: one", 1, image("net/x.c: unused")),
    ]
    run = Run(S, Source("/r", "c0", "t0", "v5.10.1"), [A, B], steps, "2021-09-28T00:00:00Z")
    run.accel, run.accel_why = "icount", "tcg: no /dev/kvm here"
    run.add(Cell(A.nodeid, "base", Verdict.XFAIL, "assert 463 > 3000"))
    run.add(
        Cell(
            A.nodeid,
            "1/1",
            Verdict.PASS,
            figures=({"name": "rate", "value": 3450.2, "unit": "kbit/s"},),
            curves=({"name": "window", "points": [[0, 1], [1, 2]], "unit": "B"},),
        )
    )
    run.add(Cell(B.nodeid, "base", Verdict.SKIP, "no netem"))
    run.add(Cell(B.nodeid, "1/1", verdict, reason, 0.25, text=text))
    run.close()
    return run


@pytest.mark.parametrize(
    ("name", "view"), [("matrix.md", output.markdown), ("results.ktap", output.ktap), ("junit.xml", output.junit)]
)
def test_golden(name: str, view: object) -> None:
    run = a_run(Verdict.FAIL, "assert 1 == 2 # \x1b[31m", "E  assert 1 == 2\nE  bad \x00 byte")
    assert view(run) == (SAMPLES / name).read_text()  # type: ignore[operator]


def test_results_json_is_what_its_schema_says() -> None:
    schema = json.loads((REPO / "docs/results.schema.json").read_text())
    jsonschema.validate(a_run(Verdict.PANIC, "oops").as_json(), schema)


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (Verdict.PASS, 0),
        (Verdict.FAIL, 1),
        (Verdict.PANIC, 1),
        (Verdict.XPASS, 1),
        (Verdict.INFRA, 3),
        (Verdict.LOST, 1),
    ],
)
def test_exit_status(verdict: Verdict, status: int) -> None:
    assert a_run(verdict).exit_status() == status


def test_a_skip_is_green_unless_told_otherwise() -> None:
    run = a_run()
    assert run.exit_status() == 0
    run.strict_skips = True
    assert run.exit_status() == 1


def test_nothing_is_missing_from_the_table_and_what_is_missing_is_red() -> None:
    run = a_run()
    del run.cells[B.nodeid, "1/1"], run.times[B.nodeid, "1/1"]
    run.close()
    assert run.cells[B.nodeid, "1/1"].verdict is Verdict.LOST
    assert run.exit_status() == 1


def repeated(*verdicts: Verdict) -> Run:
    """Case B on step 1/1, once for each verdict."""
    run = Run(S, None, [B], [Step(step_subject(S, 1), "net: one", 1, image())], "2021-09-28T00:00:00Z")
    run.repeat = 3
    for verdict in verdicts:
        run.add(Cell(B.nodeid, "1/1", verdict, "" if verdict is Verdict.PASS else f"it was {verdict}"))
    run.close()
    return run


def test_a_verdict_that_differs_is_flaky_and_red_and_all_outcomes_are_kept() -> None:
    run = repeated(Verdict.PASS, Verdict.FAIL, Verdict.PASS)
    cell = run.cells[B.nodeid, "1/1"]
    assert (cell.verdict, cell.reason) == (Verdict.FLAKY, "PASS 2 of 3, FAIL 1 of 3: it was FAIL")
    assert run.exit_status() == 1
    schema = json.loads((REPO / "docs/results.schema.json").read_text())
    jsonschema.validate(run.as_json(), schema)
    assert [t["verdict"] for t in run.as_json()["cells"][0]["times"]] == ["PASS", "FAIL", "PASS"]
    assert "**FLAKY** 2/3" in output.markdown(run)


@pytest.mark.parametrize(
    ("verdicts", "wanted", "status"),
    [
        ((Verdict.PASS,) * 3, Verdict.PASS, 0),
        ((Verdict.PASS,) * 4, Verdict.PASS, 0),
        ((Verdict.FAIL,) * 3, Verdict.FAIL, 1),
        ((Verdict.SKIP, Verdict.PASS, Verdict.PASS), Verdict.FLAKY, 1),
        ((Verdict.PASS,) * 2, Verdict.LOST, 1),
        ((), Verdict.LOST, 1),
        ((Verdict.FAIL, Verdict.INFRA, Verdict.PASS), Verdict.INFRA, 3),
    ],
)
def test_what_repetition_comes_to(verdicts: tuple[Verdict, ...], wanted: Verdict, status: int) -> None:
    run = repeated(*verdicts)
    assert run.cells[B.nodeid, "1/1"].verdict is wanted
    assert run.exit_status() == status


def test_a_crash_that_several_cases_met_is_one_finding() -> None:
    run = a_run()
    for case in (A, B):
        run.times.pop((case.nodeid, "1/1"))
        run.add(Cell(case.nodeid, "1/1", Verdict.PANIC, "BUG: at tcp.c", crash="0badf00d"))
    assert [len(cells) for cells in run.crashes().values()] == [2]
    assert "crash 0badf00d: one in 2 cells" in output.markdown(run)


def test_what_infra_took_runs_again_once_and_is_visible() -> None:
    run = a_run()
    lost = Cell(B.nodeid, "1/1", Verdict.INFRA, "qemu ended with status -9")
    assert run.run_again(lost)
    assert not run.run_again(lost)
    assert not run.run_again(Cell(A.nodeid, "1/1", Verdict.FAIL, "assert 0"))
    assert "1 run again" in output.summary(run)
    assert run.as_json()["rerun"] == [{"case": B.nodeid, "step": "1/1", "reason": "qemu ended with status -9"}]


def test_what_is_red_says_what_runs_it_again() -> None:
    run = a_run(Verdict.FAIL, "assert 1 == 2")
    run.how = ("--series", "my series", "--flavour", "kasan")
    command = f".venv/bin/pytest {B.nodeid} --step 1 --series 'my series' --flavour kasan"
    assert command in output.markdown(run)
    assert [c["reproducer"] for c in run.as_json()["cells"]] == ["", "", "", command]
    assert a_run(Verdict.NO_BOOT, "no init").as_json()["cells"][-1]["reproducer"] == ""


def test_a_step_without_a_kernel_marks_its_whole_column() -> None:
    run = a_run()
    run.cells = {k: v for k, v in run.cells.items() if k[1] == "base"}
    run.times = {k: v for k, v in run.times.items() if k[1] == "base"}
    run.lose(run.steps[1], Verdict.NO_APPLY, "patch 1/1 does not apply")
    assert {c.verdict for c in run.cells.values() if c.step == "1/1"} == {Verdict.NO_APPLY}
    assert run.exit_status() == 1


def test_a_step_that_does_not_build_is_red_without_any_case() -> None:
    run = a_run()
    run.cases, run.cells = [], {}
    run.lose(run.steps[1], Verdict.NO_BUILD, "error")
    assert run.exit_status() == 1


def test_junit_is_xml_whatever_a_case_said() -> None:
    run = a_run(Verdict.FAIL, "\x1b[0m & <x>", "\ud800 \x01")
    ET.fromstring(output.junit(run))
