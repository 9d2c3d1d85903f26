"""Patch 3, branch by branch: what opens rcv_ssthresh under pressure, what holds it open, and what must bound it."""

import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from selftests.lib import link, sock
from selftests.lib.pressure import Pressure, snmp
from selftests.lib.rawpeer import Peer
from selftests.lib.vmpressure import MemcgPressure
from selftests.so_reserve_mem.test_rcv_ssthresh import CLAMPED, fall_behind, trickle

option = pytest.mark.introduced_by("so-reserve-mem", "option")
ssthresh = pytest.mark.introduced_by("so-reserve-mem", "rcv_ssthresh")
Sysctl = Callable[[str, str], None]
SIZE = 1 << 20
MSS = 1460  # what a device of MTU 1500 announces, without timestamps


@ssthresh
@pytest.mark.red_on("drop-grow-window")
@pytest.mark.parametrize("size", [32 << 10, 64 << 10, 256 << 10])
def test_opens_to_what_the_reservation_affords(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """A receiver that fell behind offers two fifths of its reservation or more, and never more than all of it."""
    a, b = sockets.pair()
    sock.reserve(b, size)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    seen = sock.rcv_ssthresh(b)
    assert size * 0.4 <= seen <= size, f"rcv_ssthresh {seen} with {size} reserved"


@ssthresh
@pytest.mark.red_on("drop-grow-window")
def test_opens_under_memcg_pressure(sockets: sock.Sockets, memcg_pressure: MemcgPressure) -> None:
    """Where only the cgroup is under pressure, rcv_ssthresh opens to the reservation as well."""
    a, b = sockets.pair()
    sock.reserve(b, 100_000)
    memcg_pressure.renew()
    fall_behind(a, b)
    memcg_pressure.renew()
    trickle(a, b)
    seen = sock.rcv_ssthresh(b)
    assert 40_000 <= seen <= 100_000, f"rcv_ssthresh {seen} with 100,000 bytes reserved"


@ssthresh
@pytest.mark.red_on("drop-grow-window")
def test_opens_at_both_ends(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Each end that reserved opens its own window, whichever way the data goes."""
    a, b = sockets.pair()
    for s in (a, b):
        sock.reserve(s, 100_000)
    pressure.on()
    for sender, receiver in ((a, b), (b, a)):
        fall_behind(sender, receiver)
        trickle(sender, receiver)
    seen = [sock.rcv_ssthresh(s) for s in (a, b)]
    assert min(seen) >= 40_000, f"rcv_ssthresh {seen} with 100,000 bytes reserved at each end"


@pytest.mark.red_on("clamp-to-three-segments", "clamp-to-five-segments", "select-window-never-clamps")
def test_stays_clamped_without(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Without a reservation a receiver that fell behind stays at four segments."""
    a, b = sockets.pair()
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    assert sock.rcv_ssthresh(b) == CLAMPED


@ssthresh
@pytest.mark.red_on("drop-grow-window")
def test_opens_once_reserved(sockets: sock.Sockets, pressure: Pressure, tcp_mem_open: Callable[[], None]) -> None:
    """A receiver that fell behind first and reserves later gets its window back under renewed pressure."""
    a, b = sockets.pair()
    pressure.on()
    fall_behind(a, b)
    assert sock.rcv_ssthresh(b) == CLAMPED
    tcp_mem_open()
    sock.reserve(b, 100_000)
    pressure.on()
    trickle(a, b)
    seen = sock.rcv_ssthresh(b)
    assert 40_000 <= seen <= 100_000, f"rcv_ssthresh {seen} with 100,000 bytes reserved"


@pytest.fixture
def tcp_mem_open(pressure: Pressure) -> Callable[[], None]:
    """Ends the pressure in the middle of a case, as above tcp_mem[1] nobody can reserve."""
    return pressure.off


@option
@pytest.mark.red_on(
    "window-from-whole-reservation", "unused-ignores-receive-queue", "unused-goes-negative", "clamp-spares-reserved"
)
def test_unread_data_uses_it_up(sockets: sock.Sockets, pressure: Pressure) -> None:
    """What lies unread takes up the reservation: with more unread than reserved, rcv_ssthresh stays clamped."""
    a, b = sockets.pair()
    sock.reserve(b, 32 << 10)
    pressure.on()
    sock.fill(a)
    assert sock.meminfo(b).rmem_alloc > 32 << 10
    assert sock.rcv_ssthresh(b) <= CLAMPED, f"rcv_ssthresh {sock.rcv_ssthresh(b)}, the reservation is in use"


@option
@pytest.mark.red_on("window-from-whole-reservation", "unused-ignores-send-queue")
def test_queued_data_uses_it_up(sockets: sock.Sockets, pressure: Pressure) -> None:
    """What waits to be sent takes up the reservation too."""
    size = 16 << 10
    a, b = sockets.pair()
    sock.reserve(b, size)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 200_000)  # much more than the peer takes without reading
    sock.push(b)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    assert sock.meminfo(b).wmem_queued > size
    assert sock.rcv_ssthresh(b) <= CLAMPED, f"rcv_ssthresh {sock.rcv_ssthresh(b)}, the reservation is in use"


@ssthresh
@pytest.mark.red_on("ignore-window-clamp")
@pytest.mark.known_issue("window-clamp-ignored", symptom="TCP_WINDOW_CLAMP")
@pytest.mark.parametrize("clamp", [8192, 20_000, 30_000])
def test_window_clamp(sockets: sock.Sockets, pressure: Pressure, sysctl: Sysctl, clamp: int) -> None:
    """TCP_WINDOW_CLAMP on a connection bounds what a reservation of 1 MiB opens."""
    sysctl("net.ipv4.tcp_moderate_rcvbuf", "0")  # which would raise the clamp along with rcvbuf, on any kernel
    a, b = sockets.pair()
    b.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, clamp)
    sock.reserve(b, SIZE)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    seen = sock.rcv_ssthresh(b)
    assert CLAMPED < seen <= clamp, f"rcv_ssthresh {seen} with 1 MiB reserved, TCP_WINDOW_CLAMP {clamp}"


