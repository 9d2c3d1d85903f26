"""Reservations set, read, used and lost from several processes at once: no splat, and the books balance afterwards.

Processes, not threads: setsockopt() in Python holds the interpreter's lock. And calls by the hundred without a line of
Python between them: so two CPUs meet in the kernel about three times as often, counted by KCSAN.
"""

import errno
import os
import resource
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat

import pytest

from selftests.lib import books, cgroup, sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.pressure import TcpMem

pytestmark = [pytest.mark.introduced_by("so-reserve-mem", "option"), pytest.mark.cpus(2)]
SECONDS = 1.0
ROUNDS = 5  # of what KCSAN is to see: in one it meets the race a hundred times, in another twice
SIZES = (1 << 16, 1 << 20, 5000)
ROUNDED = {0, 1 << 16, 1 << 20, 8192}


def at_once(*jobs: Callable[[], None], kill: bool = False) -> None:
    """Run each job over and over in a process of its own for a second; AssertionError where one of them fails.

    kill: with SIGKILL in the middle of it, instead of at its own end.
    """
    until = time.monotonic() + SECONDS
    children = []
    report, told = os.pipe()
    for job in jobs:
        if not (pid := os.fork()):
            status = 1
            try:
                while kill or time.monotonic() < until:
                    job()
                status = 0
            except BaseException as e:
                os.write(told, f"{e!r}; ".encode())
            finally:
                os._exit(status)  # not one step further in a copy of pytest
        children.append(pid)
    if kill:
        time.sleep(SECONDS)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
    wanted = -signal.SIGKILL if kill else 0
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    os.close(told)
    with open(report) as said:
        assert ended == [wanted] * len(children), f"exit statuses {ended}: {said.read()}"


def resize(s: socket.socket) -> None:
    """Through all sizes and back to nothing, 25 times."""
    deque(map(s.setsockopt, repeat(socket.SOL_SOCKET), repeat(sock.SO_RESERVE_MEM), (*SIZES, 0) * 25), maxlen=0)


def seen(s: socket.socket) -> set[int]:
    """What a hundred calls of getsockopt() return."""
    return set(map(s.getsockopt, repeat(socket.SOL_SOCKET), repeat(sock.SO_RESERVE_MEM, 100)))


