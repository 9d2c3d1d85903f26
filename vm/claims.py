"""docs/claims.md: what two documents claim in numbers, beside what was measured. `perpatch claims` measures it.

docs/claims.toml says what each claim needs; docs/claims.json is what the last `perpatch claims` found; the page is made
of the two (docs.py).
"""

from __future__ import annotations

import json
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vm import arch, output, series, sizes
from vm.errors import Mistake
from vm.matrix import Run
from vm.options import BaseOption, TarballOption, TreeOption
from vm.paths import REPO
from vm.plugin import EVERY_CASE, collect
from vm.progress import Progress
from vm.run import Options, Pipeline, prepare
from vm.sizes import Sizes

TOML, JSON, MARKDOWN = (REPO / "docs" / f"claims.{kind}" for kind in ("toml", "json", "md"))
SIZES = "sizes"  # in place of a case: what `perpatch sizes` measures

Key = tuple[str, str, str, str]  # series, step, case, figure


@dataclass(frozen=True)
class Measure:
    """One figure on some steps of a series. low, high: between which it lies if the claim is true; "" unit: a ratio."""

    series: str
    steps: tuple[str, ...]
    case: str
    figure: str
    low: float
    high: float

    def places(self) -> list[Key]:
        """Where its figures are found, a step each."""
        return [(self.series, step, self.case, self.figure) for step in self.steps]

    def command(self) -> str:
        """What repeats it."""
        if self.case == SIZES:
            return f"perpatch sizes --series {self.series}"
        steps = " ".join(f"--step {s.split('/')[0]}" for s in self.steps)
        sweep = " -m sweep" if "test_sweep" in self.case else ""
        return f'perpatch run --series {self.series} {steps}{sweep} "{self.case}"'


@dataclass(frozen=True)
class Claim:
    """One quantitative sentence. condition: under what it holds; why: what there is to say where it does not."""

    id: str
    source: str
    says: str
    measures: tuple[Measure, ...]
    condition: str = ""
    why: str = ""


Figures = dict[Key, tuple[float, str]]  # value and unit


def load(file: Path = TOML) -> tuple[Claim, ...]:
    """The claims of docs/claims.toml; Mistake where a row is not well-formed."""
    claims = []
    for row in tomllib.loads(file.read_text())["claim"]:
        try:
            measures = tuple(
                Measure(**{**m, "steps": tuple(m["steps"]), "low": float(m["low"]), "high": float(m["high"])})
                for m in row.pop("measure", [])
            )
            claims.append(Claim(measures=measures, **row))
        except (KeyError, TypeError, ValueError) as e:
            raise Mistake(f"{file}: claim {row.get('id', '?')}: {e}") from None
    return tuple(claims)


def needed(claims: Iterable[Claim]) -> dict[str, dict[str, set[str]]]:
    """The steps on which each case is needed: by series, then case."""
    wanted: dict[str, dict[str, set[str]]] = {}
    for claim in claims:
        for m in claim.measures:
            wanted.setdefault(m.series, {}).setdefault(m.case, set()).update(m.steps)
    return wanted


def of_run(run: Run) -> Figures:
    """Every figure of a run. One of a red cell is left out: nobody knows what it measured."""
    bad = {(c.case, c.step) for c in run.red_cells()}
    return {
        (run.series.name, cell.step, cell.case, str(f["name"])): (float(str(f["value"])), str(f["unit"]))
        for cell in run.cells.values()
        if (cell.case, cell.step) not in bad
        for f in cell.figures
    }


def of_sizes(series: str, measured: list[Sizes]) -> Figures:
    """Each struct's size and growth since the base, in bytes."""
    found: Figures = {}
    for step in measured:
        for name, layout in step.structs.items():
            found[series, step.step, SIZES, f"struct {name}"] = (layout.size, "B")
            grown = layout.size - measured[0].structs[name].size
            found[series, step.step, SIZES, f"struct {name}, growth"] = (grown, "B")
    return found


def read(file: Path = JSON) -> tuple[dict[str, str], Figures]:
    """What was measured with (versions), and the figures; nothing of either where nothing was."""
    if not file.is_file():
        return {}, {}
    data = json.loads(file.read_text())
    return data["measured_with"], {tuple(row["of"]): (row["value"], row["unit"]) for row in data["figures"]}


