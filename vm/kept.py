"""What `perpatch claims` measured and docs/claims.json keeps: figures, curves, and why some are missing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from vm.errors import Mistake
from vm.matrix import Run
from vm.paths import REPO
from vm.plots import Key, Points
from vm.sizes import Sizes

JSON = REPO / "docs/claims.json"
SIZES = "sizes"  # in place of a case: what `perpatch sizes` measures

Figures = dict[Key, tuple[float, str]]  # value and unit


def column(step: str, flavour: str) -> str:
    """A step of a flavour, by the name under which its figures are kept: apart from those of the step itself."""
    return f"{step}, {flavour}" if flavour else step


@dataclass
class Kept:
    """docs/claims.json: what was measured with (versions), the figures, the curves.

    missing: why a case (series, step, case) gave none.
    """

    measured_with: dict[str, str] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    curves: dict[Key, Points] = field(default_factory=dict)
    missing: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def points(self) -> dict[Key, Points]:
        """What plots are made of: the curves, and each figure as a curve of one point."""
        return self.curves | {key: ((0.0, value),) for key, (value, _) in self.figures.items()}

    def add(self, run: Run) -> None:
        """Every figure and curve of a run. One of a red cell is left out: nobody knows what it measured."""
        bad = {(c.case, c.step) for c in run.red_cells()}
        for cell in run.cells.values():
            of = (run.series.name, column(cell.step, run.flavour), cell.case)
            if (cell.case, cell.step) in bad or not (cell.figures or cell.curves):
                self.missing[of] = f"{cell.verdict}: {cell.reason}".rstrip(": ")
                continue
            for f in (*cell.figures, *cell.curves):
                key = (*of, str(f["name"]))
                if key in (self.curves if "points" in f else self.figures):
                    raise Mistake(f"{cell.case}: {f['name']!r} is reported twice: nobody knows which one is meant")
                if "points" in f:
                    self.curves[key] = tuple((float(x), float(y)) for x, y in f["points"])
                else:
                    self.figures[key] = (float(str(f["value"])), str(f["unit"]))

    def add_sizes(self, series: str, measured: list[Sizes]) -> None:
        """Each struct's size and growth since the base, in bytes."""
        for step in measured:
            if not step.structs:
                self.missing[series, step.step, SIZES] = "pahole is not installed: apt-get install dwarves"
            for name, layout in step.structs.items():
                self.figures[series, step.step, SIZES, f"struct {name}"] = (layout.size, "B")
                grown = layout.size - measured[0].structs[name].size
                self.figures[series, step.step, SIZES, f"struct {name}, growth"] = (grown, "B")


def read(file: Path = JSON) -> Kept:
    """What the last `perpatch claims` kept; nothing where there was none."""
    if not file.is_file():
        return Kept()
    data = json.loads(file.read_text())
    return Kept(
        data["measured_with"],
        {tuple(row["of"]): (row["value"], row["unit"]) for row in data["figures"]},
        {tuple(row["of"]): tuple(map(tuple, row["points"])) for row in data["curves"]},
        {tuple(row["of"]): row["why"] for row in data["missing"]},
    )


def write(kept: Kept, file: Path = JSON) -> None:
    """Keep it, a row a line; to four digits, which is more than two runs agree in."""
    figures = [{"of": key, "value": _four(value), "unit": unit} for key, (value, unit) in sorted(kept.figures.items())]
    curves = [
        {"of": key, "points": [[_four(x), _four(y)] for x, y in points]} for key, points in sorted(kept.curves.items())
    ]
    missing = [{"of": key, "why": why} for key, why in sorted(kept.missing.items())]
    tables = (("figures", figures), ("curves", curves), ("missing", missing))
    rows = {name: ",\n".join(map(json.dumps, table)) for name, table in tables}
    parts = [f'"measured_with": {json.dumps(kept.measured_with)}', *(f'"{n}": [\n{r}\n]' for n, r in rows.items())]
    file.write_text("{" + ",\n".join(parts) + "}\n")


def _four(value: float) -> float:
    return float(f"{value:.4g}")
