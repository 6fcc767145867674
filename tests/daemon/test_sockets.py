"""The accept loop: who is let in, how many, and who else has a turn meanwhile."""

import asyncio
import socket
import time

import pytest

from stormkeeper.daemon.sockets import (
    Acceptor,
    Admission,
    Places,
    address_of,
    is_loopback,
    listen,
    plain_address,
)
from stormkeeper.errors import ListenError


@pytest.fixture
def listener():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    return listener


def run(listener, welcome, count, **options):
    """Accept until `welcome` was called `count` times; return 'w' for each and 't' for a turn."""
    told = []

    async def accept():
        loop = asyncio.get_running_loop()
        is_done = loop.create_future()

        def take_turn():
            told.append("t")
            if not is_done.done():
                loop.call_soon(take_turn)

        def let_in(connection, address, port):
            told.append("w")
            if told.count("w") == count:
                is_done.set_result(None)
            welcome(connection, address, port)

        acceptor = Acceptor(listener, let_in, lambda: None, **options)
        acceptor.start()
        loop.call_soon(take_turn)
        await asyncio.wait_for(is_done, 20)
        acceptor.stop()

    asyncio.run(accept())
    return "".join(told)


def test_others_have_a_turn_between_two_that_take_long(listener):
    clients = [socket.create_connection(listener.getsockname()) for _ in range(10)]

    def welcome(connection, *_):
        time.sleep(0.003)
        connection.close()

    told = run(listener, welcome, len(clients))
    assert told.count("w") == 10
    assert "ww" not in told
    for client in clients:
        client.close()


def test_no_more_than_so_many_are_accepted_in_a_turn(listener):
    clients = [socket.create_connection(listener.getsockname()) for _ in range(10)]
    told = run(listener, lambda connection, *_: connection.close(), len(clients), at_once=2)
    assert told.count("w") == 10
    assert "www" not in told
    for client in clients:
        client.close()


def test_closed_connection_locks_no_client_out(listener):
    clients = [socket.create_connection(listener.getsockname()) for _ in range(3)]
    refused, served = [], []

    def welcome(connection, address, port):
        if not refused:
            refused.append(connection)
            raise OSError("reset")
        served.append((address, port))
        connection.close()

    run(listener, welcome, len(clients))
    assert refused[0].fileno() == -1
    assert served == [client.getsockname() for client in clients[1:]]
    for client in clients:
        client.close()


def test_the_one_too_many_is_told_why():
    admission = Admission(3, 2, ("most.connections", "most.per.address"))
    assert admission.refuses("10.0.0.1", 2) is None
    cause, reason = admission.refuses("10.0.0.1", 3)
    assert (cause, "(most.connections)" in reason) == ("connections", True)


def test_each_address_has_its_own_limit():
    admission = Admission(100, 2, ("", "most.per.address"))
    for _ in range(2):
        assert admission.refuses("10.0.0.1", 0) is None
        admission.entered("10.0.0.1")
    cause, reason = admission.refuses("10.0.0.1", 2)
    assert (cause, "per.address" in reason) == ("address", True)
    assert admission.refuses("10.0.0.2", 2) is None
    admission.left("10.0.0.1")
    assert admission.refuses("10.0.0.1", 1) is None


def test_zero_is_no_limit_per_address():
    admission = Admission(10_000, 0)
    for _ in range(1_000):
        admission.entered("10.0.0.1")
    assert admission.refuses("10.0.0.1", 1_000) is None


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:0:0:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::1", "10.0.0.1", False),
    ],
)
def test_a_network_of_ipv6_counts_as_one(one, other, is_same):
    admission = Admission(100, 1)
    admission.entered(one)
    assert (admission.refuses(other, 1) is not None) is is_same


def test_who_left_is_forgotten():
    admission = Admission(100, 1)
    for n in range(100):
        admission.entered(f"10.0.0.{n}")
        admission.left(f"10.0.0.{n}")
    assert not admission._by_network


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::1", "::1"),
    ],
)
def test_addresses_are_written_plainly(given, plain):
    assert plain_address(given) == plain


class TestPlaces:
    """The connections of a server that ends idle ones for new ones."""

    @pytest.fixture
    def places(self):
        places = Places(5, 3)
        for name in ("a1", "b1", "a2", "a3"):
            places.take(name, f"10.0.0.{ord(name[0])}")
        return places

    def test_nothing_ends_where_there_is_room(self, places):
        assert places.given_up("10.0.0.98", 4) is None

    def test_the_same_address_comes_first(self, places):
        assert places.given_up("10.0.0.97", 4) == "a1"
        places.used("a1", "10.0.0.97")
        assert places.given_up("10.0.0.97", 4) == "a2"

    def test_then_the_address_with_the_most(self, places):
        places.take("c1", "10.0.0.99")
        assert places.given_up("10.0.0.98", 5) == "a1"

    def test_busy_ones_stay(self, places):
        assert places.given_up("10.0.0.97", 4, lambda each: each == "a3") == "a3"
        assert places.given_up("10.0.0.97", 4, lambda _: False) is None
        assert places.given_up("10.0.0.98", 5, lambda each: each == "b1") == "b1"

    def test_what_has_left_is_forgotten(self, places):
        for name in ("a1", "b1", "a2", "a3", "a3"):
            places.leave(name, f"10.0.0.{ord(name[0])}")
        assert not places._members
        assert places.refuses("10.0.0.97", 0) is None


def test_it_listens_on_a_free_port_and_does_not_block():
    with listen("127.0.0.1", 0, keys="a.host, a.port", backlog=2) as listener:
        host, _, port = address_of(listener).rpartition(":")
        assert host == "127.0.0.1"
        with pytest.raises(BlockingIOError):
            listener.accept()
        with socket.create_connection((host, int(port)), 5), pytest.raises(ListenError) as taken:
            listen(host, int(port), keys="a.host, a.port", backlog=2)
        with pytest.raises(ListenError) as with_remedy:
            listen(host, int(port), keys="a.host, a.port", backlog=2, if_taken="take another")
    assert str(taken.value) == (
        f"cannot listen on 127.0.0.1:{port} (a.host, a.port): Address already in use"
    )
    assert str(with_remedy.value) == f"{taken.value}: take another"


def test_foreign_address_is_reported():
    with pytest.raises(ListenError, match=r"nosuch\.invalid:1 \(a\.host\): Name or service"):
        listen("nosuch.invalid", 1, keys="a.host", backlog=1)
    with pytest.raises(ListenError, match=r"Cannot assign requested address$"):
        listen("192.0.2.1", 0, keys="a.host", backlog=1, if_taken="take another")


@pytest.mark.parametrize(("host", "is_alone"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_who_reaches_it(host, is_alone):
    with listen(host, 0, keys="a.host, a.port", backlog=1) as listener:
        assert is_loopback(listener) is is_alone
