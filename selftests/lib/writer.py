"""Writers that wait until they can write, each in one of the ways that the kernel offers, and what waiting costs."""

import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from selftests.lib import interval, sock

WAYS = ("poll", "select", "epoll", "epoll-et", "blocking")
CHUNK = bytes(65536)
PATIENCE = 5  # seconds after which a writer that nobody wakes counts as forgotten

Wait = Callable[[float], bool]


def waiting(undo: ExitStack, s: socket.socket, way: str) -> Wait:
    """wait(seconds): whether s is said to be writable within that time."""
    if way == "select":
        return lambda seconds: bool(select.select([], [s], [], seconds)[1])
    if way == "poll":
        poll = select.poll()
        poll.register(s, select.POLLOUT)
        return lambda seconds: bool(poll.poll(seconds * 1000))
    epoll = select.epoll()
    undo.callback(epoll.close)
    epoll.register(s, select.EPOLLOUT | (select.EPOLLET if way == "epoll-et" else 0))
    return lambda seconds: bool(epoll.poll(seconds))


class Writer:
    """Someone who was refused, and waits until a send goes through: it waits first, as after an EAGAIN.

    wrote: when it went through, 0.0 while it has not; it gives up when nobody wakes it for PATIENCE. acked: when the
    last ACK had come in by then (not of one that blocks, since its own data has been acknowledged meanwhile).
    """

    def __init__(self, undo: ExitStack, s: socket.socket, way: str) -> None:
        self.s, self.way, self.wrote, self.acked = s, way, 0.0, 0.0
        self.wait = None if way == "blocking" else waiting(undo, s, way)
        if self.wait and way == "epoll-et":
            self.wait(0)  # the edge at the start: from now on there is an event only after an EAGAIN
        if way == "blocking":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE, 0))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to wait, in a thread."""
        self._thread.start()

    def end(self) -> float:
        """Wait until it has written or given up; when it wrote, or 0.0."""
        self._thread.join(2 * PATIENCE)
        return self.wrote

    def _run(self) -> None:
        while self.wait is None or self.wait(PATIENCE):
            self.acked = time.monotonic() - sock.since_ack(self.s)
            with suppress(BlockingIOError):
                self.s.send(CHUNK, socket.MSG_DONTWAIT if self.wait else 0)
                self.wrote = time.monotonic()
            if self.wrote or not self.wait:
                return


@dataclass
class Cost:
    """What one writer did in so many seconds: sends that went through, EAGAINs, polls, bytes, seconds of CPU."""

    seconds: float = 0
    sends: int = 0
    refused: int = 0
    polls: int = 0
    bytes: int = 0
    cpu: float = 0

    @property
    def share(self) -> float:
        """Of the CPU, in per cent."""
        return 100 * self.cpu / self.seconds


def cost(s: socket.socket, seconds: float) -> Cost:
    """Send whenever poll() says so, 64 KB at a time, for so many seconds."""
    poll = select.poll()
    poll.register(s, select.POLLOUT)
    with interval.measured():
        return _spent(s, poll, seconds)


def _spent(s: socket.socket, poll: select.poll, seconds: float) -> Cost:
    c, start, cpu = Cost(), time.monotonic(), time.thread_time()
    while (left := start + seconds - time.monotonic()) > 0:
        c.polls += 1
        if not poll.poll(left * 1000):
            break
        try:
            c.bytes += s.send(CHUNK, socket.MSG_DONTWAIT)
            c.sends += 1
        except BlockingIOError:
            c.refused += 1
    c.seconds, c.cpu = time.monotonic() - start, time.thread_time() - cpu
    return c
