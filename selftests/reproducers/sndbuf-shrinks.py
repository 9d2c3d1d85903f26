#!/usr/bin/env python3
# Under memory pressure a reservation makes the send buffer smaller than it is without one: tcp_should_expand_sndbuf()
# assigns what is unused of it to sk_sndbuf, also where sk_sndbuf was bigger.
# Kernels: from 5.16 on, 7.3 included; no fix is known. Run as root in the initial network namespace (lowers tcp_mem).
import atexit, os, socket, struct, sys
from contextlib import suppress
from pathlib import Path

SO_MEMINFO, SO_RESERVE_MEM = 55, 73
ROOT, TCP_MEM = Path("/sys/fs/cgroup"), Path("/proc/sys/net/ipv4/tcp_mem")
home = ROOT / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
own = ROOT / f"reserve-mem-{os.getpid()}"
(ROOT / "cgroup.subtree_control").write_text("+memory")
own.mkdir()
(own / "cgroup.procs").write_text("0")  # sockets are charged to the cgroup that creates them
atexit.register(lambda: ((home / "cgroup.procs").write_text("0"), own.rmdir()))
with socket.create_server(("127.0.0.1", 0)) as listener:
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)  # as on Ethernet, whatever loopback has
    (a, b), (c, d) = [(socket.create_connection(listener.getsockname()), listener.accept()[0]) for _ in "12"]
idle, seen = socket.socket(), {a: [], c: []}
try:
    a.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, 100_000)
    idle.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, 4 << 20)  # what is allocated
except OSError as e:
    print(f"skip: SO_RESERVE_MEM: {e.strerror}")
    sys.exit(77)
atexit.register(TCP_MEM.write_text, TCP_MEM.read_text())
TCP_MEM.write_text("1 2 1000000")  # the next charge that finds more than two pages allocated turns pressure on
for s, peer in [(a, b), (c, d)] * 3:
    s.setblocking(False)
    peer.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            s.send(bytes(65536))
    with suppress(BlockingIOError):
        while peer.recv(1 << 20):
            seen[s].append(struct.unpack_from("9i", s.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[3])
reserving, plain = min(seen[a]), min(seen[c])
print(f"{'BUG' if reserving < plain else 'ok'}: smallest SNDBUF with 100000 reserved {reserving}, without {plain}")
sys.exit(reserving < plain)
