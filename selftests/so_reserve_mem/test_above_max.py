"""Above tcp_mem[2], where nothing more is granted: a sender goes on with what it has reserved."""

import os
import select
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest

from selftests.lib import books, sock
from selftests.lib.pressure import Pressure

CHUNKS = 12  # so that what is left of a page fragment, which a send may fit into by luck, is used up
DRAINED = 300  # virtual seconds: what the receiver drops above tcp_mem[2] is sent again, later and later


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("refuses-beyond-reservation", "sendmsg-all-or-nothing")
@pytest.mark.parametrize(("reserved", "chunk"), [(8192, 8192), (16384, 16384), (16384, 24576)])
def test_who_sends_somewhat_more_than_it_reserved_goes_on(
    sockets: sock.Sockets, pressure: Pressure, reserved: int, chunk: int
) -> None:
    """With nothing queued a send of more than is reserved queues what fits; it is not refused while poll() says go.

    The charge for all of it is refused as long as sndbuf, which the reservation holds up, would not be full.
    """
    a, b = sockets.pair()
    sock.reserve(a, reserved)
    pressure.on(above_max=True)
    goes_on(a, b, lambda: a.send(bytes(chunk), socket.MSG_DONTWAIT))


def goes_on(a: socket.socket, b: socket.socket, send: Callable[[], int]) -> None:
    """Assert that with nothing queued poll() says writable, and that send() then queues something, again and again."""
    poll = select.poll()
    poll.register(a, select.POLLOUT)
    for n in range(CHUNKS):
        assert poll.poll(0), f"not writable with nothing queued, after {n} sends"
        try:
            send()
        except BlockingIOError:
            raise AssertionError(f"send {n} is refused with nothing queued") from None
        if not sock.eventually(lambda: sock.drain(b) < 0 or sock.meminfo(a).wmem_queued == 0, DRAINED):
            raise RuntimeError(f"{sock.meminfo(a).wmem_queued} bytes do not drain")


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("zerocopy-all-or-nothing")
def test_zerocopy_goes_on(sockets: sock.Sockets, pressure: Pressure) -> None:
    """With nothing queued a MSG_ZEROCOPY send of more than is reserved queues what fits."""
    a, b = sockets.pair()
    a.setsockopt(socket.SOL_SOCKET, sock.SO_ZEROCOPY, 1)
    sock.reserve(a, 16384)
    pressure.on(above_max=True)
    goes_on(a, b, lambda: a.send(bytes(24576), socket.MSG_DONTWAIT | sock.MSG_ZEROCOPY))


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("sendpage-all-or-nothing")
def test_sendfile_goes_on(sockets: sock.Sockets, pressure: Pressure) -> None:
    """With nothing queued sendfile() of a page queues what fits into the page that is reserved."""
    a, b = sockets.pair()
    a.setblocking(False)
    sock.reserve(a, 2 * sock.PAGE)
    sock.reserve(a, sock.PAGE)  # which gives back what the handshake has left, or else a page would fit
    pressure.on(above_max=True)
    with open(os.memfd_create("page"), "w+b") as page:
        page.truncate(sock.PAGE)
        goes_on(a, b, lambda: os.sendfile(a.fileno(), page.fileno(), 0, sock.PAGE))


@pytest.mark.red_on("grant-to-unreserved")
def test_who_reserved_nothing_is_refused(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Who has reserved nothing queues nothing of a send that is refused memory (5.10 tcp_sendmsg_locked())."""
    if books.batched():
        pytest.skip("since 6.0 tcp_wmem[0] is granted to everybody (mainline 849b425cd091)")
    senders = [sockets.pair()[0] for _ in range(3)]
    pressure.on(above_max=True)
    sent = [0] * len(senders)
    for n, s in enumerate(senders):
        with suppress(BlockingIOError):
            sent[n] = s.send(bytes(sock.PAGE), socket.MSG_DONTWAIT)
    assert sorted(sent)[:2] == [0, 0], f"{sent} bytes: one may fit by luck into what is left of a page fragment"
