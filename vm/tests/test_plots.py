from pathlib import Path

import pytest

from vm import kept, plots
from vm.errors import Mistake
from vm.plots import Part, Plot

LINE = Part("reserved", "s", "1/1", "selftests/a/test_b.py::test_c", "window")
BAR = Part("base", "s", "base", "selftests/a/test_b.py::test_d", "EAGAIN", group="above")
CURVE = {LINE.key: ((0.0, 5792.0), (1.0, 49836.0))}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plots, "PLOTS", tmp_path / "plots")


@pytest.mark.parametrize("plot", plots.load(), ids=lambda plot: plot.id)
def test_the_committed_plot_is_current(plot: Plot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert plots.current(plot, kept.read().points()), "run 'perpatch docs'"


def test_a_plot_is_current_until_its_data_changes() -> None:
    plot = Plot("window", "Window", "bytes", (LINE,))
    assert not plots.current(plot, CURVE)
    plots.draw(plot, CURVE)
    assert plots.current(plot, CURVE)
    assert not plots.current(plot, {LINE.key: ((0.0, 5792.0), (1.0, 49837.0))})
    assert plot.file("png").read_bytes().startswith(b"\x89PNG")


def test_what_was_not_measured_is_said() -> None:
    for part in (LINE, BAR):
        plot = Plot("window", "Window", "bytes", (part,))
        plots.draw(plot, {})
        assert "not measured" in plot.file("svg").read_text()


def test_bars_stand_beside_each_other() -> None:
    plot = Plot("eagain", "EAGAIN", "/s", (BAR,), log=True)
    plots.draw(plot, {BAR.key: ((0.0, 5090.0),)})
    assert "5,090" in plot.file("svg").read_text()


def test_a_row_that_is_not_well_formed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "plots.toml"
    file.write_text('[[plot]]\nid = "x"\ntitle = "y"\ny = "B"\n')
    with pytest.raises(Mistake, match=r"plots\.toml: plot x: .*part"):
        plots.load(file)
