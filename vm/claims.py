"""docs/claims.md: what two documents claim in numbers, beside what was measured. `perpatch claims` measures it.

docs/claims.toml says what each claim needs, docs/plots.toml what each plot does; docs/claims.json is what the last
`perpatch claims` found; the page and the plots are made of these (docs.py).
"""

from __future__ import annotations

import json
import math
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from vm import arch, output, plots, series, sizes
from vm.errors import Infra, Mistake
from vm.matrix import Run
from vm.options import BaseOption, TarballOption, TreeOption
from vm.paths import REPO, writable
from vm.plots import Key, Plot, Points
from vm.plugin import EVERY_CASE, collect
from vm.progress import Progress
from vm.run import Options, Pipeline, prepare
from vm.sizes import Sizes

TOML, JSON, MARKDOWN = (REPO / "docs" / f"claims.{kind}" for kind in ("toml", "json", "md"))
SIZES = "sizes"  # in place of a case: what `perpatch sizes` measures

Figures = dict[Key, tuple[float, str]]  # value and unit


@dataclass(frozen=True)
class Measure:
    """One figure on some steps of a series, or its ratio to that of another.

    low, high: between which it lies if the claim is true; without them it is shown only. than: the series and the case
    whose figure of that name, on the same step, it is divided by.
    """

    series: str
    steps: tuple[str, ...]
    case: str
    figure: str
    low: float = -math.inf
    high: float = math.inf
    than: tuple[str, str] | None = None

    def of(self, step: str, figures: Figures) -> tuple[float, str] | None:
        """The figure on a step; None where it, or what it is compared with, was not measured."""
        figure = figures.get((self.series, step, self.case, self.figure))
        if not figure or not self.than:
            return figure
        other = figures.get((self.than[0], step, self.than[1], self.figure))
        return (figure[0] / other[0], "") if other and other[0] else None

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


@dataclass
class Kept:
    """docs/claims.json: what was measured with (versions), the figures, and the curves."""

    measured_with: dict[str, str] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    curves: dict[Key, Points] = field(default_factory=dict)

    def points(self) -> dict[Key, Points]:
        """What plots are made of: the curves, and each figure as a curve of one point."""
        return self.curves | {key: ((0.0, value),) for key, (value, _) in self.figures.items()}

    def add(self, run: Run) -> None:
        """Every figure and curve of a run. One of a red cell is left out: nobody knows what it measured."""
        bad = {(c.case, c.step) for c in run.red_cells()}
        for cell in run.cells.values():
            for f in (*cell.figures, *cell.curves) if (cell.case, cell.step) not in bad else ():
                key = (run.series.name, cell.step, cell.case, str(f["name"]))
                if key in (self.curves if "points" in f else self.figures):
                    raise Mistake(f"{cell.case}: {f['name']!r} is reported twice: nobody knows which one is meant")
                if "points" in f:
                    self.curves[key] = tuple((float(x), float(y)) for x, y in f["points"])
                else:
                    self.figures[key] = (float(str(f["value"])), str(f["unit"]))


