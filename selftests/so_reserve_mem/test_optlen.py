"""The length and the address that go with the value, both ways."""

import ctypes
import errno
import socket
import struct

import pytest

from selftests.lib import rawopt, sock
from selftests.lib.rawopt import Edge

option = pytest.mark.introduced_by("so-reserve-mem", "option")
INT_MAX = (1 << 31) - 1
BAD = {"null": rawopt.NULL, "zero-page": 8, "kernel": rawopt.KERNEL, "non-canonical": rawopt.NON_CANONICAL}
bad_addresses = pytest.mark.parametrize("address", BAD.values(), ids=BAD.keys())


@pytest.mark.red_on("set-copies-itself")
@pytest.mark.parametrize("optlen", [0, 1, 2, 3])
def test_short_value(sockets: sock.Sockets, optlen: int) -> None:
    """A value of less than 4 bytes is EINVAL, before the option is looked at (sock_setsockopt())."""
    edge = Edge()
    sock.refuses(errno.EINVAL, rawopt.set_at, sockets.open(), edge.put(bytes(optlen)), optlen)


@pytest.mark.red_on("set-copies-itself")
@bad_addresses
def test_set_from_bad_address(sockets: sock.Sockets, address: int) -> None:
    """A value that cannot be read is EFAULT, before the option is looked at (sock_setsockopt())."""
    sock.refuses(errno.EFAULT, rawopt.set_at, sockets.open(), address, 4)


@pytest.mark.red_on("set-copies-itself")
@pytest.mark.parametrize("readable", [1, 3])
def test_set_across_the_edge(sockets: sock.Sockets, readable: int) -> None:
    """A value of which only the first bytes can be read is EFAULT."""
    edge = Edge()
    sock.refuses(errno.EFAULT, rawopt.set_at, sockets.open(), edge.put(bytes(readable)), 4)


@option
@pytest.mark.red_on("set-copies-itself")
@pytest.mark.parametrize("optlen", [5, 8, 4096, INT_MAX])
def test_set_reads_four_bytes(sockets: sock.Sockets, optlen: int) -> None:
    """Of a longer value only 4 bytes are read: what lies behind them need not be mapped."""
    s, edge = sockets.open(), Edge()
    rawopt.set_at(s, edge.put(struct.pack("i", 8192)), optlen)
    assert sock.reserved(s) == 8192


@option
@pytest.mark.red_on("round-down")
def test_first_four_bytes_count(sockets: sock.Sockets) -> None:
    """Of a value of 8 bytes the first 4 count, as with any integer option."""
    s = sockets.open()
    s.setsockopt(socket.SOL_SOCKET, sock.SO_RESERVE_MEM, struct.pack("ii", 4097, -1))
    assert sock.reserved(s) == 8192


@option
@pytest.mark.red_on("get-like-a-cookie")
@pytest.mark.parametrize("optlen", [0, 1, 2, 3])
def test_get_into_short_buffer(sockets: sock.Sockets, optlen: int) -> None:
    """A buffer of less than 4 bytes gets as many as fit, and the length says so (sock_getsockopt())."""
    s = sockets.open()
    sock.reserve(s, 0x123000)
    edge = Edge()
    assert rawopt.get_at(s, edge.put(b"\xee" * optlen), optlen) == optlen
    assert edge.get(optlen) == struct.pack("i", 0x123000)[:optlen]


@option
@pytest.mark.red_on("get-like-a-cookie", "get-copies-itself")
@pytest.mark.parametrize("optlen", [5, 8, 4096])
def test_get_into_long_buffer(sockets: sock.Sockets, optlen: int) -> None:
    """A longer buffer gets 4 bytes, the rest of it is left alone, and the length becomes 4 (sock_getsockopt())."""
    s = sockets.open()
    sock.reserve(s, 8192)
    buffer = ctypes.create_string_buffer(b"\xee" * optlen, optlen)
    assert rawopt.get_at(s, ctypes.addressof(buffer), optlen) == 4
    assert buffer.raw == struct.pack("i", 8192) + b"\xee" * (optlen - 4)


@option
@pytest.mark.red_on("get-copies-itself")
@bad_addresses
def test_get_to_bad_address(sockets: sock.Sockets, address: int) -> None:
    """A buffer that cannot be written is EFAULT, whatever is wrong with its address."""
    sock.refuses(errno.EFAULT, rawopt.get_at, sockets.open(), address, 4)


@option
@pytest.mark.red_on("get-copies-itself")
def test_get_to_read_only(sockets: sock.Sockets) -> None:
    """A buffer in a page that may only be read is EFAULT."""
    edge = Edge()
    edge.read_only()
    sock.refuses(errno.EFAULT, rawopt.get_at, sockets.open(), edge.start, 4)


@option
@pytest.mark.red_on("get-copies-itself")
@pytest.mark.parametrize("writable", [1, 3])
def test_get_across_the_edge(sockets: sock.Sockets, writable: int) -> None:
    """A buffer that is said to be longer than it is, is EFAULT."""
    edge = Edge()
    sock.refuses(errno.EFAULT, rawopt.get_at, sockets.open(), edge.put(bytes(writable)), 4)


@option
@pytest.mark.red_on("get-like-a-cookie")
def test_get_nothing_from_nowhere(sockets: sock.Sockets) -> None:
    """A buffer of no length is not touched, so that it may be NULL."""
    assert rawopt.get_at(sockets.open(), rawopt.NULL, 0) == 0


@pytest.mark.red_on("get-comes-first")
@pytest.mark.parametrize("optlen", [-1, -(1 << 31)])
def test_get_with_negative_length(sockets: sock.Sockets, optlen: int) -> None:
    """A negative length is EINVAL, before the option is looked at (sock_getsockopt())."""
    edge = Edge()
    sock.refuses(errno.EINVAL, rawopt.get_at, sockets.open(), edge.start, optlen)


@pytest.mark.red_on("get-comes-first")
@bad_addresses
def test_get_with_length_at_bad_address(sockets: sock.Sockets, address: int) -> None:
    """A length that cannot be read is EFAULT, before the option is looked at (sock_getsockopt())."""
    edge = Edge()
    sock.refuses(errno.EFAULT, rawopt.get_lengthless, sockets.open(), edge.start, address)


@option
@pytest.mark.red_on("get-comes-first")
def test_get_with_read_only_length(sockets: sock.Sockets) -> None:
    """A length that can be read and not written is EFAULT: the caller would not learn what it got."""
    edge = Edge()
    at = edge.put(struct.pack("i", 4))
    edge.read_only()
    value = ctypes.c_int(-1)
    sock.refuses(errno.EFAULT, rawopt.get_lengthless, sockets.open(), ctypes.addressof(value), at)
