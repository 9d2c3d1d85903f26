"""TCP memory pressure of a known kind, switched on and off with proof."""

import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from selftests.lib import books, sock
from selftests.lib.cgroup import Cgroup


class TcpMem:
    """net.ipv4.tcp_mem, in pages. Only the initial network namespace has the file: open it there, keep it open."""

    def __init__(self, undo: ExitStack) -> None:
        self._fd = os.open("/proc/sys/net/ipv4/tcp_mem", os.O_RDWR | os.O_CLOEXEC)
        undo.callback(os.close, self._fd)
        self.default = self.read()
        undo.callback(self.restore)

    def read(self) -> tuple[int, int, int]:
        """The three limits, in pages."""
        low, pressure, high = map(int, os.pread(self._fd, 100, 0).split())
        return low, pressure, high

    def write(self, low: int, pressure: int, high: int) -> None:
        """Set the three limits, in pages."""
        os.pwrite(self._fd, f"{low} {pressure} {high}\n".encode(), 0)

    def restore(self) -> None:
        """Set what was there before the case."""
        self.write(*self.default)


class Pressure:
    """Idle receivers full of unread data, and tcp_mem lowered around what they hold.

    Above tcp_mem[1] no reservation succeeds, so: hold (the fixture has done it), reserve, then on().
    """

    def __init__(self, sockets: sock.Sockets, cgroup: Cgroup, tcp_mem: TcpMem, ledger: books.Ledger) -> None:
        self._tcp_mem = tcp_mem
        self._ledger = ledger
        self._lowered = False
        self._sockets = sockets
        self._cgroup = cgroup
        with cgroup.outside():  # the case's own books show what the case itself does
            held = self._hold(sockets, size=4 << 20)
            self._probe, sink = sockets.pair(rcvbuf=4 << 20)
        self._ends = [*held, self._probe, sink]

    def _hold(self, sockets: sock.Sockets, size: int) -> tuple[socket.socket, socket.socket]:
        sender, receiver = sockets.pair(rcvbuf=4 * size)
        if (n := sock.push_whole(sender, size)) < size:
            raise RuntimeError(f"pressure: could hold {n} of {size} bytes")
        return sender, receiver

    def charged(self) -> int:
        """What the sockets that make the pressure have charged, in bytes; it changes as it goes on and off."""
        return sum(sock.spare(s) for s in self._ends)

    def on(self, above_max: bool = False) -> None:
        """Lower tcp_mem so that what is allocated lies between [1] and [2], or above [2].

        RuntimeError if the kernel does not say that it is under pressure.
        """
        pages = books.tcp_pages()
        entered = memory_pressures()
        self._lowered = True
        if above_max:
            self._ledger.out_of_memory_expected = True
            self._tcp_mem.write(pages // 8, pages // 4, pages // 2)
        else:
            # 100 times: no charge is refused however many pages the socket under test has.
            self._tcp_mem.write(pages // 4, pages // 2, 100 * pages)
        self._nudge(True)
        if memory_pressures() <= entered:
            raise RuntimeError("pressure: on, but TCPMemoryPressures did not move")

    def off(self) -> None:
        """Restore tcp_mem; RuntimeError if the kernel stays under pressure."""
        if self._lowered:
            self._tcp_mem.restore()
            for s in self._ends[2:]:
                sock.abort(s)
            with self._cgroup.outside():  # the old probe may wait for a retransmission that is minutes away
                self._probe, sink = self._sockets.pair(rcvbuf=4 << 20)
            self._ends[2:] = [self._probe, sink]
            self._nudge(False)
            self._lowered = False

    def _nudge(self, wanted: bool) -> None:
        # The flag moves only when a socket charges or uncharges, and up to 2 MiB are forward allocated.
        for _ in range(100):
            if under_pressure() == wanted:
                return
            if not sock.push(self._probe, 65536):
                time.sleep(0.1)  # what was dropped above tcp_mem[2] waits to be sent again
        raise RuntimeError(f"pressure: is {'off' if wanted else 'on'} with {books.tcp_pages()} pages allocated, "
                           f"tcp_mem {self._tcp_mem.read()}")  # fmt: skip


def under_pressure() -> bool:
    """Whether /proc/net/protocols says `press yes` for TCP."""
    for line in Path("/proc/thread-self/net/protocols").read_text().splitlines():
        if line.startswith("TCP "):
            return line.split()[4] == "yes"
    raise RuntimeError("pressure: no TCP in /proc/net/protocols")


def memory_pressures() -> int:
    """How often a socket of this network namespace has entered pressure."""
    return snmp("TcpExt", "TCPMemoryPressures")


def snmp(group: str, name: str) -> int:
    """One counter of this network namespace, as nstat prints it."""
    rows = [line.split() for line in Path("/proc/thread-self/net/netstat").read_text().splitlines()]
    names, values = (row for row in rows if row[0] == f"{group}:")
    return int(values[names.index(name)])
