"""What systemd and a daemon that it has started tell each other; any other daemon says nothing.

The protocols are those of sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3): datagrams to
the socket that NOTIFY_SOCKET names, and sockets passed as descriptors from 3 on.
"""

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

from stormkeeper.errors import ListenError

_log = logging.getLogger(__name__)

_FIRST_DESCRIPTOR: Final = 3

#: Everything that systemd sets for us alone; a process that we start must not take it for its own.
_VARIABLES: Final = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
)


class ServiceManager:
    """Whoever started this daemon as a service, if anyone did.

    Parameters
    ----------
    environ
        The environment, out of which what systemd put there for this process is taken.
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        given = {name: environ.pop(name, "") for name in _VARIABLES}
        self._address = given["NOTIFY_SOCKET"]
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        self._has_failed = False
        #: Seconds without `alive` after which this daemon is ended; None if it may be silent.
        self.watchdog: float | None = None
        usec, pid = given["WATCHDOG_USEC"], given["WATCHDOG_PID"]
        if usec.isdigit() and int(usec) > 0 and pid in ("", str(os.getpid())):
            self.watchdog = int(usec) / 1_000_000
        count = given["LISTEN_FDS"] if given["LISTEN_PID"] == str(os.getpid()) else ""
        names = given["LISTEN_FDNAMES"].split(":")
        numbers = range(int(count)) if count.isdigit() else range(0)
        self._passed = [
            (names[n] if n < len(names) else "", _FIRST_DESCRIPTOR + n) for n in numbers
        ]

    def take_listeners(self, name: str) -> list[socket.socket]:
        """Return the listening sockets that were passed under `name`; each is returned once.

        They do not block, and a process that we start does not inherit them.

        Parameters
        ----------
        name
            Their ``FileDescriptorName=`` in the socket unit; empty for all that are left.

        Raises
        ------
        ListenError
            If one of them does not listen for TCP connections.
        """
        taken = [passed for passed in self._passed if name in ("", passed[0])]
        self._passed = [passed for passed in self._passed if passed not in taken]
        return [_listener(*passed) for passed in taken]

    def ready(self, status: str) -> None:
        """Say that the daemon serves, after its start or after a reload."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Say that the configuration is read again; `ready` ends it."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell("RELOADING=1", f"MONOTONIC_USEC={now}")

    def stopping(self, status: str) -> None:
        """Say that the daemon is about to end."""
        self._tell("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Say in one line how the daemon fares."""
        self._tell(f"STATUS={status}")

    def alive(self) -> None:
        """Say that the daemon does its work: to be sent at least twice in `watchdog` seconds."""
        self._tell("WATCHDOG=1")

    def _tell(self, *assignments: str) -> None:
        if not self._address:
            return
        message = "\n".join(line.replace("\n", " ") for line in assignments)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(message.encode(errors="backslashreplace"), self._address)
        except OSError as error:
            # The service goes on; systemd will say itself what it misses.
            if not self._has_failed:
                _log.warning("cannot tell systemd %s: %s", assignments[0], error.strerror)
            self._has_failed = True


def _listener(name: str, descriptor: int) -> socket.socket:
    what = f"the descriptor {descriptor} that systemd passed ({name or 'without a name'})"
    try:
        os.set_inheritable(descriptor, False)
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ListenError(f"{what} is no socket: {error.strerror}") from error
    is_tcp = listener.family in (socket.AF_INET, socket.AF_INET6)
    if not is_tcp or not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise ListenError(
            f"{what} does not listen for TCP connections: its socket unit must have"
            " ListenStream=PORT and Accept=no"
        )
    listener.setblocking(False)
    return listener
