"""A kernel booted with cgroup.memory=nosocket: no socket has a memory account to charge."""

import errno

import pytest

from selftests.lib import sock
from selftests.lib.cgroup import Cgroup

pytestmark = pytest.mark.boot("cgroup.memory=nosocket")
option = pytest.mark.introduced_by("so-reserve-mem", "option")


@option
@pytest.mark.red_on("accept-root-cgroup")
@pytest.mark.parametrize("size", [4096, 0])
def test_refused(sockets: sock.Sockets, size: int) -> None:
    """Where sockets are not accounted to cgroups (cgroup.memory=nosocket) the option is EOPNOTSUPP, even for 0."""
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, sockets.open(), size)


@option
@pytest.mark.red_on("accept-negative")
def test_negative(sockets: sock.Sockets) -> None:
    """A negative size is EINVAL there too: the value is judged before the account (cgroup.memory=nosocket)."""
    sock.refuses(errno.EINVAL, sock.reserve, sockets.open(), -1)


def test_traffic_is_charged_to_nobody(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Plain traffic moves and the cgroup's `sock` stays 0 (cgroup.memory=nosocket)."""
    a, b = sockets.pair(rcvbuf=2 << 20)
    sock.push(a, 1 << 20)
    assert own_cgroup.sock() == 0
    sock.drain(b)
    sock.transfer(b, a, 1 << 20)
    assert own_cgroup.sock() == 0
