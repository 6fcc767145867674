"""TCP ports and a folder for a run, which the machine gets back even if the run is killed.

``python -m stormkeeper.local.reservations FOLDER MARK`` is the reaper of a run. Its standard input
is a pipe from the run. A byte means that the run ended in order; the end of the pipe without a byte
means that the run was killed. Linux signals only the children then, not their child, Spark's JVM.
"""

import errno
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Self

from stormkeeper.daemon.children import end_marked
from stormkeeper.errors import LocalClusterError

PREFIX = "stormkeeper-local-"

#: Time for a killed run's processes to end by themselves; only a batch takes longer.
SETTLE_SECS = 1.0

#: For the reaper's own end.
END_SECS = 5.0

#: Often sent to a whole group or service: the reaper ends with its pipe alone.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_IN_ORDER = b"."

#: Bound sockets that do not listen, until this process ends.
_holders: list[socket.socket] = []


def reserve(host: str = "127.0.0.1") -> int:
    """Return a free port, reserved for servers of this run: Linux gives it to nobody else.

    A server that sets SO_REUSEADDR can listen there, again and again. While no server does, no
    outgoing connection gets the port either. Raises `LocalClusterError` if `host` is not of this
    machine, or all ports are in use.
    """
    holder = _socket(host)
    try:
        holder.bind((host, 0))
    except OSError as error:
        holder.close()
        raise LocalClusterError(
            f"no TCP port of {host} can be reserved ({error.strerror}): name an address of this"
            " machine, or end what uses its ports"
        ) from error
    # Not before the port is chosen, which may be that of another holder then.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _holders.append(holder)
    port: int = holder.getsockname()[1]
    return port


def is_free(host: str, port: int) -> bool:
    """Return whether a port is free; raises `LocalClusterError` if a bind fails otherwise."""
    with _socket(host) as probe:
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


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


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
