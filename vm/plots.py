"""docs/plots/: curves and bars made of what `perpatch claims` has kept (docs/claims.json), as docs/plots.toml says.

Each file carries a digest of all that it is made of, so that whether it is current can be told without drawing it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vm import tables
from vm.paths import REPO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOML, PLOTS = REPO / "docs/plots.toml", REPO / "docs/plots"
KINDS = ("png", "svg")

Key = tuple[str, str, str, str]  # series, step, case, figure or curve
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Part:
    """A line of a plot, or a bar where it names a group: whose curve or figure, and what the legend calls it."""

    label: str
    series: str
    step: str
    case: str
    of: str
    group: str = ""
    dashed: bool = False

    @property
    def key(self) -> Key:
        """Where docs/claims.json has its data."""
        return self.series, self.step, self.case, self.of


@dataclass(frozen=True)
class Plot:
    """One picture. x, y: what the axes say; log: of y, with zero on it."""

    id: str
    title: str
    y: str
    parts: tuple[Part, ...]
    x: str = ""
    log: bool = False

    def file(self, kind: str) -> Path:
        """Where it is kept, as png or svg."""
        return PLOTS / f"{self.id}.{kind}"


def load(file: Path = TOML) -> tuple[Plot, ...]:
    """The plots of docs/plots.toml; Mistake where a row is not well-formed."""
    return tables.rows(file, "plot", lambda row: Plot(parts=tuple(Part(**part) for part in row.pop("part")), **row))


def digest(plot: Plot, data: Mapping[Key, Points]) -> str:
    """What a picture is made of, in 16 letters: the plot, its data, and how it is drawn."""
    made_of = repr((plot, [data.get(part.key) for part in plot.parts]))
    return hashlib.sha256(made_of.encode() + Path(__file__).read_bytes()).hexdigest()[:16]


def current(plot: Plot, data: Mapping[Key, Points]) -> bool:
    """Whether both files are there and made of just this."""
    mark = digest(plot, data).encode()
    return all(plot.file(kind).is_file() and mark in plot.file(kind).read_bytes() for kind in KINDS)


def draw(plot: Plot, data: Mapping[Key, Points]) -> None:
    """Write the PNG and the SVG; what was not measured is missing in them, and the legend says so."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.hashsalt": plot.id, "axes.grid": True, "grid.alpha": 0.3, "font.size": 9}
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    (_bars if plot.parts[0].group else _lines)(axes, plot, data)
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    if plot.log:
        axes.set_yscale("symlog")
        axes.set_ylim(top=10 * axes.get_ylim()[1])  # room for what stands above the bars, and for the legend
    axes.set_ylim(bottom=0)
    axes.legend()
    PLOTS.mkdir(exist_ok=True)
    for kind in KINDS:
        about: dict[str, Any] = {"Description": f"data {digest(plot, data)}"} | (
            {"Date": None} if kind == "svg" else {}
        )
        figure.savefig(plot.file(kind), dpi=110, metadata=about)
    pyplot.close(figure)


def _name(part: Part, data: Mapping[Key, Points]) -> str:
    return part.label if part.key in data else f"{part.label} (not measured)"


def _lines(axes: Axes, plot: Plot, data: Mapping[Key, Points]) -> None:
    for part in plot.parts:
        points = data.get(part.key, ())
        marker = "." if len(points) < 20 else ""  # single measurements show as such
        style = {"linestyle": "--", "color": "grey", "zorder": 1} if part.dashed else {"marker": marker}
        axes.plot([x for x, _ in points], [y for _, y in points], label=_name(part, data), **style)


def _bars(axes: Axes, plot: Plot, data: Mapping[Key, Points]) -> None:
    groups = list(dict.fromkeys(part.group for part in plot.parts))
    labels = list(dict.fromkeys(part.label for part in plot.parts))
    width = 0.8 / len(labels)
    for k, label in enumerate(labels):
        mine = [part for part in plot.parts if part.label == label]
        at = [groups.index(part.group) + (k - (len(labels) - 1) / 2) * width for part in mine]
        heights = [data[part.key][0][1] if part.key in data else 0.0 for part in mine]
        bars = axes.bar(at, heights, width, label=label)
        said = [_height(h) if p.key in data else "not measured" for h, p in zip(heights, mine, strict=True)]
        axes.bar_label(bars, said)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="x", visible=False)


def _height(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 or value == 0 else f"{value:.1g}"
