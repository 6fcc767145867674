"""Accepting connections: a loop that outlives a shortage of descriptors, and limits on numbers.

Connections are counted in all and by address. IPv6 addresses are counted by their /64 network, of
which one machine usually has all. Beyond a limit, `Admission` refuses a connection; `Places` names
an idle one that ends in its place.
"""

import asyncio
import errno
import ipaddress
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from stormkeeper.daemon.logs import counted
from stormkeeper.errors import ListenError
from stormkeeper.names import host_port

_log = logging.getLogger(__name__)

_C = TypeVar("_C", bound=Hashable)

#: Connections that may wait to be accepted: a cluster's workers all come back at once.
BACKLOG: Final = 1_024
#: Connections accepted before others are served again, and how long that may take, in seconds.
AT_ONCE: Final = 64
_ACCEPT_SECONDS: Final = 0.001
#: The same for TLS, where a connection costs most after it has been accepted.
AT_ONCE_OVER_TLS: Final = 4
#: Seconds without accepting when the system has no more descriptors or memory.
_ACCEPT_REST: Final = 1.0
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts connections in an asyncio loop.

    When the system has no more file descriptors, accepting rests for a second; clients wait in the
    backlog.

    Parameters
    ----------
    listener
        A listening socket; closed at the end.
    welcome
        Takes a new connection with the address and the port that it comes from.
    on_shortage
        Told each time that accepting rests.
    at_once
        Connections accepted before others are served again.
    """

    def __init__(
        self,
        listener: socket.socket,
        welcome: Callable[[socket.socket, str, int], None],
        on_shortage: Callable[[], None],
        at_once: int = AT_ONCE,
    ) -> None:
        self._listener = listener
        self._welcome = welcome
        self._on_shortage = on_shortage
        self._at_once = at_once
        self._is_stopped = False

    def start(self) -> None:
        """Begin to accept in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Accept no more; who is in the backlog is reset."""
        self._is_stopped = True
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        ends = self._loop.time() + _ACCEPT_SECONDS
        for _ in range(self._at_once):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self._rest(error)
                return
            try:
                self._welcome(connection, plain_address(address[0]), address[1])
            except OSError:  # reset by the client before it was served
                connection.close()
            if self._loop.time() > ends:
                return

    def _rest(self, error: OSError) -> None:
        _log.error(
            "cannot accept connections: %s; trying again in %g s", error.strerror, _ACCEPT_REST
        )
        self._on_shortage()
        self._loop.remove_reader(self._listener)
        self._loop.call_later(_ACCEPT_REST, self._accept_again)

    def _accept_again(self) -> None:
        if not self._is_stopped:
            self._loop.add_reader(self._listener, self._accept)


def plain_address(address: str) -> str:
    """Return an address as its owner would write it: IPv4 that came in over IPv6 as IPv4."""
    mapped = address.removeprefix("::ffff:")
    return mapped if "." in mapped else address.partition("%")[0]


def network_of(address: str) -> str:
    """Return what stands for everybody who is likely to be the owner of an address."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    except ValueError:
        return address


class Admission:
    """Counts connections, and says which one is too many.

    Parameters
    ----------
    most
        Connections at a time.
    most_per_address
        The same from one address; 0: no limit but `most`.
    keys
        The configuration keys that set the two, for the log; empty where none does.
    """

    def __init__(self, most: int, most_per_address: int, keys: tuple[str, str] = ("", "")) -> None:
        #: May be changed; who is in stays in.
        self.most = most
        self.most_per_address = most_per_address
        self._where = [f" ({key})" if key else "" for key in keys]
        self._by_network: Counter[str] = Counter()

    def refuses(self, address: str, already: int) -> tuple[str, str] | None:
        """Return why a connection from `address` is too many; None if it is not.

        Parameters
        ----------
        address
            Where it comes from.
        already
            Connections that are open, from anywhere.

        Returns
        -------
        tuple of (cause, reason), or None
            A word to count by, and words for the log.
        """
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
        """Count a connection that was let in."""
        self._by_network[network_of(address)] += 1

    def left(self, address: str) -> None:
        """Take back one that is closed."""
        network = network_of(address)
        self._by_network[network] -= 1
        if self._by_network[network] <= 0:
            del self._by_network[network]


class Places(Admission, Generic[_C]):
    """The connections of a server that ends an idle one where a new one would be too many.

    So a client that keeps many connections open locks nobody out.

    Parameters
    ----------
    most, most_per_address, keys
        As for `Admission`.
    """

    def __init__(self, most: int, most_per_address: int, keys: tuple[str, str] = ("", "")) -> None:
        super().__init__(most, most_per_address, keys)
        #: The connections of each network; that which was used the longest ago comes first.
        self._members: dict[str, dict[_C, None]] = {}

    def take(self, connection: _C, address: str) -> None:
        """Note that `connection` from `address` is open."""
        self.entered(address)
        self._members.setdefault(network_of(address), {})[connection] = None

    def used(self, connection: _C, address: str) -> None:
        """Note that `connection` is used now."""
        members = self._members.get(network_of(address), {})
        if connection in members:
            del members[connection]
            members[connection] = None

    def leave(self, connection: _C, address: str) -> None:
        """Note that `connection` is closed."""
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
        """Return the connection that ends so that one from `address` can be let in.

        It is the one of the same address that is idle longest, where that address has as many as it
        may; else that of the address with the most connections. None: no connection has to end, or
        none is idle.

        Parameters
        ----------
        address, already
            As of `refuses`.
        is_idle
            Whether a connection may end.
        """
        refusal = self.refuses(address, already)
        if refusal is None:
            return None
        if refusal[0] == "address":
            groups = [self._members.get(network_of(address), {})]
        else:
            groups = sorted(self._members.values(), key=len, reverse=True)
        return next((member for group in groups for member in group if is_idle(member)), None)


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

    Parameters
    ----------
    host, port
        Where; port 0 is any free one.
    keys
        The configuration keys that say so, for the error.
    backlog
        Connections that may wait to be accepted.
    if_taken
        What to do if something else listens there, for the error.
    if_elsewhere
        The same if the address is not one of this machine's, or its name is not known.
    if_forbidden
        The same if this user may not listen there.

    Raises
    ------
    ListenError
        If the address is not one of this machine's, cannot be looked up, or is taken.
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
    """Return ``HOST:PORT`` of a socket that listens, with the real port; IPv6 in brackets."""
    host, port = listener.getsockname()[:2]
    return host_port(host, port)


def is_loopback(listener: socket.socket) -> bool:
    """Return whether a socket that listens can be reached from this machine alone."""
    host = listener.getsockname()[0].partition("%")[0]
    return ipaddress.ip_address(host).is_loopback
