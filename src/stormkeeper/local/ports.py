"""TCP ports for servers that restart on the same port.

The system takes ports for outgoing connections from a range of its own, and so does port 0: while a
server is down, any connection could take its port. The ports from here are below that range, and
processes of one user never get the same port.
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

#: Linux: the range of ports for outgoing connections.
OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")

#: Its first port by default on Linux; other systems begin higher.
FIRST_OUTGOING: Final = 32_768

#: Well-known servers, ours among them, use lower ports.
LOWEST: Final = 10_000

END: Final = 65_536

#: Folder of the lock file that processes share: not TMPDIR if possible, as each run of `storm
#: local` has its own.
FOLDER: Final = Path("/tmp")

_choice = random.SystemRandom()
_lock = threading.Lock()
_reserved: set[int] = set()
_file: list[int] = []


def reserve(host: str = "127.0.0.1", among: Sequence[int] | None = None) -> int:
    """Return a free port, reserved for this process.

    `among` are the ports to choose from; None for those that outgoing connections never get. Safe
    for many threads. Processes of one user share a file and lock one byte of it for each port; the
    system drops the lock when a process ends. Servers of other users are found by a test bind
    alone. Raises `LocalClusterError` if no port is free, or `host` is no address of this machine.
    """
    among = outside(first_outgoing()) if among is None else among
    start = _choice.randrange(len(among))
    for port in (*among[start:], *among[:start]):
        with _lock:
            if port not in _reserved and _lock_byte(port):
                # Stays reserved if another server uses the port: that server may end and come back.
                _reserved.add(port)
                if is_free(host, port):
                    return port
    raise LocalClusterError(
        f"none of {len(among)} TCP ports of {host} is free: end what uses them, or give outgoing"
        " connections a range that leaves more below it (sysctl net.ipv4.ip_local_port_range)"
    )


def outside(first: int) -> range:
    """Return the ports to choose from if outgoing connections use `first` and above.

    If that range begins too low to leave a port below, every port qualifies.
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
    except (BlockingIOError, PermissionError):  # POSIX allows either error
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
    """Return whether a server could listen on a port.

    Raises `LocalClusterError` if the bind fails for another reason than a port in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Servers set it too: a port with connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise LocalClusterError(
                f"cannot listen on {host}:{port} ({error.strerror}): name an address of this"
                " machine, and a port from 1024 on"
            ) from error
    return True
