"""Connections for which the system chooses just the port that a test names, if it may."""

import contextlib
import errno
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import Final

import pytest

#: Of Linux, 6.3 and newer: the ports to choose from, within those of outgoing connections.
IP_LOCAL_PORT_RANGE: Final = 51


@contextlib.contextmanager
def connected_from(wanted: Iterable[int]) -> Iterator[list[int]]:
    """Open a connection from each port, if the system gives it to one, and yield these ports.

    So chance has no part in what the system does for all connections that leave the choice to it.
    """
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        got = []
        for port in wanted:
            client = stack.enter_context(socket.socket())
            try:
                client.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only(port))
            except OSError:
                pytest.skip("this system does not let a connection narrow the choice of its port")
            try:
                client.connect(listener.getsockname())
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
            else:
                got.append(client.getsockname()[1])
        yield got


def only(port: int) -> bytes:
    return struct.pack("=I", port << 16 | port)
