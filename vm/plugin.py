"""The host's pytest: cases under selftests/ are collected here and run in a guest; its reports are replayed.

So -k, -x, --lf, --junitxml, -v, node ids and other plugins behave as everyone expects. `perpatch run` collects with
this plugin as well and fills a whole matrix instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vm import cases, chosen, series
from vm.errors import Infra, Mistake, StepFailed
from vm.verdict import Verdict, red

DEFAULT_SERIES = "so-reserve-mem"
WRONG = re.compile(r"(?:ERROR: (?!usage)|pytest\.main\(\): error: )(.*)")  # what pytest says of its arguments
# Marks of what takes minutes, or a kernel of its own: left out of a run unless -m speaks of them.
RARE = ("sweep", "scale", "profile")
EVERY_CASE = ["-m", " or ".join([*RARE, f"not {RARE[0]}"])]  # for collect(): also what is left out of a run


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that say which kernel the cases run on."""
    group = parser.getgroup("perpatch", "the kernel under test")
    group.addoption("--series", default=DEFAULT_SERIES, help="name under patches/, directory of patches, or mbox")
    group.addoption("--step", default=None, help="base, a number, 2/3 or a patch's id (default: the last patch)")
    group.addoption("--kernel", default=None, help="instead of a step: as perpatch run has it")
    group.addoption("--tree", default=None, help="a kernel git tree to apply the series on")
    group.addoption("--base", default=None, help="the revision of --tree (default: HEAD)")
    group.addoption("--tarball", default=None, help="a kernel source tarball, PATH#SHA256")
    group.addoption("--flavour", default="", help="of the step: kasan, lockdep, kmemleak, kcsan, profile")
    group.addoption("--accel", default="auto", choices=["auto", "kvm", "tcg"], help="accelerator (default: auto)")
    group.addoption("--guest", default="warm", choices=["warm", "vng"], help="our own root, or virtme-ng's host root")
    group.addoption("--strict-skips", action="store_true", help="a SKIP is red")
    chosen.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Keep what was chosen about the cases for the guest."""
    chosen.keep(config)


def _ours(items: list[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if item.nodeid.startswith("selftests/")]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases of other series, and RARE ones unless -m speaks of them; an unknown patch is a usage error."""
    ours = _ours(items)
    if not ours:
        return
    try:
        under_test = series.load(config.option.series)
        mine = {item.nodeid: cases.of_item(item, under_test.name) for item in ours}
        # Not by addopts, which a user's own -m would replace.
        unasked = [mark for mark in RARE if mark not in config.option.markexpr]
        gone = [
            item
            for item in ours
            if not cases.applies(mine[item.nodeid], under_test) or any(map(item.get_closest_marker, unasked))
        ]
    except Mistake as e:
        raise pytest.UsageError(str(e)) from None
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the cases in guests of one step, and replay what comes out."""
    ours = _ours(session.items)
    if not ours or session.config.option.collectonly:
        return None
    if len(ours) < len(session.items):
        raise pytest.UsageError("selftests/ run in a guest and vm/tests here: give one of them at a time")
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} error(s) during collection")
    replay = Replay(session, ours)
    try:
        for cell in replay.cells():
            replay.show(cell)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    except Mistake as e:
        raise pytest.UsageError(str(e)) from None
    except (Infra, StepFailed) as e:
        where = f" (see {e.log})" if isinstance(e, StepFailed) and e.log else ""
        word = e.verdict if isinstance(e, StepFailed) else "INFRA"
        pytest.exit(f"{word}: {e}{where}", returncode=3 if word == "INFRA" else 1)
    return True


class Replay:
    """The cells of one step, shown to pytest as if the cases had run here."""

    def __init__(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        self.session, self.config = session, session.config
        self.items = {item.nodeid: item for item in items}
        self.under_test = series.load(self.config.option.series)
        self.cases = [cases.of_item(item, self.under_test.name) for item in items]

    def cells(self) -> Iterator[Any]:
        """Build and boot what the cache lacks, then run the cases; cells as they come."""
        from vm.single import cells_of_step  # late: collecting alone needs none of it

        option = self.config.option
        step = self.under_test.step(option.step) if option.step else len(self.under_test.patches)
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")

        def say(text: str) -> None:
            if terminal:
                terminal.ensure_newline()
                terminal.write_line(f"perpatch: {text}")

        yield from cells_of_step(self.under_test, step, self.cases, option, say)

    def show(self, cell: Any) -> None:
        """Replay one cell: pytest's own reports, with the outcome that the verdict asks for."""
        item = self.items[cell.case]
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=cell.case, location=item.location)
        reports = [
            hook.pytest_report_from_serializable(config=self.config, data=dict(data)) for data in cell.reports
        ] or [self._made(item, cell, "setup", "passed")]
        for report in self._judged(item, cell, reports):
            if isinstance(report.longrepr, list):  # a skip's place and reason; pytest's summary wants the tuple it was
                report.longrepr = tuple(report.longrepr)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=cell.case, location=item.location)

    def _judged(self, item: pytest.Item, cell: Any, reports: list[pytest.TestReport]) -> list[pytest.TestReport]:
        if cell.verdict in (Verdict.XFAIL, Verdict.ABSENT):
            for report in reports:
                if report.failed:
                    report.outcome = "skipped"
                    report.wasxfail = f"{cell.verdict}: {cell.reason}"
        elif red(cell.verdict) and not any(r.failed for r in reports):
            # The guest's pytest was content, or never got to speak; the verdict is ours, so the report is too.
            reports = [r for r in reports if r.when != "call"] + [self._made(item, cell, "call", "failed")]
            reports.sort(key=lambda r: ["setup", "call", "teardown"].index(r.when))
        for report in reports:
            if report.failed and cell.kmsg:
                report.sections.append(("kernel messages", "\n".join(cell.kmsg)))
        return reports

    def _made(self, item: pytest.Item, cell: Any, when: str, outcome: str) -> pytest.TestReport:
        text = f"{cell.verdict}: {cell.reason}\n{cell.text}".rstrip() if outcome == "failed" else None
        return pytest.TestReport(item.nodeid, item.location, {}, outcome, text, when)  # type: ignore[arg-type]


