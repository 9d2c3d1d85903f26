"""A guest that is only a socket: what it sends, how it ends, and what the host makes of it."""

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vm import qemu, stuck, wire
from vm.cases import Case
from vm.qemu import Port, QemuGone
from vm.wire import Event, events

CASE = Case("selftests/x.py::test_a", "", timeout=5.0)


class Fake:
    """A guest whose CPU time advances by `speed` seconds whenever it is asked."""

    def __init__(self, status: str = "", speed: float = 0.0) -> None:
        ours, self.theirs = socket.socketpair()
        self.port, self.status, self.speed, self.used = Port(ours), status, speed, 0.0
        self.hears, self.takes_nmi, self.starved, self.log = False, True, 0.0, Path()
        self.asked: list[str] = []

    def send(self, *messages: dict[str, Any] | bytes) -> None:
        for m in messages:
            self.theirs.sendall(m if isinstance(m, bytes) else json.dumps(m).encode() + b"\n")

    def cpu_seconds(self) -> float:
        self.used += self.speed
        return self.used

    def starved_seconds(self) -> float:
        return self.starved * time.monotonic()

    def nmi(self) -> None:
        self.asked.append("nmi")
        if not self.takes_nmi:
            raise QemuGone("the kernel did not take the NMI")

    def dump(self, file: Path) -> None:
        self.asked.append("memory")

    def ended(self) -> str:
        return self.status


def run(guest: Fake, tmp_path: Path, console: str = "") -> list[Event]:
    log = tmp_path / "console"
    log.write_text(console)
    if guest.hears:

        def answer() -> None:
            with log.open("a") as f:
                f.write(f"perpatch: heard {guest.theirs.recv(64).decode()}")

        threading.Thread(target=answer).start()
    return list(events(guest, [CASE], log, threading.Event()))


def test_done_is_the_end(tmp_path: Path) -> None:
    guest = Fake()
    guest.send({"n": 0, "collected": []}, {"n": 1, "done": 0}, {"n": 2, "start": "late"})
    assert [e.kind for e in run(guest, tmp_path)] == ["collected", "done"]


@pytest.mark.parametrize(
    ("lines", "console", "status", "kind"),
    [
        ([], "Kernel panic - not syncing: Fatal exception\n", "", "panic"),
        ([], "all is well\n", "", "died"),
        ([], "", "status -9: killed from outside?", "infra"),
        ([{"n": 0, "start": "a"}, {"n": 2, "end": "a"}], "", "", "died"),  # a line is lost
        ([{"n": 0, "start": "a"}, {"n": 0, "start": "a"}], "", "", "died"),  # a line came twice
        ([b"\xff\x00{not json\n"], "", "", "died"),
        ([b"[1]\n"], "", "", "died"),
    ],
)
def test_every_other_end_has_its_name(tmp_path: Path, lines: list[Any], console: str, status: str, kind: str) -> None:
    guest = Fake(status)
    guest.send(*lines)
    guest.theirs.close()
    assert run(guest, tmp_path, console)[-1].kind == kind


START = {"n": 0, "start": CASE.nodeid, "location": []}


@pytest.mark.parametrize(
    ("hears", "takes_nmi", "asked", "words"),
    [
        (True, True, [], "the kernel answers"),
        (False, True, ["nmi"], "an NMI shows"),
        (False, False, ["nmi", "memory"], "its memory is in"),
    ],
)
def test_a_case_that_burns_its_cpu_time_hangs_and_it_is_asked_what_stands(
    tmp_path: Path, hears: bool, takes_nmi: bool, asked: list[str], words: str
) -> None:
    guest = Fake(speed=1.0)
    guest.hears, guest.takes_nmi = hears, takes_nmi
    guest.send(START)
    last = run(guest, tmp_path, "INFO: task python:77 blocked for more than 2 seconds.\n")[-1]
    assert last.kind == "hang"
    assert "5 s of QEMU's CPU time" in last.data["why"]
    assert words in last.data["why"]
    assert guest.asked == asked


def test_a_guest_that_wants_no_cpu_hangs_long_before_a_starved_one_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(stuck, "ANSWER_WALL", 0.5)
    quick = replace(CASE, timeout=0.2)
    idle, starved = Fake(speed=1e-6), Fake(speed=1e-6)
    starved.starved = 1.0
    log = tmp_path / "console"
    log.touch()

    def end(guest: Fake) -> Event:
        guest.send(START)
        return list(events(guest, [quick], log, threading.Event()))[-1]

    assert end(idle).kind == "hang"
    idle = Fake(speed=1e-6)
    idle.takes_nmi = False
    assert end(idle).kind == "infra"  # nothing moves and nothing answers: QEMU itself stands
    last = end(starved)
    assert last.kind == "infra"
    assert "the host gave QEMU" in last.data["why"]


def test_a_guest_that_floods_the_port_is_held_to_its_deadline_too(tmp_path: Path) -> None:
    guest = Fake(speed=0.5)
    guest.send({"n": 0, "start": CASE.nodeid}, *({"n": n, "noise": 1} for n in range(1, 100)))
    assert run(guest, tmp_path)[-1].kind == "hang"


def test_a_line_without_end_is_held_to_its_deadline_too(tmp_path: Path) -> None:
    guest = Fake(speed=2.0)
    guest.send({"n": 0, "start": CASE.nodeid})
    done = threading.Event()

    def drip() -> None:  # more often than the host's tick, and in a minute not half of the longest line
        while not done.wait(0.001):
            guest.theirs.send(b"x" * 64)

    writer = threading.Thread(target=drip)
    writer.start()
    try:
        assert run(guest, tmp_path)[-1].kind == "hang"
    finally:
        done.set()
        writer.join()


def test_a_line_longer_than_any_of_ours_is_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "LONGEST_LINE", 1000)
    guest = Fake()
    guest.send({"n": 0, "start": CASE.nodeid}, b"x" * 1001)
    last = run(guest, tmp_path)[-1]
    assert last.kind == "died"
    assert "xxx" in last.data["why"]


def test_what_a_guest_says_can_be_written_down(tmp_path: Path) -> None:
    guest = Fake()
    guest.send({"n": 0, "report": {"text": "\udcff"}}, {"n": 1, "done": 0})
    json.dumps(run(guest, tmp_path)[0].data, ensure_ascii=False).encode()


def test_a_run_that_is_stopped_asks_no_more(tmp_path: Path) -> None:
    guest, stopping = Fake(), threading.Event()
    stopping.set()
    guest.send({"n": 0, "start": CASE.nodeid})
    assert list(events(guest, [CASE], tmp_path / "c", stopping)) == []
