"""Pressure that comes and goes while writers write on two CPUs, in real time."""

import socket
import threading
import time
from contextlib import ExitStack

import pytest

from selftests.lib import books, flow, sock, writer
from selftests.lib.pressure import Pressure, TcpMem
from selftests.sndbuf_pressure import ends

pytestmark = pytest.mark.cpus(2)

SECONDS = 3


@pytest.mark.red_on("no-retry-when-empty")
def test_all_go_on(sockets: sock.Sockets, pressure: Pressure, tcp_mem: TcpMem, defer: ExitStack) -> None:
    """Writers with SO_SNDBUF, however they wait, all go on after memory was refused and granted dozens of times."""
    pairs = [ends.sized(sockets.pair()) for _ in writer.WAYS]
    pressure.on(above_max=True)  # the kernel may say that TCP is out of memory
    over = threading.Event()
    defer.callback(over.set)
    sent = dict.fromkeys(writer.WAYS, 0)

    def write(s: socket.socket, way: str, wait: writer.Wait | None) -> None:
        while not over.is_set():
            try:
                s.send(writer.CHUNK, socket.MSG_DONTWAIT if wait else 0)
                sent[way] += 1
            except BlockingIOError:
                if wait:
                    wait(writer.PATIENCE)

    for (a, b), way in zip(pairs, writer.WAYS, strict=True):
        defer.enter_context(flow.reading(b))
        w = writer.Writer(defer, a, way)
        thread = threading.Thread(target=write, args=[a, way, w.wait], daemon=True)
        defer.callback(thread.join, 2 * writer.PATIENCE)
        defer.callback(over.set)
        thread.start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(0.03)
        tcp_mem.restore()
        time.sleep(0.03)
        pages = books.tcp_pages()
        tcp_mem.write(pages // 8, pages // 4, pages // 2)
    tcp_mem.restore()
    before = dict(sent)
    time.sleep(writer.PATIENCE - SECONDS - 0.5)  # soon after, those that nobody wakes look again by themselves
    stuck = [way for way in writer.WAYS if sent[way] == before[way]]
    assert stuck == [], f"sends that went through: {before}, then {sent}"