class Collector:
    """A plugin that keeps the collected cases; see collect()."""

    def __init__(self) -> None:
        self.cases: list[cases.Case] = []
        self.others: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the items that are left after -k and -m."""
        under_test = series.load(session.config.option.series)
        self.cases = [cases.of_item(item, under_test.name) for item in _ours(session.items)]
        self.others = [i.nodeid for i in session.items if not i.nodeid.startswith("selftests/")]


def collect(series_word: str, args: list[str]) -> list[cases.Case]:
    """The cases that apply to a series, narrowed by pytest's own arguments (-k, -m, paths).

    Mistake carries pytest's own words where it cannot collect or does not know an argument.
    """
    import contextlib
    import io

    from vm.paths import REPO, SELFTESTS

    keep, said = Collector(), io.StringIO()
    # The value of an option may be the name of a file as well; only what lies in selftests/ is a path of cases.
    named = [a for a in args if not a.startswith("-") and Path(a.split("::")[0]).resolve().is_relative_to(SELFTESTS)]
    paths = [] if named else [str(SELFTESTS)]
    words = [*args, *paths, "--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={REPO}"]
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = pytest.main([*words, "-c", str(REPO / "pyproject.toml"), f"--series={series_word}"], plugins=[keep])
    if keep.others:
        raise Mistake(f"{keep.others[0]}: no case: those that run in a guest are under selftests/")
    if status == pytest.ExitCode.NO_TESTS_COLLECTED or (status == pytest.ExitCode.OK and not keep.cases):
        raise Mistake(f"no case is left: {' '.join(args) or 'selftests/ is empty'}: 'perpatch list' shows them all")
    if status == pytest.ExitCode.USAGE_ERROR:
        wrong = [w[1] for line in said.getvalue().splitlines() if (w := WRONG.match(line))]
        raise Mistake(" ".join(wrong) or said.getvalue().strip())
    if status != pytest.ExitCode.OK:
        raise Mistake(f"pytest could not collect the cases:{os.linesep}{said.getvalue().strip()}")
    return keep.cases
