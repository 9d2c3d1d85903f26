"""Network namespaces and links: loopback or a veth pair, MTU 1500, with or without delay."""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU = 0x8913, 0x8914, 0x8922
IFF_UP = 1
OWN_NETNS = "/proc/thread-self/ns/net"


def _check(status: int, what: str) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def setns(fd: int) -> None:
    """Move this thread, and the threads that it will start, into a network namespace."""
    _check(ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET), "setns")


def unshare(undo: ExitStack) -> None:
    """Move into a new network namespace with loopback up; the stack moves back, which destroys the new one."""
    before = os.open(OWN_NETNS, os.O_RDONLY | os.O_CLOEXEC)
    undo.callback(os.close, before)
    _check(ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET), "unshare")
    undo.callback(setns, before)
    lo_up()


def lo_up(mtu: int = 1500) -> None:
    """Loopback up by ioctl: starting ip costs as much as a whole case."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFMTU, struct.pack("16si12x", b"lo", mtu))
        flags = struct.unpack_from("16sH", fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16s16x", b"lo")))[1]
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def delay(milliseconds: int, device: str = "lo") -> None:
    """netem on the way out of a device, so on loopback each way; it goes with the namespace."""
    # The limit is out of the way: a queue that drops would be measured instead of the window.
    _batch("tc", f"qdisc replace dev {device} root netem delay {milliseconds}ms limit 100000\n")


def lose(percent: int, device: str = "lo") -> None:
    """netem drops so many of a hundred packets on the way out of a device; RuntimeError without netem."""
    _batch("tc", f"qdisc replace dev {device} root netem loss {percent}% limit 100000\n")


def advmss(device: str, peer: str, size: int) -> None:
    """What our end announces to this peer as its MSS, whatever the MTU; it goes with the namespace."""
    _batch("ip", f"route add {peer}/32 dev {device} advmss {size}\n")


class Veth:
    """A veth pair, ours (192.0.2.1) in the namespace of the case, theirs (192.0.2.2) in one of its own."""

    ours, theirs, device = "192.0.2.1", "192.0.2.2", "veth0"

    def __init__(self, undo: ExitStack, delay_ms: int = 0) -> None:
        home = os.open(OWN_NETNS, os.O_RDONLY | os.O_CLOEXEC)
        undo.callback(os.close, home)
        self._home = home
        _check(ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET), "unshare")
        try:
            self._there = os.open(OWN_NETNS, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            setns(home)
        undo.callback(os.close, self._there)
        there = f"/proc/{os.getpid()}/fd/{self._there}"
        _batch("ip", f"link add veth0 mtu 1500 type veth peer name veth0 mtu 1500 netns {there}\n"
                     f"addr add {self.ours}/24 dev veth0\nlink set veth0 up\n")  # fmt: skip
        with self.there():
            _batch("ip", f"addr add {self.theirs}/24 dev veth0\nlink set veth0 up\n")
            if delay_ms:
                delay(delay_ms, "veth0")
        if delay_ms:
            delay(delay_ms, "veth0")

    @contextmanager
    def there(self) -> Iterator[None]:
        """Create sockets at the far end."""
        setns(self._there)
        try:
            yield
        finally:
            setns(self._home)


def _batch(command: str, lines: str) -> None:
    run = subprocess.run([command, "-batch", "-"], input=lines, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{command} -batch: {run.stderr.strip()}: {lines!r}")
