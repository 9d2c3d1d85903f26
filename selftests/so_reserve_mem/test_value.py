"""What SO_RESERVE_MEM accepts, how it rounds, and which socket has it."""

import errno
import socket

import pytest

from selftests.lib import sock
from selftests.lib.pressure import TcpMem

option = pytest.mark.introduced_by("so-reserve-mem", "option")
GIB = 1 << 30


def pages(size: int) -> int:
    """size rounded up to whole pages, in bytes."""
    return -(-size // sock.PAGE) * sock.PAGE


@option
@pytest.mark.red_on("round-down")
@pytest.mark.parametrize("size", [1, 4095, 4097, 5000])
def test_rounds_up(sockets: sock.Sockets, size: int) -> None:
    """getsockopt() returns the reservation rounded up to pages (mainline 5.16 sock_reserve_memory())."""
    s = sockets.open()
    sock.reserve(s, size)
    assert sock.reserved(s) == pages(size)


@option
@pytest.mark.red_on("no-forward-alloc", "round-to-next-page")
@pytest.mark.parametrize("size", [4096, 1 << 20])
def test_whole_pages_stay(sockets: sock.Sockets, size: int) -> None:
    """A size of whole pages is reserved as it is, and lies in forward_alloc."""
    s = sockets.open()
    sock.reserve(s, size)
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (size, size)


@option
@pytest.mark.red_on("round-down")
def test_rounds_up_on_the_way_down(sockets: sock.Sockets) -> None:
    """Decreasing rounds up as well: 8192 -> 5000 keeps 8192, -> 4096 gives 4096, -> 1 keeps it, -> 0 gives 0."""
    s = sockets.open()
    seen = []
    for size in (8192, 5000, 4096, 1, 0):
        sock.reserve(s, size)
        seen.append(sock.reserved(s))
    assert seen == [8192, 8192, 4096, 4096, 0]


@option
@pytest.mark.red_on("no-cap")
@pytest.mark.parametrize("size", [GIB + 1, GIB + sock.PAGE, 0x7FFFF001, (1 << 31) - 1])
@pytest.mark.known_issue("overflow-int-max", symptom=r"Cannot allocate memory instead of Invalid argument")
def test_above_one_gib(sockets: sock.Sockets, size: int) -> None:
    """More than 1 GiB is EINVAL, so that the rounded value cannot overflow (mainline 37e02c42a00b)."""
    sock.refuses(errno.EINVAL, sock.reserve, sockets.open(), size)


@option
@pytest.mark.fresh
@pytest.mark.red_on("round-down", "no-forward-alloc", "cap-excluded")
def test_one_gib(sockets: sock.Sockets, tcp_mem: TcpMem) -> None:
    """1 GiB itself is accepted: it is a charge, no memory is touched (mainline 37e02c42a00b)."""
    s = sockets.open()
    low, _, high = tcp_mem.default
    tcp_mem.write(low, GIB // sock.PAGE + high, GIB // sock.PAGE + high)
    for size in (GIB - 1, GIB):
        sock.reserve(s, size)
        assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (GIB, GIB)


@option
@pytest.mark.red_on("get-what-is-left")
def test_use_does_not_show(sockets: sock.Sockets) -> None:
    """getsockopt() returns what was reserved, however much of it unread data takes up."""
    a, b = sockets.pair()
    sock.reserve(b, 64 << 10)
    sock.push(a, 16 << 10)
    assert sock.meminfo(b).rmem_alloc > 0
    assert sock.reserved(b) == 64 << 10


@option
@pytest.mark.red_on("child-inherits")
def test_child_of_a_listener_has_none(sockets: sock.Sockets) -> None:
    """A listener can reserve, and what it accepts starts without a reservation."""
    listener = sockets.listener()
    sock.reserve(listener, 1 << 20)
    _, child = sockets.connect(listener)
    assert (sock.reserved(listener), sock.reserved(child)) == (1 << 20, 0)


@option
@pytest.mark.red_on("round-down")
def test_dup_shares(sockets: sock.Sockets) -> None:
    """A duplicate is the same socket: it has the reservation, and a change through it is seen by both."""
    s = sockets.open()
    twin = sockets.keep(s.dup())
    sock.reserve(s, 8192)
    assert sock.reserved(twin) == 8192
    sock.reserve(twin, 1)
    assert sock.reserved(s) == 4096


@option
@pytest.mark.red_on("round-down")
def test_ipv6(sockets: sock.Sockets) -> None:
    """TCP over IPv6 has the option too."""
    s = sockets.open(socket.AF_INET6)
    sock.reserve(s, 5000)
    assert sock.reserved(s) == 8192
