"""A TCP peer made of single segments, behind a TUN device: it sends what a real stack would not."""

import fcntl
import os
import socket
import struct
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest

from selftests.lib import link, sock
from selftests.lib.link import IFF_UP, SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
DEVICE, OURS, THEIRS = b"tun0", "198.51.100.1", "198.51.100.2"
SEGMENT = 1448  # bytes of data in a full segment of ours


class Segment(NamedTuple):
    """What the kernel sent: numbers relative to the start of each direction, window scaled."""

    seq: int
    ack: int
    flags: int
    window: int
    size: int


class Peer:
    """One connection to a listener of the kernel; `kernel` is the accepted end."""

    def __init__(
        self, undo: ExitStack, sockets: sock.Sockets, window: int = 65535, mtu: int = 1500, advmss: int = 0
    ) -> None:
        self._fd = _tun(undo, mtu)
        if advmss:
            link.advmss(DEVICE.decode(), THEIRS, advmss)
        self.window = window  # what we advertise, unscaled, and we scale by 0
        self._sequence = self._start = 1000
        self._their_start = self._scale = 0
        listener = sockets.open()
        listener.bind((OURS, 0))
        listener.listen()
        self._port = listener.getsockname()[1]
        self._handshake(mtu)
        self.kernel = sockets.keep(listener.accept()[0])
        listener.close()

    def _handshake(self, mtu: int) -> None:
        options = struct.pack(">BBHBBBBBBBB", 2, 4, mtu - 40, 4, 2, 3, 3, 0, 1, 1, 1)  # MSS, SACK, scale 0
        self._write(SYN, 0, 0, b"", options)
        packet = self._answer()
        tcp = packet[(packet[0] & 15) * 4 :]
        self._their_start = int.from_bytes(tcp[4:8], "big") + 1
        self._scale = _scale(tcp[20 : (tcp[12] >> 4) * 4])
        self._start += 1
        self.acked = 0
        self.send(0, b"")

    def _answer(self) -> bytes:
        while packet := os.read(self._fd, 1 << 16):
            if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:  # not a router solicitation of IPv6
                return packet
        raise RuntimeError("raw peer: no SYN-ACK")

    def send(self, at: int, data: bytes, flags: int = ACK, ack: int | None = None, options: bytes = b"") -> None:
        """One segment with data from offset `at` of our stream on; acknowledges self.acked bytes, or ack."""
        self._write(flags, at, self._their_start + (self.acked if ack is None else ack), data, options)

    def sack(self, begin: int, end: int) -> None:
        """Acknowledge self.acked bytes, and selectively what lies between two offsets."""
        edges = struct.pack(">II", *((self._their_start + n) & 0xFFFFFFFF for n in (begin, end)))
        self.send(self.sent, b"", options=b"\1\1\5\12" + edges)

    sent = 0  # offset that our next bare acknowledgement carries

    def ack(self, upto: int) -> None:
        """Acknowledge so many bytes of the kernel's stream."""
        self.acked = upto
        self.send(self.sent, b"")

    def read(self) -> list[Segment]:
        """What the kernel has sent since."""
        seen = []
        with suppress(BlockingIOError):
            while True:
                packet = os.read(self._fd, 1 << 16)
                if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
                    seen.append(self._segment(packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big")]))
        return seen

    def _segment(self, tcp: bytes) -> Segment:
        _, _, seq, ack, offset, flags, window = struct.unpack_from(">HHIIBBH", tcp)
        return Segment((seq - self._their_start) & 0xFFFFFFFF, (ack - self._start) & 0xFFFFFFFF, flags,
                       window << self._scale, len(tcp) - (offset >> 4) * 4)  # fmt: skip

    def receive(self, upto: int | None = None) -> int:
        """Acknowledge what came in order, no further than upto; returns how many bytes that are in all."""
        for s in sorted(self.read()):
            if s.seq <= self.acked < s.seq + s.size and (upto is None or self.acked < upto):
                self.acked = s.seq + s.size
        self.ack(self.acked)
        return self.acked

    def _write(self, flags: int, at: int, ack: int, data: bytes, options: bytes) -> None:
        seq = (self._start + at) & 0xFFFFFFFF
        offset = (20 + len(options)) // 4 << 4
        tcp = struct.pack(">HHIIBBHHH", 9, self._port, seq, ack & 0xFFFFFFFF, offset, flags, self.window, 0, 0)
        tcp += options + data
        ends = socket.inet_aton(THEIRS) + socket.inet_aton(OURS)
        total = _sum(ends + struct.pack(">HH", socket.IPPROTO_TCP, len(tcp)) + tcp)
        tcp = tcp[:16] + struct.pack(">H", total) + tcp[18:]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, socket.IPPROTO_TCP, 0) + ends
        os.write(self._fd, ip[:10] + struct.pack(">H", _sum(ip)) + ip[12:] + tcp)


def _sum(data: bytes) -> int:
    """The checksum of the internet protocols."""
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data[: len(data) & ~1])) + (data[-1] << 8) * (len(data) & 1)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _scale(options: bytes) -> int:
    """The shift that a SYN-ACK's options announce."""
    at = 0
    while at < len(options) and options[at]:
        if options[at] == 3:
            return options[at + 2]
        at += 1 if options[at] == 1 else options[at + 1]
    return 0


def _tun(undo: ExitStack, mtu: int) -> int:
    try:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        pytest.skip(f"kernel without TUN: no peer of our own: {e.strerror}")
    undo.callback(os.close, fd)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH14x", DEVICE, IFF_TUN | IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for request, address in ((SIOCSIFADDR, OURS), (SIOCSIFNETMASK, "255.255.255.0")):
            sockaddr = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(s, request, struct.pack("16s16s8x", DEVICE, sockaddr))
        fcntl.ioctl(s, SIOCSIFMTU, struct.pack("16si12x", DEVICE, mtu))
        flags = struct.unpack_from("16sH", fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16s16x", DEVICE)))[1]
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", DEVICE, flags | IFF_UP))
    return fd
