"""How the cgroup hierarchy counts and bounds a reservation."""

import errno
import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from selftests.lib import cgroup, sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges, kills_by_growing

option = pytest.mark.introduced_by("so-reserve-mem", "option")
MIB = 1 << 20
BATCH = MIB // 2  # memory.current is charged ahead by up to 64 pages a CPU, and the case itself allocates


def current(group: Cgroup) -> int:
    """memory.current in bytes."""
    return int((group.path / "memory.current").read_text())


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_memory_current(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """memory.current moves by the reservation, up and down, at once."""
    s, start, seen = sockets.open(), current(own_cgroup), []
    for size in (16 * MIB, 32 * MIB, 8 * MIB, 0):
        sock.reserve(s, size)
        seen.append(abs(current(own_cgroup) - start - size) <= BATCH)
    assert seen == [True] * 4


@option
@pytest.mark.red_on("close-leaks")
def test_memory_current_after_close(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """memory.current falls by the reservation when the socket is closed."""
    s, start = sockets.open(), current(own_cgroup)
    sock.reserve(s, 16 * MIB)
    s.close()
    assert abs(current(own_cgroup) - start) <= BATCH


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_every_level_counts(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """A reservation of a nested cgroup is in the books of all levels above it, and of none beside it."""
    middle, beside = cgroup.split(defer, own_cgroup, "middle", "beside")
    (inner,) = cgroup.split(defer, middle, "inner")
    s, books = sockets.open(), [Charges(own_cgroup), Charges(middle), Charges(inner)]
    for size in (16 * MIB, 4 * MIB, 0):
        sock.reserve(s, size)
        for level in books:
            level.are(size)
        assert beside.sock() == 0


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_max_of_the_parent(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """memory.max of the parent is ENOMEM for the child: no OOM kill, `max` of the parent counts, nothing is left."""
    (inner,) = cgroup.split(defer, own_cgroup, "inner")
    s, charges = sockets.open(), Charges(inner)
    own_cgroup.write("memory.max", current(own_cgroup) + 8 * MIB)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 16 * MIB)
    own_cgroup.write("memory.max", "max")
    assert own_cgroup.read("memory.events", "max") > 0
    assert inner.read("memory.events.local", "max") == 0
    assert own_cgroup.read("memory.events", "oom_kill") == 0  # and of all below
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (0, 0)
    charges.are(0)


@option
@pytest.mark.red_on("oom-kill")
def test_max_of_the_parent_in_small_steps(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """A reservation that grows into memory.max of the parent is ENOMEM and kills nobody there either."""
    (inner,) = cgroup.split(defer, own_cgroup, "inner")
    s = sockets.open()
    own_cgroup.write("memory.max", current(own_cgroup) + 4 * MIB)
    assert kills_by_growing(defer, s, inner, own_cgroup) == 0


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_siblings_compete(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """Two cgroups share what memory.max of their parent allows: one gets what the other gives back."""
    left, right = cgroup.split(defer, own_cgroup, "left", "right")
    a = sockets.open()
    cgroup.move(right.path)
    b = sockets.open()
    cgroup.move(left.path)
    own_cgroup.write("memory.max", current(own_cgroup) + 17 * MIB)
    sock.reserve(a, 12 * MIB)
    sock.refuses(errno.ENOMEM, sock.reserve, b, 8 * MIB)
    sock.reserve(a, 0)
    sock.reserve(b, 8 * MIB)
    own_cgroup.write("memory.max", "max")


@option
@pytest.mark.red_on("high-is-a-limit")
def test_memory_high(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Above memory.high a reservation succeeds; `high` counts, and the task pays with a stall."""
    s, charges = sockets.open(), Charges(own_cgroup)
    own_cgroup.write("memory.high", current(own_cgroup) + 4 * MIB)
    before = own_cgroup.read("memory.events", "high")
    start = time.monotonic()
    sock.reserve(s, 32 * MIB)
    stall = time.monotonic() - start
    own_cgroup.write("memory.high", "max")
    assert own_cgroup.read("memory.events", "high") > before
    assert stall > 0.1, f"{stall} s"
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (32 * MIB, 32 * MIB)
    charges.are(32 * MIB)


def read_uncached(size: int) -> None:
    """Read from a disk whose pages nobody else has cached, so that they are charged to us."""
    disks = [d.name for d in Path("/sys/block").iterdir() if d.name.startswith(("vd", "sd", "nvme"))]
    if not disks:
        pytest.skip("guest without a disk: nothing to fill the page cache from")
    with open(f"/dev/{disks[0]}", "rb", buffering=0) as device:
        os.posix_fadvise(device.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while size > 0:
            size -= len(device.read(MIB)) or size


@option
@pytest.mark.red_on("charge-nowait")
def test_page_cache_makes_room(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Where page cache is in the way of a reservation it is reclaimed, rather than ENOMEM."""
    s = sockets.open()
    own_cgroup.write("memory.max", current(own_cgroup) + 12 * MIB)
    read_uncached(16 * MIB)
    cached = own_cgroup.read("memory.stat", "file")
    assert cached > 6 * MIB, f"only {cached} bytes cached"
    sock.reserve(s, 8 * MIB)
    own_cgroup.write("memory.max", "max")
    assert sock.reserved(s) == 8 * MIB
