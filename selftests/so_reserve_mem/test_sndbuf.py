"""Patch 2: under pressure sndbuf does not stay below what the sender has reserved."""

import socket
import time
from pathlib import Path

import pytest

from selftests.lib import sock
from selftests.lib.pressure import Pressure, TcpMem

option = pytest.mark.introduced_by("so-reserve-mem", "option")
sndbuf = pytest.mark.introduced_by("so-reserve-mem", "sndbuf")
SOCK_MIN_SNDBUF = 4608


def wmem_max() -> int:
    """tcp_wmem[2], in bytes."""
    return int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])


def push_and_drain(sender: socket.socket, receiver: socket.socket, rounds: int = 10) -> list[int]:
    """Fill and empty the connection; returns the sender's sndbuf after each step, in bytes."""
    seen = []
    for _ in range(rounds):
        sock.push(sender)
        seen.append(sock.meminfo(sender).sndbuf)
        sock.drain(receiver)
        time.sleep(0.05)  # until a delayed ACK is there: sndbuf is set when one makes room
        seen.append(sock.meminfo(sender).sndbuf)
    return seen


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise", "sndbuf-below-wmem-default")
def test_grows_to_the_reservation(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Between tcp_mem[1] and [2] a sender with 1 MiB reserved gets a sndbuf of most of it, not 46080 for ever."""
    a, b = sockets.pair()
    sock.reserve(a, 1 << 20)
    pressure.on()
    assert 630_000 <= max(push_and_drain(a, b)) <= 1 << 20


@sndbuf
@pytest.mark.red_on("drop-sndbuf-raise", "sndbuf-above-wmem-max")
@pytest.mark.known_issue("sndbuf-overshoots", symptom=r"assert \d+ == \d+")
def test_stays_within_tcp_wmem(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A reservation of 16 MiB lifts sndbuf as far as tcp_wmem[2] and no further."""
    a, b = sockets.pair()
    sock.reserve(a, 16 << 20)
    pressure.on()
    assert max(push_and_drain(a, b)) == wmem_max()


@option
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(20 << 10, marks=pytest.mark.red_on("sndbuf-shrinks")),
        pytest.param(  # released kernels shrink it where what is unused of the reservation is not 0
            100_000,
            marks=[pytest.mark.red_on("6.1"), pytest.mark.known_issue("sndbuf-shrinks", symptom=r"assert \d+ >= \d+")],
        ),
    ],
)
def test_never_smaller_than_without(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """Under pressure a reservation does not make sndbuf smaller than it is without one."""
    plain, reserving = sockets.pair(), sockets.pair()
    sock.reserve(reserving[0], size)
    pressure.on()
    smallest = [min(push_and_drain(*ends, rounds=3)) for ends in (plain, reserving)]
    assert smallest[1] >= smallest[0]


@option
@pytest.mark.red_on("sndbuf-without-pressure")
def test_no_effect_without_pressure(sockets: sock.Sockets, tcp_mem: TcpMem) -> None:
    """Above tcp_mem[0], where sndbuf no longer grows but nobody is under pressure, 16 MiB reserved change nothing."""
    plain, reserving = sockets.pair(), sockets.pair()
    sock.reserve(reserving[0], 16 << 20)
    _, pressure, high = tcp_mem.read()
    tcp_mem.write(1, pressure, high)
    grown = [max(push_and_drain(*ends, rounds=3)) for ends in (plain, reserving)]
    assert grown[1] == grown[0]


@option
@pytest.mark.red_on("sndbuf-ignores-lock")
def test_lock_is_respected(sockets: sock.Sockets, pressure: Pressure) -> None:
    """SO_SNDBUF fixes sndbuf: a reservation of 1 MiB does not move it under pressure."""
    a, b = sockets.pair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
    sock.reserve(a, 1 << 20)
    pressure.on()
    assert set(push_and_drain(a, b, rounds=3)) == {100_000}


@sndbuf
@pytest.mark.red_on("drop-sndbuf-floor", "reserved-never-shrinks")
def test_floor_above_tcp_mem_max(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Above tcp_mem[2] a send that is refused memory leaves sndbuf at the unused part of the reservation."""
    size = 16 << 10
    plain, _ = sockets.pair()
    reserving, _ = sockets.pair()
    sock.reserve(reserving, size)
    pressure.on(above_max=True)
    for s in (plain, reserving):
        sock.push(s, 32768)
    assert sock.meminfo(plain).sndbuf == SOCK_MIN_SNDBUF
    assert SOCK_MIN_SNDBUF < sock.meminfo(reserving).sndbuf <= size
