"""What a fault came to, kept for the table in docs/faults.md."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vm.faults import anywhere

ROWS = pytest.StashKey[list[dict[str, object]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", type=Path, default=None, help="write what each fault came to into this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


def pytest_sessionfinish(session: pytest.Session) -> None:
    into = session.config.option.faults
    if into:
        # A part that ran again takes the place of its own rows; `make faults` begins with none.
        old = json.loads(into.read_text()) if into.is_file() else []
        rows = {(row["where"], row["fault"]): row for row in [*old, *session.config.stash[ROWS]]}
        into.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n")


@dataclass
class Row:
    """One row of the table: a test fills it in, and its time is the test's unless it says another."""

    where: str
    fault: str
    verdict: str = ""
    said: str = ""
    kept: str = ""
    seconds: float = field(default_factory=time.monotonic)


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    where = request.node.path.stem.removeprefix("test_")
    row = Row(where, request.node.name.removeprefix("test_").replace("_", " "))
    began = row.seconds
    yield row
    spent = time.monotonic() - began if row.seconds == began else row.seconds
    good = getattr(request.node, "passed", False)
    request.config.stash[ROWS].append(
        vars(row) | {"said": anywhere(row.said), "seconds": round(spent, 1), "good": good}
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.passed = report.passed
    return report
