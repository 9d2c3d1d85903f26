#!/usr/bin/env python3
# Transmit timestamps that wait to be read eat the reservation for good. sock_queue_err_skb() adds them to sk_rmem_alloc
# and charges nothing; sk_unused_reserved_mem() subtracts sk_rmem_alloc all the same, so while they wait
# sk_mem_reclaim() takes that much of the reserved memory to be reclaimable. The same root as with zerocopy: what is in
# use of a reservation is computed from counters that hold more than was charged to sk_forward_alloc.
# Kernels: from 5.16 on, 7.3 included; no fix is known. Run as root.
import atexit, os, socket, struct, sys
from pathlib import Path

SO_TIMESTAMPING, SO_MEMINFO, SO_RESERVE_MEM, SIZE = 37, 55, 73, 64 << 10
ROOT = Path("/sys/fs/cgroup")  # cgroup v2
home = ROOT / Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
own = ROOT / f"reserve-mem-{os.getpid()}"
(ROOT / "cgroup.subtree_control").write_text("+memory")
own.mkdir()
(own / "cgroup.procs").write_text("0")  # sockets are charged to the cgroup that creates them
atexit.register(lambda: ((home / "cgroup.procs").write_text("0"), own.rmdir()))

with socket.create_server(("127.0.0.1", 0)) as listener:
    sender = socket.create_connection(listener.getsockname())
    receiver = listener.accept()[0]
# SOF_TIMESTAMPING_TX_SOFTWARE, _SOFTWARE, _OPT_ID, _OPT_TSONLY
sender.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, 1 << 1 | 1 << 4 | 1 << 7 | 1 << 11)
try:
    sender.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, SIZE)
except OSError as e:
    print(f"skip: SO_RESERVE_MEM: {e.strerror}")
    sys.exit(77)
for _ in range(100):
    receiver.recv(sender.send(bytes(100)), socket.MSG_WAITALL)
receiver.shutdown(socket.SHUT_WR)
sender.recv(1)  # everything is acknowledged and read
for _ in range(100):
    sender.recvmsg(1, 512, socket.MSG_ERRQUEUE)  # and now the timestamps are: nothing is in use any longer
free = struct.unpack_from("9i", sender.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[4]
print(f"{'BUG' if free < SIZE else 'ok'}: {free} of {SIZE} bytes reserved are left after 100 transmit timestamps")
sys.exit(free < SIZE)
