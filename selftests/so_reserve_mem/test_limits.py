"""Where tcp_mem[1] and memory.max end a reservation, alone and together, and that a refusal leaves nothing behind."""

import errno
from collections.abc import Callable

import pytest

from selftests.lib import books, sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges
from selftests.lib.pressure import TcpMem

option = pytest.mark.introduced_by("so-reserve-mem", "option")
MIB = 1 << 20
Limit = Callable[[Cgroup, TcpMem, int], None]


def memory_max(own_cgroup: Cgroup, tcp_mem: TcpMem, room: int) -> None:
    """Leave room bytes more than is charged now, and a little for the case itself."""
    own_cgroup.write("memory.max", int((own_cgroup.path / "memory.current").read_text()) + room + MIB)


def tcp_mem_pressure(own_cgroup: Cgroup, tcp_mem: TcpMem, room: int) -> None:
    """Leave room bytes more than is charged now below tcp_mem[1]."""
    pages = books.tcp_pages() + room // sock.PAGE
    tcp_mem.write(pages, pages, pages + 100000)


def lift(own_cgroup: Cgroup, tcp_mem: TcpMem) -> None:
    """No limit."""
    own_cgroup.write("memory.max", "max")
    tcp_mem.restore()


UNCAPPED = pytest.mark.known_issue("overflow-int-max", symptom="Cannot allocate memory instead of Invalid argument")


def limits(**faults: str) -> pytest.MarkDecorator:
    """Either limit, with the fault that makes it leave something behind."""
    rows: dict[str, Limit] = {"memory.max": memory_max, "tcp_mem": tcp_mem_pressure}
    marks = {"memory.max": faults["memcg"], "tcp_mem": faults["tcp_mem"]}
    params = [pytest.param(row, id=name, marks=pytest.mark.red_on(marks[name])) for name, row in rows.items()]
    return pytest.mark.parametrize("limit", params)


@option
@limits(memcg="enomem-keeps-global", tcp_mem="enomem-keeps-charge")
def test_refusals_leave_nothing(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem, limit: Limit) -> None:
    """A thousand refusals leave nothing charged, not a page each."""
    s, charges = sockets.open(), Charges(own_cgroup)
    limit(own_cgroup, tcp_mem, 2 * MIB)
    for _ in range(1000):
        sock.refuses(errno.ENOMEM, sock.reserve, s, 8 * MIB)
    lift(own_cgroup, tcp_mem)
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (0, 0)
    assert own_cgroup.read("memory.events", "oom_kill") == 0
    charges.are(0)


@option
@limits(memcg="enomem-keeps-global", tcp_mem="enomem-keeps-charge")
def test_refused_increase_keeps_the_rest(
    sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem, limit: Limit
) -> None:
    """An increase that is refused leaves the reservation and all books as they were."""
    s, charges = sockets.open(), Charges(own_cgroup)
    sock.reserve(s, 4 * MIB)
    limit(own_cgroup, tcp_mem, 2 * MIB)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 12 * MIB)
    lift(own_cgroup, tcp_mem)
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (4 * MIB, 4 * MIB)
    charges.are(4 * MIB)


@option
@limits(memcg="charge-anew", tcp_mem="charge-anew")
@pytest.mark.parametrize("size", [8 * MIB, 4 * MIB, 1])
def test_no_increase_needs_no_room(
    sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem, limit: Limit, size: int
) -> None:
    """The same value or a smaller one is never refused, as there is nothing to charge."""
    s, charges = sockets.open(), Charges(own_cgroup)
    sock.reserve(s, 8 * MIB)
    limit(own_cgroup, tcp_mem, -MIB)
    sock.reserve(s, size)
    lift(own_cgroup, tcp_mem)
    size = -(-size // sock.PAGE) * sock.PAGE
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (size, size)
    charges.are(size)


@option
@limits(memcg="drop-memcg-charge", tcp_mem="ignore-tcp-mem")
def test_two_compete(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem, limit: Limit) -> None:
    """What one socket has reserved the other cannot have, until it is given back."""
    a, b, charges = sockets.open(), sockets.open(), Charges(own_cgroup)
    limit(own_cgroup, tcp_mem, 16 * MIB)
    sock.reserve(a, 12 * MIB)
    sock.refuses(errno.ENOMEM, sock.reserve, b, 8 * MIB)
    sock.reserve(a, 4 * MIB)
    sock.reserve(b, 8 * MIB)
    sock.refuses(errno.ENOMEM, sock.reserve, a, 12 * MIB)
    a.close()
    sock.reserve(b, 12 * MIB)
    lift(own_cgroup, tcp_mem)
    charges.are(12 * MIB)


@option
@pytest.mark.red_on("same-value-charges")
def test_same_value_above_the_limit(sockets: sock.Sockets, tcp_mem: TcpMem) -> None:
    """The same value again is granted also where TCP has more than tcp_mem[1] allocated."""
    s = sockets.open()
    sock.reserve(s, 8 * MIB)
    tcp_mem.write(1, 1, tcp_mem.default[2])
    sock.reserve(s, 8 * MIB)
    assert sock.reserved(s) == 8 * MIB


@option
@pytest.mark.red_on("ignore-tcp-mem")
def test_last_page(sockets: sock.Sockets, tcp_mem: TcpMem) -> None:
    """Two sockets may fill TCP up to tcp_mem[1] to the page, and one gets what the other returns."""
    a, b = sockets.open(), sockets.open()
    books.settle()
    pages = books.tcp_pages() + 2000
    tcp_mem.write(pages, pages, pages + 100000)
    sock.reserve(a, 1000 * sock.PAGE)  # steps of more than 256 pages are exact on any kernel
    sock.refuses(errno.ENOMEM, sock.reserve, b, 1001 * sock.PAGE)
    sock.reserve(b, 1000 * sock.PAGE)
    sock.reserve(b, 400 * sock.PAGE)
    sock.refuses(errno.ENOMEM, sock.reserve, a, 1601 * sock.PAGE)
    sock.reserve(a, 1600 * sock.PAGE)


@option
@pytest.mark.red_on("ignore-tcp-mem", "limit-before-charge")
def test_traffic_counts(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem) -> None:
    """What plain sockets hold counts against tcp_mem[1], though they have reserved nothing."""
    a, b = sockets.pair(rcvbuf=8 * MIB)
    s, charges = sockets.open(), Charges(own_cgroup)
    pages = books.tcp_pages()
    sock.push(a, 2 * MIB)
    held = charges.now()[0] // sock.PAGE
    assert held >= 512
    tcp_mem.write(pages + held + 256, pages + held + 256, pages + 100000)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 1024 * sock.PAGE)
    tcp_mem.write(pages + held + 1536, pages + held + 1536, pages + 100000)
    sock.reserve(s, 1024 * sock.PAGE)
    tcp_mem.restore()
    sock.abort(a)
    sock.abort(b)


