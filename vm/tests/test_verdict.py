import errno

import pytest

from vm.cases import Case
from vm.issues import Issue
from vm.series import Patch, Series
from vm.subject import released_subject, step_subject
from vm.verdict import Outcome, Verdict, judge, red

S = Series("s", "t", (Patch("one", "1", b""), Patch("two", "2", b"")), declared=True)
INVARIANT = Case("selftests/x.py::test_i", "")
OF_TWO = Case("selftests/x.py::test_t", "", ("s", "two"), ("a-break",))
ASSERTED = Outcome("failed", "call", "AssertionError", None, "assert 1 == 2")
NO_OPTION = Outcome("failed", "call", "OSError", errno.ENOPROTOOPT, "no such option")
PASSED = Outcome("passed")


@pytest.mark.parametrize(
    ("case", "step", "got", "verdict"),
    [
        (INVARIANT, 0, PASSED, Verdict.PASS),
        (INVARIANT, 0, ASSERTED, Verdict.FAIL),
        (OF_TWO, 2, PASSED, Verdict.PASS),
        (OF_TWO, 2, ASSERTED, Verdict.FAIL),
        (OF_TWO, 1, ASSERTED, Verdict.XFAIL),
        (OF_TWO, 1, PASSED, Verdict.XPASS),
        (OF_TWO, 0, NO_OPTION, Verdict.ABSENT),
        (OF_TWO, 2, NO_OPTION, Verdict.FAIL),
        (INVARIANT, 0, NO_OPTION, Verdict.FAIL),
        # the right verdict for the wrong reason is not the right verdict
        (OF_TWO, 1, Outcome("failed", "call", "NameError", None, "name"), Verdict.ERROR),
        (OF_TWO, 1, Outcome("failed", "setup", "AssertionError", None, "fixture"), Verdict.ERROR),
        (OF_TWO, 1, Outcome("failed", "call", "OSError", errno.EINVAL, "einval"), Verdict.ERROR),
        (OF_TWO, 2, Outcome("failed", "call", "NameError", None, "name"), Verdict.ERROR),
        (OF_TWO, 2, Outcome("failed", "call", "TimeoutError", errno.ETIMEDOUT, "late"), Verdict.FAIL),
        # books that do not balance are red before the patch as well
        (OF_TWO, 1, Outcome("failed", "call", "Leak", None, "leak"), Verdict.FAIL),
        (OF_TWO, 1, Outcome("failed", "call", "Splat", None, "WARNING: at"), Verdict.SPLAT),
        (OF_TWO, 2, Outcome("failed", "call", "Leak", None, "leak"), Verdict.FAIL),
        (INVARIANT, 1, Outcome("failed", "teardown", "OSError", 1, "undo"), Verdict.ERROR),
        (INVARIANT, 1, Outcome("skipped", "setup", text="no netem"), Verdict.SKIP),
        (INVARIANT, 1, Outcome("passed", splats=("WARNING: at",)), Verdict.SPLAT),
        (OF_TWO, 1, Outcome("failed", "call", "AssertionError", None, "x", ("WARNING: at",)), Verdict.SPLAT),
    ],
)
def test_judge(case: Case, step: int, got: Outcome, verdict: Verdict) -> None:
    assert judge(got, case, step_subject(S, step))[0] is verdict


def test_absent_is_no_proof_without_a_break() -> None:
    unproven = Case("selftests/x.py::test_t", "", ("s", "two"))
    verdict, why = judge(NO_OPTION, unproven, step_subject(S, 0))
    assert verdict is Verdict.ERROR
    assert "red_on" in why


def test_everything_but_four_words_is_red() -> None:
    green = {v for v in Verdict if not red(v)}
    assert green == {Verdict.PASS, Verdict.XFAIL, Verdict.ABSENT, Verdict.SKIP}
    assert red(Verdict.SKIP, strict_skips=True)


ISSUE = Issue("eaten", "a reservation is eaten", "fwd_alloc falls", ">=5.16,<6.12.113", "eaten.py")
KNOWN = Case("selftests/x.py::test_k", "", ("s", "two"), ("a-break",), known_issues=(("eaten", "fwd_alloc [0-9]+"),))
EATEN = Outcome("failed", "call", "AssertionError", None, "fwd_alloc 4096")


@pytest.mark.parametrize(
    ("version", "got", "verdict"),
    [
        ("6.1.170", EATEN, Verdict.XFAIL),
        ("6.1.170", Outcome("failed", "call", "Leak", None, "fwd_alloc 1 is left"), Verdict.XFAIL),
        ("6.1.170", Outcome("passed", splats=("WARNING: fwd_alloc 1",)), Verdict.XFAIL),
        # strict: another failure is no known one, and a kernel that is fine is no longer affected
        ("6.1.170", ASSERTED, Verdict.FAIL),
        ("6.1.170", PASSED, Verdict.XPASS),
        ("6.1.170", Outcome("failed", "setup", "OSError", 1, "fwd_alloc 1"), Verdict.ERROR),
        ("6.12.113", EATEN, Verdict.FAIL),
        ("7.3.4", PASSED, Verdict.PASS),
        ("5.10.262", NO_OPTION, Verdict.ABSENT),
    ],
)
def test_a_known_issue_is_strict(version: str, got: Outcome, verdict: Verdict) -> None:
    merged = Series("s", "t", S.patches, declared=True, merged_in="5.16", issues=(ISSUE,))
    assert judge(got, KNOWN, released_subject(merged, "debian", version))[0] is verdict


def test_our_own_steps_have_no_known_issue() -> None:
    ours = Series("s", "t", S.patches, declared=True, merged_in="5.16", issues=(ISSUE,))
    assert judge(EATEN, KNOWN, step_subject(ours, 2))[0] is Verdict.FAIL
