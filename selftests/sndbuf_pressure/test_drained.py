"""How far the queue has to drain after a write that pressure cut short, before poll() says writable again."""

import os
import select
import tempfile
import time
from collections.abc import Callable

import pytest

from selftests.lib import sock, writer
from selftests.lib.pressure import Pressure
from selftests.sndbuf_pressure import ends

pytestmark = pytest.mark.virtual_time

Figure = Callable[[str, float, str], None]


def drained(sockets: sock.Sockets, pressure: Pressure) -> tuple[int, list[tuple[int, bool]]]:
    """What was queued when a write was cut short, then (queued, writable) again and again while the peer reads."""
    a, b = ends.unread(sockets, 1)[0]
    pressure.on(above_max=True)
    sock.push(a)
    cut_short = sock.meminfo(a).wmem_queued
    poll = select.poll()
    poll.register(a, select.POLLOUT)
    seen: list[tuple[int, bool]] = []
    deadline = time.monotonic() + 300  # what the peer drops meanwhile is sent again, later and later
    while (queued := sock.meminfo(a).wmem_queued) and time.monotonic() < deadline:
        writable = bool(poll.poll(0))
        if sock.meminfo(a).wmem_queued == queued:
            seen.append((queued, writable))
        sock.drain(b)
        time.sleep(0.01)
    if queued:
        raise RuntimeError(f"{queued} of {cut_short} bytes do not drain")
    seen.append((0, bool(poll.poll(0))))
    return cut_short, seen


def holds(seen: list[tuple[int, bool]], below: float) -> bool:
    """Whether poll() said writable with less than that queued, and only then; there must be something on both sides."""
    if {queued < below for queued, _ in seen} != {True, False}:
        raise RuntimeError(f"nothing was seen about {below}: {seen}")
    return all(writable == (queued < below) for queued, writable in seen)


@pytest.mark.introduced_by("sndbuf-pressure-v2", "effective-sndbuf")
@pytest.mark.red_on("wakes-at-once", "never-drains")
def test_by_a_third(sockets: sock.Sockets, pressure: Pressure, figure: Figure) -> None:
    """A writer cut short is writable when a third of what was queued then has drained, and not before."""
    cut_short, seen = drained(sockets, pressure)
    figure("queued when writable", 100 * max(queued for queued, writable in seen if writable) / cut_short, "%")
    assert holds(seen, cut_short // 3 * 2), f"cut short at {cut_short}: {seen}"


@pytest.mark.introduced_by("sndbuf-pressure-onebit", "cut-short")
@pytest.mark.red_on("never-waits")
def test_below_tcp_wmem_0(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A writer cut short is writable when less than tcp_wmem[0] is queued, and not before."""
    cut_short, seen = drained(sockets, pressure)
    assert holds(seen, ends.TCP_WMEM_0), f"cut short at {cut_short}: {seen}"


@pytest.mark.introduced_by("sndbuf-pressure-v2", "effective-sndbuf")
@pytest.mark.introduced_by("sndbuf-pressure-onebit", "cut-short")
@pytest.mark.red_on("not-by-sendfile")
def test_cut_short_in_sendfile(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Pressure cuts short what sendfile() writes as well, and poll() says so."""
    a, _ = ends.unread(sockets, 1)[0]
    a.setblocking(False)
    pressure.on(above_max=True)
    with tempfile.TemporaryFile() as file, pytest.raises(BlockingIOError):
        file.write(writer.CHUNK)
        file.flush()
        while True:
            os.sendfile(a.fileno(), file.fileno(), 0, len(writer.CHUNK))
    poll = select.poll()
    poll.register(a, select.POLLOUT)
    assert not poll.poll(0), "writable at once"
