"""A host that fails, and users who do not wait: bounded time, the right status, nothing lost, nothing left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from vm import accel, arch, guest, image, root
from vm.image import Image
from vm.paths import REPO, cache
from vm.tests.faults.command import (
    FILE,
    PERPATCH,
    RUN,
    below,
    end,
    halves,
    last_line,
    mounted,
    own_cache,
    path_without,
    start,
    wait_for,
)
from vm.tests.faults.conftest import Row

pytestmark = pytest.mark.fault
# The real one, with its CPU stopped: as where KVM_RUN never returns.
STOPPED = """#!{python}
import os, sys
swap = {{"kvm": "tcg", "host": "max"}}
os.execvp("{qemu}", ["{qemu}", *(swap.get(word, word) for word in sys.argv[1:]), "-S"])
"""
NO_9P = """#!/bin/sh
case "$*" in *9p*) echo "9p: not a valid device model name" >&2; exit 1;; esac
exec {qemu} "$@"
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system of its own: needs root")


def verdicts(results: Path) -> dict[str, int]:
    cells = json.loads((results / "results.json").read_text())["cells"]
    return {v: sum(c["verdict"] == v for c in cells) for v in {c["verdict"] for c in cells}}


def ran(row: Row, process: subprocess.Popen, results: Path | None = None) -> str:
    """Wait for the end, and note what came of it."""
    said, _ = process.communicate(timeout=900)
    row.verdict, row.said = f"exit status {process.returncode}", last_line(said)
    if results and (results / "results.json").is_file():
        row.kept = counted(results)
    return said


def counted(results: Path) -> str:
    """How many results arrived, by verdict."""
    return ", ".join(f"{n} {v}" for v, n in sorted(verdicts(results).items()))


