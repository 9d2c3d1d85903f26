"""Patch 3 at its edges: what affords no window, and receivers whose window cannot grow or must not shrink."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from selftests.lib import books, sock
from selftests.lib.pressure import Pressure, snmp
from selftests.lib.rawpeer import Peer
from selftests.lib.vmpressure import MemcgPressure
from selftests.so_reserve_mem.test_rcv_ssthresh import CLAMPED, fall_behind, trickle

WIDE = 100_000  # more than a connection begins with, less than its buffer has room for
ROUNDS, BURST = 10, 8  # segments that lie unread before they are read


@pytest.mark.red_on("clamp-raises")
def test_small_window_is_not_raised(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A receiver with less than four segments of window that falls behind under pressure has no more afterwards."""
    listener = sockets.listener()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    a, b = sockets.connect(listener)
    before = sock.rcv_ssthresh(b)
    assert before < CLAMPED
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    assert sock.rcv_ssthresh(b) <= before


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("grow-window-without-room")
def test_no_room_to_grow(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A receive buffer that has no room for more than the window keeps it closed, whatever is reserved."""
    a, b = sockets.pair()
    pressure.on()
    fall_behind(a, b)
    pressure.off()
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2500)  # below CLAMPED even where 6.12 takes it for all data
    sock.reserve(b, 1 << 20)  # only now: a smaller buffer lets 7 look at the reservation at once
    pressure.on()
    for _ in range(20):
        sock.transfer(a, b, 500)
    assert sock.rcv_ssthresh(b) <= CLAMPED


@pytest.mark.red_on("grow-window-at-no-room")
def test_acknowledges_every_other_segment(sockets: sock.Sockets, sysctl: Callable[[str, str], None]) -> None:
    """A receiver whose window is as open as it gets delays its ACKs: less than one for each segment."""
    sysctl("net.ipv4.tcp_moderate_rcvbuf", "0")
    a, b = sockets.pair(rcvbuf=1 << 20)
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.transfer(a, b, sock.MSS)  # 6.12 forgets a clamp when it first measures what part of the memory is data
    b.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, WIDE)
    trickle(a, b)
    assert sock.rcv_ssthresh(b) == WIDE
    before = sock.segs_out(b)
    for _ in range(ROUNDS):
        for _ in range(BURST):
            a.send(bytes(sock.MSS))
        time.sleep(0.1)  # a delayed ACK is out by then; a longer pause brings quick ACKs (tcp_event_data_recv())
        sock.drain(b)
    acks = sock.segs_out(b) - before
    assert acks < 0.8 * ROUNDS * BURST, f"{acks} ACKs for {ROUNDS * BURST} segments"


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("unused-is-forward-alloc")
def test_surplus_affords_no_window(sockets: sock.Sockets, pressure: Pressure) -> None:
    """What a socket happens to hold beyond its reservation affords no window: it may be taken away at any time."""
    a, b = sockets.pair(rcvbuf=4 << 20)
    sock.reserve(b, sock.PAGE)
    pressure.on()
    fall_behind(a, b)
    if not books.batched():
        assert sock.meminfo(b).fwd_alloc > 256 << 10
    trickle(a, b)
    assert sock.rcv_ssthresh(b) <= CLAMPED


@pytest.mark.introduced_by("so-reserve-mem", "rcv_ssthresh")
@pytest.mark.red_on("window-is-memory")
def test_half_of_the_reservation(sockets: sock.Sockets, pressure: Pressure) -> None:
    """With tcp_adv_win_scale 1 a window takes half of the reservation, the rest is for overhead (5.10 tcp_rmem(7))."""
    if books.batched():
        pytest.skip("later kernels measure what part of the memory is data")
    size = 64 << 10
    a, b = sockets.pair()
    sock.reserve(b, size)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    assert CLAMPED < sock.rcv_ssthresh(b) <= size // 2


@pytest.mark.red_on("grow-window-by-global-pressure")
def test_stays_clamped_under_memcg_pressure(sockets: sock.Sockets, memcg_pressure: MemcgPressure) -> None:
    """Where only the cgroup is under pressure, a receiver that fell behind without a reservation stays clamped."""
    a, b = sockets.pair()
    memcg_pressure.renew()
    fall_behind(a, b)
    memcg_pressure.renew()
    trickle(a, b)
    assert sock.rcv_ssthresh(b) == CLAMPED


@pytest.mark.red_on("prune-queue-never-clamps")
def test_refused_segment_clamps(sockets: sock.Sockets, defer: ExitStack, pressure: Pressure) -> None:
    """A segment that is refused memory above tcp_mem[2] clamps the window of who reserved nothing to four segments."""
    mss = 1460
    peer = Peer(defer, sockets, mtu=65535, advmss=mss)
    peer.send(0, b"x")  # unread: with nothing queued, 7 has nothing to prune and leaves the window alone
    assert sock.rcv_ssthresh(peer.kernel) > 4 * mss
    pressure.on(above_max=True)
    called = snmp("TcpExt", "PruneCalled")
    peer.send(2, bytes(30_000))
    assert snmp("TcpExt", "PruneCalled") > called
    assert sock.rcv_ssthresh(peer.kernel) == 4 * mss


@pytest.mark.red_on("select-window-clamps-without-pressure")
def test_not_clamped_without_pressure(sockets: sock.Sockets) -> None:
    """Without pressure a receiver that falls behind keeps more than four segments of window."""
    a, b = sockets.pair()
    fall_behind(a, b)
    trickle(a, b)
    assert sock.rcv_ssthresh(b) > 2 * CLAMPED
    sock.fill(a)
    assert sock.rcv_ssthresh(b) > 2 * CLAMPED
