"""BPF sockmaps by the bare syscall: a program that lets everything pass, and a map that takes sockets."""

import ctypes
import os
import socket
import struct
from contextlib import ExitStack

BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280}  # the number of the syscall
MAP_CREATE, MAP_UPDATE_ELEM, PROG_LOAD, PROG_ATTACH = 0, 2, 5, 8
SOCKMAP = 15
SK_SKB, SK_MSG = 14, 16  # types of programs
PARSER, VERDICT, MSG_VERDICT = 4, 5, 7  # where they attach
MOV_R0_R1_LEN = struct.pack("<BBhi", 0x61, 0x10, 0, 0)  # r0 = *(u32 *)(r1 + 0): skb->len
MOV_R0_PASS = struct.pack("<BBhi", 0xB7, 0, 0, 1)  # r0 = SK_PASS
EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)


def bpf(command: int, attributes: bytes) -> int:
    """The bpf() syscall; OSError as the kernel gives it."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(120, b"\0"), 120)
    result: int = libc.syscall(BPF[os.uname().machine], command, buffer, len(buffer))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"bpf({command})")
    return result


class Sockmap:
    """A map whose sockets send through a verdict program, receive through one, or neither."""

    def __init__(self, undo: ExitStack, sends: bool = False, receives: bool = False) -> None:
        self._undo = undo
        self._fd = self._keep(bpf(MAP_CREATE, struct.pack("<5I", SOCKMAP, 4, 4, 8, 0)))
        self._used = 0
        if sends:
            self._attach(SK_MSG, MSG_VERDICT, MOV_R0_PASS + EXIT)
        if receives:
            self._attach(SK_SKB, PARSER, MOV_R0_R1_LEN + EXIT)
            self._attach(SK_SKB, VERDICT, MOV_R0_PASS + EXIT)

    def _keep(self, fd: int) -> int:
        self._undo.callback(os.close, fd)
        return fd

    def _attach(self, kind: int, where: int, code: bytes) -> None:
        program, license_ = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
        addresses = ctypes.addressof(program), ctypes.addressof(license_)
        fd = self._keep(bpf(PROG_LOAD, struct.pack("<2I2Q", kind, len(code) // 8, *addresses)))
        bpf(PROG_ATTACH, struct.pack("<4I", self._fd, fd, where, 0))

    def add(self, s: socket.socket) -> None:
        """Put a connected socket into the map."""
        key, value = ctypes.c_uint32(self._used), ctypes.c_uint32(s.fileno())
        addresses = ctypes.addressof(key), ctypes.addressof(value)
        bpf(MAP_UPDATE_ELEM, struct.pack("<IxxxxQQQ", self._fd, *addresses, 0))
        self._used += 1
