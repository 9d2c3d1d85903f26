"""The kill table: what counts as a kill, and what people are shown."""

import dataclasses
from pathlib import Path

import pytest

from vm import kills, mutate
from vm.errors import Mistake
from vm.kills import Row, Table
from vm.mutants import Mutant
from vm.reports import Cell
from vm.series import Patch
from vm.verdict import Verdict

MAIL = b"diff --git a/f.c b/f.c\n--- a/f.c\n+++ b/f.c\n@@ -1 +1,3 @@ f()\n+\tif (MUTANT(a))\n+\t\twrong();\n"
A = Mutant("a", "option", "a | is wrong", Patch("schemata", "", MAIL), "a")
B = dataclasses.replace(A, id="b", name="b", hard=True)
C = dataclasses.replace(A, id="c", name="c", equivalent="It does nothing.")


def cell(verdict: Verdict, case: str = "one", console: str = "") -> Cell:
    return Cell(f"selftests/x/test_y.py::test_{case}", "4/4", verdict, "why", console=console)


@pytest.mark.parametrize("verdict", kills.KILLS)
def test_red_by_the_faults_doing_is_a_kill(verdict: Verdict) -> None:
    row = Row("a")
    row.add(cell(verdict, console="log"))
    row.compare({cell(verdict).case: "PASS"})
    assert row.by() == f"x/test_y.py::test_one {verdict}"


@pytest.mark.parametrize("verdict", [Verdict.ERROR, Verdict.INFRA, Verdict.LOST])
def test_trouble_of_ours_is_neither_a_kill_nor_survival(verdict: Verdict) -> None:
    row = Row("a")
    row.add(cell(verdict))
    assert row.by() == ""
    assert f"1 of 1 cases did not run: selftests/x/test_y.py::test_one {verdict}" in row.trouble()


@pytest.mark.parametrize("baseline", ["FAIL", "LOST", "XPASS"])
def test_what_is_red_without_a_fault_kills_nothing(baseline: str) -> None:
    row = Row("a")
    row.add(cell(Verdict.FAIL))
    row.compare({cell(Verdict.FAIL).case: baseline})
    assert row.by() == row.trouble() == ""


def test_no_guest_is_a_kill_unless_the_patch_is_ours_to_mend() -> None:
    assert Row("a", no_guest=("NO_BUILD", "f.c:1: error")).by() == "the compiler (f.c:1: error)"
    assert Row("a", no_guest=("NO_BOOT", "panic")).by() == "the boot (panic)"
    bad = Row("a", no_guest=("NO_APPLY", "f.c:1"))
    assert (bad.by(), bad.trouble()) == ("", "NO_APPLY: f.c:1")


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    table = Table("s", "first", "key", {"qemu": "7"}, 90.0, {"schemata": {"one": "PASS"}})
    table.rows = {"a": Row("a", {"one": ("FAIL", "why")}, {"two": "PASS"}, seconds=2.5), "b": Row("b")}
    table.write(tmp_path / "kill.json")
    assert kills.read(tmp_path / "kill.json") == table
    (tmp_path / "kill.json").write_text('{"rows": [1]}')
    with pytest.raises(Mistake, match="no kill table"):
        kills.read(tmp_path / "kill.json")


def filled(mode: str = "first") -> Table:
    """b was killed, a survived."""
    table = Table("s", mode, baseline={"schemata": {"selftests/x/test_y.py::test_one": "PASS"}})
    table.rows = {"a": Row("a"), "b": Row("b")}
    table.rows["a"].add(cell(Verdict.PASS))
    table.rows["b"].add(cell(Verdict.PASS, "other"))
    table.rows["b"].add(cell(Verdict.PANIC))
    return table


def test_survivors_come_first_with_their_fault() -> None:
    page = kills.render(filled(), [A, B, C], {}, "Made of this.")
    assert "3 faults: 1 killed, 1 survived, 1 equivalent, 0 without a result; stopped at the first kill" in page
    survivors, killed = page.index("### a"), page.index("| b (hard) | option | a \\| is wrong |")
    assert survivors < page.index("```diff\n+++ b/f.c @@ -1 +1,3 @@ f()\n+\tif (MUTANT(a))") < killed
    assert "x/test_y.py::test_one PANIC |" in page
    assert "| c | option | It does nothing. | 0 |" in page
    assert "1 of the 2 that ran with a fault. Not every case ran with every fault" in page
    assert page.endswith("- x/test_y.py::test_other\n")


def test_what_was_not_tried_did_not_survive() -> None:
    table = filled()
    del table.rows["a"]
    page = kills.render(table, [A, B], {}, "")
    assert "0 survived, 0 equivalent, 1 without a result" in page
    assert "- a: not tried" in page


def test_named_shows_who_was_not_red() -> None:
    named = {"b": [f"selftests/x/test_y.py::test_{case}" for case in ("one", "other", "third")]}
    page = kills.render(filled("named"), [B], named, "")
    assert "- b: x/test_y.py::test_other PASS" in page
    assert "- b: x/test_y.py::test_third did not run" in page
    assert "- b: x/test_y.py::test_one" not in page


def test_good_is_all_killed_but_what_nobody_can_see() -> None:
    table = filled()
    assert mutate.good(table, [B], {})
    assert not mutate.good(table, [A, B], {})
    table.rows["c"] = Row("c", held={"one": "PASS"})
    assert mutate.good(table, [B, C], {})
    table.rows["c"].add(cell(Verdict.FAIL))
    assert not mutate.good(table, [B, C], {})
    assert "the proof is wrong" in kills.render(table, [C], {}, "")


def test_named_is_good_if_all_of_them_are_red() -> None:
    table = filled("named")
    assert mutate.good(table, [B], {"b": ["selftests/x/test_y.py::test_one"]})
    assert not mutate.good(table, [B], {"b": ["selftests/x/test_y.py::test_other"]})
