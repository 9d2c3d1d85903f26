"""What a socket keeps of the memory that it has given up: the cover letter's 1 MiB of 2 MiB."""

import itertools
from collections.abc import Callable

from selftests.lib import books, sock

PIECE = 16 << 10  # bytes read at a time, so that what is given back shows between two reads
UNREAD = 6 << 20


def test_gives_back_1_mib_at_2_mib(sockets: sock.Sockets, figure: Callable[[str, float, str], None]) -> None:
    """What is read stays with the socket, until it is 2 MiB: then 1 MiB is given back at once (5.10 sk_mem_uncharge()).

    Since 6.0 less than a page stays (mainline 4890b686f408).
    """
    a, b = sockets.pair(rcvbuf=4 * UNREAD)
    assert sock.push(a, UNREAD) == UNREAD
    kept = [sock.meminfo(b).fwd_alloc]
    while b.recv(PIECE) and sock.meminfo(b).rmem_alloc:
        kept.append(sock.meminfo(b).fwd_alloc)
    given_back = max(before - after for before, after in itertools.pairwise(kept))
    figure("kept at most", max(kept), "B")
    figure("given back at once", given_back, "B")
    if books.batched():
        assert max(kept) < 2 * sock.PAGE
    else:
        assert (2 << 20) - 8 * PIECE <= max(kept) < 2 << 20
        assert (1 << 20) - 8 * PIECE <= given_back <= 1 << 20
