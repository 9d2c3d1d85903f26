"""All books at once, after each change of the value and after many."""

import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from selftests.lib import sock, task
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges

option = pytest.mark.introduced_by("so-reserve-mem", "option")
MIB = 1 << 20
PAGE = sock.PAGE

HISTORIES: dict[str, tuple[list[int], str]] = {
    "page-by-page": ([PAGE, 2 * PAGE, 3 * PAGE, 2 * PAGE, PAGE], "charge-anew"),
    "increase": ([MIB, 8 * MIB], "charge-anew"),
    "decrease": ([8 * MIB, MIB], "decrease-keeps-charge"),
    "same-value": ([4 * MIB] * 5, "charge-anew"),
    "same-pages": ([PAGE + 1, 2 * PAGE, 2 * PAGE - 1, PAGE + 1], "charge-anew"),
    "to-nothing": ([8 * MIB, 0], "decrease-keeps-charge"),
    "nothing": ([0, 0], "zero-is-a-page"),
    "nothing-twice": ([4 * MIB, 0, 0], "zero-is-a-page"),
    "again": ([4 * MIB, 0, 4 * MIB], "decrease-keeps-charge"),
    "odd-sizes": ([4 * MIB + 1, MIB - 1, 2 * MIB + 4095], "round-down"),
}


@option
@pytest.mark.parametrize(
    "sizes",
    [pytest.param(sizes, id=name, marks=pytest.mark.red_on(fault)) for name, (sizes, fault) in HISTORIES.items()],
)
def test_history(sockets: sock.Sockets, own_cgroup: Cgroup, sizes: list[int]) -> None:
    """After each change getsockopt(), forward_alloc, sockstat and memory.stat say the value rounded up to pages."""
    s, charges = sockets.open(), Charges(own_cgroup)
    for size in sizes:
        sock.reserve(s, size)
        pages = -(-size // PAGE) * PAGE
        assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (pages, pages)
        charges.are(pages)


@option
@pytest.mark.red_on("decrease-keeps-charge")
def test_decrease_of_a_full_socket(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """What is in use is given back when it has been freed, not before, and then all of it."""
    charges = Charges(own_cgroup)
    a, b = sockets.pair(rcvbuf=MIB)
    b.setsockopt(socket.SOL_SOCKET, sock.SO_RCVBUFFORCE, 4 * MIB)
    sock.reserve(b, 4 * MIB)
    sock.push(a, 512 << 10)
    used = sock.meminfo(b).rmem_alloc
    assert used >= 512 << 10
    sock.reserve(b, 0)
    assert min(charges.now()) >= used - 32 * PAGE
    assert max(charges.now()) < 4 * MIB, "what is not in use is given back at once"
    sock.drain(b)
    for s in (a, b):
        s.close()
    charges.are(0)


def raise_and_lower(sockets: sock.Sockets) -> None:
    """One socket, two pages to one, and to none."""
    s = sockets.open()
    for size in (2 * PAGE, PAGE, 0):
        sock.reserve(s, size)
    s.close()


def raise_and_lower_much(sockets: sock.Sockets) -> None:
    """One socket, 1 MiB more and back."""
    s = sockets.open()
    for size in (PAGE, MIB, PAGE, 0):
        sock.reserve(s, size)
    s.close()


def close_reserved(sockets: sock.Sockets) -> None:
    """One socket, closed as it is."""
    s = sockets.open()
    sock.reserve(s, PAGE)
    s.close()


def be_reset(sockets: sock.Sockets) -> None:
    """A connection that its peer resets."""
    a, b = sockets.pair()
    sock.reserve(a, PAGE)
    a.send(b"x" * 100)
    sock.abort(b)
    a.close()


def accept(sockets: sock.Sockets) -> None:
    """A listener and a child, both reserved."""
    listener = sockets.listener()
    sock.reserve(listener, PAGE)
    for s in sockets.connect(listener):
        sock.reserve(s, PAGE)
        s.close()
    listener.close()


def reconnect(sockets: sock.Sockets) -> None:
    """A connection that is used, dissolved, and made again."""
    listener, s = sockets.listener(), sockets.open()
    sock.reserve(s, PAGE)
    for _ in range(2):
        s.connect(listener.getsockname())
        s.send(b"x" * 5000)
        sock.disconnect(s)
    s.close()
    listener.close()


def end_process(sockets: sock.Sockets) -> None:
    """A process that ends with a reservation."""
    task.run(lambda: sock.reserve(sockets.open(), PAGE))


CYCLES: dict[Callable[[sock.Sockets], None], tuple[int, str]] = {
    raise_and_lower: (200, "drop-global-charge"),
    raise_and_lower_much: (200, "drop-global-charge"),
    close_reserved: (200, "close-leaks"),
    be_reset: (100, "close-leaks"),
    accept: (100, "close-leaks"),
    reconnect: (100, "close-leaks"),
    end_process: (50, "close-leaks"),
}


@option
@pytest.mark.parametrize(
    ("cycle", "times"),
    [pytest.param(c, n, id=c.__name__, marks=pytest.mark.red_on(fault)) for c, (n, fault) in CYCLES.items()],
)
def test_no_drift(own_cgroup: Cgroup, cycle: Callable[[sock.Sockets], None], times: int) -> None:
    """Many lives of a page or two leave the books where they were: more than what a CPU holds back would show."""
    charges = Charges(own_cgroup)
    with ExitStack() as undo:
        for _ in range(times):
            cycle(sock.Sockets(undo))
    charges.are(0)
