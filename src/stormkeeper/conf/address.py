"""Where a server listens: a host and a port, and how they are written in one word."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from stormkeeper.errors import ConfigError

MAX_PORT = 65535

#: A name or an IPv4 address. No comma, as a list of hosts is no host.
_HOST = re.compile(r"[^\s/:,\[\]]+")


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a port.

    Parameters
    ----------
    host
        A host name, an IPv4 address, or an IPv6 address without brackets.
    port
        0 to 65535; 0 means "any free port" to a server, and nothing to a client.

    Examples
    --------
    >>> str(Address.parse("pacemaker-1", 6699))
    'pacemaker-1:6699'
    >>> Address.parse("[::1]:7000", 6699)
    Address(host='::1', port=7000)
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int) -> Address:
        """Read ``host``, ``host:port``, ``[v6]``, ``[v6]:port`` or a bare IPv6 address.

        Parameters
        ----------
        text
            What was written; blanks around it do not count.
        default_port
            The port where none is written.

        Raises
        ------
        ConfigError
            When `text` is none of these, or its port is not from 1 to 65535.
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
        if bracket and _is_v6(host) and (not rest or rest.startswith(":")):
            return host, rest[1:] if rest else None
    elif text.count(":") > 1:
        if _is_v6(text):
            return text, None
    else:
        host, colon, port = text.partition(":")
        if _HOST.fullmatch(host):
            return host, port if colon else None
    raise ConfigError(f"{text!r} is not host, host:port or [IPv6 address]:port")


def _is_v6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