def slept() -> int:
    """How often processes that have ended went to sleep of themselves: in resize() only the lock makes them wait."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw


def talk(a: socket.socket, b: socket.socket) -> None:
    """A little data both ways; what an earlier round left is read as well."""
    sock.push(a, 20_000, chunk=4096)
    sock.push(b, 20_000, chunk=4096)
    sock.drain(a)
    sock.drain(b)


@pytest.mark.red_on("round-down")
def test_get_returns_what_was_set(sockets: sock.Sockets) -> None:
    """While two processes resize one reservation under traffic, getsockopt() returns only values that were set."""
    a, b = sockets.pair()

    def look() -> None:
        assert seen(a) <= ROUNDED

    at_once(lambda: resize(a), lambda: resize(a), look, lambda: talk(a, b))


@pytest.mark.red_on("plain-read")
def test_get_takes_no_lock(sockets: sock.Sockets) -> None:
    """While one process resizes a reservation, getsockopt() in another returns only values that were set."""
    s = sockets.open()

    def look() -> None:
        assert seen(s) <= ROUNDED

    for _ in range(ROUNDS):
        at_once(lambda: resize(s), look)


@pytest.mark.red_on("set-without-lock")
def test_set_against_set(sockets: sock.Sockets) -> None:
    """After two processes have set one reservation at once, no byte but what is reserved is left charged."""
    s = sockets.open()
    before = slept()
    at_once(lambda: resize(s), lambda: resize(s))
    for size in (1 << 20, 0):
        sock.reserve(s, size)
        assert (sock.reserved(s), sock.spare(s)) == (size, size)
    assert slept() > before, "neither ever found the socket locked: they did not meet, so nothing was tried"


@pytest.mark.red_on("value-before-charge")
def test_refused_is_never_seen(sockets: sock.Sockets, tcp_mem: TcpMem) -> None:
    """While all that a process asks for is refused with ENOMEM, getsockopt() in another returns what was granted."""
    s, other = sockets.open(), sockets.open()
    sock.reserve(s, 8192)
    sock.reserve(other, 8 << 20)  # more than CPUs keep to themselves of the count (256 pages each since 6.0)
    tcp_mem.write(1, 1, tcp_mem.read()[2])

    def look() -> None:
        assert seen(s) == {8192}

    at_once(lambda: sock.refuses(errno.ENOMEM, sock.reserve, s, 1 << 20), look)


@pytest.mark.red_on("global-before-memcg")
def test_refused_is_in_no_book(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """While all that a process asks for is refused for memory.max, sockstat includes none of it."""
    s = sockets.open()
    before, asked = books.tcp_pages(), 64 << 20

    def look() -> None:
        assert max(books.tcp_pages() for _ in range(100)) < before + asked // sock.PAGE // 2

    with own_cgroup.outside():
        own_cgroup.write("memory.max", own_cgroup.current() + (1 << 20))
        at_once(lambda: sock.refuses(errno.ENOMEM, sock.reserve, s, asked), look)
        own_cgroup.write("memory.max", "max")


@pytest.mark.red_on("drop-global-charge")
def test_killed_in_the_middle(sockets: sock.Sockets) -> None:
    """Processes that are killed while they reserve on sockets of their own leave nothing charged."""

    def work() -> None:
        with socket.socket() as s:
            resize(s)
            sock.reserve(s, 1 << 20)

    del sockets
    at_once(work, work, kill=True)


@pytest.mark.red_on("drop-global-charge")
def test_closed_through_another_descriptor(sockets: sock.Sockets) -> None:
    """Duplicates that come and go while the socket is resized take nothing of the reservation with them."""
    a, b = sockets.pair()

    def duplicate() -> None:
        with a.dup() as twin:
            sock.reserve(twin, 8192)

    at_once(lambda: resize(a), duplicate, lambda: talk(a, b))
    sock.reserve(a, 1 << 20)
    assert sock.spare(a) >= 1 << 20


@pytest.mark.red_on("drop-global-charge")
def test_reset_by_the_peer(sockets: sock.Sockets) -> None:
    """Connections that are reset while they are resized give back all that was reserved."""
    listener = sockets.listener()

    def work() -> None:
        with socket.socket() as client:
            with suppress(ConnectionError):  # each may get, and has then reset, the other's connection
                client.connect(listener.getsockname())
                child = listener.accept()[0]
                sock.reserve(client, 1 << 20)
                with suppress(ConnectionError):
                    sock.push(child, 20_000)
                sock.abort(child)
                sock.drain(client)
            resize(client)

    at_once(work, work)


@pytest.mark.red_on("drop-global-charge")
def test_moved_between_cgroups(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A socket charges the cgroup that it was created in, however its owner moves between cgroups meanwhile."""
    s = sockets.open()

    def move() -> None:
        cgroup.move(cgroup.ROOT)
        sock.reserve(s, 1 << 20)
        cgroup.move(own_cgroup.path)
        sock.reserve(s, 0)

    at_once(move, lambda: resize(s))


@pytest.mark.red_on("enomem-keeps-charge", "enomem-keeps-global", "drop-memcg-charge")
def test_limits_come_and_go(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem) -> None:
    """However memory.max and tcp_mem change meanwhile, a reservation is granted whole or refused with ENOMEM."""
    a, b = sockets.pair()
    low, pressure, high = tcp_mem.read()

    def limit() -> None:
        for limit in (own_cgroup.current() + (1 << 18), "max"):
            own_cgroup.write("memory.max", limit)
        for edge in (1, pressure):
            tcp_mem.write(min(low, edge), edge, high)

    def try_resize() -> None:
        for size in (*SIZES, 0):
            try:
                sock.reserve(a, size)
            except OSError as e:
                assert e.errno == errno.ENOMEM, e
            assert sock.reserved(a) in ROUNDED

    with own_cgroup.outside():  # or else it is we who hit the limit, and the OOM killer comes for us
        at_once(limit, try_resize, try_resize, lambda: talk(a, b))


@pytest.mark.red_on("child-inherits")
def test_accepted_meanwhile(sockets: sock.Sockets) -> None:
    """Children of a listener that is resized while they connect and are accepted start without a reservation."""
    listener = sockets.listener()

    def visit() -> None:
        with socket.socket() as client:
            client.connect(listener.getsockname())
            with listener.accept()[0] as child:
                assert sock.reserved(child) == 0
                resize(child)
                sock.abort(child)

    at_once(lambda: resize(listener), visit)
