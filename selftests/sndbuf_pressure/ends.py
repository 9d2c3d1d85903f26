"""Connections as the cases here want them, the pressure under which memory is refused, and what is reported."""

import socket
import time
from collections.abc import Callable

from selftests.lib import books, link, sock, writer
from selftests.lib.pressure import Pressure, TcpMem

SNDBUF = 1 << 20  # bytes, as SO_SNDBUF has it; the kernel doubles it
CROWD = 400  # idle pairs
TCP_WMEM_0 = 4096  # bytes, the default of net.ipv4.tcp_wmem[0]
Ends = tuple[socket.socket, socket.socket]
Figure = Callable[[str, float, str], None]


def sized(ends: Ends) -> Ends:
    """With SO_SNDBUF at the sender."""
    ends[0].setsockopt(socket.SOL_SOCKET, sock.SO_SNDBUFFORCE, SNDBUF)
    return ends


def far(sockets: sock.Sockets, so_sndbuf: bool = True) -> Ends:
    """A connection over a round trip of 100 ms, which began without pressure."""
    link.delay(50)
    pair = sockets.pair()
    return sized(pair) if so_sndbuf else pair


def unread(sockets: sock.Sockets, count: int) -> list[Ends]:
    """Connections with 256 KB sent to a peer that does not read, and whose window is zero by now."""
    pairs = [sized(sockets.pair(rcvbuf=16 << 10)) for _ in range(count)]
    for a, _ in pairs:
        sock.push(a, 256 << 10)
    time.sleep(3)  # above tcp_mem[2] the peer would drop what still comes
    return pairs


def crowded(pressure: Pressure, tcp_mem: TcpMem) -> None:
    """Between tcp_mem[1] and [2], where who has more than its share of [2] is refused: so open a crowd before."""
    pressure.on()
    pages = books.tcp_pages()
    tcp_mem.write(pages // 4, pages // 2, pages + pages // 4)


def ebb(tcp_mem: TcpMem) -> None:
    """From above tcp_mem[2] to below it: TCP stays under pressure, but what is asked for is granted."""
    pages = books.tcp_pages()
    tcp_mem.write(pages // 4, pages // 2, 100 * pages)


def show(figure: Figure, cost: writer.Cost, phase: str = "") -> None:
    """Report what a writer did."""
    phase = phase and f"{phase}: "
    figure(f"{phase}EAGAIN per send", cost.refused / max(cost.sends, 1), "")
    figure(f"{phase}EAGAIN", cost.refused / cost.seconds, "/s")
    figure(f"{phase}polls", cost.polls / cost.seconds, "/s")
    figure(f"{phase}CPU", cost.share, "%")
    figure(f"{phase}moved", cost.bytes / 1e3, "kB")
