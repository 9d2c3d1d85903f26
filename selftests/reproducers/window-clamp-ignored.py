#!/usr/bin/env python3
# Under memory pressure a reservation lifts the receive window above TCP_WINDOW_CLAMP: __tcp_adjust_rcv_ssthresh() (6.1:
# tcp_adjust_rcv_ssthresh()) raises rcv_ssthresh to what the unused reservation affords and looks at no window_clamp.
# Kernels: from 5.16 on, 7.3 included; no fix is known. Run as root in the initial network namespace (lowers tcp_mem).
import atexit, os, socket, struct, sys
from contextlib import suppress
from pathlib import Path

SO_RESERVE_MEM, CLAMP = 73, 20_000
ROOT, TCP_MEM = Path("/sys/fs/cgroup"), Path("/proc/sys/net/ipv4/tcp_mem")
home = ROOT / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
own = ROOT / f"reserve-mem-{os.getpid()}"
(ROOT / "cgroup.subtree_control").write_text("+memory")
own.mkdir()
(own / "cgroup.procs").write_text("0")  # sockets are charged to the cgroup that creates them
atexit.register(lambda: ((home / "cgroup.procs").write_text("0"), own.rmdir()))
with socket.create_server(("127.0.0.1", 0)) as listener:
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)  # as on Ethernet, whatever loopback has
    a, b = socket.create_connection(listener.getsockname()), listener.accept()[0]
b.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, CLAMP)
b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)  # so that auto-tuning leaves the clamp alone
try:
    b.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, 1 << 20)
except OSError as e:
    print(f"skip: SO_RESERVE_MEM: {e.strerror}")
    sys.exit(77)
atexit.register(TCP_MEM.write_text, TCP_MEM.read_text())
TCP_MEM.write_text("1 2 1000000")  # the next charge that finds more than two pages allocated turns pressure on
with suppress(BlockingIOError):
    while True:
        a.send(bytes(65536), socket.MSG_DONTWAIT)  # a receiver that falls behind is clamped ...
for _ in range(200):
    b.recv(65536)
    with suppress(BlockingIOError):
        a.send(bytes(1448), socket.MSG_DONTWAIT)  # ... until it keeps up
ssthresh = struct.unpack_from("I", b.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232), 64)[0]
print(f"{'BUG' if ssthresh > CLAMP else 'ok'}: rcv_ssthresh {ssthresh} with TCP_WINDOW_CLAMP {CLAMP}, 1 MiB reserved")
sys.exit(ssthresh > CLAMP)
