#!/usr/bin/env python3
# A reservation of 0x7ffff001..INT_MAX bytes is rounded up to 2 GiB, which an int cannot hold: getsockopt() returns
# -2147483648, close() gives nothing back, and 2 GiB stay charged to TCP and to the cgroup until the next boot.
# Kernels: from 5.16 to the one that has 37e02c42a00b, which caps the option at 1 GiB. On a kernel that has the bug this
# LEAKS FOR GOOD: run it in a virtual machine, as root, in the initial network namespace. tcp_mem is raised meanwhile.
import atexit, os, re, socket, sys
from pathlib import Path

SO_RESERVE_MEM, INT_MAX = 73, 0x7FFFFFFF
ROOT, TCP_MEM = Path("/sys/fs/cgroup"), Path("/proc/sys/net/ipv4/tcp_mem")
home = ROOT / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
own = ROOT / f"reserve-mem-{os.getpid()}"
(ROOT / "cgroup.subtree_control").write_text("+memory")
own.mkdir()
(own / "cgroup.procs").write_text("0")  # sockets are charged to the cgroup that creates them
atexit.register(lambda: ((home / "cgroup.procs").write_text("0"), own.rmdir()))
low, pressure, high = map(int, TCP_MEM.read_text().split())
atexit.register(TCP_MEM.write_text, f"{low} {pressure} {high}")
TCP_MEM.write_text(f"{low} {max(pressure, 1 << 20)} {max(high, 1 << 20)}")  # above [1] no reservation is granted

s = socket.socket()
try:
    s.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, INT_MAX)
except OSError as e:
    print(f"{'ok' if e.errno == 22 else 'skip'}: a reservation of INT_MAX: {e.strerror}")
    sys.exit(0 if e.errno == 22 else 77)
value = s.getsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM)
s.close()
left = int(re.search(r"TCP:.* mem (\d+)", Path("/proc/net/sockstat").read_text())[1])
print(
    f"{'BUG' if value < 0 else 'ok'}: INT_MAX is granted, reads back as {value}, and after close TCP has {left} pages"
)
sys.exit(value < 0)
