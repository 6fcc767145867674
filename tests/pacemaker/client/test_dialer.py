import asyncio
import errno
import os
import socket
import threading

import pytest

from stormkeeper.pacemaker.client.connection_opener import Dialer
from support.pacemaker import nobody
from support.waiting import DEADLINE_SECS

V4 = socket.AF_INET


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def dialer(port, host="127.0.0.1", **options):
    return Dialer(host, port, name="lookup", **options)


def connected(dial, *again):
    """Connect once for each `again`, close the connections, and return the peers' addresses."""

    async def connect():
        reached = []
        for to_the_same in again or (False,):
            with await dial.connect(again=to_the_same) as made:
                reached.append(made.getpeername())
        return reached

    return asyncio.run(connect())


def test_an_address_is_connected_to(listener):
    address = listener.getsockname()
    assert connected(dialer(address[1]), False, False, False) == [address] * 3


def test_nobody_there():
    with pytest.raises(ConnectionRefusedError):
        connected(dialer(nobody().port))


def test_an_attempt_is_given_up():
    """A listener whose queue is full answers no attempt."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())

        async def give_up():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await dialer(full.getsockname()[1]).connect()

        asyncio.run(give_up())
        for filler in fillers:
            filler.close()


def names(addresses):
    """Resolve a name to `addresses`, as ``getaddrinfo`` would, and say that it is no address."""

    def resolve(_host, _port, flags):
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return addresses()

    return resolve


def test_the_addresses_of_a_name_are_tried_in_turn(listener):
    address = listener.getsockname()
    refused = ("127.0.0.1", nobody().port)
    found = [(V4, refused), (V4, refused), (V4, address)]
    assert connected(dialer(1, "name", resolve=names(lambda: found))) == [address]


def test_each_attempt_begins_with_another_address(listener):
    with socket.create_server(("127.0.0.1", 0)) as other:
        addresses = [listener.getsockname(), other.getsockname()]
        found = [(V4, address) for address in addresses]
        dial = dialer(1, "name", resolve=names(lambda: found))
        assert connected(dial, *[False] * 4) == addresses * 2


def test_second_connection_goes_to_the_first_ones_address(listener):
    with socket.create_server(("127.0.0.1", 0)) as other:
        addresses = [other.getsockname(), listener.getsockname()]
        refused = ("127.0.0.1", nobody().port)
        found = [(V4, refused), *((V4, address) for address in addresses)]
        dial = dialer(1, "name", resolve=names(lambda: found))
        reached = connected(dial, False, True, True, False, True, False, True)
        first, second = addresses
        assert reached == [first] * 5 + [second] * 2


def test_a_slow_lookup_serves_the_next_attempt(listener):
    answer, lookups = threading.Event(), []

    def slow():
        lookups.append(1)
        answer.wait(DEADLINE_SECS)
        return [(V4, listener.getsockname())]

    async def connect():
        dial = dialer(1, "name", resolve=names(slow))
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await dial.connect()
        answer.set()
        with await dial.connect() as made:
            return made.getpeername()

    assert asyncio.run(connect()) == listener.getsockname()
    assert len(lookups) == 1


def test_a_name_without_an_address_is_an_error_each_time():
    def nothing():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    dial = dialer(1, "name", resolve=names(nothing))
    for _ in range(2):
        with pytest.raises(OSError, match="Name or service not known"):
            connected(dial)


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
def test_a_name_that_no_name_server_can_be_asked_for(host):
    with pytest.raises(socket.gaierror, match="no host name"):
        connected(dialer(1, host))


def test_a_lookup_without_thread_ends_the_attempt(monkeypatch, listener):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    address = listener.getsockname()
    dial = dialer(1, "name", resolve=names(lambda: [(V4, address)]))
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread to look up its name"):
            connected(dial)
    assert connected(dial) == [address]


def test_errors_have_the_systems_text(monkeypatch, listener):
    """Not asyncio's, which is the same for all."""

    def refuse(*_):
        raise OSError(errno.EHOSTUNREACH, "Connect call failed")

    async def connect():
        monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", refuse, raising=False)
        await dialer(listener.getsockname()[1]).connect()

    with pytest.raises(OSError, match=os.strerror(errno.EHOSTUNREACH)):
        asyncio.run(connect())
