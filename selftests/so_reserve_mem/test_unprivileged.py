"""Who may reserve: everybody, within what their cgroup allows."""

import errno
import os

import pytest

from selftests.lib import sock, task
from selftests.lib.cgroup import Cgroup

option = pytest.mark.introduced_by("so-reserve-mem", "option")


def become(who: str) -> None:
    """Give up what makes us root; skips where the kernel has no user namespaces."""
    if who == "user-namespace":
        try:
            task.unshare_user()
        except OSError as e:
            if e.errno in (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ENOSPC):
                pytest.skip(f"kernel without user namespaces: unshare(CLONE_NEWUSER): {e.strerror}")
            raise
    else:
        task.drop_privileges()


users = pytest.mark.parametrize("who", ["nobody", "user-namespace"])


@option
@pytest.mark.red_on("needs-capability")
@users
def test_needs_no_capability(sockets: sock.Sockets, who: str) -> None:
    """A task without any capability in the namespace of its network reserves, raises and lowers."""

    def work() -> list[int]:
        become(who)
        s = sockets.open()
        seen = []
        for size in (4096, 4 << 20, 0):
            sock.reserve(s, size)
            seen.append(sock.reserved(s))
        return seen

    assert task.run(work) == [4096, 4 << 20, 0]


@option
@pytest.mark.red_on("needs-capability")
def test_socket_of_root(sockets: sock.Sockets) -> None:
    """A socket that root has opened and passed on can reserve in the hands of who has no capability."""
    s = sockets.open()

    def work() -> None:
        task.drop_privileges()
        sock.reserve(s, 8192)

    task.run(work)
    assert sock.reserved(s) == 8192


@option
@pytest.mark.red_on("drop-memcg-charge", "needs-capability")
@users
def test_bound_by_memory_max(sockets: sock.Sockets, own_cgroup: Cgroup, who: str) -> None:
    """Without capabilities memory.max binds as ever, and kills nobody."""
    own_cgroup.write("memory.max", 16 << 20)

    def work() -> int:
        become(who)
        s = sockets.open()
        sock.refuses(errno.ENOMEM, sock.reserve, s, 32 << 20)
        sock.reserve(s, 4 << 20)
        return os.getuid()

    assert task.run(work) == task.NOBODY
    assert own_cgroup.read("memory.events", "oom_kill") == 0


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_root_is_bound_too(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """CAP_NET_ADMIN and CAP_SYS_RESOURCE, which root has, do not lift memory.max."""
    own_cgroup.write("memory.max", 16 << 20)
    sock.refuses(errno.ENOMEM, sock.reserve, sockets.open(), 32 << 20)
