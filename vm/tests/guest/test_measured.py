"""Figures are the guest's own: they repeat in fresh guests, on a busy host too, and what leaks in is noticed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vm.cases import Case
from vm.guest import Warm, selftests_tar
from vm.paths import REPO
from vm.reports import run_group
from vm.series import load
from vm.subject import step_subject
from vm.tests.guest.conftest import tar_of
from vm.verdict import Verdict

pytestmark = pytest.mark.guest

MEASURED = "selftests/so_reserve_mem/test_throughput.py"
AGREE = 0.02
CASES = """
import os
import time
from pathlib import Path
from selftests.lib import interval
def test_alone():
    "Computes and sleeps."
    with interval.measured():
        sum(range(100000))
        time.sleep(3)
def test_disk():
    "Waits for its disk, as for 9p."
    with interval.measured():
        disk = os.open("/dev/vda", os.O_RDONLY)
        os.posix_fadvise(disk, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(disk, 1 << 20, 64 << 20)
"""


def figures(results: Path) -> dict[tuple[str, str], float]:
    """Every figure of the measured file on the last step."""
    line = [str(Path(sys.executable).parent / "perpatch"), "run", "--step", "3", "--results", str(results), MEASURED]
    subprocess.run(line, cwd=REPO, capture_output=True, check=True, stdin=subprocess.DEVNULL)
    cells = json.loads((results / "results.json").read_text())["cells"]
    return {(c["case"], f["name"]): f["value"] for c in cells for f in c["figures"]}


def test_a_measurement_repeats_in_fresh_guests_and_on_a_busy_host(tmp_path: Path) -> None:
    first = figures(tmp_path / "1")
    assert len(first) >= 15
    again = figures(tmp_path / "2")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        loaded = figures(tmp_path / "3")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert again == pytest.approx(first, rel=AGREE)
    assert loaded == pytest.approx(first, rel=AGREE)


def test_what_leaks_into_a_measured_interval_is_said_instead_of_a_figure(warm: Warm, real_time: Warm) -> None:
    cases = [Case(f"selftests/test_x.py::test_{n}", "", virtual_time=True) for n in ("alone", "disk")]
    tar, subject = tar_of(CASES, selftests_tar()), step_subject(load("so-reserve-mem"), 3)
    warm.ensure()
    alone, disk = run_group(warm, cases, tar, subject)
    assert alone.verdict is Verdict.PASS
    assert disk.verdict is Verdict.ERROR
    assert "virtio" in disk.reason and "waited for" in disk.reason
    real_time.ensure()
    (alone,) = run_group(real_time, cases[:1], tar, subject)
    assert alone.verdict is Verdict.ERROR
    assert "the clock is the host's" in alone.reason
