"""The spin at the size that the thread has it: beside 40,000 idle sockets, and in a server with 20,000 streams.

tcp_mem is what the kernel makes of the guest's memory; it is the sockets alone that bring TCP above it.
"""

import socket
import time
from contextlib import ExitStack, nullcontext

import pytest

from selftests.lib import books, flow, server, sock, writer
from selftests.lib.pressure import TcpMem, under_pressure
from selftests.sndbuf_pressure import ends
from selftests.sndbuf_pressure.ends import Figure

pytestmark = [
    pytest.mark.scale,
    pytest.mark.virtual_time,
    pytest.mark.fresh,
    pytest.mark.memory(2048),
    pytest.mark.timeout(300),
]

PAIRS = STREAMS = 20_000
IDLE = 2  # per cent of the CPU: as much as the thread says that is left of the spin
SPINS = 90  # per cent of the CPU

v2 = pytest.mark.introduced_by("sndbuf-pressure-v2", "effective-sndbuf")
onebit = pytest.mark.introduced_by("sndbuf-pressure-onebit", "cut-short")


@pytest.fixture
def crowd(sockets: sock.Sockets, tcp_mem: TcpMem, defer: ExitStack, figure: Figure) -> None:
    """40,000 idle sockets: each holds a message that nobody has read for a minute, and so a page."""
    for pair in server.streams(sockets, defer, PAIRS):
        for s in pair:
            s.send(b"hello")
    time.sleep(60)
    pages = books.tcp_pages()
    figure("allocated, of tcp_mem[1]", pages / tcp_mem.default[1], "")
    if not tcp_mem.default[1] < pages < tcp_mem.default[2]:
        raise RuntimeError(f"{pages} pages are not between tcp_mem[1] and [2]: {tcp_mem.default}")


def beside_crowd(sockets: sock.Sockets, figure: Figure) -> tuple[float, float]:
    """Shares of the CPU of one flow with SO_SNDBUF whose peer does not read, then of one whose peer reads."""
    pairs = [ends.far(sockets) for _ in range(2)]
    shares = []
    for (sender, receiver), reads in zip(pairs, (False, True), strict=True):
        with flow.reading(receiver) if reads else nullcontext():
            cost = writer.cost(sender, 1)
            if cost.share < SPINS:
                cost = writer.cost(sender, 20)
        ends.show(figure, cost, "peer reads" if reads else "nobody reads")
        shares.append(cost.share)
    if not under_pressure():
        raise RuntimeError("the pressure is over")
    return shares[0], shares[1]


@v2
@pytest.mark.red_on("never-waits")
@pytest.mark.usefixtures("crowd")
def test_beside_40000_idle_sockets(sockets: sock.Sockets, figure: Figure) -> None:
    """Under the pressure of 40,000 idle sockets, a writer with SO_SNDBUF costs 2 % of the CPU at most."""
    assert max(beside_crowd(sockets, figure)) <= IDLE


@onebit
@pytest.mark.red_on("never-waits")
@pytest.mark.usefixtures("crowd")
def test_spins_less_beside_40000_idle_sockets(sockets: sock.Sockets, figure: Figure) -> None:
    """Under the pressure of 40,000 idle sockets, a writer with SO_SNDBUF spins less, and only if its peer reads."""
    unread, reading = beside_crowd(sockets, figure)
    assert unread <= IDLE
    assert reading < SPINS / 2


class Streams:
    """A server that has sent to 20,000 clients, with SO_SNDBUF of 1 MiB, until TCP was above tcp_mem[2]."""

    def __init__(self, sockets: sock.Sockets, tcp_mem: TcpMem, defer: ExitStack, figure: Figure) -> None:
        opened = server.streams(sockets, defer, STREAMS, ends.SNDBUF)
        self.clients: list[socket.socket] = [client for _, client in opened]
        self.server = server.Server(defer, (accepted for accepted, _ in opened))
        self._figure = figure
        self.server.run(2)
        pages = books.tcp_pages()
        figure("allocated, of tcp_mem[2]", pages / tcp_mem.default[2], "")
        if pages <= tcp_mem.default[2]:
            raise RuntimeError(f"{pages} pages are not above tcp_mem[2]: {tcp_mem.default}")

    def share(self, seconds: float, phase: str) -> float:
        """The server's share of the CPU over so many seconds, reported with what else it did, and the machine's."""
        idle = server.idle()
        cost = self.server.run(seconds)
        ends.show(self._figure, cost, phase)
        self._figure(f"{phase}: machine", 100 - 100 * (server.idle() - idle) / cost.seconds, "%")
        return cost.share


@pytest.fixture
def streams(sockets: sock.Sockets, tcp_mem: TcpMem, defer: ExitStack, figure: Figure, ledger: books.Ledger) -> Streams:
    """20,000 streams whose server has exhausted tcp_mem."""
    ledger.out_of_memory_expected = True
    return Streams(sockets, tcp_mem, defer, figure)


@v2
@pytest.mark.red_on("never-waits")
def test_serves_20000_streams(streams: Streams) -> None:
    """A server with SO_SNDBUF whose 20,000 streams are above tcp_mem[2] costs 2 % of the CPU at most if nobody reads.

    Nor does it spin where clients read; but each page that is given back then wakes all whose retry comes before
    somebody has taken it, and most of them find nothing: dozens of EAGAINs for each of the few sends.
    """
    assert streams.share(2, "nobody reads") <= IDLE
    with server.clients(streams.clients, pause=0.0005):
        assert streams.share(24, "clients read") < SPINS / 2


@onebit
@pytest.mark.red_on("never-waits")
def test_spins_with_20000_streams(streams: Streams, figure: Figure) -> None:
    """A server with SO_SNDBUF whose 20,000 streams are above tcp_mem[2] spins with those that have little queued.

    With more than tcp_wmem[0] queued they are not writable; above tcp_mem[2] most have nothing queued.
    """
    queued = [sock.meminfo(s).wmem_queued for s in streams.server.writable()]
    figure("writable", len(queued), "streams")
    assert max(queued) < ends.TCP_WMEM_0
    assert streams.share(2, "nobody reads") >= SPINS
