"""docs/claims.md: what two documents claim in numbers, beside what was measured. `perpatch claims` measures it.

docs/claims.toml says what each claim needs, docs/plots.toml what each plot does; docs/claims.json is what the last
`perpatch claims` found; the page and the plots are made of these (docs.py).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vm import arch, output, plots, series, sizes, tables
from vm.errors import Infra
from vm.kept import JSON, SIZES, Figures, Kept, column, read, write
from vm.matrix import Run
from vm.options import BaseOption, TarballOption, TreeOption
from vm.paths import REPO, writable
from vm.plots import Plot
from vm.plugin import EVERY_CASE, RARE, collect
from vm.progress import Progress
from vm.run import Options, Pipeline, prepare

TOML, MARKDOWN = REPO / "docs/claims.toml", REPO / "docs/claims.md"


@dataclass(frozen=True)
class Measure:
    """One figure on some steps of a series, or its ratio to that of another.

    low, high: between which it lies if the claim is true; without them it is shown only. than: the series and the case
    whose figure of that name, on the same step, it is divided by. flavour: of the kernels of those steps.
    """

    series: str
    steps: tuple[str, ...]
    case: str
    figure: str
    low: float = -math.inf
    high: float = math.inf
    than: tuple[str, str] | None = None
    flavour: str = ""

    def of(self, step: str, figures: Figures) -> tuple[float, str] | None:
        """The figure on a step; None where it, or what it is compared with, was not measured."""
        step = column(step, self.flavour)
        figure = figures.get((self.series, step, self.case, self.figure))
        if not figure or not self.than:
            return figure
        other = figures.get((self.than[0], step, self.than[1], self.figure))
        return (figure[0] / other[0], "") if other and other[0] else None

    def other(self) -> str:
        """What it is compared with, in a word: another series, or another case of this one."""
        name, case = self.than or ("", "")
        return name if name != self.series else case.rpartition("::")[2]

    def command(self) -> str:
        """What repeats it."""
        if self.case == SIZES:
            return f"perpatch sizes --series {self.series}"
        steps = " ".join(f"--step {s.split('/')[0]}" for s in self.steps)
        flavour = f" --flavour {self.flavour}" if self.flavour else ""
        asked = next((f" -m {mark}" for mark in RARE if f"/test_{mark}.py" in self.case), "")
        return f'perpatch run --series {self.series} {steps}{flavour}{asked} "{self.case}"'


@dataclass(frozen=True)
class Claim:
    """One quantitative sentence. condition: under what it holds; why: what there is to say where it does not."""

    id: str
    source: str
    says: str
    measures: tuple[Measure, ...]
    condition: str = ""
    why: str = ""


def load(file: Path = TOML) -> tuple[Claim, ...]:
    """The claims of docs/claims.toml; Mistake where a row is not well-formed."""
    return tables.rows(
        file, "claim", lambda row: Claim(measures=tuple(_measure(**m) for m in row.pop("measure", [])), **row)
    )


def _measure(*, steps: list[str], than: list[str] | None = None, **rest: Any) -> Measure:
    return Measure(steps=tuple(steps), than=(than[0], than[1]) if than else None, **rest)


def needed(claims: Iterable[Claim], drawn: Iterable[Plot] = ()) -> dict[tuple[str, str], dict[str, set[str]]]:
    """The steps on which each case is needed: by series and flavour, then case."""
    wanted: dict[tuple[str, str], dict[str, set[str]]] = {}
    for claim in claims:
        for m in claim.measures:
            for name, case in ((m.series, m.case), *([m.than] if m.than else [])):
                wanted.setdefault((name, m.flavour), {}).setdefault(case, set()).update(m.steps)
    for part in (part for plot in drawn for part in plot.parts):
        wanted.setdefault((part.series, ""), {}).setdefault(part.case, set()).add(part.step)
    return wanted


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
            name = f"{m.case.rpartition('::')[2]}: {m.figure}" + (f", over that of {m.other()}" if m.than else "")
            bounds = (
                f"{m.low:g} to {m.high:g}" if m.high < math.inf else f"{m.low:g} or more" if m.low > -math.inf else ""
            )
            lines += [
                f"| {m.series} {column(step, m.flavour)} | {name} | {_value(m, step, kept)} | {bounds} |"
                for step in m.steps
            ]
        lines += ["", *(f"    .venv/bin/{command}" for command in dict.fromkeys(m.command() for m in claim.measures))]
    return "\n".join(lines) + "\n"


def _value(m: Measure, step: str, kept: Kept) -> str:
    if figure := m.of(step, kept.figures):
        return (f"{figure[0]:,.0f}" if figure[0] >= 1e5 else f"{figure[0]:,.6g}") + f" {figure[1]}".rstrip()
    at = column(step, m.flavour)
    others = [(m.series, at, m.case), *([(m.than[0], at, m.than[1])] if m.than else [])]
    return ": ".join(["not measured", *(kept.missing[key] for key in others if key in kept.missing)])


def claims(
    results: Annotated[Path | None, typer.Option(help="where to write (default: results/<time>-claims)")] = None,
    tree: TreeOption = None,
    base: BaseOption = None,
    tarball: TarballOption = None,
) -> None:
    """Measure what docs/claims.toml and plots.toml ask for, write docs/claims.json, its page and its plots."""
    rows, drawn = load(), plots.load()
    into = results or REPO / "results" / f"{time.strftime('%Y%m%d-%H%M%S')}-claims"
    writable(into)
    kept, runs = Kept(), list[Run]()
    for (name, flavour), wanted in needed(rows, drawn).items():
        options = Options(tree, base, tarball, flavour=flavour)
        runs.append(_measured(name, wanted, options, into / f"{name}-{flavour}".rstrip("-"), kept))
    trouble = next((run.trouble for run in runs if run.trouble), "")
    # Where the host failed, what docs/ says stays as it is.
    where = into / JSON.name if trouble else JSON
    write(kept, where)
    kept = read(where)  # as it is kept, to four digits
    for claim in rows:
        typer.echo(f"{verdict(claim, kept.figures):24}{claim.id:28}{claim.says}")
    typer.echo(f"results: {into}")
    if trouble:
        raise Infra(f"docs/ was left as it is: {trouble}")
    MARKDOWN.write_text(render(rows, kept, drawn))
    for plot in drawn:
        plots.draw(plot, kept.points())
    raise typer.Exit(max(run.exit_status() for run in runs))


def _measured(name: str, wanted: dict[str, set[str]], options: Options, into: Path, kept: Kept) -> Run:
    """Run the cases that are wanted of a series, on every step that one of them is wanted on, and keep the figures."""
    under_test, data = series.load(name), arch.load()
    cases = [c for c in collect(name, EVERY_CASE) if c.nodeid in wanted]
    from_base = [0] if SIZES in wanted else []  # growth counts from there
    steps = sorted({*from_base, *(under_test.step(step) for asked in wanted.values() for step in asked)})
    run = prepare(under_test, cases, steps, options)
    with Progress(run, sys.stdout) as progress:
        Pipeline(run, options, into, progress).fill()
    output.write(run, into)
    progress.finish()
    if run.interrupted:
        raise KeyboardInterrupt
    kept.add(run)
    kept.measured_with = {
        "icount shift": str(data.icount_shift),
        **{k: run.versions.get(k, "?") for k in ("qemu", "python")},
    }
    if SIZES in wanted and run.source:
        try:
            kept.add_sizes(name, sizes.measure(run.source, under_test, data, into, steps, typer.echo))
        except Infra as e:  # no nm, no debug info: the other claims stand
            kept.missing |= {(name, step, SIZES): str(e) for step in wanted[SIZES]}
    return run
