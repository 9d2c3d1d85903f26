"""Patch 3: under pressure rcv_ssthresh, and so the window on the wire, comes back to what the receiver reserved."""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from selftests.lib import link, sock
from selftests.lib.pressure import Pressure

if TYPE_CHECKING:
    from scapy.layers.inet import TCP

option = pytest.mark.introduced_by("so-reserve-mem", "option")
ssthresh = pytest.mark.introduced_by("so-reserve-mem", "rcv_ssthresh")
ETH_P_IP = 0x0800
CLAMPED = 4 * sock.MSS  # where a receiver that fell behind under pressure ends up


def fall_behind(sender: socket.socket, receiver: socket.socket) -> None:
    """Let the receiver's buffer run full and read it empty again: under pressure that clamps rcv_ssthresh."""
    # In one go: what trickles in behind it would teach later kernels (6.6 on) that data takes more memory than it does.
    sock.push(sender)
    while sock.drain(receiver):
        pass


def trickle(sender: socket.socket, receiver: socket.socket) -> None:
    """100 segments, each read at once."""
    for _ in range(100):
        sock.transfer(sender, receiver, sock.MSS)


@ssthresh
@pytest.mark.red_on("drop-grow-window")
@pytest.mark.parametrize("size", [100_000, 1 << 20])
def test_recovers(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """A receiver that fell behind under pressure offers about half of its reservation once it reads again."""
    a, b = sockets.pair()
    sock.reserve(b, size)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    assert size * 0.4 <= sock.rcv_ssthresh(b) <= size
    assert size * 0.4 <= sock.snd_wnd(a) <= size


@ssthresh
@pytest.mark.red_on("drop-grow-window")
def test_window_on_the_wire(sockets: sock.Sockets, veth: link.Veth, pressure: Pressure) -> None:
    """The window field of the last ACK, scaled, is what the reservation affords."""
    size = 100_000
    with veth.there():
        listener = sockets.listener(address=veth.theirs)
    wire = sockets.open(socket.AF_PACKET, socket.SOCK_RAW)
    wire.bind((veth.device, ETH_P_IP))
    a, b = sockets.connect(listener)
    sock.reserve(b, size)
    scale = window_scale(wire, b)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    discard(wire)
    sock.transfer(a, b, sock.MSS)
    assert size * 0.4 <= last_window(wire, b) << scale <= size


@ssthresh
@pytest.mark.red_on("ignore-window-clamp", "clamp-adds-up")
@pytest.mark.known_issue("window-clamp-ignored", symptom=r"assert \d+ <= 20000")
def test_window_clamp_is_respected(
    sockets: sock.Sockets, pressure: Pressure, sysctl: Callable[[str, str], None]
) -> None:
    """A reservation of 1 MiB lifts rcv_ssthresh to TCP_WINDOW_CLAMP and not above (released kernels ignore it)."""
    clamp = 20_000
    sysctl("net.ipv4.tcp_moderate_rcvbuf", "0")  # which would raise the clamp along with rcvbuf, on any kernel
    a, b = sockets.pair()
    sock.reserve(b, 1 << 20)
    b.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, clamp)
    pressure.on()
    fall_behind(a, b)
    trickle(a, b)
    assert CLAMPED < sock.rcv_ssthresh(b) <= clamp


@ssthresh
@pytest.mark.red_on("drop-rcv-ssthresh-floor", "select-window-forgets-reservation")
def test_floor_while_behind(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A receiver that falls behind keeps the window that the unused part of its reservation affords."""
    a, b = sockets.pair()
    sock.reserve(b, 1 << 20)
    pressure.on()
    sock.fill(a)
    assert sock.rcv_ssthresh(b) > CLAMPED


@option
@pytest.mark.red_on("grow-window-clamps")
@pytest.mark.parametrize("size", [16 << 10, 100_000])
@pytest.mark.known_issue("clamps-unreserved", symptom=r"assert \d+ >= \d+")
def test_fresh_window_stays(sockets: sock.Sockets, pressure: Pressure, size: int) -> None:
    """Under pressure a reservation never makes the rcv_ssthresh of a fresh connection lower than it was."""
    a, b = sockets.pair(rcvbuf=1 << 20)  # room to grow: tcp_grow_window() looks no further at a window that is open
    sock.reserve(b, size)
    before = sock.rcv_ssthresh(b)
    pressure.on()
    trickle(a, b)
    assert sock.rcv_ssthresh(b) >= before


def packets(wire: socket.socket, sender: socket.socket) -> "list[TCP]":
    """The TCP headers that this socket has put on the wire, dissected by scapy."""
    from scapy.layers.inet import TCP
    from scapy.layers.l2 import Ether

    port, seen = sender.getsockname()[1], []
    with suppress(BlockingIOError):
        while True:
            seen.append(Ether(wire.recv(128, socket.MSG_DONTWAIT))[TCP])
    return [p for p in seen if p.sport == port]


def discard(wire: socket.socket) -> None:
    """Forget what has been captured, or else the capture's buffer is full when it matters."""
    with suppress(BlockingIOError):
        while wire.recv(1, socket.MSG_DONTWAIT):
            pass


def window_scale(wire: socket.socket, sender: socket.socket) -> int:
    """The shift that the socket announced in its SYN or SYN-ACK."""
    return next(int(value) for p in packets(wire, sender) for name, value in p.options if name == "WScale")


def last_window(wire: socket.socket, sender: socket.socket) -> int:
    """The window field of the socket's last segment, unscaled."""
    return int(packets(wire, sender)[-1].window)
