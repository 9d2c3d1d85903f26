"""Flows over a long fat link, measured in virtual time: one as tcp_stream drives it, one that repeats to the byte."""

import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from selftests.lib import interval, sock

SEND = bytes(16384)


@contextmanager
def writing(sender: socket.socket) -> Iterator[None]:
    """Keep a blocking writer going; it ends with the block, and so does the sender's side of the connection.

    It pauses up to 1 ms between sends. Without that, sends and acknowledgements lock into one of two patterns, 6 %
    apart, and which one is chance; with it a flow goes through all of them, and its mean repeats.
    """

    def write() -> None:
        pauses = random.Random(1)
        with suppress(OSError):
            while True:
                sender.send(SEND)
                time.sleep(pauses.uniform(0, 0.001))

    with _beside(sender, write):
        yield


@contextmanager
def reading(receiver: socket.socket) -> Iterator[None]:
    """Read what comes, in a thread, until the block ends; the receiver's side of the connection ends with it."""

    def read() -> None:
        with suppress(OSError):
            while receiver.recv(1 << 20):
                pass

    with _beside(receiver, read):
        yield


@contextmanager
def _beside(s: socket.socket, work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)  # wakes a thread that is blocked
        thread.join(10)


def read(receiver: socket.socket, seconds: float) -> float:
    """Read for so many seconds of guest time; returns the goodput in kbit/s, TimeoutError if nothing comes for 5 s."""
    receiver.settimeout(5)
    got, start = 0, time.monotonic()
    while (now := time.monotonic()) < start + seconds:
        got += len(receiver.recv(1 << 20))
    return 8 * got / (now - start) / 1e3


def streaming(
    sender: socket.socket, receiver: socket.socket, stall: float = 0, warm_up: float = 4, seconds: float = 20
) -> float:
    """Steady goodput in kbit/s of the letter's flow: blocking sends of 16 KB, read as they come.

    The reader looks away for the first `stall` seconds. Where a wake-up of the writer falls within the round trip
    moves the figure by a few per cent from run to run.
    """
    with writing(sender):
        time.sleep(stall)
        read(receiver, warm_up)
        with interval.measured():
            return read(receiver, seconds)


def filling(sender: socket.socket, receiver: socket.socket, warm_up: float = 4, seconds: float = 10) -> float:
    """Steady goodput in kbit/s of one thread that fills sndbuf whenever poll() says so and reads what has come.

    Without Nagle's algorithm nothing depends on when a wake-up falls: each round trip carries what sndbuf holds.
    """
    sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    fill(sender, receiver, warm_up)
    with interval.measured():
        return fill(sender, receiver, seconds)


def fill(
    sender: socket.socket, receiver: socket.socket, seconds: float, look: Callable[[], None] = lambda: None
) -> float:
    """What filling() does for so many seconds; look() is called before each poll(). Goodput in kbit/s."""
    poll = select.poll()
    poll.register(sender, select.POLLOUT)
    poll.register(receiver, select.POLLIN)
    got, start = 0, time.monotonic()
    while (now := time.monotonic()) < start + seconds:
        look()
        for fd, _ in poll.poll(100):
            if fd == sender.fileno():
                sock.push(sender, chunk=len(SEND))  # until EAGAIN: poll() alone waits for a third of sndbuf
            else:
                got += len(receiver.recv(1 << 20))
    return 8 * got / (now - start) / 1e3


def many(flows: Sequence[tuple[socket.socket, socket.socket]], seconds: float) -> int:
    """Bytes that arrive in so many seconds: one thread fills each sndbuf and reads what came, as tcp_stream does."""
    senders = {sender.fileno(): sender for sender, _ in flows}
    receivers = {receiver.fileno(): receiver for _, receiver in flows}
    got, into, end = 0, bytearray(1 << 20), time.monotonic() + seconds
    with select.epoll() as epoll:
        for fd in senders:
            epoll.register(fd, select.EPOLLOUT)
        for fd in receivers:
            epoll.register(fd, select.EPOLLIN)
        while time.monotonic() < end:
            for fd, _ in epoll.poll(0.1):
                if fd in senders:
                    sock.push(senders[fd], chunk=len(SEND))  # until EAGAIN: epoll alone waits for a third of sndbuf
                else:
                    got += receivers[fd].recv_into(into)
    return got
