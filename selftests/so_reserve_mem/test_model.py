"""Random sequences of what applications do, held against a small model after every step."""

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.reporting import with_reporter
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from selftests.lib import books, script, sock
from selftests.lib.campaign import Campaign, Enough, Harness
from selftests.lib.cgroup import Cgroup
from selftests.lib.machine import End, Machine
from selftests.lib.model import Model
from selftests.lib.pressure import Pressure, TcpMem
from selftests.lib.script import Disagreement

CHOSEN = Path(__file__).parents[1] / "data" / "options.json"  # written by the host, see vm/chosen.py
SEED, OPERATIONS = 1, 2000
STEPS = 50  # of one sequence
SOCKETS = 8

index = st.integers(0, SOCKETS - 1)
sizes = st.sampled_from([0, 1, 4096, 5000, 8192, 65536, 100_000, 1 << 20, (1 << 20) + 1, 4 << 20, 64 << 20, -1])
seldom = st.sampled_from([False] * 7 + [True])
amounts = st.sampled_from([1, 1448, 5000, 20_000, 65536, 200_000])


def anyone(end: End) -> bool:
    """Any socket."""
    return True


def fresh(end: End) -> bool:
    """Neither connected nor listening, never was."""
    return not end.used and not end.listening


def listening(end: End) -> bool:
    """A listener."""
    return end.listening


def waited_for(end: End) -> bool:
    """A listener with a child to accept."""
    return bool(end.pending)


def connected(end: End) -> bool:
    """Has been connected, whatever became of the connection."""
    return end.used


def writable(end: End) -> bool:
    """Connected, and no FIN sent."""
    return end.used and not end.shut


def talking(end: End) -> bool:
    """Can send to an end that is open."""
    return writable(end) and not end.gone and end.peer is not None


def some(*kinds: Callable[[End], bool]) -> Callable[["Application"], bool]:
    """The precondition that there is such a socket, one of each kind."""

    def there_is(self: "Application") -> bool:
        return all(any(map(kind, self.model.ends)) for kind in kinds)

    return there_is


def room(self: "Application") -> bool:
    """The precondition that two more sockets can be opened: each is asked after every step."""
    return len(self.model.ends) < SOCKETS - 1


def plenty(self: "Application") -> bool:
    """The precondition of what would leave no room for the rarer ways to open a socket."""
    return len(self.model.ends) < SOCKETS // 2


def unheard(self: "Application") -> bool:
    """The precondition that there is no listener."""
    return not any(map(listening, self.model.ends))


def calm(self: "Application") -> bool:
    """Whether the counters can be made exact: there is no pressure and no limit."""
    return not self.model.under_pressure and not self.model.limit


