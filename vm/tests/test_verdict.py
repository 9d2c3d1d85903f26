import errno

import pytest

from vm.cases import Case
from vm.series import Patch, Series
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
    assert judge(got, case, S, step)[0] is verdict


def test_absent_is_no_proof_without_a_break() -> None:
    unproven = Case("selftests/x.py::test_t", "", ("s", "two"))
    verdict, why = judge(NO_OPTION, unproven, S, 0)
    assert verdict is Verdict.ERROR
    assert "red_on" in why


def test_everything_but_four_words_is_red() -> None:
    green = {v for v in Verdict if not red(v)}
    assert green == {Verdict.PASS, Verdict.XFAIL, Verdict.ABSENT, Verdict.SKIP}
    assert red(Verdict.SKIP, strict_skips=True)
