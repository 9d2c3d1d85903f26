"""The command against real guests: the interactive shell, an mbox, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import psutil
import pytest

from vm import console
from vm.paths import PATCHES, REPO
from vm.tests.faults.command import PERPATCH

pytestmark = pytest.mark.guest


def test_shell_is_a_shell_in_that_kernel() -> None:
    line = [*PERPATCH[1:], "shell", "--step", "2", "--accel", "tcg"]
    child = pexpect.spawn(sys.executable, line, cwd=str(REPO), timeout=120, encoding="utf-8", codec_errors="replace")
    child.expect("so-reserve-mem 2/3 on v5.10")
    child.expect(r"virtme-ng:.*# ")  # what is typed before the prompt is lost
    child.sendline("echo kernel=$(uname -r) sum=$((40+2))")
    child.expect(r"kernel=5\.10\.\d+\S* sum=42")
    child.sendline("exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def run_in(tmp_path: Path, *args: str) -> tuple[subprocess.CompletedProcess[str], dict[str, object]]:
    done = subprocess.run(
        [*PERPATCH, "run", "--accel", "tcg", "--results", str(tmp_path), *args],
        cwd=REPO,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    return done, json.loads((tmp_path / "results.json").read_text())


def test_an_mbox_runs_the_invariants_on_every_step_of_it(tmp_path: Path) -> None:
    mbox = tmp_path / "v1.mbox"
    patches = sorted((PATCHES / "so-reserve-mem").glob("*.patch"))
    # As a mailing list delivers them: in any order. The base is in the cache already.
    mbox.write_bytes(
        b"\n".join(b"From x Mon Sep 17 00:00:00 2001\n" + p.read_bytes().split(b"\n", 1)[1] for p in reversed(patches))
    )
    store = Path(os.environ.get("PERPATCH_CACHE") or Path.home() / ".cache/perpatch") / "sources"
    tree = next(store.glob("linux-source-5.10_*/source.json")).parent
    done, results = run_in(tmp_path / "r", "--series", str(mbox), "--tree", str(tree), "--step", "base", "-k", "charge")
    assert done.returncode == 0, done.stdout + done.stderr
    cells = results["cells"]
    assert isinstance(cells, list)
    assert cells and {c["verdict"] for c in cells} == {"PASS"}


# On each of four steps: enough that one is through while others are not.
FEW = ["selftests/tcp_mem", "selftests/so_reserve_mem/test_value.py", "selftests/so_reserve_mem/test_limits.py"]


def test_ctrl_c_keeps_what_had_arrived_and_leaves_nothing_running(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [*PERPATCH, "run", "--accel", "tcg", "--results", str(tmp_path), "-j", "1", *FEW],
        cwd=REPO,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert child.stdout is not None
        said = []
        for line in child.stdout:
            said.append(line)
            if "cases done" in line:  # the first step is through, the next one under way
                break
        below = psutil.Process(child.pid).children(recursive=True)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 130, "".join(said) + out
        _, alive = psutil.wait_procs(below, timeout=5)
        assert alive == []
    finally:
        child.terminate()
        child.wait()
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["interrupted"] is True
    assert {"PASS", "LOST"} <= {c["verdict"] for c in results["cells"]}


def test_a_capsule_needs_nothing_but_qemu(tmp_path: Path) -> None:
    results, box, elsewhere = tmp_path / "r", tmp_path / "box", tmp_path / "elsewhere"
    done, _ = run_in(results, "--step", "3", "selftests/so_reserve_mem/test_value.py", "-k", "ipv6")
    assert done.returncode == 0, done.stdout
    packed = [*PERPATCH, "capsule", str(results), "--case", "ipv6", "--step", "3/3", "--into", str(box)]
    subprocess.run(packed, cwd=REPO, check=True, stdin=subprocess.DEVNULL)
    box.rename(elsewhere)  # whoever it is sent to has it somewhere else
    raw = subprocess.run(
        [str(elsewhere / "run.sh")], capture_output=True, stdin=subprocess.DEVNULL, env={"PATH": os.defpath}
    ).stdout
    said = console.printable(raw)
    assert "test_value.py::test_ipv6 PASSED" in said
    assert "the agent ended with status 0" in said
