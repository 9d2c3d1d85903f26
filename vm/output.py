"""Views of a finished matrix: results.json, junit.xml, results.ktap, matrix.md, and a step's config and warnings."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

from vm.markdown import plain, printable
from vm.matrix import Run
from vm.reports import Cell
from vm.verdict import Verdict, red


def write(run: Run, into: Path) -> None:
    """Write every view into a results directory (created if missing)."""
    into.mkdir(parents=True, exist_ok=True)
    (into / "results.json").write_text(json.dumps(run.as_json(), indent=1) + "\n")
    (into / "junit.xml").write_text(junit(run))
    (into / "results.ktap").write_text(ktap(run))
    (into / "matrix.md").write_text(markdown(run))
    for step in run.steps:
        if step.image:
            where = into / step.dir
            where.mkdir(exist_ok=True)
            shutil.copy(Path(step.image.dir) / "config", where / "config")
            (where / "warnings.txt").write_text("".join(f"{w}\n" for w in step.image.new_warnings))


def figure_text(figure: dict[str, object]) -> str:
    """A figure as people read it: 463 kbit/s."""
    value = figure["value"]
    number = f"{value:,.0f}" if isinstance(value, (int, float)) and abs(value) >= 100 else f"{value:.4g}"
    return f"{number} {figure['unit']}"


def figures_text(cell: Cell) -> str:
    """All figures of a cell in one line; a single one needs no name, since the case has one."""
    named = len(cell.figures) > 1
    return "; ".join((f"{f['name']}: " if named else "") + figure_text(f) for f in cell.figures)


def with_figures(run: Run) -> list[tuple[str, list[Cell | None]]]:
    """The rows of the matrix in which some cell has a figure."""
    return [(case, row) for case, row in _rows(run) if any(c and c.figures for c in row)]


def passed(cell: Cell) -> str:
    """How many of its times went as expected, of how many: 19/20."""
    return f"{sum(not red(c.verdict) for c in cell.times)}/{len(cell.times)}"


def _rows(run: Run) -> list[tuple[str, list[Cell | None]]]:
    return [(c.nodeid, [run.cells.get((c.nodeid, s.name)) for s in run.steps]) for c in run.cases]


def headings(run: Run) -> list[str]:
    """What stands over each step's column."""
    return [s.name + (f" {s.verdict}" if s.verdict else "") for s in run.steps]


def summary(run: Run) -> str:
    """The last line of a run: counts of verdicts, exit status, seconds."""
    counts = ", ".join(f"{n} {word}" for word, n in run.counts().items()) or "no case"
    state = {0: "as expected", 1: "red", 3: "the host failed", 130: "interrupted"}[run.exit_status()]
    again = f"; {len(run.rerun)} run again, INFRA had taken them" if run.rerun else ""
    return f"{run.series.name}: {state}: {counts}{again}; {run.seconds:.0f} s"


def crash_lines(run: Run) -> list[str]:
    """A line for each crash that several cells met."""
    found = [(crash, len(cells), cells[0]) for crash, cells in run.crashes().items()]
    return [f"crash {crash}: one in {n} cells, first {c.step} {c.case}: {c.reason}" for crash, n, c in found]


def markdown(run: Run) -> str:
    """The matrix as Markdown, then the figures, then what is red and why."""
    base = f" on {run.source.label}" if run.source else ""
    flavour = f"; flavour: {run.flavour}" if run.flavour else ""
    lines = [f"# {run.series.title} ({run.series.name}){base}", "", summary(run), ""]
    lines += [f"accelerator: {run.accel_why or 'not chosen'}; guest: {run.guest}{flavour}", ""]
    lines += ["| case | " + " | ".join(headings(run)) + " |", "|---|" + "---|" * len(run.steps)]
    for case, row in _rows(run):
        words = [_mark(c, run.strict_skips) for c in row]
        lines.append(f"| {plain(case.removeprefix('selftests/'))} | " + " | ".join(words) + " |")
    figures = with_figures(run)
    if figures:
        lines += ["", "| figure | " + " | ".join(headings(run)) + " |", "|---|" + "---|" * len(run.steps)]
        for case, row in figures:
            words = [plain(figures_text(c)) if c else "" for c in row]
            lines.append(f"| {plain(case.split('::')[-1])} | " + " | ".join(words) + " |")
    for step in run.warned():
        lines += ["", f"New compiler warnings at {step.name}:", ""]
        lines += [f"- {plain(w)}" for w in step.image.new_warnings] if step.image else []
    lines += ["", *map(plain, crash_lines(run))] if run.crashes() else []
    reds = run.red_cells()
    if reds:
        lines += ["", "What is red:", ""]
        for c in reds:
            again = run.reproducer(c)
            lines.append(f"- {c.step} {plain(c.case)}: {c.verdict}: {plain(c.reason)}")
            lines += ["", f"      {again}", ""] if again else []
    return "\n".join(lines) + "\n"


