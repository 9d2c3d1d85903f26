"""The reservation is not reclaimed where another layer does the sending and receiving: kTLS, BPF sockmaps."""

import errno
import socket
import struct
from contextlib import ExitStack

import pytest

from selftests.lib import sock
from selftests.lib.pressure import Pressure
from selftests.lib.sockmap import Sockmap
from selftests.so_reserve_mem import uses

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZE = 512 << 10
TCP_ULP, SOL_TLS, TLS_TX, TLS_RX = 31, 282, 1, 2
AES_GCM_128 = struct.pack("HH8s16s4s8s", 0x0303, 51, bytes(8), bytes(16), bytes(4), bytes(8))
ABSENT = (errno.ENOENT, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)


def reserving(sockets: sock.Sockets) -> tuple[socket.socket, socket.socket]:
    """A connection both of whose ends have reserved."""
    ends = sockets.pair()
    for s in ends:
        sock.reserve(s, SIZE)
    return ends


def start_tls(*ends: socket.socket) -> None:
    """Records from the first end to the second are encrypted by the kernel; skips where it cannot."""
    try:
        for s, direction in zip(ends, (TLS_TX, TLS_RX), strict=True):
            s.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
            s.setsockopt(SOL_TLS, direction, AES_GCM_128)
    except OSError as e:
        if e.errno not in ABSENT:
            raise
        pytest.skip(f"kernel without kTLS or AES-GCM: TCP_ULP tls: {e.strerror}")


def assert_whole(*ends: socket.socket) -> None:
    """Empty the queues, let both ends finish (a FIN makes the kernel reclaim), and see the reservation of each."""
    assert uses.settled(*ends), f"not drained: {[sock.meminfo(s) for s in ends]}"
    for s in ends:
        s.shutdown(socket.SHUT_WR)
    assert sock.eventually(lambda: all(sock.meminfo(s).wmem_queued == 0 for s in ends)), "the FIN is not acknowledged"
    for name, s in zip("ab", ends, strict=True):
        m = sock.meminfo(s)
        has = m.fwd_alloc + m.rmem_alloc  # since 6.0 kTLS leaves the FIN in the receive queue
        assert has >= SIZE, f"{name} has {has}, {SIZE - has} less than the {SIZE} bytes reserved"
        assert sock.reserved(s) == SIZE


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("size", [1, 1000, 40_000])
def test_tls(sockets: sock.Sockets, size: int) -> None:
    """kTLS records, which charge the plain text and the encrypted one, give back what they took."""
    a, b = reserving(sockets)
    start_tls(a, b)
    for _ in range(8):
        sock.transfer(a, b, size)
    assert_whole(a, b)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("above_max", [False, True], ids=["pressure", "above_max"])
def test_tls_under_pressure(sockets: sock.Sockets, pressure: Pressure, above_max: bool) -> None:
    """Under pressure kTLS records give back what they took."""
    a, b = reserving(sockets)
    start_tls(a, b)
    pressure.on(above_max)
    for _ in range(4):
        sock.transfer(a, b, 20_000)
    assert_whole(a, b)


@pytest.fixture
def sockmap(request: pytest.FixtureRequest, defer: ExitStack) -> Sockmap:
    """A sockmap with the programs that the case asks for; skips where the kernel has none."""
    try:
        return Sockmap(defer, **request.param)
    except OSError as e:
        if e.errno not in ABSENT:
            raise
        pytest.skip(f"kernel without sockmaps (BPF_STREAM_PARSER): {e.filename}: {e.strerror}")


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize("sockmap", [{}, {"sends": True}], ids=["no_program", "msg_verdict"], indirect=True)
@pytest.mark.parametrize("size", [100, 20_000])
def test_sockmap(sockets: sock.Sockets, sockmap: Sockmap, size: int) -> None:
    """What was sent through a sockmap's program gives back what it took."""
    through(sockmap, *reserving(sockets), size)


@option
@pytest.mark.red_on("reclaim-eats-reservation")
@pytest.mark.parametrize(
    "sockmap", [{"receives": True}, {"sends": True, "receives": True}], ids=["skb_verdict", "both"], indirect=True
)
@pytest.mark.parametrize("size", [100, 20_000])
def test_sockmap_receiver(sockets: sock.Sockets, sockmap: Sockmap, size: int) -> None:
    """What was received through a sockmap's parser and verdict gives back what it took."""
    through(sockmap, *reserving(sockets), size)


def through(sockmap: Sockmap, a: socket.socket, b: socket.socket, size: int) -> None:
    """Move data with both ends in the map."""
    for s in (a, b):
        sockmap.add(s)
    for _ in range(8):
        sock.transfer(a, b, size)
    assert_whole(a, b)
