#!/usr/bin/env python3
# UDP accepts SO_RESERVE_MEM though it cannot keep what is reserved: the first receive gives it back, all but a page,
# and getsockopt() goes on returning the old value. UDP has its own reclaim (udp_rmem_release()), which knows nothing
# of sk_reserved_mem.
# Kernels: from 5.16 to the one that has 37e02c42a00b, which returns EOPNOTSUPP for all but TCP. Run as root.
import atexit, os, socket, struct, sys
from pathlib import Path

SO_MEMINFO, SO_RESERVE_MEM, SIZE = 55, 73, 4 << 20
ROOT = Path("/sys/fs/cgroup")  # cgroup v2
home = ROOT / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
own = ROOT / f"reserve-mem-{os.getpid()}"
(ROOT / "cgroup.subtree_control").write_text("+memory")
own.mkdir()
(own / "cgroup.procs").write_text("0")  # sockets are charged to the cgroup that creates them
atexit.register(lambda: ((home / "cgroup.procs").write_text("0"), own.rmdir()))

s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 0))
try:
    s.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, SIZE)
except OSError as e:
    print(f"{'ok' if e.errno == 95 else 'skip'}: SO_RESERVE_MEM on a UDP socket: {e.strerror}")
    sys.exit(0 if e.errno == 95 else 77)
s.sendto(bytes(1000), s.getsockname())
s.recv(1000)
value = s.getsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM)
free = struct.unpack_from("9i", s.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[4]
print(f"BUG: UDP took a reservation of {SIZE}; after one receive FWD_ALLOC is {free} and the option says {value}")
sys.exit(1)
