"""Who may not reserve, and that a refusal leaves nothing behind."""

import errno
import socket
from collections.abc import Callable

import pytest

from selftests.lib import books, sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges
from selftests.lib.pressure import TcpMem, under_pressure

option = pytest.mark.introduced_by("so-reserve-mem", "option")

OTHERS = {
    "udp": (socket.AF_INET, socket.SOCK_DGRAM, 0),
    "udp6": (socket.AF_INET6, socket.SOCK_DGRAM, 0),
    "udplite": (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE),
    "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "unix": (socket.AF_UNIX, socket.SOCK_STREAM, 0),
    "netlink": (socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "packet": (socket.AF_PACKET, socket.SOCK_RAW, 0),
    "mptcp": (socket.AF_INET, socket.SOCK_STREAM, sock.IPPROTO_MPTCP),
}


@option
@pytest.mark.red_on("accept-negative")
@pytest.mark.parametrize("size", [-1, -(1 << 31)])
def test_negative(sockets: sock.Sockets, size: int) -> None:
    """A negative size is EINVAL."""
    sock.refuses(errno.EINVAL, sock.reserve, sockets.open(), size)


@option
@pytest.mark.red_on("accept-negative")
def test_negative_before_support(sockets: sock.Sockets) -> None:
    """A negative size is EINVAL also where the option is not supported: the value is judged first."""
    sock.refuses(errno.EINVAL, sock.reserve, sockets.open(kind=socket.SOCK_DGRAM), -1)


def break_of(name: str) -> str:
    """The fault that lets this socket reserve: of those without an account only the one that checks nothing."""
    return "accept-any" if name in ("raw", "unix", "netlink", "packet") else "accept-udp"


@option
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.red_on(break_of(n))) for n in OTHERS])
def test_other_protocols(sockets: sock.Sockets, sysctl: Callable[[str, str], None], name: str) -> None:
    """Only TCP can reserve, any other socket gets EOPNOTSUPP (mainline 37e02c42a00b)."""
    if name == "mptcp":
        sysctl("net.mptcp.enabled", "1")
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, sockets.open(*OTHERS[name]), 4096)


@option
@pytest.mark.red_on("accept-root-cgroup")
@pytest.mark.parametrize("size", [4096, 0])
def test_root_cgroup(sockets: sock.Sockets, own_cgroup: Cgroup, size: int) -> None:
    """A socket created in the root cgroup gets EOPNOTSUPP, even for 0 and after the task has moved to a child."""
    with own_cgroup.outside():
        s = sockets.open()
        sock.refuses(errno.EOPNOTSUPP, sock.reserve, s, size)
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, s, size)


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_charges_the_creator(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A socket created in a child cgroup charges that one, also when the task reserves from the root."""
    s = sockets.open()
    with own_cgroup.outside():
        sock.reserve(s, 4 << 20)
    assert sock.eventually(lambda: own_cgroup.sock() == 4 << 20)


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_memory_max(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Above memory.max a reservation fails with ENOMEM, kills nobody and leaves nothing charged."""
    s, charges = sockets.open(), Charges(own_cgroup)
    own_cgroup.write("memory.max", 16 << 20)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 32 << 20)
    assert own_cgroup.read("memory.events", "oom_kill") == 0
    assert own_cgroup.read("memory.events", "max") > 0
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (0, 0)
    charges.are(0)


@option
@pytest.mark.red_on("oom-kill")
def test_memory_max_in_small_steps(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A reservation that grows into memory.max fails with ENOMEM and kills nobody."""
    s = sockets.open()
    own_cgroup.write("memory.max", 4 << 20)

    def grow() -> None:
        for size in range(16 << 10, 8 << 20, 16 << 10):  # the OOM killer leaves requests of more than 32 KiB alone
            sock.reserve(s, size)

    sock.refuses(errno.ENOMEM, grow)
    assert own_cgroup.read("memory.events", "oom_kill") == 0


@option
@pytest.mark.red_on("ignore-tcp-mem", "enomem-keeps-charge")
def test_tcp_mem_pressure_edge(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem) -> None:
    """A reservation may fill TCP up to tcp_mem[1]; one page more is ENOMEM and puts nobody under pressure."""
    s = sockets.open()
    books.settle()
    before = books.tcp_pages()
    tcp_mem.write(before + 1000, before + 2000, before + 4000)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 2001 * sock.PAGE)
    assert books.tcp_pages() == before
    assert sock.eventually(lambda: own_cgroup.sock() == 0)
    assert not under_pressure()
    sock.reserve(s, 2000 * sock.PAGE)
    assert books.tcp_pages() == before + 2000
    assert not under_pressure()