@pytest.mark.parametrize("how", ["opens and hangs", "may not be opened", "is not there"])
def test_kvm(row: Row, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row.fault = f"KVM {how}"
    monkeypatch.setattr(accel, "PROBE_SECONDS", 3.0)
    hangs = tmp_path / "qemu"
    hangs.write_text(STOPPED.format(qemu=arch.load().qemu, python=sys.executable))
    hangs.chmod(0o755)
    if how == "may not be opened":
        real = os.access
        monkeypatch.setattr(os, "access", lambda path, *more: str(path) != "/dev/null" and real(path, *more))
    if how == "opens and hangs":
        found = accel.probe(replace(arch.load(), qemu=str(hangs)), any_image(), root.image(), tmp_path / "console")
    else:
        monkeypatch.setattr(accel, "DEVICE", Path("/dev/null" if how == "may not be opened" else "/dev/nothing"))
        found = accel.choose("auto", arch.load(), any_image(), root.image())
    row.verdict, row.said = found.name, found.why
    assert found.name == "icount"
    assert not [p for p in psutil.Process().children() if "qemu" in p.name()]


def any_image() -> Image:
    """Some image of the cache."""
    record = next((cache() / "images").glob("*/image.json"))
    found = image.cached(record.parent.name)
    assert found
    return found


@pytest.fixture(scope="module")
def booted() -> None:
    """The state that the cases of these tests start from is there: what follows hits them, not a boot."""
    start([*RUN, "-k", "ipv6"]).communicate(timeout=900)


@pytest.mark.parametrize("program", ["qemu-system-x86_64", "mksquashfs"])
def test_missing(row: Row, program: str, tmp_path: Path) -> None:
    row.fault = f"{program} is not installed"
    env = own_cache(tmp_path / "cache", "roots") | {"PATH": path_without(tmp_path, program)}
    said = ran(row, start([*RUN, "--results", str(tmp_path / "r")], env))
    assert "exit status 3" in row.verdict
    assert program in said and "perpatch doctor" in said


def test_vng_missing(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vm import vng
    from vm.errors import Infra

    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", path_without(tmp_path, "vng"))
    with pytest.raises(Infra, match="make setup") as said:
        vng.program()
    row.verdict, row.said = "exit status 3", str(said.value)


def test_no_9p_in_qemu(row: Row, tmp_path: Path) -> None:
    path = path_without(tmp_path, "qemu-system-x86_64")
    fake = Path(path) / "qemu-system-x86_64"
    fake.write_text(NO_9P.format(qemu=shutil.which("qemu-system-x86_64")))
    fake.chmod(0o755)
    results = tmp_path / "r"
    process = start([*RUN, "--guest", "vng", "-k", "ipv6", "--results", str(results)], {"PATH": path})
    ran(row, process, results)
    assert process.returncode == 3
    assert not below(process)


def test_qemu_killed_while_it_boots(row: Row, tmp_path: Path) -> None:
    env, results = own_cache(tmp_path / "cache"), tmp_path / "r"
    process = start([*RUN, "--results", str(results)], env)
    wait_for(lambda: below(process, "qemu"))
    time.sleep(1)
    for qemu in below(process, "qemu"):
        qemu.kill()
    ran(row, process, results)
    assert process.returncode == 3
    assert "-9" in (results / "results.json").read_text()
    assert halves(env) == []


def test_qemu_killed_while_cases_run(row: Row, booted: None, tmp_path: Path) -> None:
    results = tmp_path / "r"
    process = start(["run", "--accel", "tcg", "--step", "3", "-j", "1", "selftests/tcp_mem", "--results", str(results)])
    wait_for(lambda: below(process, "qemu"))
    time.sleep(3)
    for qemu in below(process, "qemu"):
        qemu.kill()
    ran(row, process, results)
    assert process.returncode in (0, 3)  # 0 where it was hit between two cases: another guest ran the rest
    assert set(verdicts(results)) <= {"PASS", "INFRA"} and verdicts(results)["PASS"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda s: s.name)
@pytest.mark.parametrize("stage", ["boot", "run"])
def test_the_runner_is_ended(row: Row, booted: None, stage: str, how: signal.Signals, tmp_path: Path) -> None:
    row.fault = f"{how.name} to perpatch at stage {stage}"
    env, results = own_cache(tmp_path / "cache") if stage == "boot" else {}, tmp_path / "r"
    process = start(["run", "--accel", "tcg", "--step", "3", "--results", str(results)], env)
    wait_for(lambda: below(process, "qemu"))
    if stage == "run":
        assert process.stdout
        next(line for line in process.stdout if "cases" in line)  # so many of so many: what arrived has to stay
    status, said, left = end(process, how)
    row.verdict, row.said = f"exit status {status}", last_line(said) if how is not signal.SIGKILL else ""
    assert left == []
    assert status == (-9 if how is signal.SIGKILL else 130)
    if how is not signal.SIGKILL:
        row.kept = counted(results)
        assert "LOST" in verdicts(results)
        assert stage == "boot" or len(verdicts(results)) > 1
        assert stage == "run" or halves(env) == []


def test_no_standard_input_and_no_terminal(row: Row, tmp_path: Path) -> None:
    process = start(
        [*RUN, "-k", "ipv6", "--results", str(tmp_path / "r")], before="exec <&-; exec", start_new_session=True
    )
    ran(row, process, tmp_path / "r")
    assert process.returncode == 0


def test_whoever_read_it_has_gone(row: Row, tmp_path: Path) -> None:
    row.fault = "output into head -1"
    results = tmp_path / "r"
    process = start([*RUN, "--results", str(results)])
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=600)
    row.verdict, row.kept = f"exit status {process.returncode}", counted(results)
    assert set(verdicts(results)) == {"PASS"}
    assert process.returncode == 0


@as_root
@pytest.mark.parametrize("stage", ["states", "images", "results"])
def test_disk_full(row: Row, stage: str, tmp_path: Path) -> None:
    row.fault = f"disk full: {stage}"
    env, results = own_cache(tmp_path / "cache", *([stage] if stage == "images" else [])), tmp_path / "r"
    full = results if stage == "results" else tmp_path / "cache" / stage
    size = "40k" if stage == "results" else "4m"
    if stage == "results":
        env = {}  # with this host's states: what fails then is the writing of results
    process = start([*RUN, "--results", str(results)], env, mounted(full, f"size={size}"))
    said = ran(row, process, results)
    assert process.returncode == 3, said
    assert "No space left on device" in said or "MiB free" in said


@as_root
def test_results_may_not_be_written(row: Row, tmp_path: Path) -> None:
    process = start([*RUN, "--results", str(tmp_path / "r")], before=mounted(tmp_path, "ro"))
    said = ran(row, process)
    assert process.returncode == 2
    assert "cannot be written" in said


def test_two_runs_at_once_on_one_cache(row: Row, tmp_path: Path) -> None:
    env = own_cache(tmp_path / "cache")
    both = [start([*RUN, "--results", str(tmp_path / f"r{n}")], env) for n in (1, 2)]
    for n, process in enumerate(both, 1):
        ran(row, process, tmp_path / f"r{n}")
        assert process.returncode == 0
    assert len(list((tmp_path / "cache/states").glob("*.state"))) == 1
    assert halves(env) == []


@pytest.mark.parametrize("part", ["kernel", "config", "image.json"])
def test_damaged_image(row: Row, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row.fault = f"a cached image whose {part} is damaged"
    whole = any_image()
    env = own_cache(tmp_path / "cache", "images")
    shutil.copytree(whole.dir, tmp_path / "cache/images" / whole.key)
    monkeypatch.setenv("PERPATCH_CACHE", env["PERPATCH_CACHE"])
    record = tmp_path / "cache/images" / whole.key / "image.json"
    record.write_text(record.read_text().replace(whole.dir, str(record.parent)))
    assert image.cached(whole.key)
    if part == "config":
        (record.parent / part).unlink()
    else:
        with (record.parent / part).open("r+b") as f:
            f.truncate(200)
    row.verdict, row.said = "built again", "not taken from the cache"
    assert image.cached(whole.key) is None


def test_damaged_root(row: Row, tmp_path: Path) -> None:
    row.fault = "a cached root image that is cut short"
    env, results = own_cache(tmp_path / "cache", "roots"), tmp_path / "r"
    (tmp_path / "cache/roots").mkdir()
    for file in (root.image(), root.image().with_suffix(".sha256")):
        shutil.copy(file, tmp_path / "cache/roots")
    with (tmp_path / "cache/roots" / root.image().name).open("r+b") as f:
        f.truncate(1 << 20)
    process = start([*RUN, "-k", "ipv6", "--results", str(results)], env)
    ran(row, process, results)
    assert process.returncode == 0


def test_the_hosts_clock_leaps(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is made anew at worst: a state of a month ago may be in use."""
    states = tmp_path / "states"
    states.mkdir()
    (states / "a.state").touch()
    monkeypatch.setattr(guest.time, "time", lambda: 4e9)
    guest._forget(states)
    leap = f"import time; real = time.time; time.time = lambda: real() + 4e8; {PERPATCH[2]}"
    results = tmp_path / "r"
    process = subprocess.Popen(
        [sys.executable, "-c", leap, *RUN, "--results", str(results)],
        cwd=REPO, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    ran(row, process, results)
    assert process.returncode == 0


def test_a_host_with_a_load_of_twenty(row: Row, tmp_path: Path) -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(20)]
    results = tmp_path / "r"
    try:
        process = start([*RUN, "-k", "ipv6 or one_gib", "--results", str(results)])
        ran(row, process, results)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    assert process.returncode == 0


def test_qemu_is_stopped(row: Row, tmp_path: Path) -> None:
    """Nothing runs, and nobody answers: the host's doing, found long before anybody's patience ends."""
    results = tmp_path / "r"
    process = start(["run", "--accel", "tcg", "--step", "3", "-j", "1", FILE, "--results", str(results)])
    wait_for(lambda: below(process, "qemu"))
    time.sleep(2)
    for qemu in below(process, "qemu"):
        qemu.suspend()
    ran(row, process, results)
    assert process.returncode in (0, 3)
    assert not below(process)
