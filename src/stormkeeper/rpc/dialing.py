"""Connects to a server, within a deadline that holds for the lookup of its name, too."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from typing import Any, Final

from stormkeeper.conf.address import Address
from stormkeeper.errors import RpcUnavailableError

Candidate = tuple[socket.AddressFamily, tuple[Any, ...]]

#: What a socket's errors mean to whoever dials.
_IN_WORDS: Final = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the server cut the connection",
    errno.EPIPE: "the server closed the connection",
    errno.ETIMEDOUT: "the network timed out",
}


def in_words(error: OSError) -> str:
    """Say what a socket's error means."""
    if isinstance(error, socket.gaierror):  # whose numbers are others
        return f"the host's name could not be looked up: {error.strerror}"
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer in time"
    return _IN_WORDS.get(error.errno or 0) or error.strerror or str(error)


def connect(address: Address, timeout: float) -> socket.socket:
    """Return a TCP connection, its addresses tried in turn, each for its share of the time.

    Parameters
    ----------
    address
        What to connect to.
    timeout
        Seconds.

    Raises
    ------
    RpcUnavailableError
        If none was made.
    """
    deadline = time.monotonic() + timeout
    error: OSError = OSError(errno.EADDRNOTAVAIL, "no address to connect to")
    try:
        candidates = _look_up(address, deadline)
        for tried, candidate in enumerate(candidates):
            left = max(0.001, deadline - time.monotonic())
            try:
                return _connect(candidate, left / (len(candidates) - tried))
            except OSError as reason:
                error = reason
    except OSError as reason:
        error = reason
    raise RpcUnavailableError(f"{address}: {in_words(error)}") from error


def _connect(candidate: Candidate, timeout: float) -> socket.socket:
    family, place = candidate
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(place)
        _check_is_another(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_is_another(connection: socket.socket) -> None:
    """Raise `ConnectionRefusedError` if a socket is connected to itself.

    TCP does that when the kernel gives it the very port that it asks for: nobody listens there.
    """
    if connection.getsockname() == connection.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _look_up(address: Address, deadline: float) -> list[Candidate]:
    """Return where a host is; raises `OSError` alone."""
    try:
        return _resolve(address, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    # The resolver takes as long as it likes; a thread of its own waits for it.
    found: list[list[Candidate] | OSError] = []

    def look_up() -> None:
        try:
            found.append(_resolve(address, 0))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=look_up, name=f"rpc-lookup-{address.host}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # no more threads, for now
        raise OSError(errno.EAGAIN, f"no thread to look up its name: {error}") from error
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        raise OSError(errno.ETIMEDOUT, "its name was not looked up in time")
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _resolve(address: Address, flags: int) -> list[Candidate]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        # A label of the name is empty, or longer than a name server could be asked for.
        raise socket.gaierror(socket.EAI_NONAME, f"no host name: {error}") from error
    return [(family, place) for family, _, _, _, place in found]
