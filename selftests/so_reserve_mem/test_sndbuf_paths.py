"""Patch 2, branch by branch: what raises sndbuf under pressure, what holds it up, and what must leave it alone."""

import socket
from collections.abc import Callable
from contextlib import suppress

import pytest

from selftests.lib import sock
from selftests.lib.pressure import Pressure, TcpMem
from selftests.lib.vmpressure import MemcgPressure
from selftests.so_reserve_mem.test_sndbuf import push_and_drain

option = pytest.mark.introduced_by("so-reserve-mem", "option")
sndbuf = pytest.mark.introduced_by("so-reserve-mem", "sndbuf")
Sysctl = Callable[[str, str], None]
Ends = tuple[socket.socket, socket.socket]


def of(s: socket.socket) -> int:
    """sndbuf, in bytes."""
    return sock.meminfo(s).sndbuf


def grown(ends: Ends, rounds: int = 5) -> int:
    """The largest sndbuf while the connection is filled and emptied."""
    return max(push_and_drain(*ends, rounds=rounds))


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise")
@pytest.mark.parametrize("size", [100_000, 256 << 10, 1 << 20, 3 << 20])
def test_raised_to_most_of_the_reservation(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """Under pressure sndbuf grows to at least half of the reservation, and not above the whole of it."""
    ends = sockets.pair()
    sock.reserve(ends[0], size)
    pressure.on()
    largest = grown(ends)
    assert size / 2 <= largest <= size + sock.PAGE, f"sndbuf {largest} with {size} reserved"


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise", "sndbuf-by-global-pressure")
def test_raised_under_memcg_pressure(sockets: sock.Sockets, memcg_pressure: MemcgPressure) -> None:
    """Where only the cgroup is under pressure, sndbuf grows into the reservation as well."""
    ends = sockets.pair()
    sock.reserve(ends[0], 1 << 20)
    largest = 0
    for _ in range(4):
        memcg_pressure.renew()
        largest = max(largest, grown(ends, rounds=1))
    assert 512 << 10 <= largest <= 1 << 20, f"sndbuf {largest} with 1 MiB reserved"


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise")
def test_raised_at_both_ends(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Under pressure each end that reserved gets its own sndbuf, though data came and went at both."""
    a, b = sockets.pair()
    for s in (a, b):
        sock.reserve(s, 1 << 20)
    pressure.on()
    largest = grown((a, b)), grown((b, a))
    assert min(largest) >= 512 << 10, f"sndbuf {largest} with 1 MiB reserved at each end"


def test_frozen_without_reservation(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Under pressure the sndbuf of a sender that reserved nothing does not grow."""
    a, b = sockets.pair()
    before = of(a)
    pressure.on()
    assert grown((a, b)) == before


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise")
def test_raised_when_queues_are_full_already(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A sender that reserves while its queue is full gets the sndbuf once there is room under pressure."""
    a, b = sockets.pair()
    sock.push(a)
    sock.reserve(a, 1 << 20)
    pressure.on()
    sock.drain(b)
    assert grown((a, b)) >= 512 << 10


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise")
def test_release_keeps_what_was_raised(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A reservation that is released under pressure neither takes sndbuf back at once nor raises it any further."""
    a, b = sockets.pair()
    sock.reserve(a, 1 << 20)
    pressure.on()
    raised = grown((a, b))
    assert raised >= 512 << 10, f"sndbuf {raised} with 1 MiB reserved"
    sock.reserve(a, 0)
    seen = push_and_drain(a, b, rounds=3)
    assert max(seen) <= raised, f"sndbuf {seen} after the release, {raised} before"


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise")
@pytest.mark.known_issue("sndbuf-overshoots", symptom="sndbuf .* with 1 MiB reserved")
@pytest.mark.parametrize("limit", [65_536, 200_000])
def test_raised_no_further_than_tcp_wmem(sockets: sock.Sockets, pressure: Pressure, sysctl: Sysctl, limit: int) -> None:
    """tcp_wmem[2] is where a reservation stops raising sndbuf, also where the administrator has lowered it."""
    sysctl("net.ipv4.tcp_wmem", f"4096 16384 {limit}")
    ends = sockets.pair()
    sock.reserve(ends[0], 1 << 20)
    pressure.on()
    largest = grown(ends)
    assert largest == limit, f"sndbuf {largest} with 1 MiB reserved, tcp_wmem[2] {limit}"


@option
@pytest.mark.red_on("sndbuf-shrinks")
@pytest.mark.known_issue("sndbuf-shrinks", symptom="sndbuf 300000 without")
# More than 2/3 of sndbuf: a sender is woken when that much is queued, and what is left of less is nothing.
@pytest.mark.parametrize("size", [250_000, 290_000])
def test_never_below_what_it_was(sockets: sock.Sockets, pressure: Pressure, sysctl: Sysctl, size: int) -> None:
    """A sndbuf that is larger than the reservation before pressure begins is neither raised nor made smaller by it."""
    before = 300_000
    sysctl("net.ipv4.tcp_wmem", f"4096 {before} {4 << 20}")
    ends = sockets.pair()
    assert of(ends[0]) == before
    sock.reserve(ends[0], size)
    pressure.on()
    seen = push_and_drain(*ends, rounds=3)
    assert set(seen) == {before}, f"sndbuf {before} without, {seen} with {size} reserved"


@option
@pytest.mark.red_on("sndbuf-ignores-lock")
@pytest.mark.parametrize("value", [2304, 50_000, 100_000])
@pytest.mark.parametrize("first", ["lock", "reservation"])
def test_locked(sockets: sock.Sockets, pressure: Pressure, value: int, first: str) -> None:
    """SO_SNDBUF stays exactly as set, before or after the reservation, when there is room to grow under pressure."""
    a, b = sockets.pair()
    if first == "reservation":
        sock.reserve(a, 1 << 20)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, value)
    sock.reserve(a, 1 << 20)
    pressure.on()
    seen = push_and_drain(a, b, rounds=3)
    assert set(seen) == {2 * value}, f"SO_SNDBUF {value} -> {seen}"


@option
@pytest.mark.red_on("sndbuf-floor-ignores-lock")
@pytest.mark.parametrize("value", [50_000, 100_000])
@pytest.mark.parametrize("size", [8192, 32 << 10])
def test_locked_when_refused(sockets: sock.Sockets, pressure: Pressure, value: int, size: int) -> None:
    """SO_SNDBUF stays exactly as set when a charge is refused above tcp_mem[2]."""
    a, _ = sockets.pair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, value)
    sock.reserve(a, size)
    pressure.on(above_max=True)
    sock.push(a, 4 * size)
    assert of(a) == 2 * value, f"SO_SNDBUF {value} -> {of(a)}"


@option
@pytest.mark.red_on("sndbuf-without-pressure")
@pytest.mark.parametrize("size", [100_000, 1 << 20])
def test_left_alone_without_pressure(sockets: sock.Sockets, tcp_mem: TcpMem, size: int) -> None:
    """Above tcp_mem[0], where sndbuf no longer grows but nobody is under pressure, a reservation does not raise it."""
    a, b = sockets.pair()
    sock.reserve(a, size)
    before = of(a)
    sock.push(sockets.pair(rcvbuf=8 << 20)[0], 3 << 20)  # else a kernel that counts in batches may read 0
    _, pressure, high = tcp_mem.read()
    tcp_mem.write(1, pressure, high)
    seen = push_and_drain(a, b, rounds=3)
    assert set(seen) == {before}, f"sndbuf {before} -> {seen} with {size} reserved"


@sndbuf
@pytest.mark.red_on("drop-sndbuf-floor")
@pytest.mark.parametrize("size", [12 << 10, 14 << 10, 20 << 10])
def test_moderated_to_the_unused_part(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """A charge that is refused above tcp_mem[2] leaves sndbuf near the unused part of the reservation."""
    plain, reserving = sockets.pair()[0], sockets.pair()[0]
    sock.reserve(reserving, size)
    pressure.on(above_max=True)
    for s in (plain, reserving):
        with suppress(BlockingIOError):
            s.send(bytes(32768), socket.MSG_DONTWAIT)
    assert of(plain) < of(reserving) <= size, f"sndbuf {of(plain)} without, {of(reserving)} with {size} reserved"


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise")
def test_comes_back_from_a_refused_charge(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A sndbuf that a refused charge has shrunk grows back to the reservation once the queue has drained."""
    a, b = sockets.pair()
    for s in (a, b):
        sock.reserve(s, 128 << 10)  # the receiver too, or else it drops what has to be acknowledged
    pressure.on(above_max=True)
    push_and_drain(a, b, rounds=3)
    assert sock.eventually(lambda: sock.drain(b) == 0 == sock.meminfo(a).wmem_queued, 5)
    assert of(a) >= 64 << 10, f"sndbuf {of(a)} with 128 KiB reserved and nothing queued"


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise")
def test_more_is_in_flight(sockets: sock.Sockets, pressure: Pressure) -> None:
    """What sndbuf has gained is really queued: more waits for a full receiver than without a reservation."""
    plain, reserving = sockets.pair(), sockets.pair()
    sock.reserve(reserving[0], 1 << 20)
    pressure.on()
    queued = []
    for a, b in (plain, reserving):
        push_and_drain(a, b, rounds=4)
        sock.push(a)
        queued.append(sock.meminfo(a).wmem_queued)
    assert queued[1] > 4 * queued[0], f"{queued} bytes queued without and with 1 MiB reserved"
