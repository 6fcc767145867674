import errno
import os
import selectors
import socket
import threading

import pytest

from stormkeeper.pacemaker.client.client_connection import Dialer
from support.pacemaker import nobody
from support.waiting import DEADLINE_SECS, until

V4 = socket.AF_INET


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.fixture
def selector():
    with selectors.DefaultSelector() as selector:
        yield selector


def dialer(selector, port, host="127.0.0.1", **options):
    return Dialer(host, port, selector=selector, wake=lambda: None, name="lookup", **options)


def connected(dialer):
    """Poll until there is a connection, and close it."""
    made = until(dialer.poll)
    with made:
        return made.getpeername()


def test_an_address_is_connected_to(selector, listener):
    address = listener.getsockname()
    dial = dialer(selector, address[1])
    for _ in range(3):
        dial.start()
        assert connected(dial) == address
    assert not selector.get_map()


def test_nobody_there(selector):
    dial = dialer(selector, nobody().port)
    dial.start()
    with pytest.raises(ConnectionRefusedError):
        until(dial.poll)
    assert not selector.get_map()


def test_an_attempt_is_given_up(selector, listener):
    dial = dialer(selector, listener.getsockname()[1])
    dial.start()
    dial.cancel()
    assert not selector.get_map()
    with pytest.raises(OSError, match="no address"):
        dial.poll()


def names(addresses):
    """Resolve a name to `addresses`, as ``getaddrinfo`` would, and say that it is no address."""

    def resolve(_host, _port, flags):
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return addresses()

    return resolve


def test_the_addresses_of_a_name_are_tried_in_turn(selector, listener):
    address = listener.getsockname()
    refused = ("127.0.0.1", nobody().port)
    found = [(V4, refused), (V4, refused), (V4, address)]
    dial = dialer(selector, 1, "name", resolve=names(lambda: found))
    dial.start()
    assert connected(dial) == address


def test_each_attempt_begins_with_another_address(selector, listener):
    with socket.create_server(("127.0.0.1", 0)) as other:
        addresses = [listener.getsockname(), other.getsockname()]
        found = [(V4, address) for address in addresses]
        dial = dialer(selector, 1, "name", resolve=names(lambda: found))
        reached = []
        for _ in range(4):
            dial.start()
            reached.append(connected(dial))
        assert reached == addresses * 2


def test_a_second_connection_goes_to_the_address_of_the_first(selector, listener):
    with socket.create_server(("127.0.0.1", 0)) as other:
        addresses = [other.getsockname(), listener.getsockname()]
        refused = ("127.0.0.1", nobody().port)
        found = [(V4, refused), *((V4, address) for address in addresses)]
        dial = dialer(selector, 1, "name", resolve=names(lambda: found))
        reached = []
        for again in (False, True, True, False, True, False, True):
            dial.start(again=again)
            reached.append(connected(dial))
        first, second = addresses
        assert reached == [first] * 5 + [second] * 2


def test_a_slow_lookup_blocks_nobody_and_serves_the_next_attempt(selector, listener):
    answer = threading.Event()
    lookups = []

    def slow():
        lookups.append(1)
        answer.wait(DEADLINE_SECS)
        return [(V4, listener.getsockname())]

    dial = dialer(selector, 1, "name", resolve=names(slow))
    for _ in range(5):
        dial.start()
        assert dial.poll() is None
        dial.cancel()
    dial.start()
    answer.set()
    assert connected(dial) == listener.getsockname()
    assert len(lookups) == 1


def test_a_name_without_an_address_is_an_error_each_time(selector):
    def nothing():
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    dial = dialer(selector, 1, "name", resolve=names(nothing))
    for _ in range(2):
        dial.start()
        with pytest.raises(OSError, match="Name or service not known"):
            until(dial.poll)


def test_a_lookup_that_ends_wakes_whoever_polls(selector, listener):
    awake = threading.Event()
    found = [(V4, listener.getsockname())]
    dial = Dialer(
        "name",
        1,
        selector=selector,
        wake=awake.set,
        name="lookup",
        resolve=names(lambda: found),
    )
    dial.start()
    assert awake.wait(DEADLINE_SECS)
    assert connected(dial) == listener.getsockname()


@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
def test_a_name_that_no_name_server_can_be_asked_for(selector, host):
    dial = dialer(selector, 1, host)
    dial.start()
    with pytest.raises(socket.gaierror, match="no host name"):
        until(dial.poll)


def test_a_lookup_that_fails_of_a_defect_ends_the_attempt(selector, caplog):
    def fail(_host, _port, flags):
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "no address")
        raise ValueError("on purpose")

    dial = dialer(selector, 1, "name", resolve=fail)
    for _ in range(2):
        dial.start()
        with pytest.raises(OSError, match="internal error, ValueError"):
            until(dial.poll)
    assert [str(record.exc_info[1]) for record in caplog.records] == ["on purpose"] * 2


def test_a_lookup_for_which_there_is_no_thread_ends_the_attempt(selector, monkeypatch, listener):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    address = listener.getsockname()
    dial = dialer(selector, 1, "name", resolve=names(lambda: [(V4, address)]))
    with monkeypatch.context() as shortage:
        shortage.setattr(threading.Thread, "start", refuse)
        dial.start()
        with pytest.raises(OSError, match="no thread to look up its name"):
            dial.poll()
    dial.start()
    assert connected(dial) == address


def test_a_socket_that_cannot_be_watched_ends_the_attempt(selector, monkeypatch, listener):
    """The system watches so many for each user (fs.epoll.max_user_watches), and no more."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    address = listener.getsockname()
    dial = dialer(selector, address[1])
    with monkeypatch.context() as shortage:
        shortage.setattr(selector, "register", refuse)
        for _ in range(2):
            dial.start()
            with pytest.raises(OSError, match="No space left on device"):
                dial.poll()
    dial.start()
    assert connected(dial) == address
    assert not selector.get_map()
