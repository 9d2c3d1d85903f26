"""Sockets: the constants Python lacks, what the kernel says about a socket, and a few ways to move data."""

import ctypes
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NamedTuple

PAGE = 4096
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
SO_TIMESTAMPING = 37
SO_MEMINFO = 55
SO_ZEROCOPY = 60
SO_RESERVE_MEM = 73
MSG_ZEROCOPY = 0x4000000
IPPROTO_MPTCP = 262
# SOF_TIMESTAMPING_TX_SOFTWARE, _SOFTWARE, _OPT_ID, _OPT_TSONLY
TX_SOFTWARE_TIMESTAMPS = 1 << 1 | 1 << 4 | 1 << 7 | 1 << 11
MSS = 1448  # MTU 1500 less 40 bytes of headers and 12 of timestamps


class MemInfo(NamedTuple):
    """SO_MEMINFO, in bytes (drops: packets); what `ss -m` prints."""

    rmem_alloc: int
    rcvbuf: int
    wmem_alloc: int
    sndbuf: int
    fwd_alloc: int
    wmem_queued: int
    optmem: int
    backlog: int
    drops: int


def meminfo(s: socket.socket) -> MemInfo:
    """What the kernel has charged to and promised this socket."""
    return MemInfo(*struct.unpack("9i", s.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36)))


def spare(s: socket.socket) -> int:
    """What is free or in use of what the socket has charged, in bytes."""
    m = meminfo(s)
    return m.fwd_alloc + m.wmem_queued + m.rmem_alloc


def rcv_ssthresh(s: socket.socket) -> int:
    """tcpi_rcv_ssthresh: the window that the receiver is willing to offer, in bytes."""
    return _tcp_info(s, 64)


def snd_wnd(s: socket.socket) -> int:
    """tcpi_snd_wnd: the window that the peer last advertised, in bytes, scaled."""
    return _tcp_info(s, 228)


def segs_out(s: socket.socket) -> int:
    """tcpi_segs_out: segments that were sent, ACKs included."""
    return _tcp_info(s, 136)


def since_ack(s: socket.socket) -> float:
    """tcpi_last_ack_recv: seconds since the last ACK came in."""
    return _tcp_info(s, 56) / 1000


def _tcp_info(s: socket.socket, offset: int) -> int:
    info = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    value: int = struct.unpack_from("I", info, offset)[0]
    return value


def reserve(s: socket.socket, size: int) -> None:
    """Set SO_RESERVE_MEM to size bytes; OSError as the kernel gives it, ENOPROTOOPT without the option."""
    s.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, size)


def reserved(s: socket.socket) -> int:
    """SO_RESERVE_MEM in bytes, as getsockopt() returns it."""
    return s.getsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM)


def refuses(code: int, call: Callable[..., object], *args: object) -> None:
    """Assert that call(*args) fails with this errno.

    ENOPROTOOPT passes unchanged: without the option there is nothing to judge.
    """
    try:
        call(*args)
    except OSError as e:
        if e.errno == errno.ENOPROTOOPT != code:
            raise
        assert e.errno == code, f"{e.strerror} instead of {os.strerror(code)}"
    else:
        raise AssertionError(f"succeeded instead of {os.strerror(code)}")


class Sockets:
    """Opens sockets that are closed when the stack unwinds, whatever became of the case."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo

    def keep(self, s: socket.socket) -> socket.socket:
        """Close s at the end of the case, by reset so that nothing lingers in an orphan."""
        self._undo.callback(abort, s)
        return s

    def open(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, proto: int = 0) -> socket.socket:
        """A socket as socket.socket() makes it; OSError as there."""
        return self.keep(socket.socket(family, kind, proto))

    def listener(self, rcvbuf: int = 0, address: str = "127.0.0.1") -> socket.socket:
        """A listener on a free port; rcvbuf in bytes is forced when given."""
        s = self.open()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, rcvbuf)
        s.bind((address, 0))
        s.listen(64)
        return s

    def connect(self, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
        """A client of the listener, and the accepted end."""
        client = self.open()
        client.connect(listener.getsockname())
        return client, self.keep(listener.accept()[0])

    def pair(self, rcvbuf: int = 0) -> tuple[socket.socket, socket.socket]:
        """Two connected ends over loopback: who connected, who accepted."""
        listener = self.listener(rcvbuf)
        ends = self.connect(listener)
        listener.close()
        return ends


def abort(s: socket.socket) -> None:
    """Close by reset: queued data is dropped and the charge is given back at once."""
    if s.fileno() >= 0:
        with suppress(OSError):  # not every family lingers
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


def disconnect(s: socket.socket) -> None:
    """connect(AF_UNSPEC), which Python's connect() cannot say."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(s.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "connect(AF_UNSPEC)")


def push(s: socket.socket, limit: int = 1 << 62, chunk: int = 65536) -> int:
    """Send without blocking until the kernel says EAGAIN or limit bytes are in; returns bytes."""
    data, sent = bytes(chunk), 0
    with suppress(BlockingIOError):
        while sent < limit:
            sent += s.send(data[: limit - sent], socket.MSG_DONTWAIT)
    return sent


def push_whole(s: socket.socket, size: int) -> int:
    """As push(), but with patience: in real time, on two CPUs, what makes room comes a little later. Bytes."""
    sent = push(s, size)
    for _ in range(100):
        if sent == size:
            break
        time.sleep(0.01)
        sent += push(s, size - sent)
    return sent


def fill(s: socket.socket, pause: float = 0.1) -> int:
    """Send until nothing more goes in even after a pause: the peer is full too. Bytes.

    pause: virtual seconds, more than an acknowledgement is under way and delayed.
    """
    sent = 0
    while more := push(s):
        sent += more
        time.sleep(pause)
    return sent


def drain(s: socket.socket) -> int:
    """Read without blocking until nothing is left; returns bytes."""
    got = 0
    with suppress(BlockingIOError):
        while chunk := len(s.recv(1 << 18, socket.MSG_DONTWAIT)):
            got += chunk
    return got


def transfer(sender: socket.socket, receiver: socket.socket, size: int, chunk: int = 65536) -> None:
    """Move size bytes and read them all; AssertionError if the flow stands still for 5 s of virtual time."""
    sent = got = 0
    while got < size:
        sent += push(sender, size - sent, chunk)
        if not (n := drain(receiver)):
            assert select.select([receiver], [], [], 5)[0], f"stalled: {got} of {size} bytes after 5 s"
        got += n


def eventually(true: Callable[[], bool], seconds: float = 6.0) -> bool:
    """Ask until the answer is yes or the deadline is over; in virtual time waiting costs the host nothing."""
    deadline = time.monotonic() + seconds
    while not (yes := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return yes
