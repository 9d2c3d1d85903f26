"""The cover letter's flow: 16 KB sends over a long fat link, read as they come, measured in virtual time."""

import select
import socket
import time

from selftests.lib import sock

SEND = 16384


def run(sender: socket.socket, receiver: socket.socket, seconds: float, reading: bool = True) -> float:
    """Keep the flow going for so many seconds of guest time; returns the goodput read, in kbit/s."""
    poll = select.poll()
    poll.register(sender, select.POLLOUT)
    if reading:
        poll.register(receiver, select.POLLIN)
    got, start = 0, time.monotonic()
    while (now := time.monotonic()) < start + seconds:
        for fd, _ in poll.poll(100):
            if fd == sender.fileno():
                sock.push(
                    sender, chunk=SEND
                )  # until it would block: poll() alone asks for a third of sndbuf to be free
            else:
                got += len(receiver.recv(1 << 20))
    return 8 * got / (now - start) / 1e3


def steady(sender: socket.socket, receiver: socket.socket, warm_up: float = 4, seconds: float = 10) -> float:
    """Goodput in kbit/s once the start is over."""
    run(sender, receiver, warm_up)
    return run(sender, receiver, seconds)
