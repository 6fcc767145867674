"""Hosts and addresses: parsing, and the names of supervisors and this machine."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stormkeeper.errors import ConfigError
from stormkeeper.names import host_fault, host_port, is_ipv6

MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host (an IPv6 address without brackets) and a port; 0 is any free port of a server.

    Examples
    --------
    >>> Address.parse("[::1]:7000", 6699)
    Address(host='::1', port=7000)
    """

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)

    @classmethod
    def parse(cls, text: str, default_port: int) -> Address:
        """Read ``host``, ``host:port``, ``[v6]``, ``[v6]:port`` or a bare IPv6 address.

        Raises `ConfigError` for other texts, and ports outside 1 to 65535.
        """
        host, port = _split(text.strip())
        if port is None:
            return cls(host, default_port)
        if not (port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT):
            raise ConfigError(f"{text!r} has no port from 1 to {MAX_PORT} after its colon")
        return cls(host, int(port))


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if bracket and is_ipv6(host) and (not rest or rest.startswith(":")):
            return host, rest[1:] if rest else None
    elif text.count(":") > 1:
        if is_ipv6(text):
            return text, None
    else:
        host, colon, port = text.partition(":")
        if host and not any(char.isspace() or char in "/,[]" for char in host):
            return check_host(host), port if colon else None
    raise ConfigError(f"{text!r} is not host, host:port or [IPv6 address]:port")


def check_host(text: str) -> str:
    """Return a host name or IP address; raise `ConfigError` if invalid."""
    if fault := host_fault(text):
        raise ConfigError(fault)
    return text


#: Storm's and ours: a UUID and the name of the machine.
_SUPERVISOR: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-(.+)")
_SHORT: Final = 8


def host_of_supervisor(supervisor_id: str) -> str:
    """Return the host in a supervisor's id, or else the id.

    Examples
    --------
    >>> host_of_supervisor("eec5b68f-0032-4df7-9536-92917191a74d-node-7")
    'node-7'
    """
    found = _SUPERVISOR.fullmatch(supervisor_id)
    return supervisor_id if found is None else found[1]


def supervisor_names(hosts: Mapping[str, str]) -> dict[str, str]:
    """Return display names by supervisor: the host, with a short id on a shared host.

    Examples
    --------
    >>> list(supervisor_names({"0123456789": "n-1", "abcdefghij": "n-1"}).values())
    ['n-1 (01234567)', 'n-1 (abcdefgh)']
    """
    shared = Counter(hosts.values())
    return {
        id_: f"{host} ({id_[:_SHORT]})" if shared[host] > 1 and id_ != host else host
        for id_, host in hosts.items()
    }


def hostname(conf: Mapping[str, Any]) -> str:
    """Return this machine's name: ``storm.local.hostname`` or the system's name.

    Asks no name server. Raises `ConfigError` if the system's name is invalid.
    """
    configured: str | None = conf["storm.local.hostname"]
    if configured:
        return configured
    try:
        return check_host(socket.gethostname())
    except ConfigError as error:
        raise ConfigError(f"this system's host name: {error}; set storm.local.hostname") from error
