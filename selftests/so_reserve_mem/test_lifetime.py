"""How long a reservation stays charged: until the socket is destroyed, by whatever road."""

import os
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from selftests.lib import cgroup, link, sock, task
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZE = 4 << 20
TCP_FIN_WAIT2, TCP_TIME_WAIT = "05", "06"


def states(port: int) -> set[str]:
    """The states that /proc/net/tcp shows for a local port."""
    rows = [line.split() for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]]
    return {row[3] for row in rows if row[1].endswith(f":{port:04X}")}


class Owner:
    """A process that has reserved on sockets of its own, one idle, one connected."""

    def __init__(self) -> None:
        self.opened: list[socket.socket] = []

    def reserve(self) -> int:
        """Open, connect and reserve, in the process that calls; returns what is charged for it, in bytes."""
        sockets = sock.Sockets(ExitStack())
        self.opened = [sockets.open(), *sockets.pair()]
        for s in self.opened[:2]:
            sock.reserve(s, SIZE)
        return sum(map(sock.spare, self.opened))

    def become_another(self) -> None:
        """Reserve, then execute another program, which sleeps."""
        self.reserve()
        os.execv(sys.executable, [sys.executable, "-S", "-E", "-c", "import time; time.sleep(1000)"])


@option
@pytest.mark.red_on("close-leaks", "drop-memcg-charge")
@pytest.mark.parametrize("end", [task.Task.end, task.Task.kill], ids=["exit", "kill"])
def test_end_of_the_process(own_cgroup: Cgroup, defer: ExitStack, end: task.End) -> None:
    """A process that ends with its sockets open, idle or connected, gives back what they have reserved."""
    charges = Charges(own_cgroup)
    owner = task.Task(defer, Owner().reserve)
    size = owner.result()
    assert isinstance(size, int) and size >= 2 * SIZE
    charges.are(size)
    end(owner)
    charges.are(0)


@option
@pytest.mark.red_on("close-leaks")
def test_close_on_exec(own_cgroup: Cgroup, defer: ExitStack) -> None:
    """A process that becomes another program gives back what its close-on-exec sockets have reserved."""
    charges = Charges(own_cgroup)
    owner = task.Task(defer, Owner().become_another)
    with pytest.raises(EOFError):
        owner.result()
    charges.are(0)


