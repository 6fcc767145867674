"""Sockets on which a daemon listens, and how their addresses are written."""

import errno
import ipaddress
import os
import socket

from stormkeeper.errors import ListenError
from stormkeeper.names import host_port


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
