"""What a socket keeps of the memory that it has given up: the cover letter's 1 MB of 2 MB."""

import itertools
from collections.abc import Callable

import pytest

from selftests.lib import books, sock

PIECE = 16 << 10  # bytes read at a time, so that what is given back shows between two reads
UNREAD = 6 << 20


@pytest.mark.red_on("uncharge-takes-two-mib")
def test_gives_back_1_mib_at_2_mib(sockets: sock.Sockets, figure: Callable[[str, float, str], None]) -> None:
    """What is read stays with the socket, until it is 2 MiB: then 1 MiB is given back at once (5.10 sk_mem_uncharge()).

    Since 6.0 less than a page stays (mainline 4890b686f408).
    """
    a, b = sockets.pair(rcvbuf=4 * UNREAD)
    assert sock.push(a, UNREAD) == UNREAD
    seen = [sock.meminfo(b)]
    while seen[-1].rmem_alloc and b.recv(PIECE):
        seen.append(sock.meminfo(b))
    if books.batched():
        assert max(m.fwd_alloc for m in seen[1:]) < 2 * sock.PAGE
        return
    had = [before.fwd_alloc + before.rmem_alloc - after.rmem_alloc for before, after in itertools.pairwise(seen)]
    back = {had: had - after.fwd_alloc for had, after in zip(had, seen[1:], strict=True) if had != after.fwd_alloc}
    figure("given back from", min(back), "B")
    figure("given back at once", max(back.values()), "B")
    assert set(back.values()) == {1 << 20}
    assert min(back) >= 2 << 20 > max(m.fwd_alloc for m in seen)