@option
@pytest.mark.red_on("close-leaks")
def test_time_wait(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """What is left of a connection in TIME_WAIT has no reservation."""
    charges = Charges(own_cgroup)
    a, b = sockets.pair()
    port = a.getsockname()[1]
    sock.reserve(a, SIZE)
    a.close()
    b.close()
    assert states(port) == {TCP_TIME_WAIT}
    charges.are(0)


@option
@pytest.mark.red_on("close-leaks")
def test_closed_before_the_peer(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Once all data and the FIN are acknowledged the reservation is gone, though the peer goes on."""
    charges = Charges(own_cgroup)
    a, b = sockets.pair()
    port = a.getsockname()[1]
    sock.reserve(a, SIZE)
    a.close()
    assert sock.eventually(lambda: states(port) == {TCP_FIN_WAIT2})  # the ACK of a FIN may be delayed
    charges.are(sock.spare(b))


@option
@pytest.mark.red_on("drop-memcg-charge", "drop-global-charge")
def test_orphan_with_stuck_peer(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A closed socket whose peer does not read keeps its reservation, and loses it when the peer resets."""
    charges = Charges(own_cgroup)
    a, b = sockets.pair()
    sock.reserve(a, SIZE)
    sock.fill(a)
    a.close()
    time.sleep(30)
    assert min(charges.now()) >= SIZE
    sock.abort(b)
    charges.are(0)


@option
@pytest.mark.red_on("close-leaks")
def test_orphan_is_reset(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A socket that is closed with unread data resets the connection and gives its reservation back at once."""
    charges = Charges(own_cgroup)
    a, b = sockets.pair()
    sock.reserve(a, SIZE)
    sock.push(b, 64 << 10)
    a.close()
    b.close()
    charges.are(0)


@option
@pytest.mark.red_on("kill-queues-keeps")
def test_destroyed_before_its_packets(sockets: sock.Sockets, veth: link.Veth, own_cgroup: Cgroup) -> None:
    """A socket that resets its connection gives its reservation back at once, though a packet of it is still queued."""
    with veth.there():
        listener = sockets.listener(address=veth.theirs)
    charges = Charges(own_cgroup)
    a, b = sockets.connect(listener)
    sock.reserve(a, SIZE)
    link.delay(60_000, veth.device)
    a.send(bytes(1000))
    sock.abort(a)
    charges.are(sock.spare(b))


@option
@pytest.mark.red_on("close-leaks")
def test_closed_while_connecting(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A socket that is closed before its SYN was answered gives its reservation back at once."""
    charges = Charges(own_cgroup)
    with ExitStack() as undo:
        listener = sock.Sockets(undo).open()
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):  # the second one finds the backlog full
            client = sock.Sockets(undo).open()
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        sock.reserve(client, SIZE)
    charges.are(0)


@option
@pytest.mark.red_on("close-leaks")
def test_listener_with_children(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """A listener that is closed gives its reservation back together with what nobody has accepted."""
    charges = Charges(own_cgroup)
    listener = sockets.listener()
    sock.reserve(listener, SIZE)
    clients = [sockets.open() for _ in range(8)]
    for client in clients:
        client.connect(listener.getsockname())
        sock.push(client, 64 << 10)
    listener.close()
    for client in clients:
        client.close()
    charges.are(0)


@option
@pytest.mark.red_on("child-inherits")
def test_pending_child(sockets: sock.Sockets) -> None:
    """A child that was queued before its listener reserved, or after, starts without a reservation."""
    listener = sockets.listener()
    sockets.open().connect(listener.getsockname())
    sock.reserve(listener, SIZE)
    sockets.open().connect(listener.getsockname())
    assert [sock.reserved(sockets.keep(listener.accept()[0])) for _ in range(2)] == [0, 0]


@option
@pytest.mark.red_on(
    "charge-anew",
    "reclaims-a-page-too-little",
    "reservation-uncounted",
    "decrease-ignored",
    "decrease-to-zero",
    "decrease-keeps-value",
    "decrease-is-partial",
)
def test_child_reserves_for_itself(sockets: sock.Sockets, own_cgroup: Cgroup) -> None:
    """Child and listener are raised and lowered each for itself."""
    listener = sockets.listener()
    sock.reserve(listener, SIZE)
    client, child = sockets.connect(listener)
    stock = sock.spare(child)
    charges = Charges(own_cgroup)
    sock.reserve(child, SIZE)
    charges.are(SIZE)
    sock.reserve(listener, SIZE // 2)
    charges.are(SIZE // 2)
    assert (sock.reserved(listener), sock.reserved(child), sock.reserved(client)) == (SIZE // 2, SIZE, 0)
    assert sock.spare(child) == SIZE + stock


@option
@pytest.mark.red_on("drop-global-charge", "drop-memcg-charge")
def test_cgroup_goes_first(sockets: sock.Sockets, own_cgroup: Cgroup, defer: ExitStack) -> None:
    """A socket whose cgroup has been removed keeps what it reserved, raises and lowers it, on the parent's account."""
    home, short = cgroup.split(defer, own_cgroup, "home", "short")
    charges = Charges(own_cgroup)
    cgroup.move(short.path)
    s = sockets.open()
    sock.reserve(s, SIZE)
    cgroup.move(home.path)
    short.path.rmdir()
    for size in (SIZE, 2 * SIZE, SIZE // 2):
        sock.reserve(s, size)
        charges.are(size)
    s.close()
    charges.are(0)
