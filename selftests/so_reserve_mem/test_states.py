"""In which states a TCP socket can reserve, and which events a reservation outlives."""

import errno
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest

from selftests.lib import sock
from selftests.lib.cgroup import Cgroup
from selftests.lib.charges import Charges

option = pytest.mark.introduced_by("so-reserve-mem", "option")
SIZE = 1 << 20
TCP_FIN_WAIT2 = 5
LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
Opened = Callable[[sock.Sockets], socket.socket]


def fresh(sockets: sock.Sockets) -> socket.socket:
    """CLOSE, never used."""
    return sockets.open()


def bound(sockets: sock.Sockets) -> socket.socket:
    """CLOSE, with a port."""
    s = sockets.open()
    s.bind(("127.0.0.1", 0))
    return s


def listening(sockets: sock.Sockets) -> socket.socket:
    """LISTEN."""
    return sockets.listener()


def connecting(sockets: sock.Sockets) -> socket.socket:
    """SYN_SENT: the backlog of the listener is full."""
    listener = sockets.open()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    for _ in range(2):
        client = sockets.open()
        client.setblocking(False)
        client.connect_ex(listener.getsockname())
    return client


def connected(sockets: sock.Sockets) -> socket.socket:
    """ESTABLISHED, by connect()."""
    return sockets.pair()[0]


def accepted(sockets: sock.Sockets) -> socket.socket:
    """ESTABLISHED, by accept()."""
    return sockets.pair()[1]


def finished(s: socket.socket) -> None:
    """Wait until our FIN is acknowledged, which may be delayed: until then it is charged."""
    assert sock.eventually(lambda: s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_FIN_WAIT2)


def half_closed(sockets: sock.Sockets) -> socket.socket:
    """FIN_WAIT2: our direction is shut down."""
    s = connected(sockets)
    s.shutdown(socket.SHUT_WR)
    finished(s)
    return s


def left(sockets: sock.Sockets) -> socket.socket:
    """CLOSE_WAIT: the peer has finished."""
    s, peer = sockets.pair()
    peer.shutdown(socket.SHUT_WR)
    finished(peer)
    assert s.recv(1) == b""
    return s


def reset(sockets: sock.Sockets) -> socket.socket:
    """CLOSE, by the peer's RST."""
    s, peer = sockets.pair()
    sock.abort(peer)
    with suppress(ConnectionResetError):
        s.recv(1)
    return s


def refused(sockets: sock.Sockets) -> socket.socket:
    """CLOSE, after ECONNREFUSED."""
    s, gone = sockets.open(), bound(sockets)
    sock.refuses(errno.ECONNREFUSED, s.connect, gone.getsockname())
    return s


def disconnected(sockets: sock.Sockets) -> socket.socket:
    """CLOSE, by connect(AF_UNSPEC)."""
    s = connected(sockets)
    sock.disconnect(s)
    return s


STATES = [fresh, bound, listening, connecting, connected, accepted, half_closed, left, reset, refused, disconnected]
WITHOUT_PEER = {fresh, bound, listening, connecting, half_closed, left, reset, refused, disconnected}


def state(opened: Opened) -> object:
    """One state, with the fault that keeps a socket in it from reserving."""
    fault = "only-established" if opened in WITHOUT_PEER else "no-forward-alloc"
    return pytest.param(opened, id=opened.__name__, marks=pytest.mark.red_on(fault))


@option
@pytest.mark.parametrize("opened", [state(s) for s in STATES])
def test_state(sockets: sock.Sockets, own_cgroup: Cgroup, opened: Opened) -> None:
    """A TCP socket can reserve in any state, and give it back there."""
    s = opened(sockets)
    charges, start = Charges(own_cgroup), sock.spare(s)
    sock.reserve(s, SIZE)
    assert (sock.reserved(s), sock.spare(s) - start) == (SIZE, SIZE)
    charges.are(SIZE)
    sock.reserve(s, 0)
    assert sock.reserved(s) == 0
    assert sock.spare(s) <= start
    charges.are(sock.spare(s) - start)  # what the socket had in stock before goes with it


def ipv6_pair(sockets: sock.Sockets, address: str) -> socket.socket:
    """The IPv6 end of a connection to an IPv6 or IPv4 listener on loopback."""
    family = socket.AF_INET6 if address == "::1" else socket.AF_INET
    listener = sockets.open(family)
    listener.bind((LOOPBACK[family], 0))
    listener.listen()
    s = sockets.open(socket.AF_INET6)
    s.connect((address, listener.getsockname()[1]))
    return s


