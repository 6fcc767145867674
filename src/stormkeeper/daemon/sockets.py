"""Sockets: of clients, listening ones, a loop that accepts connections, and limits on connections.

IPv6 addresses count by /64, as a machine usually has all of it.
"""

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from stormkeeper.daemon.logs import counted
from stormkeeper.errors import ListenError
from stormkeeper.names import host_port

_log = logging.getLogger(__name__)

_C = TypeVar("_C", bound=Hashable)

#: Connections that may wait: all workers of a cluster reconnect at once.
BACKLOG: Final = 1_024
#: Connections in a turn of the event loop, and the longest turn, in seconds.
AT_ONCE: Final = 64
_ACCEPT_SECONDS: Final = 0.001
#: The same with TLS, whose handshake costs most.
AT_ONCE_OVER_TLS: Final = 4
#: Pause in seconds without descriptors or memory.
_SHORTAGE_PAUSE: Final = 1.0
_RESET_AT_ONCE: Final = struct.pack("ii", 1, 0)
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_CONNECTION_ERRORS: Final = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the server cut the connection",
    errno.EPIPE: "the server closed the connection",
    errno.ETIMEDOUT: "the network timed out",
}

#: Family and address of a server's socket.
Candidate = tuple[socket.AddressFamily, tuple[Any, ...]]


def describe_error(error: OSError) -> str:
    """Describe why a connection to a server failed."""
    if isinstance(error, socket.gaierror):  # has numbers of its own
        return f"the host's name could not be looked up: {error.strerror}"
    return _CONNECTION_ERRORS.get(error.errno or 0) or error.strerror or str(error)


def resolve(host: str, port: int, flags: int = 0) -> list[Candidate]:
    """Look up a server's addresses, in the resolver's order; raise only `OSError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:  # an empty or too long label
        raise socket.gaierror(socket.EAI_NONAME, f"no host name: {error}") from error
    return [(family, address) for family, _, _, _, address in found]


def client_socket(family: socket.AddressFamily) -> socket.socket:
    """Make a TCP socket that sends at once, and notices that the server's machine is gone."""
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def check_not_itself(connection: socket.socket) -> None:
    """Raise `ConnectionRefusedError` if a socket is connected to itself.

    TCP does so if the kernel chooses the dialled port.
    """
    if connection.getsockname() == connection.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def listen(
    host: str,
    port: int,
    *,
    keys: str,
    backlog: int,
    if_taken: str = "",
    if_elsewhere: str = "",
    if_forbidden: str = "",
) -> socket.socket:
    """Return a non-blocking TCP socket that listens; IPv6 wildcards take IPv4 clients too.

    Raises `ListenError` with `keys`, the address's configuration keys, and a remedy if the address
    is in use (`if_taken`), not this machine's or not resolvable (`if_elsewhere`), or needs a
    privilege (`if_forbidden`).
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(
            address,
            family=family,
            backlog=backlog,
            dualstack_ipv6=family == socket.AF_INET6 and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        is_lookup = isinstance(error, socket.gaierror)
        reason = error.strerror if is_lookup else os.strerror(error.errno or 0)
        remedies = {
            errno.EADDRINUSE: if_taken,
            errno.EADDRNOTAVAIL: if_elsewhere,
            errno.EACCES: if_forbidden,
        }
        remedy = if_elsewhere if is_lookup else remedies.get(error.errno or 0, "")
        then = f": {remedy}" if remedy else ""
        raise ListenError(
            f"cannot listen on {host_port(host, port)} ({keys}): {reason}{then}"
        ) from error
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return ``HOST:PORT``, with the real port; IPv6 in brackets."""
    host, port = listener.getsockname()[:2]
    return host_port(host, port)


def is_loopback(listener: socket.socket) -> bool:
    host = listener.getsockname()[0].partition("%")[0]
    return ipaddress.ip_address(host).is_loopback


def plain_address(address: str) -> str:
    """Return an address in the usual form: IPv4 over IPv6 as IPv4, no zone."""
    mapped = address.removeprefix("::ffff:")
    return mapped if "." in mapped else address.partition("%")[0]


def network_of(address: str) -> str:
    """Return the network by which an address counts: IPv4, or IPv6 /64."""
    if ":" not in address:
        return address
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def reset_on_close(connection: socket.socket) -> None:
    """Let the kernel drop unsent bytes on close."""
    with suppress(OSError):  # the peer has reset the connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)


