"""Connections as the cases here want them, and the pressure under which memory is refused."""

import socket
import time

from selftests.lib import books, sock
from selftests.lib.pressure import Pressure, TcpMem

SNDBUF = 1 << 20  # bytes, as SO_SNDBUF has it; the kernel doubles it
CROWD = 400  # idle pairs
Ends = tuple[socket.socket, socket.socket]


def sized(ends: Ends) -> Ends:
    """With SO_SNDBUF at the sender."""
    ends[0].setsockopt(socket.SOL_SOCKET, sock.SO_SNDBUFFORCE, SNDBUF)
    return ends


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
