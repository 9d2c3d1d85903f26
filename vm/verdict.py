"""What a case's reports mean on a step: from raw outcome and expectation to one verdict. Pure functions."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from enum import StrEnum

from vm.cases import Case
from vm.subject import Subject


class Verdict(StrEnum):
    """One word a cell; see red() for which of them fail a run."""

    PASS = "PASS"
    FAIL = "FAIL"
    XFAIL = "XFAIL"
    ABSENT = "ABSENT"
    XPASS = "XPASS"
    SKIP = "SKIP"
    ERROR = "ERROR"
    HANG = "HANG"
    PANIC = "PANIC"
    SPLAT = "SPLAT"
    NO_APPLY = "NO_APPLY"
    NO_BUILD = "NO_BUILD"
    NO_BOOT = "NO_BOOT"
    INFRA = "INFRA"
    LOST = "LOST"
    FLAKY = "FLAKY"


# What selftests/lib/books.py raises; red on every step, also where the case itself is expected to fail.
_BOOKS = {"Leak": Verdict.FAIL, "Splat": Verdict.SPLAT}
_GREEN = {Verdict.PASS, Verdict.XFAIL, Verdict.ABSENT, Verdict.SKIP}


def red(verdict: Verdict, strict_skips: bool = False) -> bool:
    """Whether a verdict fails the run: everything but PASS, XFAIL, ABSENT and (unless strict) SKIP."""
    return verdict not in _GREEN or (strict_skips and verdict is Verdict.SKIP)


@dataclass(frozen=True)
class Outcome:
    """What arrived of one case: one of passed, failed, skipped; in which phase it failed, with what exception.

    splats: kernel messages of the bad kind that came during the case.
    """

    outcome: str
    phase: str = "call"
    exc: str = ""
    errno: int | None = None
    text: str = ""
    splats: tuple[str, ...] = ()


def expected_to_fail(case: Case, subject: Subject) -> bool:
    """Whether the case belongs to a patch that this kernel does not carry."""
    if not case.introduced_by or case.introduced_by[0] != subject.series.name:
        return False
    return case.introduced_by[1] not in subject.patches


def judge(got: Outcome, case: Case, subject: Subject) -> tuple[Verdict, str]:
    """The verdict of one case on one kernel, and its reason in one line ("" for a plain PASS)."""
    if got.outcome == "skipped" and got.splats:
        return Verdict.SPLAT, got.splats[0]
    if got.outcome == "skipped":
        return Verdict.SKIP, got.text or "no reason given"
    known = known_issue(case, subject, "\n".join((got.text, *got.splats)))
    if known and got.outcome == "failed" and got.phase == "call":
        return Verdict.XFAIL, f"known issue {known}: {got.text}"
    early = expected_to_fail(case, subject)
    if got.outcome == "passed":
        if got.splats:
            return (Verdict.XFAIL, f"known issue {known}: {got.splats[0]}") if known else (Verdict.SPLAT, got.splats[0])
        if early:
            patch = case.introduced_by[1] if case.introduced_by else ""
            return Verdict.XPASS, f"passes before its patch ({patch}){subject.why_without}"
        missed = [i for i, _ in case.known_issues if i in subject.issues]
        if missed:
            return Verdict.XPASS, f"known issue {missed[0]} does not show: if it is fixed, narrow its `affects`"
        return Verdict.PASS, ""
    if got.exc in _BOOKS:
        return _BOOKS[got.exc], got.text
    if got.phase == "setup":
        return Verdict.ERROR, f"setup: {got.text}"
    if got.phase == "teardown":
        return Verdict.ERROR, f"teardown: {got.text}"
    if not early:
        return _late(got), got.text
    return _before_its_patch(got, case)


def known_issue(case: Case, subject: Subject, said: str) -> str:
    """The id of the known issue of this kernel whose symptom is in what was said; "" where it is none."""
    mine = (i for i, symptom in case.known_issues if i in subject.issues and re.search(symptom, said))
    return next(mine, "")


def _before_its_patch(got: Outcome, case: Case) -> tuple[Verdict, str]:
    if got.splats:
        return Verdict.SPLAT, got.splats[0]
    if got.exc == "AssertionError":
        return Verdict.XFAIL, got.text
    if got.errno == errno.ENOPROTOOPT:
        if case.red_on:
            return Verdict.ABSENT, "the option is not there yet"
        return Verdict.ERROR, "absent is no proof: name in red_on the break that turns this case red"
    return Verdict.ERROR, f"fails before its patch, but not for its own reason: {got.text}"


def _late(got: Outcome) -> Verdict:
    """FAIL for what the kernel did (an assertion, an errno); ERROR where the case is broken or could not measure."""
    broken = (
        "NameError",
        "TypeError",
        "AttributeError",
        "ImportError",
        "ModuleNotFoundError",
        "KeyError",
        "SyntaxError",
        "Disturbed",
    )
    return Verdict.ERROR if got.exc in broken else Verdict.FAIL
