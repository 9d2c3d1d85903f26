"""Deliberate faults: what mutants.toml and schemata.patch say, and that they agree."""

from pathlib import Path

import pytest

from vm import mutants, series
from vm.cases import Case
from vm.errors import Mistake

SERIES = series.load("so-reserve-mem")
MAIL = """\
Subject: [PATCH] mutants: all
---
diff --git a/include/net/mutant.h b/include/net/mutant.h
--- /dev/null
+++ b/include/net/mutant.h
@@ -0,0 +1,4 @@
+#define MUTANTS(M) \\
+\tM(round_down) \\
+\tM(no_cap)
+#define MUTANT(name) unlikely(active_mutant == MUTANT_##name)
diff --git a/net/core/sock.c b/net/core/sock.c
--- a/net/core/sock.c
+++ b/net/core/sock.c
@@ -1,5 +1,7 @@ static int sock_set_reserved_mem()
 one
 two
 three
 four
+\tif (MUTANT(round_down))
+\t\tpages = val >> SHIFT;
 five
@@ -30,2 +32,4 @@ static int other()
 six
+\tif (MUTANT(no_cap))
+\t\tmax = INT_MAX;
 seven
"""
ROW = '[[mutant]]\nid = "{}"\nbreaks = "option"\nwhat = "y"\n'
BOTH = ROW.format("round-down") + ROW.format("no-cap")


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of mutants with two in schemata.patch."""
    monkeypatch.setattr(mutants, "MUTANTS", tmp_path)
    where = tmp_path / "so-reserve-mem"
    where.mkdir()
    (where / "schemata.patch").write_text(MAIL)
    (where / "mutants.toml").write_text(BOTH)
    return where


def test_faults_share_a_patch_or_have_their_own(where: Path) -> None:
    (where / "x.patch").write_text("diff --git a/f b/f\n+x\n")
    (where / "mutants.toml").write_text(BOTH + ROW.format("x"))
    shared, _, own = mutants.load(SERIES)
    assert (shared.id, shared.name, shared.patch.id) == ("round-down", "round_down", "schemata")
    assert (own.id, own.name, own.patch.id) == ("x", "", "x")
    assert mutants.fault(own) == "diff --git a/f b/f\n+x"


def test_a_fault_is_shown_with_the_lines_around_it(where: Path) -> None:
    shown = mutants.fault(mutants.load(SERIES)[0]).splitlines()
    assert shown[0] == "+++ b/net/core/sock.c @@ -1,5 +1,7 @@ static int sock_set_reserved_mem()"
    assert shown[1:] == [" two", " three", " four", "+\tif (MUTANT(round_down))", "+\t\tpages = val >> SHIFT;", " five"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROW.format("round-down"), "no row for no_cap"),
        (BOTH + ROW.format("x"), "x: it has to be either in schemata.patch or in x.patch"),
        (BOTH + ROW.format("no-cap"), "no-cap: it has to be either"),
        (BOTH + 'flavour = "ksan"\n', "ksan"),
        (BOTH + 'colour = "red"\n', "colour"),
    ],
)
def test_rows_and_patches_have_to_agree(where: Path, rows: str, said: str) -> None:
    (where / "mutants.toml").write_text(rows)
    with pytest.raises(Mistake, match=said):
        mutants.load(SERIES)


def test_a_fault_is_in_one_place_only(where: Path) -> None:
    (where / "no-cap.patch").write_text("diff")
    with pytest.raises(Mistake, match=r"no-cap: it has to be either"):
        mutants.load(SERIES)


def test_what_is_listed_is_used() -> None:
    with pytest.raises(Mistake, match="no_cap"):
        mutants.names(MAIL.replace("+\tif (MUTANT(no_cap))", "+\tif (1)"))
    with pytest.raises(Mistake, match="other"):
        mutants.names(MAIL.replace("MUTANT(no_cap))", "MUTANT(other))"))


def test_our_own_are_many_and_on_every_patch() -> None:
    ours = mutants.load(SERIES)
    assert len(ours) >= 60
    assert {m.breaks for m in ours} == {p.id for p in SERIES.patches}


def test_red_on_names_what_can_be_seen() -> None:
    mutants.check([Case("selftests/a/test_b.py::test_c", "", red_on=("round-down", "6.1"))])
    with pytest.raises(Mistake, match="no such mutant"):
        mutants.check([Case("selftests/a/test_b.py::test_c", "", red_on=("rnd-down",))])
    unseen = next(m.id for m in mutants.load(SERIES) if m.equivalent)
    with pytest.raises(Mistake, match="equivalent"):
        mutants.check([Case("selftests/a/test_b.py::test_c", "", red_on=(unseen,))])