def _mark(cell: Cell | None, strict: bool) -> str:
    if cell is None:
        return ""
    word = f"**{cell.verdict}**" if red(cell.verdict, strict) else str(cell.verdict)
    return f"{word} {passed(cell)}" if cell.times else word


def ktap(run: Run) -> str:
    """KTAP version 1, one subtest a step (Documentation/dev-tools/ktap.rst)."""
    lines = ["KTAP version 1", f"1..{len(run.steps)}"]
    for n, step in enumerate(run.steps, 1):
        lines += ["  KTAP version 1", f"  1..{len(run.cases)}"]
        good = step.verdict is None
        for m, case in enumerate(run.cases, 1):
            cell = run.cells[case.nodeid, step.name]
            bad = red(cell.verdict, run.strict_skips)
            good &= not bad
            if bad and cell.text:
                lines += [f"  # {_plain(line)}" for line in cell.text.splitlines()[-20:]]
            name = _plain(case.nodeid)
            lines.append(f"  {'not ok' if bad else 'ok'} {m} {name}{_directive(cell)}")
        lines.append(f"{'ok' if good else 'not ok'} {n} {step.name}")
    return "\n".join(lines) + "\n"


def _directive(cell: Cell) -> str:
    if cell.verdict is Verdict.PASS:
        return ""
    word = {
        Verdict.SKIP: "SKIP",
        Verdict.XFAIL: "XFAIL",
        Verdict.ABSENT: "XFAIL",
        Verdict.HANG: "TIMEOUT",
        Verdict.ERROR: "ERROR",
    }.get(cell.verdict, "")
    text = _plain(cell.reason if cell.verdict in (Verdict.SKIP, Verdict.XFAIL) else f"{cell.verdict} {cell.reason}")
    return f" # {word} {text}".rstrip() if word else f" # {text}".rstrip()


def _plain(text: str) -> str:
    return re.sub(r"[^\x20-\x7e\u00a0-\ud7ff]", "?", text).replace("#", "\\#")


def junit(run: Run) -> str:
    """JUnit XML, one test suite a step; XFAIL and ABSENT are skipped there, with the reason."""
    suites = ET.Element("testsuites", name=run.series.name)
    for step in run.steps:
        row = [run.cells[c.nodeid, step.name] for c in run.cases]
        bad = [c for c in row if red(c.verdict, run.strict_skips)]
        errors = [c for c in bad if c.verdict is not Verdict.FAIL]
        skipped = [c for c in row if c not in bad and c.verdict is not Verdict.PASS]
        suite = ET.SubElement(suites, "testsuite", name=f"{run.series.name} {step.name}", tests=str(len(row)))
        suite.set("failures", str(len(bad) - len(errors)))
        suite.set("errors", str(len(errors)))
        suite.set("skipped", str(len(skipped)))
        suite.set("time", f"{sum(c.seconds for c in row):.3f}")
        for cell in row:
            suite.append(_testcase(cell, bad, run))
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _testcase(cell: Cell, bad: list[Cell], run: Run) -> ET.Element:
    where, _, name = cell.case.partition("::")
    classname = where.removesuffix(".py").replace("/", ".")
    case = ET.Element("testcase", classname=f"{cell.step}.{classname}", name=printable(name))
    case.set("time", f"{cell.seconds:.3f}")
    if cell in bad:
        kind = "failure" if cell.verdict is Verdict.FAIL else "error"
        ET.SubElement(case, kind, message=printable(f"{cell.verdict}: {cell.reason}")).text = printable(cell.text)
    elif cell.verdict is not Verdict.PASS:
        ET.SubElement(case, "skipped", message=printable(f"{cell.verdict}: {cell.reason}"))
    if cell.figures:
        properties = ET.SubElement(case, "properties")
        for f in cell.figures:
            ET.SubElement(properties, "property", name=str(f["name"]), value=f"{f['value']} {f['unit']}")
    return case
