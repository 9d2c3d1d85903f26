"""Runs in the guest: a pytest session that is parked before it collects, until the host says what to run.

The session is started, and one dummy case run, before the guest's state is saved. What a resumed guest has to do is
then only to unpack selftests/, to collect and to run: a case answers in a second or two under emulation.

The wire: JSON lines over a virtio-serial port of our own, never the console. Host to guest, one order:
{"tar": base64 of selftests/, "nodeids": [...]}. Guest to host: see reporter.py.
"""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from vm.inside.reporter import Reporter, Wire, find_port

WORK = "/run/perpatch"
PYTEST = ["-p", "no:cacheprovider", "-p", "no:pastebin", "--continue-on-collection-errors"]
# A case that waits for ever shows on the console where; in virtual time that costs nothing.
PYTEST += ["-o", "faulthandler_timeout=300"]
SILENT = ["-p", "no:terminal"]
DUMMY = """
import pytest
@pytest.fixture
def thing():
    yield 1
@pytest.mark.parametrize("n", [1, 2])
def test_warm(thing, n, tmp_path, record_property):
    record_property("n", n)
    assert thing + n in {2, 3}
def test_fails():
    with pytest.raises(OSError):
        raise OSError(92, "warm")
    assert [1, 2] == [1, 3], "the explanation of a failed assert is slow the first time"
"""


# Beside the session, for the host when the session is silent: it proves that the kernel lives and shows where its tasks
# are. A shell, since Python may be what is stuck; its answers go to the console, since the port's lines are counted.
PULSE = """
echo -1000 >/proc/self/oom_score_adj
while read -r word; do
    [ "$word" = dump ] && for key in 9 w t l; do echo $key >/proc/sysrq-trigger; done
    echo "<0>perpatch: heard $word" >/dev/kmsg
done
"""


class Parked:
    """A pytest plugin that holds the session at the door of collection until the order is there."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Say that we are ready, wait, then collect what the order names."""
        self.wire.send({"ready": time.monotonic()})
        order = self.wire.order()
        unpack(order)
        # The port can be opened once only: the shell inherits it, and nobody else reads it from here on.
        pulse = subprocess.Popen(["sh", "-c", PULSE], stdin=self.wire.fd, start_new_session=True)
        os.sched_setscheduler(pulse.pid, os.SCHED_FIFO, os.sched_param(50))  # heard through a fork bomb as well
        session.config.args[:] = [f"{WORK}/{n}" for n in order["nodeids"]]


def unpack(order: dict[str, Any]) -> None:
    """Lay selftests/ as the host sent it under WORK, times included (compiled cases are found by them)."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(order["tar"]))) as tar:
        tar.extractall(WORK, filter="tar")


def warm() -> None:
    """Import what cases import, and run one dummy session, so that no case pays for it."""
    import ctypes  # noqa: F401
    import select  # noqa: F401
    import socket  # noqa: F401
    import struct  # noqa: F401
    import threading  # noqa: F401

    import hypothesis  # noqa: F401
    import scapy.all  # noqa: F401

    # While a guest waits for its disk, virtual time runs on; what a measured case calls must be in memory by then.
    for tool in ("ip", "tc", "ss"):
        subprocess.run([tool, "-V"], stdout=subprocess.DEVNULL, check=False)
    for listing in (["tc", "qdisc", "show"], ["ip", "-json", "link"], ["ss", "-tmi"]):
        subprocess.run(listing, stdout=subprocess.DEVNULL, check=False)
    with tempfile.TemporaryDirectory() as tmp:
        file = Path(tmp) / "test_warm.py"
        file.write_text(DUMMY)
        words = [*PYTEST, *SILENT, f"--rootdir={tmp}", "-c", os.devnull, str(file)]
        pytest.main(words, plugins=[Reporter(Wire(os.devnull))])


def capsule() -> str:
    """The disk that a capsule's order lies on, "" where there is a host that sends one."""
    words = [word.partition("=") for word in Path("/proc/cmdline").read_text().split()]
    return next((value for name, _, value in words if name == "perpatch.capsule"), "")


def alone(disk: str) -> int:
    """Run the order that lies on a disk, in pytest's own words: a capsule has a reader and no host."""
    order = json.loads(Path(disk).read_bytes().rstrip(b"\0"))
    unpack(order)
    names = [f"{WORK}/{n}" for n in order["nodeids"]]
    return int(pytest.main([*PYTEST, "-v", f"--rootdir={WORK}", "-c", os.devnull, *names]))


def main() -> int:
    """Warm up, park, run one order."""
    Path(WORK).mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, WORK)
    if "--cold" not in sys.argv:
        warm()
    os.environ["PERPATCH_GUEST"] = "1"  # selftests/ refuses to run elsewhere
    if disk := capsule():
        return alone(disk)
    wire = Wire(find_port())
    words = [*PYTEST, *SILENT, f"--rootdir={WORK}", "-c", os.devnull, WORK]
    status = pytest.main(words, plugins=[Reporter(wire), Parked(wire)])
    wire.send({"done": int(status)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
