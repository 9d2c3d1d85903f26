#!/usr/bin/env python3
# MSG_ZEROCOPY sends eat the reservation for good. The pages of pure zerocopy packets count in sk_wmem_queued but are
# not charged to sk_forward_alloc (9b65b17db723); sk_unused_reserved_mem() subtracts sk_wmem_queued all the same, so
# while such data is queued sk_mem_reclaim() takes that much of the reserved memory to be reclaimable.
# errqueue-eats-reservation.py has the same root with sk_rmem_alloc.
# Kernels: from 5.16 on, 7.3 included; no fix is known. Run as root.
import atexit, os, socket, struct, sys
from pathlib import Path

SO_MEMINFO, SO_ZEROCOPY, SO_RESERVE_MEM, MSG_ZEROCOPY, SIZE = 55, 60, 73, 0x4000000, 1 << 20
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
sender.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
try:
    sender.setsockopt(socket.SOL_SOCKET, SO_RESERVE_MEM, SIZE)
except OSError as e:
    print(f"skip: SO_RESERVE_MEM: {e.strerror}")
    sys.exit(77)
data = bytes(64 << 10)
for _ in range(16):
    receiver.recv(sender.send(data, MSG_ZEROCOPY), socket.MSG_WAITALL)
receiver.shutdown(socket.SHUT_WR)
sender.recv(1)  # everything is acknowledged and read: the whole reservation has to be free again
free = struct.unpack_from("9i", sender.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, 36))[4]
print(f"{'BUG' if free < SIZE else 'ok'}: {free} of {SIZE} bytes reserved are left after 1 MiB of MSG_ZEROCOPY sends")
sys.exit(free < SIZE)