@option
@pytest.mark.red_on("enomem-keeps-global", "drop-memcg-charge", "enomem-keeps-stat")
def test_memory_max_after_tcp_mem(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem) -> None:
    """Where tcp_mem[1] has room and memory.max has not it is ENOMEM, and neither book keeps anything."""
    s, charges = sockets.open(), Charges(own_cgroup)
    tcp_mem_pressure(own_cgroup, tcp_mem, 16 * MIB)
    memory_max(own_cgroup, tcp_mem, 4 * MIB)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 16 * MIB)
    own_cgroup.write("memory.max", "max")
    sock.reserve(s, 16 * MIB)  # tcp_mem has still room for all of it
    tcp_mem.restore()
    charges.are(16 * MIB)


@option
@pytest.mark.red_on(
    "enomem-keeps-charge",
    "ignore-tcp-mem",
    "limit-is-enobufs",
    "enomem-uncharges-global-twice",
    "enomem-uncharges-twice",
)
def test_tcp_mem_after_memory_max(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem) -> None:
    """Where memory.max has room and tcp_mem[1] has not it is ENOMEM, and neither book keeps anything."""
    s, charges = sockets.open(), Charges(own_cgroup)
    memory_max(own_cgroup, tcp_mem, 16 * MIB)
    tcp_mem_pressure(own_cgroup, tcp_mem, 4 * MIB)
    for _ in range(3):
        sock.refuses(errno.ENOMEM, sock.reserve, s, 14 * MIB)
    tcp_mem.restore()
    sock.reserve(s, 14 * MIB)  # memory.max has still room for all of it
    own_cgroup.write("memory.max", "max")
    charges.are(14 * MIB)


@option
@pytest.mark.red_on("enomem-keeps-global", "ignore-tcp-mem")
def test_both_refuse(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem) -> None:
    """Where neither has room it is ENOMEM, until both have."""
    s, charges = sockets.open(), Charges(own_cgroup)
    memory_max(own_cgroup, tcp_mem, 4 * MIB)
    tcp_mem_pressure(own_cgroup, tcp_mem, 4 * MIB)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 16 * MIB)
    own_cgroup.write("memory.max", "max")
    sock.refuses(errno.ENOMEM, sock.reserve, s, 16 * MIB)
    tcp_mem.restore()
    charges.are(0)
    sock.reserve(s, 16 * MIB)


@option
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(-1, marks=pytest.mark.red_on("accept-negative")),
        pytest.param((1 << 30) + 1, marks=[pytest.mark.red_on("no-cap"), UNCAPPED]),
    ],
)
def test_invalid_keeps_the_rest(sockets: sock.Sockets, own_cgroup: Cgroup, size: int) -> None:
    """A value that is EINVAL leaves the reservation and all books as they were."""
    s, charges = sockets.open(), Charges(own_cgroup)
    sock.reserve(s, 4 * MIB)
    sock.refuses(errno.EINVAL, sock.reserve, s, size)
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (4 * MIB, 4 * MIB)
    charges.are(4 * MIB)


@option
@pytest.mark.red_on("no-cap", "cap-plus-a-page")
@UNCAPPED
@limits(memcg="no-cap", tcp_mem="no-cap")
def test_invalid_before_limits(sockets: sock.Sockets, own_cgroup: Cgroup, tcp_mem: TcpMem, limit: Limit) -> None:
    """More than 1 GiB is EINVAL also where there would be no room: the value is judged first."""
    s = sockets.open()
    limit(own_cgroup, tcp_mem, 2 * MIB)
    sock.refuses(errno.EINVAL, sock.reserve, s, (1 << 30) + 1)
    sock.refuses(errno.ENOMEM, sock.reserve, s, 1 << 30)
