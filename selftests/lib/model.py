"""What the kernel promises about reserved memory, as a small model that is held against it after every step.

A step is a line of Python, in the words of a case. It is told to the host, executed and kept, so what is printed
where model and kernel disagree is what ran, and it can be pasted as a case.
"""

import errno
import socket
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from selftests.lib import books, script, sock
from selftests.lib.machine import End, Machine
from selftests.lib.script import Disagreement

HEADROOM = 24 << 20  # below memory.max when the limit is set
RESERVE_OF_TASK = 8 << 20  # of that, for the memory of the task itself, which would else meet the OOM killer


class Model:
    """A run of steps from an empty machine to an empty machine."""

    def __init__(self, machine: Machine, tell: Callable[[str, bool], None]) -> None:
        self.machine, self._tell = machine, tell
        self._undo = ExitStack()
        self.lines: list[str] = []
        self.ends: list[End] = []
        self.names: dict[str, object] = {
            "sockets": sock.Sockets(self._undo),
            "own_cgroup": machine.own_cgroup,
            "pressure": machine.pressure,
            **{"sock": sock, "books": books, "errno": errno, "socket": socket, "time": time, "suppress": suppress},
        }
        self.serial = 0
        self.under_pressure = False
        self.limit = 0
        self._failed = False
        machine.rest()
        self._before, self._alloc = machine.bytes(), machine.sockstat()[1]
        self._sock = machine.own_cgroup.sock()
        # With all imports and fixtures: nobody knows yet which it will take.
        tell(script.heading(" ".join([*script.IMPORTS, *script.FIXTURES])), True)

    def do(self, line: str) -> None:
        """Take one step."""
        self.lines.append(line)
        self._tell(textwrap.indent(line, "    "), False)
        try:
            exec(script.compiled(line), self.names)
        except (AssertionError, OSError) as e:
            raise self._broken(f"{line.splitlines()[-1].strip()}: {e}") from None

    def _broken(self, what: str, *check: str) -> Disagreement:
        self._failed = True
        return Disagreement(what, [*self.lines, *check])

    def _new(self, charged: bool, used: bool = False, listening: bool = False) -> End:
        name = f"s{self.serial}"
        self.serial += 1
        return End(name, socket.socket.__new__(socket.socket), charged, used=used, listening=listening)

    def _opened(self, *ends: End) -> None:
        for end in ends:
            end.s = self.names[end.name]  # type: ignore[assignment]
            self.ends.append(end)

    # Steps

    def open(self, outside: bool) -> None:
        """A socket; one made outside the cgroup is charged to nobody and may not reserve."""
        end = self._new(not outside)
        line = f"{end.name} = sockets.open()"
        self.do(f"with own_cgroup.outside():\n    {line}" if outside else line)
        self._opened(end)

    def pair(self) -> None:
        """Two connected ends."""
        a, b = self._new(True, used=True), self._new(True, used=True)
        a.peer, b.peer = b, a
        self.do(f"{a.name}, {b.name} = sockets.pair()")
        self._opened(a, b)

    def listen(self) -> None:
        """A listener."""
        end = self._new(True, listening=True)
        self.do(f"{end.name} = sockets.listener()")
        self._opened(end)

    def connect(self, end: End, listener: End) -> None:
        """Connect; the child waits in the listener until it is accepted."""
        self.do(f"{end.name}.connect({listener.name}.getsockname())")
        end.used = True
        listener.pending.append(end)

    def accept(self, listener: End, outside: bool) -> None:
        """Take the first child; it is charged to the cgroup of the task that accepts."""
        child, client = self._new(not outside, used=True), listener.pending.pop(0)
        child.peer, client.peer = client, child
        child.gone = client not in self.ends
        line = f"{child.name} = sockets.keep({listener.name}.accept()[0])"
        self.do(f"with own_cgroup.outside():\n    {line}" if outside else line)
        self._opened(child)

    def reserve(self, end: End, size: int) -> None:
        """Reserve, with the outcome that the model predicts."""
        call = f"sock.reserve({end.name}, {size})"
        code = self._expected(end, size)
        if code is None:
            return
        if code:
            self.do(f"sock.refuses(errno.{errno.errorcode[code]}, sock.reserve, {end.name}, {size})")
            return
        self.do(call)
        lowered, end.reserved = whole(size) < end.reserved, whole(size)
        m = sock.meminfo(end.s)
        if lowered and m.wmem_queued == m.rmem_alloc == 0 and m.fwd_alloc >= end.reserved + sock.PAGE:
            raise self._broken(
                f"FWD_ALLOC of {end.name} is {m.fwd_alloc} after lowering to {end.reserved} with nothing queued",
                f"assert sock.meminfo({end.name}).fwd_alloc < {end.reserved + sock.PAGE}",
            )

    def _expected(self, end: End, size: int) -> int | None:
        """0, the errno, or None where either may happen."""
        if size < 0:
            return errno.EINVAL
        if not end.charged:
            return errno.EOPNOTSUPP
        more = whole(size) - end.reserved
        if more <= 0:
            return 0
        pages, slack = self.machine.sockstat()[0] + more // sock.PAGE, self.machine.slack
        edge = self.machine.tcp_mem.read()[1]
        if pages - slack > edge:
            return errno.ENOMEM
        if self.limit:
            if sum(sock.spare(e.s) for e in self.ends if e.charged) + more > self.limit:
                return errno.ENOMEM
            if self.machine.own_cgroup.current() + more + RESERVE_OF_TASK > self.limit:
                return None
        return 0 if pages + slack <= edge else None

    def push(self, end: End, size: int) -> None:
        """Send what goes without blocking."""
        self._move(f"sock.push({end.name}, {size})", end)

    def drain(self, end: End) -> None:
        """Read what is there."""
        self._move(f"sock.drain({end.name})", end)

    def shutdown(self, end: End) -> None:
        """Send a FIN."""
        self._move(f"{end.name}.shutdown(socket.SHUT_WR)", end)
        end.shut = True

    def _move(self, line: str, end: End) -> None:
        self.do(f"with suppress(OSError):\n    {line}" if end.gone else line)

    def close(self, end: End, abort: bool) -> None:
        """Close, by a FIN (which leaves an orphan where data is unsent) or by a reset."""
        self.do(f"sock.abort({end.name})" if abort else f"{end.name}.close()")
        self.ends.remove(end)
        for other in (end.peer, *end.pending):
            if other:
                other.gone = True

    def wait(self) -> None:
        """Let timers fire: those of delayed ACKs reclaim memory."""
        self.do("time.sleep(0.3)")

    def press(self) -> None:
        """Pressure between tcp_mem[1] and [2], where no reservation may grow, or the end of it."""
        self.do("pressure.off()" if self.under_pressure else "pressure.on()")
        self.under_pressure = not self.under_pressure
        if not self.under_pressure:
            self.machine.widen()

    def confine(self) -> None:
        """memory.max a little above what is charged, or none."""
        if self.limit:
            self.do('own_cgroup.write("memory.max", "max")')
            self.limit = 0
        else:
            self.limit = self.machine.own_cgroup.current() + HEADROOM & -sock.PAGE
            self.do(f'own_cgroup.write("memory.max", {self.limit})')

    def settle(self) -> None:
        """The cgroup's `sock` is what its sockets have charged."""
        self.wait()
        self.do("books.settle()")
        if not (self._memcg() and self._memcg() and (wrong := self._memcg())):
            return
        what, line = wrong
        raise self._broken(what, line)

    def _memcg(self) -> tuple[str, str] | None:
        """What is wrong with the cgroup's books, and the line that shows it; the next look is at settled ones again."""
        if not self._all_known():
            return None
        names, charged = self._sum(lambda e: e.charged)
        if (shown := self.machine.own_cgroup.sock() - self._sock) == charged:
            return None
        time.sleep(2)  # later kernels flush memory.stat every 2 s, and timers may have fired after all
        books.settle()
        return f"sock of the cgroup is {shown}, its sockets charged {charged}", f"assert own_cgroup.sock() == {names}"

    # Checks

    def _all_known(self) -> bool:
        """Whether every TCP socket on the machine is one that can be asked: no orphan, no child to be accepted."""
        return self.machine.sockstat()[1] - self._alloc == len(self.ends)

    def _sum(self, which: Callable[[End], bool] = lambda e: True) -> tuple[str, int]:
        ends = [e for e in self.ends if which(e)]
        names = f"sum(map(sock.spare, [{', '.join(e.name for e in ends)}]))"
        return names, sum(sock.spare(e.s) for e in ends)

    def check(self) -> None:
        """What holds after any step."""
        if said := self.machine.ledger.complaints():
            raise self._broken(f"the kernel said: {said[0]}")
        for e in self.ends:
            if (got := sock.reserved(e.s)) != e.reserved:
                check = f"assert sock.reserved({e.name}) == {e.reserved}"
                raise self._broken(f"{e.name} has {got} bytes reserved, not {e.reserved}", check)
        # The files and options are not read in one go, and a timer may fall between; what is wrong stays wrong.
        if self._books() and self._books() and (wrong := self._books()):
            what, line = wrong
            if "before" in line:
                self.lines.insert(0, f"before = {self._measure()}")
            raise self._broken(what, line)

    def _books(self) -> tuple[str, str] | None:
        """What is wrong with the books, and the line that shows it."""
        total = 0
        for e in self.ends:
            total += (has := sock.spare(e.s))
            if has < e.reserved or (has > e.reserved and not e.used):
                sign = "==" if not e.used else ">="
                return (
                    f"{e.name} has reserved {e.reserved} bytes; FWD_ALLOC and what is queued come to {has}",
                    f"assert sock.spare({e.name}) {sign} {e.reserved}",
                )
        grown, alloc = self.machine.bytes() - self._before, self.machine.sockstat()[1] - self._alloc
        slack = self.machine.slack * sock.PAGE
        if grown + slack < total or (grown - slack > total and alloc == len(self.ends)):
            return (
                f"TCP mem in sockstat has grown by {grown} bytes, but the sockets have charged {total}",
                f"assert {self._measure()} - before == {self._sum()[0]}",
            )
        return None

    def _measure(self) -> str:
        """Machine.bytes() as a case would write it."""
        apart = " - pressure.charged()" if any("pressure" in line for line in self.lines) else ""
        return f"books.tcp_pages() * sock.PAGE{apart}"

    def finish(self) -> None:
        """Close everything; the books have to be where they were."""
        m = self.machine
        if self.under_pressure:
            m.pressure.off()
        m.own_cgroup.write("memory.max", "max")
        self._undo.close()
        gone = sock.eventually(lambda: m.sockstat()[1] == self._alloc)
        books.settle()
        if self._failed:
            return
        back = sock.eventually(lambda: m.own_cgroup.sock() == self._sock)
        left = (m.bytes() - self._before, m.sockstat()[1] - self._alloc, m.own_cgroup.sock() - self._sock)
        if not (gone and back and left[0] == 0):
            raise self._broken("all is closed, and left are {:+} bytes of TCP mem in sockstat, {:+} sockets, "
                               "{:+} bytes of sock in the cgroup".format(*left))  # fmt: skip


def whole(size: int) -> int:
    """size rounded up to whole pages, in bytes."""
    return -(-size // sock.PAGE) * sock.PAGE
