"""One socket in several hands: the reservation is the socket's, on the account of who created it."""

import errno
from contextlib import ExitStack

import pytest

from selftests.lib import cgroup, sock, task
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZE = 4 << 20


@option
@pytest.mark.red_on("drop-memcg-charge", "drop-global-charge")
def test_dup_closed(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Closing one of two descriptors leaves the reservation charged."""
    s, charges = sockets.open(), Charges(own_cgroup)
    sock.reserve(s, SIZE)
    s.dup().close()
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (SIZE, SIZE)
    charges.are(SIZE)


@option
@pytest.mark.red_on("round-down")
def test_child_reserves(sockets: sock.Sockets) -> None:
    """What a forked child reserves, its parent reads, and lowers again."""
    s = sockets.open()
    task.run(lambda: sock.reserve(s, SIZE + 1))
    assert sock.reserved(s) == SIZE + sock.PAGE
    sock.reserve(s, 1)
    assert task.run(lambda: sock.reserved(s)) == sock.PAGE


@option
@pytest.mark.red_on("drop-memcg-charge", "drop-global-charge")
@pytest.mark.parametrize("end", [task.Task.end, task.Task.kill], ids=["exit", "kill"])
def test_child_gone(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack, end: task.End) -> None:
    """A child that reserved on its parent's socket and is gone leaves it reserved."""
    s, charges = sockets.open(), Charges(own_cgroup)
    child = task.Task(defer, lambda: sock.reserve(s, SIZE))
    child.result()
    end(child)
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc) == (SIZE, SIZE)
    charges.are(SIZE)


@option
@pytest.mark.red_on("close-leaks", "drop-memcg-charge")
@pytest.mark.parametrize("end", [task.Task.end, task.Task.kill], ids=["exit", "kill"])
def test_last_holder(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack, end: task.End) -> None:
    """What the parent has closed stays charged as long as a child has it open, and not longer."""
    s, charges = sockets.open(), Charges(own_cgroup)
    sock.reserve(s, SIZE)
    child = task.Task(defer, lambda: None)
    child.result()
    s.close()
    charges.are(SIZE)
    end(child)
    charges.are(0)


@option
@pytest.mark.red_on("close-leaks", "drop-memcg-charge")
def test_in_flight(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A socket that is only in a Unix socket's queue keeps its reservation, and gives it back with the queue."""
    s, charges = sockets.open(), Charges(own_cgroup)
    sock.reserve(s, SIZE)
    sender, receiver = task.pass_socket(s)
    s.close()
    charges.are(SIZE)
    sender.close()
    receiver.close()
    charges.are(0)


@option
@pytest.mark.red_on("round-down")
def test_passed_on(sockets: sock.Sockets) -> None:
    """Another process that got the socket by SCM_RIGHTS reads its reservation and changes it."""
    s = sockets.open()
    sock.reserve(s, SIZE + 1)
    sender, receiver = map(sockets.keep, task.pass_socket(s))

    def change() -> int:
        s.close()
        with task.receive_socket(receiver) as twin:
            before = sock.reserved(twin)
            sock.reserve(twin, 4097)
        return before

    assert task.run(change) == SIZE + sock.PAGE
    sender.close()
    assert sock.reserved(s) == 8192


@option
@pytest.mark.red_on("charge-caller")
@pytest.mark.parametrize("how", ["fork", "scm-rights"])
def test_charges_the_creator(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack, how: str) -> None:
    """A process of another cgroup that reserves on a socket charges the cgroup of who created it."""
    ours, theirs = cgroup.split(defer, own_cgroup, "ours", "theirs")
    s, charges = sockets.open(), Charges(ours)
    sender, receiver = map(sockets.keep, task.pass_socket(s))

    def reserve() -> None:
        cgroup.move(theirs.path)
        twin = s if how == "fork" else task.receive_socket(receiver)
        sock.reserve(twin, SIZE)

    task.run(reserve)
    sender.close()
    charges.are(SIZE)
    assert theirs.sock() == 0


@option
@pytest.mark.red_on("charge-caller")
def test_creator_has_moved(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """What a task reserves after it has moved is charged to the cgroup where it created the socket."""
    first, second = cgroup.split(defer, own_cgroup, "first", "second")
    s, charges = sockets.open(), Charges(first)
    cgroup.move(second.path)
    sock.reserve(s, SIZE)
    assert second.sock() == 0
    cgroup.move(first.path)
    charges.are(SIZE)


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_stays_where_it_was_reserved(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """A reservation does not follow its task into another cgroup."""
    first, second = cgroup.split(defer, own_cgroup, "first", "second")
    s, charges = sockets.open(), Charges(first)
    sock.reserve(s, SIZE)
    cgroup.move(second.path)
    assert second.sock() == 0
    cgroup.move(first.path)
    charges.are(SIZE)


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_accepted_elsewhere(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """An accepted socket is on the account of the cgroup of who accepted it, not of the listener's."""
    first, second = cgroup.split(defer, own_cgroup, "first", "second")
    listener = sockets.listener()
    client = sockets.open()
    client.connect(listener.getsockname())
    cgroup.move(second.path)
    child, charges = sockets.keep(listener.accept()[0]), Charges(second)
    sock.reserve(child, SIZE)
    charges.are(SIZE)
    assert first.sock() == 0


@option
@pytest.mark.red_on("drop-memcg-charge")
def test_accepted_of_an_unaccounted_listener(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """What is accepted in a child cgroup can reserve, though its listener, of the root cgroup, can not."""
    with own_cgroup.outside():
        listener = sockets.listener()
        client = sockets.open()
        client.connect(listener.getsockname())
    child, charges = sockets.keep(listener.accept()[0]), Charges(own_cgroup)
    sock.reserve(child, SIZE)
    charges.are(SIZE)


@option
@pytest.mark.red_on("accept-root-cgroup")
def test_accepted_in_the_root_cgroup(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """What is accepted in the root cgroup gets EOPNOTSUPP, though its listener can reserve."""
    listener = sockets.listener()
    sock.reserve(listener, SIZE)
    client = sockets.open()
    client.connect(listener.getsockname())
    with own_cgroup.outside():
        child = sockets.keep(listener.accept()[0])
    sock.refuses(errno.EOPNOTSUPP, sock.reserve, child, SIZE)
