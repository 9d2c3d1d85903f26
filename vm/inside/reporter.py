"""Runs in the guest: a pytest plugin that sends every report out as a JSON line, with what the kernel said meanwhile.

Lines (each carries "n", a count from 0, so that a lost or doubled one shows):
{"ready": virtual seconds}, {"collected": [node ids]}, {"start": node id, "location": [...]},
{"told": a line that a case is about to act on, "anew": whether it replaces those before},
{"report": pytest's own serialisation, "exc": name of the exception, "errno": of an OSError},
{"end": node id, "kmsg": [lines], "seconds": virtual}, {"error": text of a collection error}, {"done": exit status}.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

PORT_NAME = "perpatch.0"


def find_port() -> str:
    """The device of our virtio-serial port, found by its name (the names under /dev/virtio-ports need udev)."""
    for _ in range(200):
        for port in Path("/sys/class/virtio-ports").glob("*"):
            if (port / "name").exists() and (port / "name").read_text().strip() == PORT_NAME:
                return f"/dev/{port.name}"
        time.sleep(0.05)
    raise FileNotFoundError(f"no virtio-serial port {PORT_NAME}: is VIRTIO_CONSOLE built in?")


class Wire:
    """Numbered JSON lines over the port."""

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR)
        self.count = 0

    def send(self, message: dict[str, Any]) -> None:
        """Write one line, whole."""
        data = json.dumps({"n": self.count, **message}, default=repr).encode() + b"\n"
        self.count += 1
        while data:
            data = data[os.write(self.fd, data) :]

    def order(self) -> dict[str, Any]:
        """Wait for one line from the host. A port without a peer reads as empty, so ask again a little later."""
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            part = os.read(self.fd, 1 << 20)
            if part:
                parts.append(part)
            else:
                time.sleep(0.1)
        order: dict[str, Any] = json.loads(b"".join(parts))
        return order


def _name(value: BaseException) -> str:
    """What the host judges by: every kind of failed assertion is one, but for what the books raise."""
    name = type(value).__name__
    asserted = isinstance(value, (AssertionError, pytest.fail.Exception))
    return "AssertionError" if asserted and name not in ("Leak", "Splat") else name


class Kmsg:
    """New kernel messages since the last look, from /dev/kmsg."""

    def __init__(self) -> None:
        self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
        os.lseek(self.fd, 0, os.SEEK_END)

    def new(self) -> list[str]:
        """Lines as "level,text"; a gap (the ring overran) is a line of its own, since a lost message is no silence."""
        lines: list[str] = []
        while True:
            try:
                record = os.read(self.fd, 8192).decode(errors="replace")
            except BlockingIOError:
                return lines
            except BrokenPipeError:
                lines.append("4,perpatch: kernel messages were lost, the ring overran")
                continue
            head, _, text = record.partition(";")
            lines.append(f"{int(head.split(',')[0]) & 7},{text.splitlines()[0] if text else ''}")


class Reporter:
    """The pytest plugin; one for a session."""

    __name__ = "perpatch-reporter"  # what pytest registers it as, so that a fixture finds it

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.kmsg = Kmsg()
        self.began = 0.0
        self.config: pytest.Config | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the configuration: the serialisation hook wants it."""
        self.config = config

    def tell(self, text: str, anew: bool) -> None:
        """Send what a case is about to do: should the guest die of it, the host has it."""
        self.wire.send({"told": text, "anew": anew})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be collected is told at once; its cases would otherwise just be missing."""
        if report.failed:
            self.wire.send({"error": report.longreprtext, "nodeid": report.nodeid})

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell what was found, so that the host sees a case that the guest does not know."""
        self.wire.send({"collected": [item.nodeid for item in session.items]})

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Before each case: whose it is if the guest dies now. What the kernel said before is not this case's."""
        self.kmsg.new()
        self.began = time.monotonic()
        self.wire.send({"start": nodeid, "location": location})

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the exception's own name and errno: the verdict depends on why a case failed."""
        # How pytest explains a failure costs four times what the case does, and on a step that lacks the option every
        # case fails: there only the error is told.
        absent = call.excinfo is not None and getattr(call.excinfo.value, "errno", None) == errno.ENOPROTOOPT
        item.config.option.tbstyle = "value" if absent else "auto"
        report = yield
        if call.excinfo is not None:
            # Extra attributes of a report are serialised with it.
            report.__dict__["exc"] = _name(call.excinfo.value)
            report.__dict__["errno"] = getattr(call.excinfo.value, "errno", None)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send setup, call and teardown as they come."""
        assert self.config is not None
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.wire.send({"report": data})

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """After teardown: what the kernel said during the case, its fixtures included."""
        self.wire.send({"end": nodeid, "kmsg": self.kmsg.new(), "seconds": round(time.monotonic() - self.began, 6)})

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """All cases have ended: say so before pytest tidies up, which costs the host as much as a case."""
        self.wire.send({"done": int(exitstatus)})
