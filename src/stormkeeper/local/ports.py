"""TCP ports for servers that are to come back on the same one.

A port that the system chooses (port 0) comes from the range of the outgoing connections. So while a
server is down, any connection of anybody may take its port. The ports from here are below that
range, and no other process of the same user gets the same one from here.
"""

import contextlib
import errno
import fcntl
import os
import random
import socket
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stormkeeper.errors import LocalClusterError

#: Where Linux says which ports it gives to outgoing connections.
OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")

#: The first of these by default on Linux; other systems begin higher.
FIRST_OUTGOING: Final = 32_768

#: Below are those of well-known servers, ours among them.
LOWEST: Final = 10_000

#: One more than the highest port.
END: Final = 65_536

#: Where the file is that processes share: not where TMPDIR says, if it can be, as each run of
#: `storm local` has its own.
FOLDER: Final = Path("/tmp")

_choice = random.SystemRandom()
_lock = threading.Lock()
_reserved: set[int] = set()
_file: list[int] = []


def reserve(host: str = "127.0.0.1", among: Sequence[int] | None = None) -> int:
    """Return a port on which nobody listens, and which is this process's until it ends.

    Parameters
    ----------
    host
        Address on which a server will listen.
    among
        Ports to choose from; None for those that are never given to outgoing connections.

    Raises
    ------
    LocalClusterError
        Every one of them is reserved or in use, or nobody can listen on `host`.

    Notes
    -----
    Safe for concurrent use. Processes of one user exclude each other by a lock on one byte for
    each port of a file that they share; the system drops it when they end, however they do. Others
    are noticed by a look at the port alone.
    """
    among = outside(first_outgoing()) if among is None else among
    start = _choice.randrange(len(among))
    for port in (*among[start:], *among[:start]):
        with _lock:
            if port not in _reserved and _lock_byte(port):
                # Kept even where somebody else is there, who may end and come back, too.
                _reserved.add(port)
                if is_free(host, port):
                    return port
    raise LocalClusterError(
        f"none of {len(among)} TCP ports of {host} is free: end what uses them, or give outgoing"
        " connections a range that leaves more below it (sysctl net.ipv4.ip_local_port_range)"
    )


def outside(first: int) -> range:
    """Return the ports to choose from where outgoing connections get those from `first` on.

    Where these begin so low that none is left, all are as good as each other.
    """
    return range(LOWEST, first if first > LOWEST else END)


def first_outgoing() -> int:
    """Return the first port that the system gives to outgoing connections."""
    try:
        return int(OUTGOING.read_text().split()[0])
    except OSError:  # not Linux
        return FIRST_OUTGOING


def _lock_byte(port: int) -> bool:
    if not _file:
        _file.append(_open())
    try:
        fcntl.lockf(_file[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # as POSIX lets a system say that it is taken
        return False
    return True


def _open() -> int:
    with contextlib.suppress(OSError):
        return _opened_in(FOLDER)
    try:
        return _opened_in(Path(tempfile.gettempdir()))
    except OSError as error:
        raise LocalClusterError(
            f"ports cannot be reserved ({error}): set TMPDIR to a folder that can be written"
        ) from error


def _opened_in(folder: Path) -> int:
    path = folder / f"stormkeeper-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there.

    Raises
    ------
    LocalClusterError
        Not because somebody else does.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As a server will: a port with mere leftovers of connections is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise LocalClusterError(
                f"nobody can listen on {host}:{port} ({error.strerror}): name an address of this"
                " machine, and a port from 1024 on"
            ) from error
    return True