def write(measured_with: dict[str, str], figures: Figures, file: Path = JSON) -> None:
    """Keep figures; to four digits, which is more than two runs agree in."""
    rows: list[dict[str, Any]] = [
        {"of": list(key), "value": float(f"{value:.4g}"), "unit": unit}
        for key, (value, unit) in sorted(figures.items())
    ]
    file.write_text(json.dumps({"measured_with": measured_with, "figures": rows}, indent=1) + "\n")


def verdict(claim: Claim, figures: Figures) -> str:
    """holds, holds with a condition, does not hold, or not measured."""
    found = [(m, figures.get(key)) for m in claim.measures for key in m.places()]
    if not found or any(figure is None for _, figure in found):
        return "not measured"
    if not all(figure and m.low <= figure[0] <= m.high for m, figure in found):
        return "does not hold"
    return "holds with a condition" if claim.condition else "holds"


def render(claims: tuple[Claim, ...], measured_with: dict[str, str], figures: Figures) -> str:
    """Markdown: a table of claims and verdicts, then each with all its figures and the commands that repeat them."""
    lines = [
        "# What the two documents claim, and what was measured",
        "",
        "Rendered from [claims.toml](claims.toml) and [claims.json](claims.json) by `perpatch docs`; `perpatch claims`",
        "measures anew. Everything is measured in virtual time: instructions, not cycles. Measured with "
        + (", ".join(f"{what} {which}" for what, which in measured_with.items()) or "nothing yet")
        + ".",
        "",
        "| claim | source | verdict |",
        "|---|---|---|",
        *(f"| [{c.says}](#{c.id}) | {c.source} | {verdict(c, figures)} |" for c in claims),
    ]
    for claim in claims:
        lines += ["", f"## {claim.id}", "", f"{claim.says} ({claim.source}): **{verdict(claim, figures)}**."]
        lines += ["", *(text for text in (claim.condition, claim.why) if text)]
        lines += ["", "| series, step | figure | measured | true if |", "|---|---|---|---|"]
        for m in claim.measures:
            name = f"{m.case.rpartition('::')[2]}: {m.figure}"
            for key in m.places():
                lines.append(f"| {m.series} {key[1]} | {name} | {_value(figures.get(key))} | {m.low:g} to {m.high:g} |")
        lines += ["", *(f"    .venv/bin/{command}" for command in dict.fromkeys(m.command() for m in claim.measures))]
    return "\n".join(lines) + "\n"


def _value(figure: tuple[float, str] | None) -> str:
    return f"{figure[0]:,.6g} {figure[1]}".strip() if figure else "not measured"


def claims(
    results: Annotated[Path | None, typer.Option(help="where to write (default: results/<time>-claims)")] = None,
    tree: TreeOption = None,
    base: BaseOption = None,
    tarball: TarballOption = None,
) -> None:
    """Measure what docs/claims.toml asks for, write docs/claims.json and docs/claims.md, and print the table."""
    rows, figures, data = load(), read()[1], arch.load()
    options = Options(tree, base, tarball)
    into = results or REPO / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}-claims"
    measured_with, status = dict[str, str](), 0
    for name, wanted in needed(rows).items():
        under_test = series.load(name)
        cases = [c for c in collect(name, EVERY_CASE) if c.nodeid in wanted]
        steps = sorted({under_test.step(step) for asked in wanted.values() for step in asked})
        run = prepare(under_test, cases, steps, options)
        with Progress(run, sys.stdout) as progress:
            Pipeline(run, options, into / name, progress).fill()
        output.write(run, into / name)
        progress.finish()
        status = status or run.exit_status()
        figures |= of_run(run)
        if SIZES in wanted and run.source:
            logs = into / name
            figures |= of_sizes(name, sizes.measure(run.source, under_test, data, logs, steps, typer.echo))
        measured_with = {"icount shift": str(data.icount_shift), **{k: run.versions[k] for k in ("qemu", "python")}}
        write(measured_with, figures)  # what has arrived is kept, whatever becomes of the next series
    figures = read()[1]  # as they are kept, to four digits
    MARKDOWN.write_text(render(rows, measured_with, figures))
    for claim in rows:
        typer.echo(f"{verdict(claim, figures):24}{claim.id:28}{claim.says}")
    raise typer.Exit(status)