def load(file: Path = TOML) -> tuple[Claim, ...]:
    """The claims of docs/claims.toml; Mistake where a row is not well-formed."""
    claims = []
    try:
        rows = tomllib.loads(file.read_text())["claim"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as e:
        raise Mistake(f"{file}: {e}") from None
    for row in rows:
        try:
            measures = tuple(_measure(**m) for m in row.pop("measure", []))
            claims.append(Claim(measures=measures, **row))
        except (KeyError, TypeError, ValueError) as e:
            raise Mistake(f"{file}: claim {row.get('id', '?')}: {e}") from None
    return tuple(claims)


def _measure(*, steps: list[str], than: list[str] | None = None, **rest: Any) -> Measure:
    return Measure(steps=tuple(steps), than=(than[0], than[1]) if than else None, **rest)


def needed(claims: Iterable[Claim], drawn: Iterable[Plot] = ()) -> dict[str, dict[str, set[str]]]:
    """The steps on which each case is needed: by series, then case."""
    wanted: dict[str, dict[str, set[str]]] = {}
    for claim in claims:
        for m in claim.measures:
            for name, case in ((m.series, m.case), *([m.than] if m.than else [])):
                wanted.setdefault(name, {}).setdefault(case, set()).update(m.steps)
    for part in (part for plot in drawn for part in plot.parts):
        wanted.setdefault(part.series, {}).setdefault(part.case, set()).add(part.step)
    return wanted


def of_sizes(series: str, measured: list[Sizes]) -> Figures:
    """Each struct's size and growth since the base, in bytes."""
    found: Figures = {}
    for step in measured:
        for name, layout in step.structs.items():
            found[series, step.step, SIZES, f"struct {name}"] = (layout.size, "B")
            grown = layout.size - measured[0].structs[name].size
            found[series, step.step, SIZES, f"struct {name}, growth"] = (grown, "B")
    return found


def read(file: Path = JSON) -> Kept:
    """What the last `perpatch claims` kept; nothing where there was none."""
    if not file.is_file():
        return Kept()
    data = json.loads(file.read_text())
    return Kept(
        data["measured_with"],
        {tuple(row["of"]): (row["value"], row["unit"]) for row in data["figures"]},
        {tuple(row["of"]): tuple(map(tuple, row["points"])) for row in data["curves"]},
    )


def write(kept: Kept, file: Path = JSON) -> None:
    """Keep it, a row a line; to four digits, which is more than two runs agree in."""
    figures = [{"of": key, "value": _four(value), "unit": unit} for key, (value, unit) in sorted(kept.figures.items())]
    curves = [
        {"of": key, "points": [[_four(x), _four(y)] for x, y in points]} for key, points in sorted(kept.curves.items())
    ]
    rows = {name: ",\n".join(map(json.dumps, rows)) for name, rows in (("figures", figures), ("curves", curves))}
    parts = [f'"measured_with": {json.dumps(kept.measured_with)}', *(f'"{n}": [\n{r}\n]' for n, r in rows.items())]
    file.write_text("{" + ",\n".join(parts) + "}\n")


def _four(value: float) -> float:
    return float(f"{value:.4g}")


def verdict(claim: Claim, figures: Figures) -> str:
    """holds, holds with a condition, does not hold, or not measured."""
    found = [(m, m.of(step, figures)) for m in claim.measures for step in m.steps]
    if not found or any(figure is None for _, figure in found):
        return "not measured"
    if not all(figure and m.low <= figure[0] <= m.high for m, figure in found):
        return "does not hold"
    return "holds with a condition" if claim.condition else "holds"


def render(claims: tuple[Claim, ...], kept: Kept, drawn: tuple[Plot, ...] = ()) -> str:
    """Markdown: a table of claims and verdicts, the plots, then each claim with its figures and what repeats them."""
    figures = kept.figures
    lines = [
        "# What the two documents claim, and what was measured",
        "",
        "Rendered from [claims.toml](claims.toml) and [claims.json](claims.json) by `perpatch docs`; `perpatch claims`",
        "measures anew. Everything is measured in virtual time: instructions, not cycles. Measured with "
        + (", ".join(f"{what} {which}" for what, which in kept.measured_with.items()) or "nothing yet")
        + ".",
        "",
        "| claim | source | verdict |",
        "|---|---|---|",
        *(f"| [{c.says}](#{c.id}) | {c.source} | {verdict(c, figures)} |" for c in claims),
        "",
        *(f"![{plot.title}]({plot.file('svg').relative_to(TOML.parent)})" for plot in drawn),
    ]
    for claim in claims:
        lines += ["", f"## {claim.id}", "", f"{claim.says} ({claim.source}): **{verdict(claim, figures)}**."]
        lines += ["", *(text for text in (claim.condition, claim.why) if text)]
        if claim.measures:
            lines += ["", "| series, step | figure | measured | true if |", "|---|---|---|---|"]
        for m in claim.measures:
            name = f"{m.case.rpartition('::')[2]}: {m.figure}" + (f", over that of {m.than[0]}" if m.than else "")
            bounds = f"{m.low:g} to {m.high:g}" if m.high < math.inf else ""
            lines += [f"| {m.series} {step} | {name} | {_value(m.of(step, figures))} | {bounds} |" for step in m.steps]
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
    """Measure what docs/claims.toml and plots.toml ask for, write docs/claims.json, its page and its plots."""
    rows, drawn, data = load(), plots.load(), arch.load()
    kept = Kept()
    options = Options(tree, base, tarball)
    into = results or REPO / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}-claims"
    writable(into)
    status = 0
    for name, wanted in needed(rows, drawn).items():
        under_test = series.load(name)
        cases = [c for c in collect(name, EVERY_CASE) if c.nodeid in wanted]
        steps = sorted({0, *(under_test.step(step) for asked in wanted.values() for step in asked)})
        run = prepare(under_test, cases, steps, options)
        with Progress(run, sys.stdout) as progress:
            Pipeline(run, options, into / name, progress).fill()
        output.write(run, into / name)
        progress.finish()
        if run.interrupted:
            raise KeyboardInterrupt  # what docs/ says stays as it is
        if run.trouble or not run.source:
            raise Infra(run.trouble)
        status = status or run.exit_status()
        kept.add(run)
        if SIZES in wanted:
            kept.figures |= of_sizes(name, sizes.measure(run.source, under_test, data, into / name, steps, typer.echo))
        kept.measured_with = {
            "icount shift": str(data.icount_shift),
            **{k: run.versions[k] for k in ("qemu", "python")},
        }
    write(kept)
    kept = read()  # as it is kept, to four digits
    MARKDOWN.write_text(render(rows, kept, drawn))
    for plot in drawn:
        plots.draw(plot, kept.points())
    for claim in rows:
        typer.echo(f"{verdict(claim, kept.figures):24}{claim.id:28}{claim.says}")
    typer.echo(f"results: {into}")
    raise typer.Exit(status)
