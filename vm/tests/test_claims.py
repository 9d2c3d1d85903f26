"""Claims are judged by figures, and a figure that nobody measured is no proof."""

import dataclasses
from pathlib import Path

import pytest

from vm import claims, kept, plots, series
from vm import flavour as flavours
from vm.claims import Claim, Measure
from vm.errors import Mistake
from vm.kept import SIZES, Figures, Kept
from vm.matrix import Run
from vm.plugin import EVERY_CASE, collect
from vm.reports import Cell
from vm.sizes import Layout, Sizes
from vm.verdict import Verdict

M = Measure("s", ("base", "1/1"), "selftests/a/test_b.py::test_c", "CPU", 0, 2)
CLAIM = Claim("idle", "thread", "It is idle", (M,))
BASE, STEP = (("s", step, M.case, "CPU") for step in M.steps)


@pytest.mark.parametrize(
    ("figures", "wanted"),
    [
        ({BASE: (1.0, "%"), STEP: (2.0, "%")}, "holds"),
        ({BASE: (1.0, "%"), STEP: (2.1, "%")}, "does not hold"),
        ({BASE: (1.0, "%")}, "not measured"),
        ({}, "not measured"),
    ],
)
def test_all_figures_have_to_lie_within(figures: Figures, wanted: str) -> None:
    assert claims.verdict(CLAIM, figures) == wanted


def test_a_condition_is_part_of_the_verdict() -> None:
    claim = dataclasses.replace(CLAIM, condition="On Sundays.")
    figures = {BASE: (1.0, "%"), STEP: (1.0, "%")}
    assert claims.verdict(claim, figures) == "holds with a condition"
    page = claims.render((claim,), Kept({"qemu": "7.2"}, figures))
    assert "On Sundays." in page and "qemu 7.2" in page
    assert "| s 1/1 | test_c: CPU | 1 % | 0 to 2 |" in page
    assert f'.venv/bin/perpatch run --series s --step base --step 1 "{M.case}"' in page


def test_a_ratio_is_judged_and_a_figure_without_bounds_is_shown() -> None:
    other = ("t", "selftests/a/test_b.py::test_d")
    ratio = dataclasses.replace(M, steps=("1/1",), low=0.97, high=1.03, than=other)
    shown, least = Measure("s", ("1/1",), "c", "x"), Measure("s", ("1/1",), "c", "x", low=1)
    claim = dataclasses.replace(CLAIM, measures=(ratio, shown))
    figures: Figures = {STEP: (100.0, "kbit/s"), (other[0], "1/1", other[1], "CPU"): (99.0, "kbit/s")}
    assert claims.verdict(claim, figures) == "not measured"
    figures["s", "1/1", "c", "x"] = (5.0, "B")
    assert claims.verdict(claim, figures) == "holds"
    assert "| s 1/1 | test_c: CPU, over that of t | 1.0101 | 0.97 to 1.03 |" in claims.render(
        (claim,), Kept({}, figures)
    )
    page = claims.render((dataclasses.replace(CLAIM, measures=(least,)),), Kept({}, figures))
    assert "| 5 B | 1 or more |" in page
    figures[other[0], "1/1", other[1], "CPU"] = (50.0, "kbit/s")
    assert claims.verdict(claim, figures) == "does not hold"
    assert dataclasses.replace(ratio, than=("s", other[1])).other() == "test_d", "of the same series: another case"


def test_a_claim_without_figures_was_not_measured() -> None:
    assert claims.verdict(dataclasses.replace(CLAIM, measures=()), {}) == "not measured"


def test_figures_and_curves_survive_the_file(tmp_path: Path) -> None:
    file = tmp_path / "claims.json"
    assert kept.read(file) == Kept()
    curve = {STEP: ((0.0, 5792.0), (0.123456, 49836.0))}
    kept.write(Kept({"qemu": "7.2"}, {BASE: (463.2178, "kbit/s")}, curve), file)
    back = kept.read(file)
    assert back == Kept({"qemu": "7.2"}, {BASE: (463.2, "kbit/s")}, {STEP: ((0.0, 5792.0), (0.1235, 49840.0))})
    assert back.points()[BASE] == ((0.0, 463.2),)


def test_a_row_that_is_not_well_formed_is_named(tmp_path: Path) -> None:
    file = tmp_path / "claims.toml"
    file.write_text('[[claim]]\nid = "x"\nsource = "y"\nsays = "z"\nwho = "?"\n')
    with pytest.raises(Mistake, match=r"claims\.toml: claim x: .*who"):
        claims.load(file)


def test_a_step_of_a_flavour_is_a_step_of_its_own() -> None:
    case = "selftests/a/test_profile.py::test_c"
    flavoured = dataclasses.replace(M, steps=("1/1",), flavour="profile", case=case)
    claim = dataclasses.replace(CLAIM, measures=(flavoured, dataclasses.replace(M, steps=("1/1",), case=case)))
    assert claims.needed((claim,)) == {("s", "profile"): {case: {"1/1"}}, ("s", ""): {case: {"1/1"}}}
    found = Kept()
    for flavour, value in (("profile", 3.0), ("", 1.0)):
        run = Run(series.Series("s", "", ()), None, [], [], "", flavour=flavour)
        run.add(Cell(case, "1/1", Verdict.PASS, figures=({"name": "CPU", "value": value, "unit": "%"},)))
        found.add(run)
    assert flavoured.of("1/1", found.figures) == (3.0, "%")
    assert claims.verdict(claim, found.figures) == "does not hold"
    page = claims.render((claim,), found)
    assert "| s 1/1, profile | test_c: CPU | 3 % | 0 to 2 |" in page
    assert "| s 1/1 | test_c: CPU | 1 % | 0 to 2 |" in page
    assert f'perpatch run --series s --step 1 --flavour profile -m profile "{case}"' in page
    found.missing["s", "1/1, profile", case] = "NO_BUILD: no compiler"
    found.figures.clear()
    assert "| s 1/1, profile | test_c: CPU | not measured: NO_BUILD: no compiler |" in claims.render((claim,), found)


def test_a_figure_that_is_missing_says_why() -> None:
    skipped = Kept(figures={BASE: (1.0, "%")}, missing={("s", "1/1", M.case): "SKIP: needs CONFIG_FUNCTION_PROFILER"})
    page = claims.render((CLAIM,), skipped)
    assert "| s 1/1 | test_c: CPU | not measured: SKIP: needs CONFIG_FUNCTION_PROFILER | 0 to 2 |" in page


def test_growth_counts_from_the_base() -> None:
    steps = [Sizes("base", {"sock": Layout(760, 3, 7)}, {}), Sizes("1/1", {"sock": Layout(764, 2, 3)}, {})]
    found = Kept()
    found.add_sizes("s", [*steps, Sizes("2/2", {}, {})])
    figures = found.figures
    assert "pahole" in found.missing["s", "2/2", SIZES]
    assert figures["s", "1/1", SIZES, "struct sock, growth"] == (4, "B")
    assert figures["s", "base", SIZES, "struct sock"] == (760, "B")


def test_every_claim_names_cases_and_steps_that_exist() -> None:
    for (name, flavour), wanted in claims.needed(claims.load(), plots.load()).items():
        flavours.load(flavour)
        known = {c.nodeid for c in collect(name, EVERY_CASE)} | {SIZES}
        assert wanted.keys() - known == set()
        for steps in wanted.values():
            for step in steps:
                series.load(name).step(step)
