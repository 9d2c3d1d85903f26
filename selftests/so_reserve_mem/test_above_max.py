"""Above tcp_mem[2], where nothing more is granted: a sender goes on with what it has reserved."""

import select
import socket

import pytest

from selftests.lib import sock
from selftests.lib.pressure import Pressure

CHUNKS = 12  # so that what is left of a page fragment, which a send may fit into by luck, is used up
DRAINED = 300  # virtual seconds: what the receiver drops above tcp_mem[2] is sent again, later and later


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on("refuses-beyond-reservation")
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
    poll = select.poll()
    poll.register(a, select.POLLOUT)
    for n in range(CHUNKS):
        assert poll.poll(0), f"not writable with nothing queued, after {n} sends"
        try:
            a.send(bytes(chunk), socket.MSG_DONTWAIT)
        except BlockingIOError:
            raise AssertionError(f"send {n} of {chunk} bytes is refused with nothing queued") from None
        if not sock.eventually(lambda: sock.drain(b) < 0 or sock.meminfo(a).wmem_queued == 0, DRAINED):
            raise RuntimeError(f"{sock.meminfo(a).wmem_queued} bytes do not drain")