@option
@pytest.mark.red_on("ipv4-only")
@pytest.mark.parametrize("address", ["::1", "::ffff:127.0.0.1"], ids=["ipv6", "v4-mapped"])
def test_ipv6_connected(sockets: sock.Sockets, address: str) -> None:
    """An IPv6 socket that is connected reserves as well, also where the connection itself is IPv4."""
    s = ipv6_pair(sockets, address)
    sock.reserve(s, SIZE)
    assert (sock.reserved(s), sock.meminfo(s).fwd_alloc >= SIZE) == (SIZE, True)


@option
@pytest.mark.red_on("ipv4-only")
def test_ipv6_accepts_ipv4(sockets: sock.Sockets) -> None:
    """What a dual-stack listener accepts from an IPv4 client can reserve."""
    listener = sockets.open(socket.AF_INET6)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::", 0))
    listener.listen()
    sockets.open().connect(("127.0.0.1", listener.getsockname()[1]))
    child = sockets.keep(listener.accept()[0])
    sock.reserve(child, SIZE)
    assert (sock.reserved(child), sock.meminfo(child).fwd_alloc >= SIZE) == (SIZE, True)


def listen(s: socket.socket, sockets: sock.Sockets) -> None:
    """Become a listener with a connection pending."""
    s.bind(("127.0.0.1", 0))
    s.listen()
    sockets.open().connect(s.getsockname())


def stop_listening(s: socket.socket, sockets: sock.Sockets) -> None:
    """Be a listener, and no longer."""
    listen(s, sockets)
    sock.disconnect(s)


def use(s: socket.socket, sockets: sock.Sockets) -> socket.socket:
    """Connect and move data both ways; returns the peer."""
    listener = sockets.listener()
    s.connect(listener.getsockname())
    peer = sockets.keep(listener.accept()[0])
    sock.transfer(s, peer, 256 << 10)
    sock.transfer(peer, s, 256 << 10)
    return peer


def shut_down(s: socket.socket, sockets: sock.Sockets) -> None:
    """Be used, then shut down both ways; the peer finishes too."""
    peer = use(s, sockets)
    s.shutdown(socket.SHUT_RDWR)
    peer.close()


def be_left(s: socket.socket, sockets: sock.Sockets) -> None:
    """Be used, then see the peer's FIN."""
    use(s, sockets).shutdown(socket.SHUT_WR)
    assert s.recv(1) == b""


def be_reset(s: socket.socket, sockets: sock.Sockets) -> None:
    """Be used, have data queued, then be reset by the peer."""
    peer = use(s, sockets)
    sock.push(s, 64 << 10)
    sock.abort(peer)
    sock.refuses(errno.ECONNRESET, s.recv, 1)


def be_disconnected(s: socket.socket, sockets: sock.Sockets) -> None:
    """Be used, then connect(AF_UNSPEC)."""
    use(s, sockets)
    sock.disconnect(s)


def be_reused(s: socket.socket, sockets: sock.Sockets) -> None:
    """Be used, disconnected, and used again."""
    be_disconnected(s, sockets)
    be_left(s, sockets)


def be_refused(s: socket.socket, sockets: sock.Sockets) -> None:
    """Try to connect to where nobody listens."""
    sock.refuses(errno.ECONNREFUSED, s.connect, bound(sockets).getsockname())


EVENTS = [stop_listening, shut_down, be_left, be_reset, be_disconnected, be_reused, be_refused]
RECLAIMING = [pytest.param(e, marks=pytest.mark.red_on("reclaim-eats-reservation")) for e in EVENTS]


@option
@pytest.mark.red_on("no-forward-alloc")
@pytest.mark.parametrize("event", [listen, *RECLAIMING], ids=lambda e: e.__name__)
def test_outlives(sockets: sock.Sockets, event: Callable[[socket.socket, sock.Sockets], object]) -> None:
    """A reservation outlives whatever befalls the connection, in getsockopt() and in what the socket has charged."""
    s = sockets.open()
    sock.reserve(s, SIZE)
    event(s, sockets)
    assert (sock.reserved(s), sock.spare(s) >= SIZE) == (SIZE, True)
