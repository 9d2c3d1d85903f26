"""A guest that is only a socket: what it sends, how it ends, and what the host makes of it."""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from vm.cases import Case
from vm.qemu import Port
from vm.wire import Event, events

CASE = Case("selftests/x.py::test_a", "", timeout=5.0)


class Fake:
    """A guest whose CPU time advances by `speed` seconds whenever it is asked."""

    def __init__(self, status: str = "", speed: float = 0.0) -> None:
        ours, self.theirs = socket.socketpair()
        self.port, self.status, self.speed, self.used, self.dumped = Port(ours), status, speed, 0.0, False

    def send(self, *messages: dict[str, Any] | bytes) -> None:
        for m in messages:
            self.theirs.sendall(m if isinstance(m, bytes) else json.dumps(m).encode() + b"\n")

    def cpu_seconds(self) -> float:
        self.used += self.speed
        return self.used

    def dump(self) -> None:
        self.dumped = True

    def ended(self) -> str:
        return self.status


def run(guest: Fake, tmp_path: Path, console: str = "") -> list[Event]:
    log = tmp_path / "console"
    log.write_text(console)
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


def test_a_case_that_burns_its_cpu_time_hangs_and_the_kernel_is_made_to_show_where(tmp_path: Path) -> None:
    guest = Fake(speed=1.0)
    guest.send({"n": 0, "start": CASE.nodeid, "location": []})
    last = run(guest, tmp_path)[-1]
    assert last.kind == "hang"
    assert "5 s of QEMU's CPU time" in last.data["why"]
    assert guest.dumped


def test_a_guest_that_floods_the_port_is_held_to_its_deadline_too(tmp_path: Path) -> None:
    guest = Fake(speed=0.5)
    guest.send({"n": 0, "start": CASE.nodeid}, *({"n": n, "noise": 1} for n in range(1, 100)))
    assert run(guest, tmp_path)[-1].kind == "hang"


def test_a_flood_without_a_newline_is_held_to_its_deadline_too(tmp_path: Path) -> None:
    guest = Fake(speed=2.0)
    guest.send({"n": 0, "start": CASE.nodeid})
    done = threading.Event()

    def flood() -> None:
        while not done.is_set():
            try:
                guest.theirs.send(b"x" * 4096, socket.MSG_DONTWAIT)
            except OSError:
                time.sleep(0.01)

    writer = threading.Thread(target=flood)
    writer.start()
    try:
        assert run(guest, tmp_path)[-1].kind == "hang"
    finally:
        done.set()
        writer.join()


def test_what_a_guest_says_can_be_written_down(tmp_path: Path) -> None:
    guest = Fake()
    guest.send({"n": 0, "report": {"text": "\udcff"}}, {"n": 1, "done": 0})
    json.dumps(run(guest, tmp_path)[0].data, ensure_ascii=False).encode()


def test_a_run_that_is_stopped_asks_no_more(tmp_path: Path) -> None:
    guest, stopping = Fake(), threading.Event()
    stopping.set()
    guest.send({"n": 0, "start": CASE.nodeid})
    assert list(events(guest, [CASE], tmp_path / "c", stopping)) == []
