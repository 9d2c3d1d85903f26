"""A scheduler and two workers on loopback, with real guests: one worker is killed in the middle; Ctrl-C."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from distributed import LocalCluster

from vm.paths import REPO
from vm.tests.faults.command import PERPATCH

pytestmark = pytest.mark.guest

CASES = ["selftests/so_reserve_mem/test_value.py", "selftests/so_reserve_mem/test_limits.py", "selftests/tcp_mem"]


@pytest.fixture
def engine() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


def started(engine: LocalCluster, results: Path) -> subprocess.Popen[str]:
    """A run on every step, of which at least one case has come back."""
    child = subprocess.Popen(
        [
            *PERPATCH,
            "run",
            "--accel",
            "tcg",
            "--results",
            str(results),
            "--scheduler",
            engine.scheduler_address,
            *CASES,
        ],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if "cases" in line:
            break
    return child


def guests_of(worker: psutil.Process) -> list[psutil.Process]:
    return [p for p in worker.children(recursive=True) if p.name().startswith("qemu")]


def workers(engine: LocalCluster) -> list[psutil.Process]:
    return [psutil.Process(nanny.pid) for nanny in engine.workers.values()]


def test_what_dies_with_a_worker_runs_on_another(engine: LocalCluster, tmp_path: Path) -> None:
    child = started(engine, tmp_path)
    try:
        busy = next(w for w in workers(engine) if guests_of(w))
        theirs = guests_of(busy)
        busy.kill()
        out, _ = child.communicate(timeout=300)
    finally:
        child.terminate()
        child.wait()
    assert child.returncode == 0, out
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert {c["verdict"] for c in cells} <= {"PASS", "ABSENT", "XFAIL"}
    assert set(Counter((c["case"], c["step"]) for c in cells).values()) == {1}
    _, alive = psutil.wait_procs(theirs, timeout=5)
    assert alive == []


def test_ctrl_c_ends_the_guests_of_the_workers(engine: LocalCluster, tmp_path: Path) -> None:
    child = started(engine, tmp_path)
    try:
        while not (busy := [guest for worker in workers(engine) for guest in guests_of(worker)]):
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    finally:
        child.terminate()
        child.wait()
    assert child.returncode == 130, out
    later = [guest for worker in workers(engine) for guest in guests_of(worker)]
    _, alive = psutil.wait_procs([*busy, *later], timeout=10)
    assert alive == []
