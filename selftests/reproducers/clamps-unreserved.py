#!/usr/bin/env python3
# Under memory pressure tcp_grow_window() clamps rcv_ssthresh to four segments, also of a fresh connection that never
# queued anything and reserved nothing (before, it just did not grow); at 100 ms that is 460 kbit/s, not 3.9 Mbit/s.
# Kernels: from 5.16 on, 7.3 included; no fix is known. Run as root in the initial network namespace (lowers tcp_mem).
import atexit, os, socket, struct, sys
from pathlib import Path

SO_RCVBUFFORCE, SO_RESERVE_MEM = 33, 73
ROOT, TCP_MEM = Path("/sys/fs/cgroup"), Path("/proc/sys/net/ipv4/tcp_mem")
home = ROOT / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
own = ROOT / f"reserve-mem-{os.getpid()}"
(ROOT / "cgroup.subtree_control").write_text("+memory")
own.mkdir()
(own / "cgroup.procs").write_text("0")  # sockets are charged to the cgroup that creates them
atexit.register(lambda: ((home / "cgroup.procs").write_text("0"), own.rmdir()))
with socket.create_server(("127.0.0.1", 0)) as listener:
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1448)  # as on Ethernet, whatever loopback has
    listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20)
    (a, b), (c, d) = [(socket.create_connection(listener.getsockname()), listener.accept()[0]) for _ in range(2)]
idle = socket.socket()
try:
    idle.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, 4 << 20)  # what is allocated; a and b reserve nothing
except OSError as e:
    print(f"skip: SO_RESERVE_MEM: {e.strerror}")
    sys.exit(77)
before = struct.unpack_from("I", b.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232), 64)[0]  # tcpi_rcv_ssthresh
atexit.register(TCP_MEM.write_text, TCP_MEM.read_text())
TCP_MEM.write_text("1 2 1000000")  # the next charge that finds more than two pages allocated turns pressure on
c.send(bytes(65536))  # this one
for _ in range(100):
    b.recv(a.send(bytes(1448)), socket.MSG_WAITALL)
after = struct.unpack_from("I", b.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232), 64)[0]
print(f"{'BUG' if after < before else 'ok'}: rcv_ssthresh of a fresh connection under pressure: {before}, then {after}")
sys.exit(after < before)
