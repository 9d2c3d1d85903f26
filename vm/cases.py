"""The cases: what pytest collects under selftests/, as frozen dataclasses that no longer need pytest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vm.errors import Mistake
from vm.series import Series, known

if TYPE_CHECKING:
    import pytest

DEFAULT_TIMEOUT = 60.0  # QEMU CPU seconds
GROUP = 100  # cases after which the next file gets a guest of its own


@dataclass(frozen=True)
class Case:
    """One collected case.

    says: the first sentence of its docstring. introduced_by: (series, patch id) or None for an invariant; of a case
    that several series share, what it says of the one under test.
    red_on: the breaks that were seen to turn it red. fresh: wants a resumed guest of its own.
    virtual_time: measures, so needs a guest whose clock counts instructions. cpus: more than one for races, in real
    time. boot: kernel arguments that the guest is booted with. memory: MiB that the guest has at least, 0 where any
    will do. timeout: QEMU CPU seconds.
    known_issues: (id, what a failure by it says, as a regular expression) each.
    """

    nodeid: str
    says: str
    introduced_by: tuple[str, str] | None = None
    red_on: tuple[str, ...] = ()
    fresh: bool = False
    virtual_time: bool = False
    timeout: float = DEFAULT_TIMEOUT
    cpus: int = 1
    boot: str = ""
    memory: int = 0
    known_issues: tuple[tuple[str, str], ...] = ()

    @property
    def module(self) -> str:
        """The file that the case stands in."""
        return self.nodeid.split("::")[0]


def of_item(item: pytest.Item, under_test: str) -> Case:
    """Read one pytest item for the series of that name; Mistake where a mark is not well-formed."""
    doc = (getattr(getattr(item, "function", None), "__doc__", None) or "").strip().splitlines()
    red_on = [word for mark in item.iter_markers("red_on") for word in mark.args]
    timeout = item.get_closest_marker("timeout")
    if timeout and not (timeout.args and isinstance(timeout.args[0], (int, float))):
        raise Mistake(f"{item.nodeid}: timeout takes QEMU CPU seconds: timeout(120)")
    return Case(
        nodeid=item.nodeid,
        says=doc[0] if doc else "",
        introduced_by=_introduced_by(item, under_test),
        red_on=tuple(dict.fromkeys(red_on)),
        fresh=item.get_closest_marker("fresh") is not None,
        virtual_time=item.get_closest_marker("virtual_time") is not None,
        timeout=float(timeout.args[0]) if timeout else DEFAULT_TIMEOUT,
        cpus=_argument(item, "cpus", int, 1),
        boot=_argument(item, "boot", str, ""),
        memory=_argument(item, "memory", int, 0),
        known_issues=tuple(_known_issue(item, mark) for mark in item.iter_markers("known_issue")),
    )


def _introduced_by(item: pytest.Item, under_test: str) -> tuple[str, str] | None:
    """The mark that names the series under test, else the closest one."""
    tied: list[tuple[str, str]] = []
    for mark in item.iter_markers("introduced_by"):
        if len(mark.args) != 2:
            raise Mistake(
                f'{item.nodeid}: introduced_by takes a series and a patch id: introduced_by("so-reserve-mem", "option")'
            )
        tied.append((str(mark.args[0]), str(mark.args[1])))
    return next((t for t in tied if t[0] == under_test), tied[0] if tied else None)


def _argument(item: pytest.Item, name: str, kind: type[Any], default: Any) -> Any:
    mark = item.get_closest_marker(name)
    if mark is None:
        return default
    if len(mark.args) != 1 or not isinstance(mark.args[0], kind):
        raise Mistake(f"{item.nodeid}: {name} takes one {kind.__name__}")
    return mark.args[0]


def _known_issue(item: pytest.Item, mark: pytest.Mark) -> tuple[str, str]:
    symptom = mark.kwargs.get("symptom", "")
    if len(mark.args) != 1 or not isinstance(symptom, str) or not symptom:
        raise Mistake(
            f"{item.nodeid}: known_issue takes an id and what the failure says: "
            'known_issue("window-clamp-ignored", symptom="524288")'
        )
    return str(mark.args[0]), symptom


def applies(case: Case, series: Series) -> bool:
    """Whether a case can be run on a series: it is an invariant, or tied to this very series.

    Mistake where it names a patch that the series does not have.
    """
    if not case.introduced_by:
        return True
    name, patch = case.introduced_by
    if name != series.name and name not in known():
        raise Mistake(f"{case.nodeid}: introduced_by names series {name!r}: known are {', '.join(known())}")
    if name != series.name or not series.declared:
        return False
    series.step_of(patch)
    for issue, _ in case.known_issues:
        if issue not in {i.id for i in series.issues}:
            raise Mistake(f"{case.nodeid}: known_issue {issue!r}: not in known-issues.toml of {name}")
    return True


def behaviours(cases: list[Case]) -> dict[str, list[Case]]:
    """Cases by the function that states their behaviour, in order: one line of a specification each."""
    functions: dict[str, list[Case]] = {}
    for case in cases:
        functions.setdefault(case.nodeid.partition("[")[0], []).append(case)
    return functions


def groups(cases: list[Case]) -> list[list[Case]]:
    """Cases by the guest they share: each `fresh` one alone, measured ones by file, the others by directory.

    A guest costs more than most cases do, so few of them; those that measure get one in which nothing else has run. A
    big directory is cut between files, so that no core waits for the end of one long group.
    """
    shared: dict[str, list[list[Case]]] = {}
    for case in cases:
        name = case.nodeid if case.fresh else case.module if case.virtual_time else case.module.rpartition("/")[0]
        parts = shared.setdefault(f"{name} {case.cpus} {case.boot} {case.memory}", [[]])
        if len(parts[-1]) >= GROUP and parts[-1][-1].module != case.module:
            parts.append([])
        parts[-1].append(case)
    # The long ones first, so that the last guest to end is a short one.
    return sorted((part for parts in shared.values() for part in parts), key=len, reverse=True)
