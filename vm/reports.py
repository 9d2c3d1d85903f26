"""Stage 5: from the events of one guest to cells, one a case. A result that did not arrive is never green."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vm import console
from vm.cases import Case
from vm.errors import StepFailed
from vm.guest import Guest
from vm.subject import Subject
from vm.verdict import Outcome, Verdict, judge, known_issue
from vm.wire import Event


@dataclass(frozen=True)
class Cell:
    """One case on one kernel; step: the name of its column in the matrix.

    seconds: virtual (or real, under KVM) time in the guest. figures: name, value, unit each, as the case gave them;
    curves: name, points (x and y each), unit.
    crash: fingerprint of what the kernel died of or complained of, see console.fingerprint().
    text: the failure as pytest prints it, or the console's end. reports: pytest's own serialised reports.
    kmsg: what the kernel said meanwhile, "level,text" each. times: where the case ran more than once, each time.
    """

    case: str
    step: str
    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0
    figures: tuple[dict[str, Any], ...] = ()
    curves: tuple[dict[str, Any], ...] = ()
    text: str = ""
    console: str = ""
    crash: str = ""
    kmsg: tuple[str, ...] = ()
    reports: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    times: tuple[Cell, ...] = field(default=(), repr=False)


_ENDS = {"panic": Verdict.PANIC, "hang": Verdict.HANG, "died": Verdict.LOST, "infra": Verdict.INFRA}


def run_group(warm: Guest, group: list[Case], tar: str, subject: Subject) -> Iterator[Cell]:
    """Run a group of cases to its end, with as many guests as it takes: a dead one costs one case, not the rest."""
    todo, fruitless = list(group), 0
    while todo:
        try:
            warm.ensure()
        except StepFailed as e:
            for case in todo:
                yield Cell(case.nodeid, subject.name, Verdict(e.verdict), e.reason, console=str(e.log or ""))
            return
        left, why = yield from cells(warm.run(todo, tar), todo, subject)
        if warm.stopping.is_set():
            return
        fruitless = fruitless + 1 if len(left) == len(todo) else 0
        if fruitless == 2:
            for case in left:
                yield Cell(
                    case.nodeid, subject.name, Verdict.INFRA, f"two guests in a row ended before any case: {why}"
                )
            return
        todo = left


def cells(events: Iterable[Event], todo: list[Case], subject: Subject) -> Generator[Cell, None, tuple[list[Case], str]]:
    """Cells from one guest's events, and (returned) the cases that it left undone and why.

    A guest that ends in the middle of a case gives that case the verdict; one that says it is done leaves none.
    """
    left = {c.nodeid: c for c in todo}
    running: str | None = None
    reports: list[dict[str, Any]] = []
    told: list[str] = []
    errors: dict[str, str] = {}
    collected: set[str] = set()
    for event in events:
        data = event.data
        if event.kind == "start":
            running, reports, told = data["start"], [], []
        elif event.kind == "told":
            told = [*([] if data["anew"] else told), str(data["told"])]
        elif event.kind == "report" and running:
            reports.append(data["report"])
        elif event.kind == "collected":
            collected = set(data["collected"])
        elif event.kind == "error":
            errors[str(data.get("nodeid", ""))] = str(data["error"])
        elif event.kind == "end" and running in left:
            yield _cell(left.pop(running), reports, data, subject)
            running = None
        elif event.kind == "done":
            if running in left:  # pytest.exit(), KeyboardInterrupt and the like: the rest gets another guest
                yield Cell(running, subject.name, Verdict.ERROR, "pytest ended in the middle of this case")
                del left[running]
            for case in [c for c in left.values() if c.nodeid not in collected]:
                why = errors.get(case.module, "the guest's pytest did not know this case")
                yield Cell(
                    case.nodeid,
                    subject.name,
                    Verdict.ERROR,
                    f"not collected in the guest: {_last_error(why)}",
                    text=why,
                )
                del left[case.nodeid]
            return list(left.values()), "pytest ended early"
        elif event.kind in _ENDS:
            if running in left:
                yield _dead(left.pop(running), event, subject, reports, told)
            return list(left.values()), data["why"]
    return list(left.values()), "nothing more came"


def _dead(case: Case, event: Event, subject: Subject, reports: list[dict[str, Any]], told: list[str]) -> Cell:
    log = str(event.data.get("console", ""))
    text = console.tail(console.read(Path(log))) if log else ""
    if told:
        text = "\n".join([text, "", "what the case did, to its last step:", "", *told])
    verdict, why = _ENDS[event.kind], str(event.data["why"])
    if verdict in (Verdict.PANIC, Verdict.HANG) and (known := known_issue(case, subject, f"{why}\n{text}")):
        verdict, why = Verdict.XFAIL, f"known issue {known}: {verdict}: {why}"
    crash = console.fingerprint(console.read(Path(log), int(event.data.get("since", 0)))) if log else ""
    return Cell(case.nodeid, subject.name, verdict, why, text=text, console=log, crash=crash, reports=tuple(reports))


def _cell(case: Case, reports: list[dict[str, Any]], end: dict[str, Any], subject: Subject) -> Cell:
    try:
        got = outcome(reports, end["kmsg"])
        verdict, reason = judge(got, case, subject)
        figures, curves = given(reports, "figure"), given(reports, "curve")
        text = "\n".join(str(_message(r)[1]) for r in reports if r["outcome"] == "failed")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as e:  # a guest may send anything
        why = f"a report is not pytest's: {type(e).__name__}: {e}"[:200]
        return Cell(case.nodeid, subject.name, Verdict.ERROR, why, kmsg=tuple(end["kmsg"]))
    bad = [f for f in figures if not _is_figure(f)] + [c for c in curves if not _is_curve(c)]
    if bad:
        why = f"not a figure (name, finite value, unit) or a curve (name, points, unit): {bad[0]!r}"[:200]
        verdict, reason, figures, curves = Verdict.ERROR, why, [], []
    return Cell(
        case=case.nodeid,
        step=subject.name,
        verdict=verdict,
        reason=reason,
        seconds=end["seconds"],
        figures=tuple(figures),
        curves=tuple(curves),
        text=text,
        crash=console.fingerprint("\n".join(line.partition(",")[2] for line in end["kmsg"])) if got.splats else "",
        kmsg=tuple(end["kmsg"]),
        reports=tuple(reports),
    )


def given(reports: Iterable[dict[str, Any]], kind: str) -> list[Any]:
    """What a case recorded as properties of this name while it was called."""
    return [value for r in reports if r["when"] == "call" for name, value in r["user_properties"] if name == kind]


def _is_figure(figure: object) -> bool:
    if not isinstance(figure, dict) or set(figure) != {"name", "value", "unit"}:
        return False
    return _finite(figure["value"]) and f"{figure['name']}{figure['unit']}".isprintable()


def _is_curve(curve: object) -> bool:
    if not isinstance(curve, dict) or set(curve) != {"name", "points", "unit"} or not isinstance(curve["points"], list):
        return False
    points = all(isinstance(p, list) and len(p) == 2 and all(map(_finite, p)) for p in curve["points"])
    return points and len(curve["points"]) > 1 and f"{curve['name']}{curve['unit']}".isprintable()


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _last_error(text: str) -> str:
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return lines[-1] if lines else _line(text)


def outcome(reports: list[dict[str, Any]], kmsg: list[str]) -> Outcome:
    """What setup, call and teardown come to. A failed teardown weighs more than a call that was expected to fail."""
    bad = console.splats(kmsg)
    reports = [r for r in reports if r.get("$report_type", "TestReport") == "TestReport"]  # subtests come as well
    if any("wasxfail" in r for r in reports):
        # It would swallow a leak or a splat with the failure that it expects.
        return Outcome("failed", "setup", "", None, "xfail marks hide what the kernel does: use introduced_by", bad)
    failed = {r["when"]: r for r in reports if r["outcome"] == "failed"}
    skipped = [r for r in reports if r["outcome"] == "skipped"]
    for phase in ("setup", "teardown", "call"):
        if phase in failed:
            report = failed[phase]
            short, _ = _message(report)
            return Outcome("failed", phase, report.get("exc", ""), report.get("errno"), short, bad)
    if skipped:
        longrepr = skipped[0]["longrepr"]
        why = longrepr[2] if isinstance(longrepr, (list, tuple)) else _line(str(longrepr))
        return Outcome("skipped", skipped[0]["when"], text=_line(str(why).removeprefix("Skipped: ")), splats=bad)
    if [(r["when"], r["outcome"]) for r in reports] != [(p, "passed") for p in ("setup", "call", "teardown")]:
        return Outcome("failed", "setup", "", None, "its reports did not all arrive", bad)
    return Outcome("passed", splats=bad)


def _message(report: dict[str, Any]) -> tuple[str, str]:
    """The failure of a serialised report: in one line, and in full."""
    longrepr = report["longrepr"]
    if isinstance(longrepr, dict):
        crash = longrepr.get("reprcrash") or {}
        # A leak takes the place of what the case itself failed with; both are wanted.
        chain = longrepr.get("chain") or [[longrepr.get("reprtraceback"), crash, None]]
        lines = [line for traceback, cause, _ in chain for line in _lines(traceback, cause)]
        return _line(str(crash.get("message", ""))), "\n".join(lines)
    errors = [line[2:] for line in str(longrepr).splitlines() if line.startswith("E ")]
    return _line(errors[0] if errors else str(longrepr)), str(longrepr)


def _lines(traceback: dict[str, Any] | None, crash: dict[str, Any] | None) -> list[str]:
    entries = (traceback or {}).get("reprentries", [])
    lines = [str(line) for e in entries for line in e.get("data", {}).get("lines", [])]
    return lines or str((crash or {}).get("message", "")).splitlines()


def _line(text: str) -> str:
    """The first line, without what a terminal or a page would act on: a case may say anything."""
    text = console.printable(text.encode(errors="replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else ""
