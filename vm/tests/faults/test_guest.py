"""A guest that misbehaves: every ill in one run of the last step; each has its verdict, and costs one case."""

import json
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest

from vm import guest, output, run, series
from vm.cases import Case
from vm.reports import Cell
from vm.run import Listener, Options, Pipeline, prepare
from vm.tests.faults.conftest import Row
from vm.tests.guest.conftest import tar_of

pytestmark = pytest.mark.fault

FILE = "selftests/test_x.py"
NMI, ANSWERS = "an NMI shows", "the kernel answers"
# What each comes to, and a word of its reason.
ILLS = {
    "before": ("PASS", ""),
    "panic": ("PANIC", "dumptest"),
    "panic_in_a_fixture": ("PANIC", "dumptest"),
    "oops": ("PANIC", "BUG: kernel NULL pointer"),
    "oops_that_the_kernel_survives": ("SPLAT", "BUG: kernel NULL pointer"),
    "bug": ("PANIC", "kernel BUG at .*drivers/misc/lkdtm/bugs.c"),
    "warning": ("SPLAT", "WARNING: .* lkdtm_WARNING"),
    "interrupts_off": ("HANG", NMI),
    "soft_lockup": ("HANG", f"{NMI}.*soft lockup"),
    "rcu_stall": ("HANG", f"{NMI}.*rcu"),
    "hung_task": ("HANG", f"{ANSWERS}.*blocked for more than"),
    "spins": ("HANG", ANSWERS),
    "sleeps_for_ever": ("HANG", ANSWERS),
    "ignores_sigterm_and_has_children": ("HANG", ANSWERS),
    "fork_bomb": ("HANG", ANSWERS),
    "sets_the_clock": ("PASS", ""),
    "oom_kills_the_session": ("LOST", "Out of memory: Killed"),
    "oom_kills_a_child": ("SPLAT", "Out of memory: Killed"),
    "oom_finds_nothing_to_kill": ("PANIC", "deadlocked on memory"),
    "memory_error": ("FAIL", "MemoryError"),
    "disk_full": ("FAIL", "No space left on device"),
    "switches_off": ("LOST", "Power down"),
    "reboots": ("LOST", "switched itself off"),
    "kills_the_session": ("LOST", "ended with status 137"),
    **{f"exits[{n}]": ("LOST", f"ended with status {n}") for n in (0, 1, 22, 124, 255)},
    "ends_pytest": ("ERROR", "pytest ended in the middle"),
    "floods_the_console": ("PASS", ""),
    "floods_the_kernel_log": ("SPLAT", "kernel messages were lost"),
    "says_what_no_terminal_likes": ("FAIL", r"& <red>"),
    "line_cut_in_two": ("LOST", "not line"),
    "line_repeated": ("LOST", "not line"),
    "lines_out_of_order": ("LOST", "not line"),
    "line_that_is_not_json": ("LOST", "not line"),
    "line_without_an_end": ("LOST", "not line"),
    "says_pass_for_itself": ("ERROR", "reports did not all arrive"),
    "closes_the_port": ("LOST", "Bad file descriptor"),
    "after": ("PASS", ""),
}
# QEMU CPU seconds for what has to do something before it fails.
PATIENCE = {"soft_lockup": 12.0, "rcu_stall": 20.0, "closes_the_port": 20.0, "kills_the_session": 20.0}
PATIENCE |= {name: 60.0 for name in ILLS if name.startswith(("floods", "oom", "disk", "line"))}
# Kernels that do not come up on hardware, or with arguments, that a case asks for.
BOOTS = {
    "no root": ("root=/dev/nothing", "Unable to mount root fs"),
    "init ends": ("init=/bin/uname", "Attempted to kill init"),
    "init waits for ever": ("init=/bin/cat", "wanted no CPU|no end after"),
}


class Watch(Listener):
    """When each cell came."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def cell(self, cell: Cell) -> None:
        self.at[cell.case] = time.monotonic()


class Ran:
    """A run of cases that exist here only, with all that it leaves."""

    def __init__(self, cases: list[Case], text: str, results: Path) -> None:
        s, watch = series.load("so-reserve-mem"), Watch()
        options = Options(accel="tcg", flavour="faults", jobs=1)
        patch = pytest.MonkeyPatch()
        patch.setattr(run, "selftests_tar", lambda: tar_of(text))
        self.run = prepare(s, cases, [3], options)
        pipeline = Pipeline(self.run, options, results, watch)
        try:
            pipeline.fill()
        finally:
            patch.undo()
        output.write(self.run, results)
        self.results = results
        self.cells = {c.case: c for c in self.run.cells.values()}
        times = sorted(watch.at.items(), key=lambda item: item[1])
        self.seconds = {case: at - times[max(0, n - 1)][1] for n, (case, at) in enumerate(times)}
        self.left = [p for p in psutil.Process().children(recursive=True) if "qemu" in p.name()]


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    text = (Path(__file__).parent / "ills.py").read_text()
    names = [name for name in ILLS if name in asked | {"before"}]  # the kernel itself has to come up
    cases = [Case(f"{FILE}::test_{name}", "", timeout=PATIENCE.get(name, 2.0)) for name in names]
    boots = [Case(f"{FILE}::test_after[{n}]", "", boot=args) for n, (args, _) in BOOTS.items() if n in asked]
    with pytest.MonkeyPatch.context() as patch:
        if boots:
            patch.setattr(guest, "BOOT_CPU", 30.0)  # half of it passes until init is there
        return Ran([*cases, *boots], text, tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize("name", ILLS)
def test_case(ran: Ran, row: Row, name: str) -> None:
    cell = ran.cells[f"{FILE}::test_{name}"]
    verdict, word = ILLS[name]
    row.fault = name.replace("_", " ")
    row.verdict, row.said, row.seconds = str(cell.verdict), cell.reason, ran.seconds[cell.case]
    console = Path(cell.console).read_text(errors="replace") if cell.console else ""
    row.kept = ", ".join([*(["console"] if console else []), *(["report"] if cell.reports else [])])
    assert (cell.verdict, cell.reason) == (verdict, cell.reason), cell.text
    assert re.search(word, cell.reason)
    if verdict == "PANIC":
        assert "Kernel panic" in console and "Call Trace" in cell.text
    if word.startswith(NMI):
        assert "NMI" in console and "Call Trace" in console
    if word.startswith(ANSWERS):
        assert "sysrq: Show State" in console and "sysrq: Show backtrace of all active CPUs" in console


@pytest.mark.parametrize("name", BOOTS)
def test_boot(ran: Ran, row: Row, name: str) -> None:
    cell = ran.cells[f"{FILE}::test_after[{name}]"]
    row.fault = f"boot: {name}"
    row.verdict, row.said, row.kept = str(cell.verdict), cell.reason, "console"
    row.seconds = ran.seconds[cell.case]
    assert cell.verdict == "NO_BOOT"
    assert re.search(BOOTS[name][1], cell.reason)


def test_what_the_run_leaves(ran: Ran, row: Row) -> None:
    row.fault, row.verdict = "all of these in one run", f"exit status {ran.run.exit_status()}"
    row.kept = "results.json, junit.xml, results.ktap, matrix.md"
    assert ran.run.exit_status() == 1
    assert ran.left == []
    assert len(json.loads((ran.results / "results.json").read_text())["cells"]) == len(ran.run.cases)
    ET.parse(ran.results / "junit.xml")
    for view in ("junit.xml", "results.ktap", "matrix.md", "results.json"):
        assert not re.search(rb"[\x00\x07\x1b]", (ran.results / view).read_bytes())