@option
@pytest.mark.red_on("ignore-window-clamp")
@pytest.mark.known_issue("window-clamp-ignored", symptom="TCP_WINDOW_CLAMP")
@pytest.mark.parametrize("clamp", [8192, 20_000, 30_000])
def test_window_clamp_of_the_listener(sockets: sock.Sockets, pressure: Pressure, sysctl: Sysctl, clamp: int) -> None:
    """TCP_WINDOW_CLAMP that was set before the handshake is not exceeded with 1 MiB reserved."""
    sysctl("net.ipv4.tcp_moderate_rcvbuf", "0")
    listener = sockets.listener()
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, clamp)
    a, b = sockets.connect(listener)
    sock.reserve(b, SIZE)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    seen = sock.rcv_ssthresh(b)
    assert seen <= clamp, f"rcv_ssthresh {seen} with 1 MiB reserved, TCP_WINDOW_CLAMP {clamp}"


@ssthresh
@pytest.mark.red_on("drop-rcv-ssthresh-floor")
@pytest.mark.known_issue("window-clamp-ignored", symptom="rcv_ssthresh, snd_wnd")  # SO_RCVBUF sets the clamp
@pytest.mark.parametrize("rcvbuf", [30_000, 65_536])
def test_rcvbuf_lock(sockets: sock.Sockets, pressure: Pressure, rcvbuf: int) -> None:
    """With SO_RCVBUF set, what a reservation opens stays within it, and so does what the peer is offered."""
    listener = sockets.listener()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    a, b = sockets.connect(listener)
    sock.reserve(b, SIZE)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    assert sock.meminfo(b).rcvbuf == 2 * rcvbuf
    seen = sock.rcv_ssthresh(b), sock.snd_wnd(a)
    assert seen[0] > CLAMPED and max(seen) <= 2 * rcvbuf, f"rcv_ssthresh, snd_wnd {seen}, rcvbuf {2 * rcvbuf}"


@option
@pytest.mark.red_on("grow-window-clamps", "grow-window-assigns")
@pytest.mark.known_issue("clamps-unreserved", symptom="a fresh connection was clamped")
@pytest.mark.parametrize("size", [4096, 8192])
def test_never_lower_than_without(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """A reservation of any size leaves a fresh connection's rcv_ssthresh at least where it is without one."""
    seen = []
    ends = [sockets.pair(rcvbuf=1 << 20) for _ in range(2)]
    sock.reserve(ends[1][1], size)
    pressure.on()
    for a, b in ends:
        trickle(a, b)
        seen.append(sock.rcv_ssthresh(b))
    assert seen[1] >= seen[0], f"rcv_ssthresh {seen[0]} without, {seen[1]} with {size} reserved"
    assert seen[1] > CLAMPED, f"rcv_ssthresh {seen[1]}: a fresh connection was clamped"


@pytest.mark.known_issue("clamps-unreserved", symptom="clamped without a reservation")
def test_fresh_connection_without(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Without a reservation pressure does not clamp a fresh connection that keeps up."""
    a, b = sockets.pair(rcvbuf=1 << 20)
    before = sock.rcv_ssthresh(b)
    pressure.on()
    trickle(a, b)
    seen = sock.rcv_ssthresh(b)
    assert seen >= before, f"rcv_ssthresh {before} -> {seen}: clamped without a reservation"


@ssthresh
@pytest.mark.red_on("drop-rcv-ssthresh-floor")
@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("scale", ["-2", "1", "2", "4"])
def test_bounds(sockets: sock.Sockets, pressure: Pressure, sysctl: Sysctl, mtu: int, scale: str) -> None:
    """With any MTU and tcp_adv_win_scale the window is what that part of the reservation affords."""
    try:
        sysctl("net.ipv4.tcp_adv_win_scale", scale)
    except FileNotFoundError:
        pytest.skip("kernel without tcp_adv_win_scale")
    link.lo_up(mtu)
    size = 256 << 10
    a, b = sockets.pair()
    sock.reserve(b, size)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    seen = sock.rcv_ssthresh(b)
    assert max(0.2 * size, 4 * mtu) < seen <= size, f"rcv_ssthresh {seen} with {size} reserved"


@ssthresh
@pytest.mark.red_on("drop-rcv-ssthresh-floor", "prune-queue-forgets-reservation")
@pytest.mark.parametrize(("size", "segment"), [(24 << 10, 30_000), (48 << 10, 55_000)])
def test_floor_where_a_segment_is_refused(
    sockets: sock.Sockets, defer: ExitStack, pressure: Pressure, size: int, segment: int
) -> None:
    """A segment too large for the reservation is refused above tcp_mem[2], and the window does not go below it."""
    peer = Peer(defer, sockets, mtu=65535, advmss=MSS)
    sock.reserve(peer.kernel, size)
    before = sock.rcv_ssthresh(peer.kernel)
    pressure.on(above_max=True)
    called = snmp("TcpExt", "PruneCalled")
    peer.send(1, bytes(segment))  # after a gap, so that it has to be charged
    assert snmp("TcpExt", "PruneCalled") > called, f"nothing was pruned: {sock.meminfo(peer.kernel)}"
    seen = sock.rcv_ssthresh(peer.kernel)
    assert 4 * MSS < 0.4 * size <= seen <= before, f"rcv_ssthresh {before} -> {seen} with {size} reserved and unused"
