import socket
import time

import pytest
from kazoo.handlers.utils import selector_select

from stormkeeper.conf import Address
from stormkeeper.state.zookeeper.handler import Handler
from stormkeeper.state.zookeeper.settings import Settings
from support.pacemaker import nobody


@pytest.fixture
def handler():
    return Handler(Settings(servers=(Address("127.0.0.1", 1),)))


@pytest.fixture
def pairs():
    """Sockets that can be written; the first can be read too, and the third has lost its peer."""
    pairs = [socket.socketpair() for _ in range(3)]
    pairs[0][1].send(b"x")
    pairs[2][1].close()
    yield [mine for mine, _ in pairs]
    for pair in pairs:
        for side in pair:
            side.close()


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_what_is_ready_is_what_kazoo_would_say(handler, pairs, timeout):
    for reading, writing in ((pairs, []), ([], pairs), (pairs[1:2], []), (pairs[:2], pairs[2:])):
        ours = handler.select(reading, writing, [], timeout)
        theirs = selector_select(reading, writing, [], timeout)
        assert [set(side) for side in ours[:2]] == [set(side) for side in theirs[:2]]
        assert ours[2] == []


def test_it_waits_until_something_is_ready(handler, pairs):
    assert handler.select(pairs[:1], [], [], None) == ([pairs[0]], [], [])


def test_it_waits_no_shorter_than_asked(handler, pairs):
    began = time.monotonic()
    assert handler.select(pairs[1:2], [], [], 0.0501) == ([], [], [])
    assert time.monotonic() - began >= 0.05


def test_a_closed_socket_is_an_error_and_not_silence(handler, pairs):
    pairs[0].close()
    with pytest.raises(ValueError, match="negative"):
        handler.select(pairs, [], [], 1.0)


def test_a_connection_that_is_refused_leaves_no_socket(handler):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        with handler.create_connection(address, "localhost", 5.0) as connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    absent = nobody()
    with pytest.raises(ConnectionRefusedError):
        handler.create_connection((absent.host, absent.port), "localhost", 5.0)
