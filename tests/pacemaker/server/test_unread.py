"""Whose answers the system holds, of real connections."""

import os
import socket
from contextlib import ExitStack

import pytest

from stormkeeper.pacemaker.server.unread import unacknowledged
from support.waiting import until


@pytest.fixture(params=["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def connect(request):
    """Return what makes connections to one port, as (client, server)."""
    with ExitStack() as stack:
        family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
        host = "::" if "ffff" in request.param else request.param
        try:
            listener = stack.enter_context(
                socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::")
            )
        except OSError:
            pytest.skip("no IPv6 here")

        def connect():
            address = request.param.removeprefix("::ffff:"), listener.getsockname()[1]
            client = stack.enter_context(socket.create_connection(address))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            server, _ = listener.accept()
            stack.enter_context(server).setblocking(False)
            return client, server

        yield connect


def test_who_does_not_read_is_told_from_who_does(connect):
    (deaf, at_deaf), (reader, at_reader), (other, _) = connect(), connect(), connect()
    port = at_deaf.getsockname()[1]
    at_deaf.send(bytes(500_000))
    at_reader.send(bytes(5000))
    got = 0
    while got < 5000:
        got += len(reader.recv(5000))
    # Its end of stream is not an answer.
    at_reader.shutdown(socket.SHUT_WR)
    other.close()
    until(lambda: unacknowledged(port) == {deaf.getsockname()[:2]})
    assert unacknowledged(port + 1) == set()
    deaf.close()  # which resets it
    until(lambda: unacknowledged(port) == set())


def test_what_is_no_connection_is_passed_over(tmp_path):
    reader, writer = os.pipe()
    try:
        os.write(writer, b"something")
        pair = socket.socketpair()
        pair[0].send(b"something")
        assert unacknowledged(0) == set()
        for end in pair:
            end.close()
    finally:
        os.close(reader)
        os.close(writer)
    assert unacknowledged(0, tmp_path / "missing") == set()
