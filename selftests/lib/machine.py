"""What a model of reserved memory looks at: the sockets, and the machine that they share."""

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field

from selftests.lib import books, sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.pressure import Pressure, TcpMem


@dataclass(eq=False)
class End:
    """One socket as the model sees it. gone: the other end was closed, so moving data may fail."""

    name: str
    s: socket.socket
    charged: bool  # to the cgroup of the case; if not, it may not reserve
    reserved: int = 0
    used: bool = False
    shut: bool = False
    gone: bool = False
    peer: "End | None" = None
    listening: bool = False
    pending: list["End"] = field(default_factory=list)


class Machine:
    """What of the machine the model needs, and what is the same for all models: the base line of the books."""

    def __init__(
        self, undo: ExitStack, own_cgroup: Cgroup, tcp_mem: TcpMem, pressure: Pressure, ledger: books.Ledger
    ) -> None:
        self.own_cgroup, self.tcp_mem, self.pressure, self.ledger = own_cgroup, tcp_mem, pressure, ledger
        self._sockstat = os.open("/proc/thread-self/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, self._sockstat)
        books.settle()
        self._first, self._leaked = self.sockstat()[0], 0
        self.slack = 256 * len(os.sched_getaffinity(0)) if books.batched() else 0  # pages

    def sockstat(self) -> tuple[int, int]:
        """Pages charged to TCP, and TCP sockets that exist, machine-wide, with orphans and what nobody accepted."""
        words = os.pread(self._sockstat, 512, 0).split()
        at = words.index(b"TCP:")
        return int(words[at + 10]), int(words[at + 8])

    def bytes(self) -> int:
        """What is charged to TCP but for the sockets that make the pressure."""
        return self.sockstat()[0] * sock.PAGE - self.pressure.charged()

    def rest(self) -> None:
        """Make the counters exact, so that a model can start from them."""
        books.settle()
        self._leaked = max(self.sockstat()[0] - self._first, 0)
        self.widen()

    def widen(self) -> None:
        """Set tcp_mem to what it is by default plus what earlier models have made a faulty kernel leak for good."""
        self.tcp_mem.write(*(limit + self._leaked for limit in self.tcp_mem.default))
