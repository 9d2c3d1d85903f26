"""A second process: does one thing, reports what came of it, and stays until it is ended or killed."""

import ctypes
import os
import pickle
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack

CLONE_NEWUSER = 0x10000000
NOBODY = 65534


class Task:
    """A fork of this process. It has copies of all our file descriptors, so a socket of ours is its socket too."""

    def __init__(self, undo: ExitStack, do: Callable[[], object]) -> None:
        report, self._report = os.pipe(), -1
        stay = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(stay[1])
            _work(do, report[1], stay[0])
        os.close(report[1])
        os.close(stay[0])
        self._report, self._stay = report[0], stay[1]
        undo.callback(self._reap)

    def result(self) -> object:
        """What do() returned, once it has; raises what it raised, EOFError if it did not return at all."""
        data = b""
        while chunk := os.read(self._report, 65536):
            data += chunk
        if not data:
            raise EOFError("task: has ended, or become another program, before it could report")
        good, value = pickle.loads(data)
        if not good:
            raise value
        return value

    def end(self) -> None:
        """Let it exit, and wait until it has."""
        os.close(self._stay)
        self._stay = -1
        os.waitpid(self.pid, 0)
        self.pid = 0

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def _reap(self) -> None:
        if self.pid:
            self.kill()
        os.close(self._report)


End = Callable[[Task], None]


def _work(do: Callable[[], object], report: int, stay: int) -> None:
    try:
        try:
            answer = pickle.dumps((True, do()))
        except BaseException as e:
            answer = pickle.dumps((False, e))
        os.write(report, answer)
        os.close(report)
        os.read(stay, 1)
    finally:
        os._exit(0)  # never back into pytest


def run(do: Callable[[], object]) -> object:
    """What do() returns in a process of its own, which has exited by then; raises what it raises."""
    with ExitStack() as undo:
        task = Task(undo, do)
        value = task.result()
        task.end()
    return value


def drop_privileges() -> None:
    """Become nobody, with no capability left."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def unshare_user() -> None:
    """Move into a new user namespace; OSError as the kernel gives it, EINVAL where it has none."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")


def pass_socket(s: socket.socket) -> tuple[socket.socket, socket.socket]:
    """A Unix socket pair with a copy of s on its way, SCM_RIGHTS: (who sent, who may receive)."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    socket.send_fds(ours, [b"x"], [s.fileno()])
    return ours, theirs


def receive_socket(channel: socket.socket) -> socket.socket:
    """The socket that pass_socket() has sent."""
    _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    return socket.socket(fileno=fds[0])
