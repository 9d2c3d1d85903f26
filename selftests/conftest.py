"""Marks, fixtures and the isolation of a case. Cases run inside the guest; the host imports this only to collect."""

import itertools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from selftests.lib import books, cgroup, coverage, link, mutant
from selftests.lib.pressure import Pressure, TcpMem
from selftests.lib.sock import Sockets
from selftests.lib.vmpressure import MemcgPressure

MARKS = (
    "introduced_by(series, patch): fails on every step before that patch and passes from it on; one for each series",
    "red_on(*ids): the mutants or released kernels that were seen to turn the case red",
    "fresh: wants a resumed guest of its own",
    "virtual_time: measures, so it runs where the guest clock counts instructions",
    "cpus(count): a race, so it runs in real time on so many CPUs",
    "boot(arguments): wants a guest that was booted with these kernel arguments",
    "memory(MiB): wants a guest with that much memory at least",
    "known_issue(id, symptom): fails, and says so, on the released kernels that known-issues.toml names",
    "sweep: many points of one measurement; left out unless asked for with -m sweep",
    "scale: as many sockets as a big server has; left out unless asked for with -m scale",
    "profile: reads the kernel's function profiler; left out unless asked for with -m profile",
    "timeout(seconds): deadline in QEMU's CPU seconds",
)

DEFERRED = pytest.StashKey[ExitStack]()
TCP_MEM = pytest.StashKey[TcpMem]()
LEDGER = pytest.StashKey[books.Ledger]()
serial = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks."""
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse to run anywhere but in a guest: a case changes sysctls, cgroups and links as root.

    Where the kernel has faults to choose from, the chosen one is active before the case has opened a socket; where it
    counts its lines, they count from here on.
    """
    if "PERPATCH_GUEST" not in os.environ:
        pytest.exit("selftests/ run in a guest only: call pytest in the project's own directory", returncode=2)
    mutant.activate()
    coverage.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Close what the case opened and check the books as part of the case: a leak is its failure, not an error."""
    try:
        return (yield)
    finally:
        # An exception from here takes the place of the case's own, which pytest shows as its context. So a leak
        # counts also on a step where the case is expected to fail.
        try:
            if DEFERRED in item.stash:
                item.stash[DEFERRED].close()
                item.stash[TCP_MEM].restore()  # the check may have to reserve
                item.stash[LEDGER].check()
        finally:
            if ran := coverage.ran():
                item.user_properties.append(("coverage", ran))


@pytest.fixture(autouse=True)
def undo_last(request: pytest.FixtureRequest) -> Iterator[ExitStack]:
    """What outlives the check of the books: the namespace, the cgroup, tcp_mem."""
    with ExitStack() as undo:
        yield undo


@pytest.fixture(autouse=True)
def tcp_mem(request: pytest.FixtureRequest, undo_last: ExitStack) -> TcpMem:
    """net.ipv4.tcp_mem of the machine, restored after the case."""
    request.node.stash[TCP_MEM] = tcp_mem = TcpMem(undo_last)  # before the new namespace, which has no such file
    return tcp_mem


@pytest.fixture(autouse=True)
def own_cgroup(undo_last: ExitStack, tcp_mem: TcpMem) -> cgroup.Cgroup:
    """The case's cgroup; the case runs and is charged in it, in a network namespace of its own."""
    link.unshare(undo_last)
    return cgroup.enter(undo_last, f"case-{next(serial)}")


@pytest.fixture(autouse=True)
def ledger(request: pytest.FixtureRequest, undo_last: ExitStack, own_cgroup: cgroup.Cgroup) -> books.Ledger:
    """The books that are checked when the case ends."""
    ledger = books.Ledger(undo_last, own_cgroup)
    request.node.stash[LEDGER] = ledger
    return ledger


@pytest.fixture(autouse=True)
def defer(request: pytest.FixtureRequest, ledger: books.Ledger) -> Iterator[ExitStack]:
    """Undo, registered right after the doing: defer.callback(...). Runs before the books are checked."""
    with ExitStack() as undo:
        request.node.stash[DEFERRED] = undo
        yield undo


@pytest.fixture
def sockets(defer: ExitStack) -> Sockets:
    """Opens sockets that are closed when the case ends."""
    return Sockets(defer)


@pytest.fixture
def pressure(
    defer: ExitStack, sockets: Sockets, own_cgroup: cgroup.Cgroup, tcp_mem: TcpMem, ledger: books.Ledger
) -> Pressure:
    """Memory is held; pressure begins with on(), after the case has reserved."""
    pressure = Pressure(sockets, own_cgroup, tcp_mem, ledger)
    defer.callback(pressure.off)
    return pressure


@pytest.fixture
def memcg_pressure(defer: ExitStack, own_cgroup: cgroup.Cgroup, sockets: Sockets) -> MemcgPressure:
    """The case's cgroup is under socket pressure for a second after each renew(); the machine is not."""
    return MemcgPressure(defer, own_cgroup, sockets)


@pytest.fixture
def veth(defer: ExitStack) -> link.Veth:
    """A veth pair whose far end is in a network namespace of its own."""
    return link.Veth(defer)


@pytest.fixture
def sysctl(defer: ExitStack) -> Callable[[str, str], None]:
    """sysctl("net.ipv4.tcp_wmem", "4096 16384 65536"), restored after the case."""

    def write(name: str, value: str) -> None:
        path = Path("/proc/sys", name.replace(".", "/"))
        before = path.read_text()
        path.write_text(value)
        defer.callback(path.write_text, before)

    return write


@pytest.fixture
def tell(pytestconfig: pytest.Config) -> Callable[[str, bool], None]:
    """tell("s.close()", False): what the case is about to do, for the report should the guest die of it.

    With True, everything told before is forgotten.
    """
    told: Callable[[str, bool], None] = pytestconfig.pluginmanager.get_plugin("perpatch-reporter").tell  # type: ignore[union-attr]
    return told


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str, float, str], None]:
    """figure("goodput", 3450.1, "kbit/s") goes into the report beside the verdict."""

    def record(name: str, value: float, unit: str) -> None:
        record_property("figure", {"name": name, "value": value, "unit": unit})

    return record


@pytest.fixture
def curve(record_property: Callable[[str, object], None]) -> Callable[[str, Sequence[tuple[float, float]], str], None]:
    """curve("window", [(0.0, 5792.0), (0.1, 8688.0)], "B") goes into the report: values over what is in the case."""

    def record(name: str, points: Sequence[tuple[float, float]], unit: str) -> None:
        record_property("curve", {"name": name, "points": points, "unit": unit})

    return record
