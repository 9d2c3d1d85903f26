"""Socket pressure of one memory cgroup: its reclaim is made to fail, which the kernel holds against its sockets."""

import fcntl
import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from selftests.lib import sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.pressure import under_pressure

F_SETPIPE_SZ = 1031
PIPE = 1 << 20  # bytes of pinned page cache a pipe holds, as much as an unprivileged user may ask for
PIPES = 2  # 512 pages, scanned many times over: vmpressure() judges 512 scanned pages at a time


def root_disk() -> str:
    """A block device to read page cache from; the case is skipped without."""
    for disk in sorted(Path("/sys/block").glob("vd*")):
        device = f"/dev/{disk.name}"
        if Path(device).exists() and stat.S_ISBLK(os.stat(device).st_mode):
            return device
    pytest.skip("kernel without a virtio disk: no page cache to pin, so no reclaim that fails")


class MemcgPressure:
    """Page cache of the cgroup, pinned by pipes. Each renew() reclaims in vain, which puts its sockets under pressure.

    It lasts for a second from then on. `press` in /proc/net/protocols stays "no".
    """

    def __init__(self, undo: ExitStack, cgroup: Cgroup, sockets: sock.Sockets) -> None:
        self._cgroup, self._sockets = cgroup, sockets
        self._pin(undo)
        self.renew()

    def _pin(self, undo: ExitStack) -> None:
        disk = os.open(root_disk(), os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, disk)
        os.posix_fadvise(disk, 0, 0, os.POSIX_FADV_DONTNEED)  # else it is charged to whoever read it first
        undo.callback(os.posix_fadvise, disk, 0, 0, os.POSIX_FADV_DONTNEED)
        for n in range(PIPES):
            out, into = os.pipe()
            undo.callback(os.close, out)
            undo.callback(os.close, into)
            fcntl.fcntl(into, F_SETPIPE_SZ, PIPE)
            at, end = n * PIPE, (n + 1) * PIPE
            while at < end:
                at += os.splice(disk, into, end - at, offset_src=at)

    def renew(self) -> None:
        """Have the cgroup reclaim what is pinned; memory.high is back at max when this returns.

        RuntimeError if its sockets do not show the pressure, or the whole machine is under it.
        """
        # vmpressure() sums up what was scanned, and judges when that is enough: not always within one reclaim.
        for _ in range(5):
            self._cgroup.write("memory.high", 0)
            self._cgroup.write("memory.high", "max")
            if (left := self._window_of_a_full_receiver()) <= 4 * sock.MSS and not under_pressure():
                return
        raise RuntimeError(f"memcg pressure: rcv_ssthresh of a full receiver is {left}, not clamped; "
                           f"or pressure is global")  # fmt: skip

    def _window_of_a_full_receiver(self) -> int:
        sender, receiver = self._sockets.pair()
        sock.push(sender)
        left = sock.rcv_ssthresh(receiver)
        sock.abort(sender)
        sock.abort(receiver)
        return left
