"""Real guests that die or misbehave in the middle of their cases: what had arrived stays, the rest is run."""

import copy
import re
import socket
import threading
from pathlib import Path

import psutil
import pytest

from vm import series
from vm.cases import Case
from vm.guest import Warm
from vm.reports import Cell, run_group
from vm.subject import step_subject
from vm.tests.guest.conftest import tar_of
from vm.verdict import Verdict

pytestmark = pytest.mark.guest

CASES = """
import os, pathlib, time
def test_before():
    "Holds."
def test_panic():
    "Kills the kernel."
    pathlib.Path("/proc/sysrq-trigger").write_text("c")
def test_power_off():
    "Switches the guest off."
    os.system("poweroff -f")
    time.sleep(60)
def test_warns():
    "Passes, but the kernel warned meanwhile."
    pathlib.Path("/dev/kmsg").write_text("<4>WARNING: CPU: 0 PID: 1 at made/up.c:1 test+0x1/0x2\\n")
def test_hangs():
    "Never ends."
    while True:
        pass
def test_garbles():
    "Says what no terminal, no XML and no JSON likes."
    assert False, "\\x1b[31m\\x00\\udcff"
def test_after():
    "Holds."
"""
NAMES = ["before", "panic", "power_off", "warns", "hangs", "garbles", "after"]


def test_each_ill_has_its_verdict_and_costs_one_case(warm: Warm) -> None:
    s = series.load("so-reserve-mem")
    cases = [Case(f"selftests/test_x.py::test_{n}", "", timeout=2.0) for n in NAMES]
    got: dict[str, Cell] = {
        c.case.split("test_")[-1]: c for c in run_group(warm, cases, tar_of(CASES), step_subject(s, 3))
    }
    assert {n: str(got[n].verdict) for n in NAMES} == {
        "before": "PASS",
        "panic": "PANIC",
        "power_off": "LOST",
        "warns": "SPLAT",
        "hangs": "HANG",
        "garbles": "FAIL",
        "after": "PASS",
    }
    assert "sysrq" in got["panic"].reason.lower()
    assert "Kernel panic" in got["panic"].text
    # it was asked before it was blamed: the case is stuck, the kernel lives and shows its tasks
    assert "the kernel answers" in got["hangs"].reason
    assert "sysrq: Show State" in Path(got["hangs"].console).read_text(errors="replace")
    assert not [p for p in psutil.Process().children(recursive=True) if "qemu" in p.name()]


def test_a_qemu_that_is_killed_is_no_fault_of_the_series(warm: Warm) -> None:
    case = Case("selftests/test_x.py::test_hangs", "", timeout=60.0)
    warm.ensure()
    events = warm.run([case], tar_of(CASES))
    for event in events:
        if event.kind == "start":
            for child in psutil.Process().children(recursive=True):
                if "qemu" in child.name():
                    child.kill()
        last = event
    assert last.kind == "infra"
    assert "-9" in last.data["why"]


def test_a_guest_that_hangs_lives_on_for_gdb_where_that_is_asked_for(warm: Warm) -> None:
    warm.ensure()
    kept = copy.copy(warm)
    kept.keep, kept.stopping = True, threading.Event()
    events = kept.run([Case("selftests/test_x.py::test_hangs", "", timeout=2.0)], tar_of(CASES))
    why = next(event.data["why"] for event in events if event.kind == "hang")
    try:
        found = re.search(r"gdb -ex 'target remote (\S+)' (\S+/vmlinux)$", why)
        assert found
        assert Path(found[2]).is_file()
        with socket.socket(socket.AF_UNIX) as gdb:
            gdb.connect(found[1])
            gdb.sendall(b"$?#3f")
            said = b""
            while b"T05" not in said:  # stopped by a trap, as gdb's remote protocol has it
                said += gdb.recv(64)
    finally:
        kept.stopping.set()
        events.close()
    assert not [p for p in psutil.Process().children(recursive=True) if "qemu" in p.name()]


def test_a_corrupt_state_is_thrown_away_and_made_anew(warm: Warm) -> None:
    warm.ensure()
    with warm.state.open("r+b") as f:
        f.truncate(1 << 20)
    case = Case("selftests/test_x.py::test_before", "")
    cells = list(run_group(warm, [case], tar_of(CASES), step_subject(series.load("so-reserve-mem"), 3)))
    assert [c.verdict for c in cells] == [Verdict.PASS]
