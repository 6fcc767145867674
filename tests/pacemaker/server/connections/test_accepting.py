"""The accept loop: who is let in, and who else has a turn meanwhile."""

import asyncio
import socket
import time

import pytest

from stormkeeper.pacemaker.server.connections.accepting import Acceptor


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


def test_one_that_is_gone_already_keeps_nobody_out(listener):
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
