"""Deliberate breaks: how one is tried, without building anything."""

from pathlib import Path

import pytest

from vm import mutants, series
from vm.errors import Mistake
from vm.matrix import Run
from vm.run import Listener, Options

SERIES = series.load("so-reserve-mem")


def test_a_break_is_tried_under_its_flavour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flavours = []

    class Nothing:
        def __init__(self, run: Run, options: Options, *_: object) -> None:
            flavours.append((run.flavour, options.flavour))

        def fill(self) -> None:
            pass

    monkeypatch.setattr(mutants, "Pipeline", Nothing)
    for flavour in ("kcsan", ""):
        mutant = mutants.Mutant("plain-read", "option", "what it does", b"", flavour)
        mutants.try_one(SERIES, mutant, [], Options(), tmp_path, Listener())
    assert flavours == [("kcsan", "kcsan"), ("", "")]


def test_an_unknown_flavour_is_a_mistake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    where = tmp_path / "so-reserve-mem"
    where.mkdir()
    (where / "x.patch").write_text("")
    (where / "mutants.toml").write_text('[[mutant]]\nid = "x"\nbreaks = "option"\nwhat = "y"\nflavour = "ksan"\n')
    monkeypatch.setattr(mutants, "MUTANTS", tmp_path)
    with pytest.raises(Mistake, match="ksan"):
        mutants.load(SERIES)
