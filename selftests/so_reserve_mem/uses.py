"""What an application may do with a connection: each use moves data and leaves both ends read empty."""

import os
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from selftests.lib import sock

Use = Callable[[socket.socket, socket.socket], None]
SOME = 64 << 10  # bytes, less than any end has reserved
MSG_MORE = 0x8000


def settled(*ends: socket.socket) -> bool:
    """Read all ends until everything that was sent has been acknowledged; False after 60 s of virtual time."""

    def empty() -> bool:
        for s in ends:
            sock.drain(s)
        info = [sock.meminfo(s) for s in ends]
        return all(m.wmem_queued == 0 == m.rmem_alloc for m in info)

    return sock.eventually(empty, 60)


def send_all(sender: socket.socket, receiver: socket.socket, data: bytes, flags: int = 0) -> None:
    """Send, and read at the other end whenever there is no room."""
    deadline = time.monotonic() + 60
    while data:
        try:
            data = data[sender.send(data, flags | socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            sock.drain(receiver)
            assert time.monotonic() < deadline, f"stalled: {len(data)} bytes are not sent"
            time.sleep(0.01)


def full_both_ways(a: socket.socket, b: socket.socket) -> None:
    """Both ends send until nothing more goes in, and nobody reads meanwhile."""
    for _ in range(2):
        sock.push(a)
        sock.push(b)
        assert settled(a, b)


def one_byte_each(a: socket.socket, b: socket.socket) -> None:
    """Segments of one byte each, unread: the overhead is many times the data."""
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(200):
        send_all(a, b, b"x")


def coalesced(a: socket.socket, b: socket.socket) -> None:
    """Small writes that Nagle's algorithm gathers."""
    for _ in range(200):
        send_all(a, b, bytes(100))


def one_large_send(a: socket.socket, b: socket.socket) -> None:
    """One write of 512 KiB, in as large packets as there are."""
    send_all(a, b, bytes(512 << 10))


def gathered(a: socket.socket, b: socket.socket) -> None:
    """sendmsg() of a vector."""
    a.sendmsg([bytes(700)] * 40, [], socket.MSG_DONTWAIT)


def with_more(a: socket.socket, b: socket.socket) -> None:
    """MSG_MORE, and at last without."""
    for flags in (MSG_MORE,) * 40 + (0,):
        send_all(a, b, bytes(500), flags)


def corked(a: socket.socket, b: socket.socket) -> None:
    """TCP_CORK on, writes, off."""
    for on in (1, 0):
        a.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, on)
        send_all(a, b, bytes(9000))


def peeked(a: socket.socket, b: socket.socket) -> None:
    """MSG_PEEK at the same data again and again."""
    send_all(a, b, bytes(SOME))
    for _ in range(5):
        with suppress(BlockingIOError):
            b.recv(1 << 18, socket.MSG_PEEK | socket.MSG_DONTWAIT)


def truncated(a: socket.socket, b: socket.socket) -> None:
    """MSG_TRUNC throws the data away without a copy."""
    send_all(a, b, bytes(SOME))
    with suppress(BlockingIOError):
        b.recv(SOME, socket.MSG_TRUNC | socket.MSG_DONTWAIT)


def read_in_pieces(a: socket.socket, b: socket.socket) -> None:
    """A packet is freed long after its first byte was read."""
    send_all(a, b, bytes(20_000))
    with suppress(BlockingIOError):
        for _ in range(100):
            b.recv(199, socket.MSG_DONTWAIT)


def urgent(a: socket.socket, b: socket.socket) -> None:
    """MSG_OOB between plain data, read out of band."""
    for _ in range(20):
        send_all(a, b, bytes(1000))
        a.send(b"!", socket.MSG_OOB)
        with suppress(OSError):  # EINVAL: it is not there, or not yet
            b.recv(1, socket.MSG_OOB | socket.MSG_DONTWAIT)
        sock.drain(b)


def urgent_inline(a: socket.socket, b: socket.socket) -> None:
    """MSG_OOB, read as plain data."""
    b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
    for _ in range(20):
        a.send(b"!", socket.MSG_OOB)
        send_all(a, b, bytes(1000))


def high_rcvlowat(a: socket.socket, b: socket.socket) -> None:
    """SO_RCVLOWAT of 256 KiB, which makes rcvbuf larger."""
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 256 << 10)
    sock.push(a)


def smaller_rcvbuf(a: socket.socket, b: socket.socket) -> None:
    """SO_RCVBUF set below what is queued already: the kernel collapses and prunes."""
    sock.push(a)
    b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.push(a)


def smaller_sndbuf(a: socket.socket, b: socket.socket) -> None:
    """SO_SNDBUF set below what is queued already."""
    sock.push(a)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sock.push(a)


def not_sent_lowat(a: socket.socket, b: socket.socket) -> None:
    """TCP_NOTSENT_LOWAT keeps the write queue short."""
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 4096)
    send_all(a, b, bytes(SOME))


def sent_after_shutdown(a: socket.socket, b: socket.socket) -> None:
    """The receiver has shut its side for reading, and data comes all the same."""
    b.shutdown(socket.SHUT_RD)
    sock.push(a, SOME)


def sendfile(a: socket.socket, b: socket.socket) -> None:
    """sendfile() from the page cache: no copy, pages are shared."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(SOME))
        file.flush()
        offset = 0
        a.setblocking(False)
        while offset < SOME:
            with suppress(BlockingIOError):
                offset += os.sendfile(a.fileno(), file.fileno(), offset, SOME - offset)
            sock.drain(b)
        a.setblocking(True)


def spliced(a: socket.socket, b: socket.socket) -> None:
    """splice() from a pipe into the one end and from the other end into the pipe."""
    with ExitStack() as undo:
        out, into = os.pipe()
        for fd in (out, into):
            undo.callback(os.close, fd)
        for s in (a, b):
            s.settimeout(30)  # non-blocking, and with a limit; splice() itself never waits
        for _ in range(8):
            os.write(into, bytes(8192))
            left = 8192
            while left:
                with suppress(BlockingIOError):
                    left -= os.splice(out, a.fileno(), left, flags=os.SPLICE_F_NONBLOCK)
            assert b.recv(1, socket.MSG_PEEK)
            got = os.splice(b.fileno(), into, 1 << 16, flags=os.SPLICE_F_NONBLOCK)
            os.read(out, got)
        for s in (a, b):
            s.settimeout(None)


ALL: tuple[Use, ...] = (
    full_both_ways, one_byte_each, coalesced, one_large_send, gathered, with_more, corked, peeked, truncated,
    read_in_pieces, urgent, urgent_inline, high_rcvlowat, smaller_rcvbuf, smaller_sndbuf, not_sent_lowat,
    sent_after_shutdown, sendfile, spliced,
)  # fmt: skip
