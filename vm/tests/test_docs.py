import pytest

from vm import docs, series
from vm.issues import Issue

SERIES = series.load("so-reserve-mem")


@pytest.mark.parametrize("path", docs.rendered(SERIES), ids=lambda p: p.name)
def test_the_committed_document_is_current(path) -> None:
    assert path.read_text() == docs.rendered(SERIES)[path], "run 'perpatch docs'"


def test_every_issue_has_its_reproducer_and_every_reproducer_its_issue() -> None:
    scripts = {p.name for p in (docs.REPO / docs.REPRODUCERS).glob("*.py")}
    assert scripts == {i.reproducer for i in SERIES.issues}
    assert all(len((docs.REPO / docs.REPRODUCERS / s).read_text().splitlines()) <= 40 for s in scripts)


def test_the_table_shows_what_was_said_and_what_was_not_run() -> None:
    issues = (
        Issue("a", "t", "s", ">=6", "a.py", measured={"6.1": "BUG: 1", "7.3": "ok: 0"}),
        Issue("b", "t", "s", ">=6", "b.py", measured={"7.3": "skip: no such option"}),
    )
    assert docs._table(issues, ["6.1", "7.3"])[2:] == ["| [a](#a) | **BUG** | ok |", "| [b](#b) |  | skip |"]


@pytest.mark.parametrize("issue", SERIES.issues, ids=lambda i: i.id)
def test_what_was_measured_agrees_with_the_versions_said_to_be_affected(issue) -> None:
    for version, said in issue.measured.items():
        assert said.startswith("BUG") == issue.has(version), version


def test_an_issue_may_affect_several_ranges() -> None:
    issue = Issue("a", "t", "s", ">=5.16,<6.12.113 | >=6.13,<7.2.12", "a.py")
    assert [v for v in ("5.10", "5.16", "6.12.112", "6.12.113", "6.18", "7.2.12") if issue.has(v)] == [
        "5.16",
        "6.12.112",
        "6.18",
    ]
