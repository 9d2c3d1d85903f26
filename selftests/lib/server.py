"""A server at its full size: thousands of streams, one thread, one epoll, a send wherever there is said to be room."""

import resource
import select
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from selftests.lib import sock, writer

PORTS = 10_000  # streams to a listener: connect() looks through all even ports, 14,116, before it tries an odd one
EVENTS = 512  # that one epoll_wait() may return
Ends = tuple[socket.socket, socket.socket]


def streams(sockets: sock.Sockets, undo: ExitStack, count: int, sndbuf: int = 0) -> list[Ends]:
    """So many connections, the server's end first. That inherits SO_SNDBUF from its listener, if one is given."""
    _descriptors(undo, 2 * count + 1000)
    opened: list[Ends] = []
    while len(opened) < count:
        listener = sockets.listener()
        if sndbuf:
            listener.setsockopt(socket.SOL_SOCKET, sock.SO_SNDBUFFORCE, sndbuf)
        for _ in range(min(PORTS, count - len(opened))):
            client, accepted = sockets.connect(listener)
            opened.append((accepted, client))
    return opened


def _descriptors(undo: ExitStack, count: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], count), max(before[1], count)))


class Server:
    """Sends 64 KB to whoever can take something, as epoll says it."""

    def __init__(self, undo: ExitStack, ends: Iterable[socket.socket]) -> None:
        self._epoll = select.epoll()
        undo.callback(self._epoll.close)
        self._ends = {s.fileno(): s for s in ends}
        for fd in self._ends:
            self._epoll.register(fd, select.EPOLLOUT)

    def writable(self) -> list[socket.socket]:
        """All to whom something can be sent, as epoll says it."""
        return [self._ends[fd] for fd, _ in self._epoll.poll(0, len(self._ends))]

    def run(self, seconds: float) -> writer.Cost:
        """Serve for so many seconds."""
        c, start, cpu = writer.Cost(), time.monotonic(), time.thread_time()
        while (left := start + seconds - time.monotonic()) > 0:
            c.polls += 1
            for fd, _ in self._epoll.poll(left, EVENTS):
                try:
                    c.bytes += self._ends[fd].send(writer.CHUNK, socket.MSG_DONTWAIT)
                    c.sends += 1
                except BlockingIOError:
                    c.refused += 1
        c.seconds, c.cpu = time.monotonic() - start, time.thread_time() - cpu
        return c


@contextmanager
def clients(ends: list[socket.socket], pause: float) -> Iterator[None]:
    """Clients that read what there is, one after the other, with a pause of so many seconds between two of them."""
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            for s in ends:
                if over.wait(pause):
                    return
                sock.drain(s)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def idle() -> float:
    """Seconds for which all CPUs together have been idle, to 10 ms; what interrupts do is not in it."""
    return int(Path("/proc/stat").read_text().split()[4]) / 100