@dataclass(eq=False)
class Acceptor:
    """Accepts connections in an asyncio loop; pauses for a second without free descriptors."""

    listener: socket.socket
    welcome: Callable[[socket.socket, str, int], None]
    on_shortage: Callable[[], None]
    at_once: int = AT_ONCE
    _is_stopped: bool = field(default=False, init=False)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.listener.setblocking(False)
        self._loop.add_reader(self.listener, self._accept)

    def stop(self) -> None:
        """Close the listener; connections in the backlog are reset."""
        self._is_stopped = True
        self._loop.remove_reader(self.listener)
        self.listener.close()

    def pause(self, seconds: float) -> None:
        """Leave connections in the backlog for a while."""
        self._loop.remove_reader(self.listener)
        self._loop.call_later(seconds, self._resume)

    def _accept(self) -> None:
        ends = self._loop.time() + _ACCEPT_SECONDS
        for _ in range(self.at_once):
            try:
                connection, address = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._record_shortage(error)
                return
            try:
                self.welcome(connection, plain_address(address[0]), address[1])
            except OSError:  # the client has reset the connection
                connection.close()
            if self._loop.time() > ends:
                return

    def _record_shortage(self, error: OSError) -> None:
        _log.error(
            "cannot accept connections: %s; trying again in %g s", error.strerror, _SHORTAGE_PAUSE
        )
        self.on_shortage()
        self.pause(_SHORTAGE_PAUSE)

    def _resume(self) -> None:
        if not self._is_stopped:
            self._loop.add_reader(self.listener, self._accept)


class Admission:
    """Counts connections, and refuses connections above a limit; 0: none per address."""

    def __init__(self, most: int, most_per_address: int, keys: tuple[str, str] = ("", "")) -> None:
        #: May change; open connections stay.
        self.most = most
        self.most_per_address = most_per_address
        self._where = [f" ({key})" if key else "" for key in keys]
        self._by_network: Counter[str] = Counter()

    def refuses(self, address: str, already: int) -> tuple[str, str] | None:
        """Return a word to count by and words for the log, if a connection is too many."""
        if already >= self.most:
            open_already = f"{counted(already, 'connection')} open already"
            return "connections", f"{open_already}{self._where[0]}"
        if self.most_per_address:
            same = self._by_network[network_of(address)]
            if same >= self.most_per_address:
                open_already = f"it has {counted(same, 'connection')} open"
                return "address", f"{open_already}{self._where[1]}"
        return None

    def entered(self, address: str) -> None:
        self._by_network[network_of(address)] += 1

    def left(self, address: str) -> None:
        network = network_of(address)
        self._by_network[network] -= 1
        if self._by_network[network] <= 0:
            del self._by_network[network]


class Places(Admission, Generic[_C]):
    """Closes idle connections for new clients, so that no client locks others out."""

    def __init__(self, most: int, most_per_address: int, keys: tuple[str, str] = ("", "")) -> None:
        super().__init__(most, most_per_address, keys)
        #: Least recently used first, by network.
        self._members: dict[str, dict[_C, None]] = {}

    def take(self, connection: _C, address: str) -> None:
        self.entered(address)
        self._members.setdefault(network_of(address), {})[connection] = None

    def used(self, connection: _C, address: str) -> None:
        members = self._members.get(network_of(address), {})
        if connection in members:
            del members[connection]
            members[connection] = None

    def leave(self, connection: _C, address: str) -> None:
        network = network_of(address)
        members = self._members.get(network, {})
        if connection in members:
            del members[connection]
            self.left(address)
        if not members:
            self._members.pop(network, None)

    def given_up(
        self, address: str, already: int, is_idle: Callable[[_C], bool] = lambda _: True
    ) -> _C | None:
        """Return the connection to close for a new connection of `address`.

        That is the least recently used idle connection of the same address at its limit, else of
        the address with the most connections.
        """
        refusal = self.refuses(address, already)
        if refusal is None:
            return None
        if refusal[0] == "address":
            groups = [self._members.get(network_of(address), {})]
        else:
            groups = sorted(self._members.values(), key=len, reverse=True)
        return next((member for group in groups for member in group if is_idle(member)), None)
