"""TCP ports and a folder for a run, which the machine gets back even if the run is killed.

A port has a lock, which the system drops when the process ends. Ports are below the system's range
for outgoing connections, which also serves port 0: there any connection could take the port of a
server that is down.

``python -m stormkeeper.local.reservations FOLDER MARK`` is the reaper of a run. Its standard input
is a pipe from the run. A byte means that the run ended in order; the end of the pipe without a byte
means that the run was killed. Linux signals only the children then, not their child, Spark's JVM.
"""

import contextlib
import errno
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from stormkeeper.daemon.children import end_marked
from stormkeeper.errors import LocalClusterError

#: Linux's range of ports for outgoing connections.
OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")

#: The range's first port on Linux by default; other systems begin higher.
FIRST_OUTGOING: Final = 32_768

#: Well-known servers, ours among them, use lower ports.
LOWEST: Final = 10_000

END: Final = 65_536

#: Folder of the shared lock file: not TMPDIR if possible, as each run has its own.
FOLDER: Final = Path("/tmp")

PREFIX = "stormkeeper-local-"

#: Time for a killed run's processes to end by themselves; only a batch takes longer.
SETTLE_SECS = 1.0

#: For the reaper's own end.
END_SECS = 5.0

#: Often sent to a whole group or service: the reaper ends with its pipe alone.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_IN_ORDER = b"."

_choice = random.SystemRandom()
_lock = threading.Lock()
_reserved: set[int] = set()
_file: list[int] = []


def reserve(host: str = "127.0.0.1", among: Sequence[int] | None = None) -> int:
    """Return a free port, reserved for this process. Safe for many threads.

    `among` are the ports to choose from, by default those that outgoing connections never get.
    Processes of one user lock a byte of a shared file for each port; a test bind finds servers of
    other users. Raises `LocalClusterError` if no port is free, or `host` is not of this machine.
    """
    among = outside(first_outgoing()) if among is None else among
    start = _choice.randrange(len(among))
    for port in (*among[start:], *among[:start]):
        with _lock:
            if port not in _reserved and _lock_byte(port):
                # Even if another server uses the port: that server may end and come back.
                _reserved.add(port)
                if is_free(host, port):
                    return port
    raise LocalClusterError(
        f"none of {len(among)} TCP ports of {host} is free: end what uses them, or give outgoing"
        " connections a range that leaves more below it (sysctl net.ipv4.ip_local_port_range)"
    )


def outside(first: int) -> range:
    """Return the ports below `first`, where outgoing connections begin; if none, all ports."""
    return range(LOWEST, first if first > LOWEST else END)


def first_outgoing() -> int:
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
    """Return whether a port is free; raises `LocalClusterError` if a bind fails otherwise."""
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


def make_run_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a run's temporary folder, a context manager; raises `LocalClusterError`."""
    try:
        return tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise LocalClusterError(
            f"there is no place for the files of a run ({error}): set TMPDIR to a folder that can"
            " be written and has space"
        ) from error


class Reaper:
    """The reaper process of a run, from the run's begin to the end."""

    def __init__(self, folder: str, mark: str) -> None:
        # A session of its own: the reaper must not hold the terminal open.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, folder, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Report an orderly end to the reaper, and wait for the reaper's end."""
        try:
            self._process.communicate(_IN_ORDER, END_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(folder: str, mark: str) -> None:
    """Wait for the end of the run; clean up if the run was killed."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read(1) == _IN_ORDER:
        return
    end_marked(mark, settle_secs=SETTLE_SECS)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
