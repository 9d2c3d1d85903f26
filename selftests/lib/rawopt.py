"""setsockopt() and getsockopt() with addresses and lengths of our choice, which Python's own do not allow."""

import ctypes
import mmap
import os
import socket

from selftests.lib.sock import SO_RESERVE_MEM

PROT_NONE, PROT_READ = 0, 1
NULL = 0
KERNEL = -1 << 47 & (1 << 64) - 1  # where x86-64 maps all memory; above the user's half on any 64-bit kernel
NON_CANONICAL = 1 << 62


def set_at(s: socket.socket, address: int, optlen: int) -> None:
    """Set SO_RESERVE_MEM from an address, which need not be mapped; OSError as the kernel gives it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setsockopt(s.fileno(), socket.SOL_SOCKET, SO_RESERVE_MEM, ctypes.c_void_p(address), optlen) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def get_at(s: socket.socket, address: int, optlen: int) -> int:
    """Read SO_RESERVE_MEM to an address; returns the length that the kernel says it has written."""
    length = ctypes.c_int(optlen)
    get_lengthless(s, address, ctypes.addressof(length))
    return length.value


def get_lengthless(s: socket.socket, address: int, optlen_address: int) -> None:
    """Read SO_RESERVE_MEM with the length at an address, which need not be mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    pointers = ctypes.c_void_p(address), ctypes.c_void_p(optlen_address)
    if libc.getsockopt(s.fileno(), socket.SOL_SOCKET, SO_RESERVE_MEM, *pointers) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Edge:
    """A page of ours and one behind it that may not be touched; unmapped when nobody holds this any more."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.end = self.start + mmap.PAGESIZE
        self._protect(self.end, PROT_NONE)

    def put(self, data: bytes) -> int:
        """Write data up to the very end of the page; returns its address."""
        ctypes.memmove(self.end - len(data), data, len(data))
        return self.end - len(data)

    def get(self, size: int) -> bytes:
        """The last bytes of the page."""
        return ctypes.string_at(self.end - size, size)

    def read_only(self) -> None:
        """Make the page itself unwritable."""
        self._protect(self.start, PROT_READ)

    def _protect(self, address: int, prot: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), prot) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), "mprotect")
