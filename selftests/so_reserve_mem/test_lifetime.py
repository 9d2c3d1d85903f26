"""How long a reservation stays charged: until the socket is destroyed, by whatever road."""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from selftests.lib import cgroup, sock, task
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges

option = pytest.mark.introduced_by("so-reserve-mem", "option")
closes = pytest.mark.red_on("close-leaks")
SIZE = 4 << 20
TCP_TIME_WAIT = "06"


def execute() -> None:
    """Become another program, which closes what is close-on-exec."""
    os.execv(sys.executable, [sys.executable, "-S", "-c", ""])


ENDS: dict[str, Callable[[], object]] = {"exit": lambda: os._exit(0), "kill": lambda: os.kill(os.getpid(), 9)}


@option
@closes
@pytest.mark.parametrize("end", [*ENDS.values(), execute], ids=[*ENDS, "exec"])
def test_end_of_the_process(own_cgroup: Cgroup, end: Callable[[], object]) -> None:
    """A process that ends with its sockets open, connected or not, leaves nothing charged."""
    charges = Charges(own_cgroup)

    def work() -> None:
        with ExitStack() as undo:
            idle = sock.Sockets(undo).open()
            client, _ = sock.Sockets(undo).pair()
            for s in (idle, client):
                sock.reserve(s, SIZE)
            charges.are(2 * SIZE + sock.spare(client) - SIZE)
            end()

    pid = os.fork()
    if pid == 0:
        task.work(work)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, -9)
    charges.are(0)
