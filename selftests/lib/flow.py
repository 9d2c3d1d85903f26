"""The cover letter's flow, as tcp_stream drives it: blocking sends of 16 KB, read as they come, in virtual time."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SEND = bytes(16384)


@contextmanager
def writing(sender: socket.socket) -> Iterator[None]:
    """Keep a blocking writer going; it ends with the block, and so does the sender's side of the connection."""

    def write() -> None:
        with suppress(OSError):
            while True:
                sender.send(SEND)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        with suppress(OSError):
            sender.shutdown(socket.SHUT_RDWR)  # wakes a writer that is blocked
        thread.join(10)


def read(receiver: socket.socket, seconds: float) -> float:
    """Read for so many seconds of guest time; returns the goodput in kbit/s, TimeoutError if nothing comes for 5 s."""
    receiver.settimeout(5)
    got, start = 0, time.monotonic()
    while (now := time.monotonic()) < start + seconds:
        got += len(receiver.recv(1 << 20))
    return 8 * got / (now - start) / 1e3


def steady(
    sender: socket.socket, receiver: socket.socket, stall: float = 0, warm_up: float = 4, seconds: float = 10
) -> float:
    """Goodput in kbit/s once the start is over; the reader looks away for the first `stall` seconds."""
    with writing(sender):
        time.sleep(stall)
        read(receiver, warm_up)
        return read(receiver, seconds)