class Application(RuleBasedStateMachine):
    """A program with a few sockets, on a machine where TCP memory pressure and memory.max come and go."""

    def __init__(self, campaign: Campaign) -> None:
        super().__init__()
        self.campaign = campaign
        self.model = Model(campaign.machine, campaign.tell)
        self.last = ""

    def take(self, step: Callable[..., None], *args: object) -> None:
        """Do one step and check."""
        self.campaign.step()
        self.last = step.__name__
        with self.campaign.keeping():
            step(*args)
            self.model.check()

    def pick(self, which: Callable[[End], bool], i: int) -> End:
        """One of the sockets to which a step can be applied; the precondition of the rule says that there is one."""
        fit = [e for e in self.model.ends if which(e)]
        return fit[i % len(fit)]

    @initialize()
    def begin(self) -> None:  # noqa: D102
        self.take(self.model.pair)

    @precondition(room)
    @rule(outside=seldom)
    def open(self, outside: bool) -> None:  # noqa: D102
        self.take(self.model.open, outside)

    @precondition(plenty)
    @rule()
    def pair(self) -> None:  # noqa: D102
        self.take(self.model.pair)

    @precondition(room)
    @precondition(unheard)
    @rule()
    def listen(self) -> None:  # noqa: D102
        self.take(self.model.listen)

    @precondition(room)
    @precondition(some(listening))
    @rule(i=index)
    def connect(self, i: int) -> None:  # noqa: D102
        if not some(fresh)(self):
            self.take(self.model.open, False)
        self.take(self.model.connect, self.pick(fresh, i), self.pick(listening, i))

    @precondition(room)
    @precondition(some(waited_for))
    @rule(i=index, outside=seldom)
    def accept(self, i: int, outside: bool) -> None:  # noqa: D102
        self.take(self.model.accept, self.pick(waited_for, i), outside)

    @precondition(some(anyone))
    @rule(i=index, size=sizes)
    def reserve(self, i: int, size: int) -> None:  # noqa: D102
        self.take(self.model.reserve, self.pick(anyone, i), size)

    @precondition(some(connected))
    @rule(i=index, size=sizes)
    def reserve_connected(self, i: int, size: int) -> None:  # noqa: D102
        self.take(self.model.reserve, self.pick(connected, i), size)

    @precondition(some(connected))
    @rule(i=index, first=sizes, then=sizes)
    def reserve_twice(self, i: int, first: int, then: int) -> None:  # noqa: D102
        end = self.pick(connected, i)
        self.take(self.model.reserve, end, first)
        self.take(self.model.reserve, end, then)

    @precondition(some(writable))
    @rule(i=index, amount=amounts)
    def push(self, i: int, amount: int) -> None:  # noqa: D102
        self.take(self.model.push, self.pick(writable, i), amount)

    @precondition(some(talking))
    @rule(i=index, amount=amounts)
    def talk(self, i: int, amount: int) -> None:  # noqa: D102
        end = self.pick(talking, i)
        self.take(self.model.push, end, amount)
        self.take(self.model.drain, end.peer)

    @precondition(some(connected))
    @rule(i=index)
    def drain(self, i: int) -> None:  # noqa: D102
        self.take(self.model.drain, self.pick(connected, i))

    @precondition(some(anyone))
    @rule(i=index, how=st.sampled_from(["shutdown", "close", "abort"]))
    def end(self, i: int, how: str) -> None:  # noqa: D102
        end = self.pick(anyone, i)
        if how == "shutdown" and writable(end):
            self.take(self.model.shutdown, end)
        elif how != "shutdown":
            self.take(self.model.close, end, how == "abort")

    @rule(what=st.sampled_from(["wait", "settle", "confine", "press"]))
    def around(self, what: str) -> None:  # noqa: D102
        if what != self.last and (calm(self) or what != "settle"):
            self.take(getattr(self.model, what))

    def teardown(self) -> None:
        """All is closed, whatever happened."""
        with self.campaign.keeping():
            self.model.finish()


@pytest.mark.introduced_by("so-reserve-mem", "option")
@pytest.mark.red_on(
    "round-down",
    "drop-global-charge",
    "drop-memcg-charge",
    "no-forward-alloc",
    "reclaim-eats-reservation",
    "uncharge-eats-reservation",
    "decrease-keeps-charge",
    "close-leaks",
    "enomem-keeps-charge",
    "ignore-tcp-mem",
    "accept-negative",
    "accept-root-cgroup",
    "child-inherits",
)
@pytest.mark.timeout(400)
def test_model(
    monkeypatch: pytest.MonkeyPatch,
    defer: contextlib.ExitStack,
    own_cgroup: Cgroup,
    tcp_mem: TcpMem,
    pressure: Pressure,
    ledger: books.Ledger,
    sockets: sock.Sockets,
    tell: Callable[[str, bool], None],
    figure: Callable[[str, float, str], None],
) -> None:
    """Whatever a program does, in any order, reservations are charged, kept and given back as promised."""
    sock.reserve(sockets.open(), 0)  # without the option there is nothing to hold against the model
    chosen = json.loads(CHOSEN.read_text())
    seed, operations = chosen.get("model_seed", SEED), chosen.get("model_ops", OPERATIONS)
    # It reads all modules that lie outside site-packages for constants worth trying: half a minute in the guest.
    monkeypatch.setattr(providers, "_get_local_constants", lambda: providers._local_constants)
    campaign = Campaign(Machine(defer, own_cgroup, tcp_mem, pressure, ledger), operations, tell)
    profile = settings(
        database=None,
        deadline=None,
        max_examples=operations,  # more than it takes: the operations are counted
        stateful_step_count=STEPS,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run = hypothesis.seed(seed)(functools.partial(Application, campaign))
    try:
        with with_reporter(lambda said: None):  # its own words for the steps
            run_state_machine_as_test(run, settings=profile)  # type: ignore[arg-type]  # a function may make them
    except Harness as e:
        raise e.__cause__ or e from None
    except (Disagreement, Enough, hypothesis.errors.HypothesisException):
        if not campaign.found and campaign.operations < operations:
            raise
    if campaign.found:
        short = min(campaign.found, key=lambda found: len(found.lines))
        again = f"--model-seed {seed} --model-ops {operations} finds it again"
        text = f"{short.what}\n\nThe shortest of {len(campaign.found)} sequences that fail, as a case ({again}):\n\n"
        raise pytest.fail.Exception(text + script.as_case(short.lines), pytrace=False) from None
    figure("operations", campaign.operations, "steps")
