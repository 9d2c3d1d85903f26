"""Whatever a guest sends or prints, each case gets one verdict, and none is green that pytest did not say so of."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vm import console
from vm.cases import Case
from vm.reports import Cell, cells
from vm.series import Patch, Series
from vm.subject import step_subject
from vm.verdict import Verdict
from vm.wire import FROM_GUEST, events

CI = bool(os.environ.get("CI"))


def ours(in_ci: int) -> settings:
    """So many examples where CI asks, fewer at a desk."""
    return settings(
        max_examples=in_ci if CI else 500,
        derandomize=CI,  # a gate asks the same of everybody; elsewhere each run looks somewhere else
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


CASES = [Case("selftests/x.py::test_a", ""), Case("selftests/x.py::test_b", "", ("s", "p"), ("b",))]
SUBJECT = step_subject(Series("s", "t", (Patch("p", "t", b""),), declared=True), 0)
NAMES = [c.nodeid for c in CASES]
CONSOLES = sorted((Path(__file__).parent / "samples").glob("*.console"))
WORDS = [b"BUG: ", b"\x1b[31m", b"\x00", b"Kernel panic - not syncing: ", b"\n", b"\xff", b"WARNING: ", b"Oops"]


class Port:
    def __init__(self, lines: list[bytes]) -> None:
        self.given = lines

    def lines(self) -> Iterator[bytes]:
        yield from self.given

    def send(self, message: dict[str, Any]) -> None: ...


class Guest:
    def __init__(self, lines: list[bytes], status: str) -> None:
        self.port, self.status = Port(lines), status

    def cpu_seconds(self) -> float:
        return 0.0

    def starved_seconds(self) -> float:
        return 0.0

    def nmi(self) -> None: ...

    def dump(self, file: Path) -> None: ...

    def ended(self) -> str:
        return self.status


# One draw, where nested strategies take dozens: a menu of what a field is not, each kind as plain and as nested.
PLAIN = [None, True, 0, -1, 1 << 70, 0.5, float("inf"), float("nan"), "", "\x00", "\udcff", "passed", *NAMES]
NESTED = [[], {}, [[]], [None], [1, 2], ["a", "b", "c"], {"": None}, {"message": 3}, [{"lines": [0]}], [[{}, {}, 1]]]
anything = st.sampled_from([*PLAIN, *NESTED]) | st.text(max_size=4)
figure = st.fixed_dictionaries({"name": st.text(max_size=4), "value": anything, "unit": st.just("B")})
report = st.fixed_dictionaries(
    {
        "$report_type": st.just("TestReport") | anything,
        "when": st.sampled_from(["setup", "call", "teardown"]) | anything,
        "outcome": st.sampled_from(["passed", "failed", "skipped"]) | anything,
        "longrepr": anything | st.fixed_dictionaries({"reprcrash": anything, "chain": anything}),
        "user_properties": st.lists(st.tuples(st.sampled_from(["figure", "curve"]), figure | anything), max_size=2)
        | anything,
    },
    optional={"exc": anything, "errno": anything, "wasxfail": anything},
)
name = st.sampled_from(NAMES)
message = st.one_of(
    st.fixed_dictionaries({"start": name | anything}),
    st.fixed_dictionaries({"report": report | anything}),
    st.fixed_dictionaries({"report": report}),
    st.fixed_dictionaries(
        {"end": name | anything, "kmsg": st.lists(st.text(max_size=9), max_size=2), "seconds": st.floats()}
    ),
    st.fixed_dictionaries({"collected": st.just(NAMES) | anything}),
    st.fixed_dictionaries({"told": anything, "anew": anything}),
    st.fixed_dictionaries({"error": anything, "nodeid": anything}),
    st.fixed_dictionaries({"done": anything}),
    st.dictionaries(st.sampled_from(FROM_GUEST), anything, max_size=3),
)


phases = st.tuples(*(report.map(lambda r, when=when: r | {"when": when}) for when in ("setup", "call", "teardown")))
whole = st.tuples(name, phases | st.lists(report | anything, max_size=3)).map(
    lambda run: [
        {"start": run[0]},
        *({"report": r} for r in run[1]),
        {"end": run[0], "kmsg": [], "seconds": 0.5},
    ]
)


@st.composite
def wires(draw: st.DrawFn) -> list[bytes]:
    """Lines as a guest might send them: mostly ours in shape and count, some cut, some made up."""
    runs = draw(st.lists(whole | message.map(lambda m: [m]), max_size=4))
    lines = [json.dumps({"n": n} | m).encode() for n, m in enumerate(m for run in runs for m in run)]
    if lines and draw(st.booleans()):
        at = draw(st.integers(0, len(lines) - 1))
        lines[at] = draw(st.binary(max_size=40)) if draw(st.booleans()) else lines[at][: draw(st.integers(0, 40))]
    return lines


@given(wires(), st.sampled_from(["", "status -9: killed"]), st.sampled_from(CONSOLES))
@ours(20_000)
def test_anything_on_the_port_comes_to_cells(lines: list[bytes], status: str, log: Path) -> None:
    found, left = drained(lines, status, log)
    assert sorted([c.case for c in found] + [c.nodeid for c in left]) == NAMES
    for cell in found:
        assert json.loads(json.dumps(cell.reason)) == cell.reason
        if cell.verdict is Verdict.PASS:
            passed = [r for r in cell.reports if r.get("outcome") == "passed" and r.get("$report_type") == "TestReport"]
            assert [r["when"] for r in passed] == ["setup", "call", "teardown"]


def drained(lines: list[bytes], status: str, log: Path) -> tuple[list[Cell], list[Case]]:
    found: list[Cell] = []
    stream = cells(events(Guest(lines, status), CASES, log, threading.Event()), CASES, SUBJECT)  # type: ignore[arg-type]
    try:
        while True:
            found.append(next(stream))
    except StopIteration as e:
        return found, e.value[0]


@given(st.binary(max_size=400) | st.lists(st.sampled_from(WORDS)).map(b"".join))
@ours(5_000)
def test_any_console_reads_as_printable_lines(raw: bytes) -> None:
    text = console.printable(raw)
    assert "\x1b" not in text and "\x00" not in text
    why = console.death(text)
    assert why is None or ("\n" not in why and "panic" in why)
    assert len(console.tail(text).splitlines()) <= 40
    assert all(isinstance(s, str) for s in console.splats([f"4,{line}" for line in text.splitlines()]))
