"""What holds with and without any reservation: plain TCP gives back what it took."""

import threading
from contextlib import suppress

from selftests.lib import books, cgroup, sock
from selftests.lib.pressure import Pressure, TcpMem, under_pressure


def test_leaves_no_charge_behind(sockets: sock.Sockets, own_cgroup: cgroup.Cgroup) -> None:
    """Plain traffic both ways is charged while it is queued and leaves nothing behind after close()."""
    before = books.tcp_pages()
    a, b = sockets.pair(rcvbuf=2 << 20)
    sock.push(a, 1 << 20)
    assert books.tcp_pages() >= before + 256
    assert own_cgroup.sock() >= (256 - 32) * sock.PAGE
    sock.drain(b)
    sock.transfer(b, a, 1 << 20)
    a.close()
    b.close()
    assert sock.eventually(lambda: books.tcp_pages() == before)


def test_pressure_ends_with_its_cause(pressure: Pressure, tcp_mem: TcpMem) -> None:
    """TCP is under pressure while more than tcp_mem[1] is allocated, and leaves it once that is raised again."""
    assert not under_pressure()
    pressure.on()
    assert under_pressure()
    pressure.off()
    assert not under_pressure()
    assert tcp_mem.read() == tcp_mem.default


def test_blocked_writer_wakes_after_pressure(sockets: sock.Sockets, pressure: Pressure) -> None:
    """A send() that blocks under pressure above tcp_mem[2] finishes once the pressure is over."""
    a, b = sockets.pair()
    pressure.on(above_max=True)
    size, done = 256 << 10, threading.Event()
    a.settimeout(30)

    def write() -> None:
        with suppress(OSError):
            a.sendall(bytes(size))
            done.set()

    threading.Thread(target=write).start()
    assert not done.wait(1), f"{size} bytes went out above tcp_mem[2]"
    pressure.off()
    received = 0
    b.settimeout(30)
    while received < size:
        received += len(b.recv(size))
    assert done.wait(30)


def test_sndbuf_is_frozen_under_pressure(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Without a reservation sndbuf does not grow under pressure (5.10 net/ipv4/tcp_input.c)."""
    a, b = sockets.pair()
    pressure.on()
    start = sock.meminfo(a).sndbuf
    for _ in range(20):
        sock.push(a)
        sock.drain(b)
    assert sock.meminfo(a).sndbuf <= start


def test_full_receiver_is_clamped_under_pressure(sockets: sock.Sockets, pressure: Pressure) -> None:
    """Without a reservation a receiver that fell behind under pressure offers four segments from then on."""
    a, b = sockets.pair()
    pressure.on()
    sock.fill(a)
    sock.drain(b)
    assert sock.rcv_ssthresh(b) == 4 * sock.MSS
