"""Which cell a capsule is made of; the capsule itself runs in vm/tests/guest/test_command.py."""

from pathlib import Path

import pytest

from vm.capsule import _cell, pack
from vm.errors import Mistake


def a_run(key: str = "0" * 24) -> dict[str, object]:
    cells = [
        {"case": "x.py::test_a", "step": "base", "verdict": "PASS", "red": False, "reason": ""},
        {"case": "x.py::test_b", "step": "base", "verdict": "PASS", "red": False, "reason": ""},
        {"case": "x.py::test_b", "step": "1/1", "verdict": "FAIL", "red": True, "reason": "assert 0"},
    ]
    steps = [{"name": name, "kernel": {"key": key}} for name in ("base", "1/1")]
    return {"cells": cells, "steps": steps, "series": {"name": "so-reserve-mem"}, "accelerator": {"name": "icount"}}


@pytest.mark.parametrize(
    ("case", "step", "found"),
    [("", "", ("test_b", "1/1")), ("test_b", "", ("test_b", "1/1")), ("test_a", "base", ("test_a", "base"))],
)
def test_a_cell_is_the_red_one_or_the_one_that_is_named_whole(case: str, step: str, found: tuple[str, str]) -> None:
    cell = _cell(a_run(), case, step)
    assert (cell["case"].split("::")[1], cell["step"]) == found


@pytest.mark.parametrize(
    ("case", "step", "says"),
    [("nope", "", "no cell of nope"), ("test_a", "", "no red cell"), ("test_b", "2/2", "its steps are base, 1/1")],
)
def test_what_is_not_there_is_one_clear_line(case: str, step: str, says: str) -> None:
    with pytest.raises(Mistake, match=says):
        _cell(a_run(), case, step)


@pytest.mark.parametrize("key", ["../../../etc", "f" * 24])
def test_a_results_file_cannot_name_a_kernel_outside_of_the_cache(tmp_path: Path, key: str) -> None:
    run = a_run(key)
    with pytest.raises(Mistake, match="not in the cache"):
        pack(run, _cell(run, "", ""), tmp_path)
