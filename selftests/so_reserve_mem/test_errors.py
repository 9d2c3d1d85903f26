"""Who may not reserve, and that a refusal leaves nothing behind."""

import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from selftests.lib import books, sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges, kills_by_growing
from selftests.lib.pressure import TcpMem, under_pressure

option = pytest.mark.introduced_by("so-reserve-mem", "option")

WITH_ACCOUNT = {
    "udp": (socket.AF_INET, socket.SOCK_DGRAM, 0),
    "udp6": (socket.AF_INET6, socket.SOCK_DGRAM, 0),
    "udplite": (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE),
    "udplite6": (socket.AF_INET6, socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE),
    "sctp": (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP),
    "sctp6-seqpacket": (socket.AF_INET6, socket.SOCK_SEQPACKET, socket.IPPROTO_SCTP),
    "alg": (socket.AF_ALG, socket.SOCK_SEQPACKET, 0),
    "mptcp": (socket.AF_INET, socket.SOCK_STREAM, sock.IPPROTO_MPTCP),
}
WITHOUT_ACCOUNT = {
    "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "raw-of-tcp": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
    "raw6": (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
    "unix": (socket.AF_UNIX, socket.SOCK_STREAM, 0),
    "unix-dgram": (socket.AF_UNIX, socket.SOCK_DGRAM, 0),
    "unix-seqpacket": (socket.AF_UNIX, socket.SOCK_SEQPACKET, 0),
    "netlink": (socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "packet": (socket.AF_PACKET, socket.SOCK_RAW, 0),
    "packet-dgram": (socket.AF_PACKET, socket.SOCK_DGRAM, 0),
}
OTHERS = WITH_ACCOUNT | WITHOUT_ACCOUNT


@option
@pytest.mark.red_on("accept-negative")
@pytest.mark.parametrize("size", [-1, -(1 << 31)])
def test_negative(sockets: sock.Sockets, size: int) -> None:
    """A negative size is EINVAL."""
    sock.refuses(errno.EINVAL, sock.reserve, sockets.open(), size)


@option
@pytest.mark.red_on("accept-negative", "unsupported-comes-first")
def test_negative_before_support(sockets: sock.Sockets) -> None:
    """A negative size is EINVAL also where the option is not supported: the value is judged first."""
    sock.refuses(errno.EINVAL, sock.reserve, sockets.open(kind=socket.SOCK_DGRAM), -1)


def others(*names: str) -> pytest.MarkDecorator:
    """Sockets of other protocols; where none has an account, only the fault that checks nothing lets them reserve."""
    marks = {n: [pytest.mark.red_on("accept-udp" if n in WITH_ACCOUNT else "accept-any")] for n in OTHERS}
    marks["mptcp"] += [pytest.mark.red_on("accept-any-protocol")]
    marks["raw-of-tcp"] += [pytest.mark.red_on("accept-any-type")]
    for name in (n for n in OTHERS if n.startswith(("udp", "sctp"))):
        marks[name] += [pytest.mark.known_issue("udp-accepted", symptom="succeeded instead of Operation not supported")]
    return pytest.mark.parametrize("name", [pytest.param(n, marks=marks[n]) for n in names or OTHERS])


@pytest.fixture
def other(sockets: sock.Sockets, sysctl: Callable[[str, str], None], name: str) -> socket.socket:
    """A socket of another protocol; skips where the kernel has none of the kind."""
    try:
        if name == "mptcp":
            sysctl("net.mptcp.enabled", "1")
        return sockets.open(*OTHERS[name])
    except FileNotFoundError:
        pytest.skip("kernel without MPTCP: no net.mptcp.enabled")
    except OSError as e:
        if e.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT, errno.ESOCKTNOSUPPORT):
            pytest.skip(f"kernel without {name}: socket(): {e.strerror}")
        raise


@option
@others()
def test_other_protocols(other: socket.socket) -> None:
    """Only TCP can reserve, any other socket gets EOPNOTSUPP (mainline 37e02c42a00b)."""
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, other, 4096)


@option
@pytest.mark.red_on("zero-comes-first")
@others("udp", "mptcp", "sctp", "raw", "unix", "netlink", "packet")
def test_other_protocols_nothing(other: socket.socket) -> None:
    """A socket that cannot reserve gets EOPNOTSUPP even for 0."""
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, other, 0)


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
@pytest.mark.red_on("drop-memcg-charge", "charge-without-stat")
def test_charges_the_creator(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A socket created in a child cgroup charges that one, also when the task reserves from the root."""
    s = sockets.open()
    with own_cgroup.outside():
        sock.reserve(s, 4 << 20)
    assert sock.eventually(lambda: own_cgroup.sock() == 4 << 20)


@option
@pytest.mark.red_on("drop-memcg-charge", "enomem-is-enobufs", "charge-forces")
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
@pytest.mark.red_on("oom-kill", "charge-may-kill")
def test_memory_max_in_small_steps(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """A reservation that grows into memory.max fails with ENOMEM and kills nobody."""
    s = sockets.open()
    own_cgroup.write("memory.max", 4 << 20)
    assert kills_by_growing(defer, s, own_cgroup, own_cgroup) == 0


@option
@pytest.mark.red_on(
    "ignore-tcp-mem",
    "enomem-keeps-charge",
    "limit-excluded",
    "limit-plus-a-page",
    "limit-is-tcp-mem-0",
    "limit-keeps-global",
    "enomem-brings-pressure",
)
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
