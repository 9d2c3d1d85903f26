"""Events of made-up guests, one for each way in which a guest can end."""

from typing import Any

import pytest

from vm.cases import Case
from vm.reports import Cell, cells, outcome
from vm.series import Patch, Series
from vm.subject import step_subject
from vm.verdict import Verdict, judge
from vm.wire import Event

S = Series("s", "t", (Patch("one", "1", b""),), declared=True)
A, B = Case("selftests/x.py::test_a", "a"), Case("selftests/x.py::test_b", "b")


def report(when: str, how: str = "passed", **more: Any) -> dict[str, Any]:
    return {"when": when, "outcome": how, "longrepr": None, "user_properties": [], **more}


def passed(case: Case) -> list[Event]:
    reports = [Event("report", {"report": report(when)}) for when in ("setup", "call", "teardown")]
    start = Event("start", {"start": case.nodeid, "location": []})
    return [start, *reports, Event("end", {"end": case.nodeid, "kmsg": [], "seconds": 0.5})]


def drained(events: list[Event], todo: list[Case]) -> tuple[dict[str, Cell], list[Case]]:
    got, flow = {}, cells(iter(events), todo, step_subject(S, 1))
    while True:
        try:
            cell = next(flow)
        except StopIteration as end:
            return got, end.value[0]
        got[cell.case] = cell


def test_all_is_well() -> None:
    got, left = drained([*passed(A), *passed(B), Event("done", {"done": 0})], [A, B])
    assert [c.verdict for c in got.values()] == [Verdict.PASS, Verdict.PASS]
    assert got[A.nodeid].seconds == 0.5
    assert left == []


def test_a_panic_costs_the_running_case_alone() -> None:
    start = Event("start", {"start": B.nodeid, "location": []})
    got, left = drained([*passed(A), start, Event("panic", {"why": "Oops"})], [A, B])
    assert got[B.nodeid].verdict is Verdict.PANIC
    assert got[A.nodeid].verdict is Verdict.PASS
    assert left == []


def test_what_a_case_told_before_the_guest_died_is_in_the_report() -> None:
    start = Event("start", {"start": A.nodeid, "location": []})
    told = [
        Event("told", {"told": "an earlier sequence", "anew": True}),
        Event("told", {"told": "def test_found(sockets):", "anew": True}),
        Event("told", {"told": "    s0 = sockets.open()", "anew": False}),
    ]
    got, _ = drained([start, *told, Event("panic", {"why": "Oops"})], [A])
    assert got[A.nodeid].text.endswith("def test_found(sockets):\n    s0 = sockets.open()")
    assert "earlier" not in got[A.nodeid].text


def test_a_failure_is_shown_with_the_one_that_it_replaced() -> None:
    chain = [
        [{"reprentries": []}, {"message": "Failed: s0 has 0 bytes\n\ndef test_found():"}, None],
        [{"reprentries": [{"data": {"lines": ["E  Leak: +1 page"]}}]}, {"message": "Leak: +1 page"}, None],
    ]
    longrepr = {"reprcrash": {"message": "Leak: +1 page"}, "chain": chain}
    start = Event("start", {"start": A.nodeid, "location": []})
    call = Event("report", {"report": report("call", "failed", longrepr=longrepr, exc="Leak")})
    end = Event("end", {"end": A.nodeid, "kmsg": [], "seconds": 0})
    text = drained([start, call, end], [A])[0][A.nodeid].text
    assert "def test_found():" in text
    assert "+1 page" in text


def test_a_guest_that_ends_between_cases_leaves_the_rest_undone() -> None:
    got, left = drained([*passed(A), Event("died", {"why": "off"})], [A, B])
    assert list(got) == [A.nodeid]
    assert left == [B]


def test_a_stream_that_just_stops_is_never_green() -> None:
    start = Event("start", {"start": A.nodeid, "location": []})
    got, left = drained([start, Event("report", {"report": report("setup")})], [A])
    assert got == {}
    assert left == [A]


def test_a_case_that_the_guest_did_not_know_is_an_error() -> None:
    got, left = drained([*passed(A), Event("done", {"done": 0})], [A, B])
    assert got[B.nodeid].verdict is Verdict.ERROR
    assert left == []


def test_a_guest_that_cannot_collect_says_why() -> None:
    events = [
        Event("error", {"error": "E   ImportError: no module x", "nodeid": "selftests/x.py"}),
        Event("done", {"done": 2}),
    ]
    got, _ = drained(events, [A])
    assert "no module x" in got[A.nodeid].reason


def test_a_case_that_stops_pytest_is_blamed_and_the_rest_gets_another_guest() -> None:
    collected = Event("collected", {"collected": [A.nodeid, B.nodeid]})
    start = Event("start", {"start": A.nodeid, "location": []})
    got, left = drained([collected, start, Event("done", {"done": 2})], [A, B])
    assert got[A.nodeid].verdict is Verdict.ERROR
    assert left == [B]


def test_an_xfail_mark_is_no_way_to_hide_a_leak() -> None:
    reports = [report("setup"), report("call", "skipped", wasxfail="known"), report("teardown")]
    assert outcome(reports, []).outcome == "failed"


def test_subtests_do_not_count_as_phases() -> None:
    sub = report("call") | {"$report_type": "SubtestReport"}
    assert outcome([report("setup"), sub, report("call"), report("teardown")], []).outcome == "passed"


def test_a_skip_with_a_splat_is_no_skip() -> None:
    reports = [report("setup", "skipped", longrepr=("x.py", 1, "Skipped: why")), report("teardown")]
    got = outcome(reports, ["4,WARNING: CPU: 0"])
    assert judge(got, A, step_subject(S, 1))[0] is Verdict.SPLAT


@pytest.mark.parametrize("figure", [3, {"name": "x", "value": float("nan"), "unit": "kbit/s"}, {"name": "x"}])
def test_what_is_no_figure_is_an_error(figure: object) -> None:
    events = passed(A)
    events[2].data["report"]["user_properties"] = [["figure", figure]]
    got, _ = drained([*events, Event("done", {"done": 0})], [A])
    assert got[A.nodeid].verdict is Verdict.ERROR


@pytest.mark.parametrize("points", [3, [[0, 1]], [[0, 1], [1]], [[0, 1], [1, float("inf")]], [[0, 1], [1, "2"]]])
def test_what_is_no_curve_is_an_error(points: object) -> None:
    events = passed(A)
    events[2].data["report"]["user_properties"] = [["curve", {"name": "window", "points": points, "unit": "B"}]]
    got, _ = drained([*events, Event("done", {"done": 0})], [A])
    assert got[A.nodeid].verdict is Verdict.ERROR


def test_a_curve_arrives_whole() -> None:
    events, curve = passed(A), {"name": "window", "points": [[0, 1], [0.5, 2]], "unit": "B"}
    events[2].data["report"]["user_properties"] = [["curve", curve]]
    got, _ = drained([*events, Event("done", {"done": 0})], [A])
    assert (got[A.nodeid].verdict, got[A.nodeid].curves) == (Verdict.PASS, (curve,))


def test_an_end_without_all_three_reports_is_no_pass() -> None:
    assert outcome([report("setup"), report("call")], []).outcome == "failed"
    assert outcome([], []).outcome == "failed"


def test_a_failed_teardown_weighs_more_than_an_expected_failure() -> None:
    got = outcome([report("setup"), report("call", "failed"), report("teardown", "failed", exc="AssertionError")], [])
    assert got.phase == "teardown"
