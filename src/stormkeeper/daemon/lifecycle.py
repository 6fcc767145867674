"""The start and end of a daemon: ready line, stop signals, limits, service manager.

The first SIGTERM or SIGINT asks a daemon to stop; another more than a second later ends it at once.
"""

import logging
import os
import resource
import selectors
import signal
import socket
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, MutableMapping
from types import FrameType
from typing import Any, Final, Protocol, Self

from stormkeeper.daemon.logs import is_json
from stormkeeper.errors import ListenError

_log = logging.getLogger(__name__)

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

#: Seconds in which a second signal counts as the first: systemd, ``timeout`` and terminals signal a
#: process and its group.
_SAME_SIGNAL: Final = 1.0

_FIRST_DESCRIPTOR: Final = 3

#: Variables of systemd that children must not inherit.
_VARIABLES: Final = (
    *("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"),
    *("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"),
)


def announce(line: str) -> None:
    """Print a ready line on stdout, or to a JSON log."""
    if is_json():
        _log.info("%s", line)
        return
    # `print`'s buffer may hold part of another thread's line.
    os.write(sys.stdout.fileno(), f"{line}\n".encode())
    sys.stdout.flush()


class Closing(Protocol):
    """A context that ends with `close`."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StopSignals:
    """Turns SIGTERM and SIGINT into a flag while entered.

    Entered once, in the main thread; any thread may wait. `also` are further stop signals, unless
    ignored. A later signal calls `at_once` in the handler and ends the process.
    """

    def __init__(
        self,
        *,
        also: Iterable[signal.Signals] = (),
        at_once: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._previous: dict[signal.Signals, Any] = {}
        self._also = tuple(also)
        self._at_once = at_once
        self.stopped = False
        #: Name of the first signal, or "".
        self.asked_by = ""
        self._stopped_at = 0.0
        # Not a threading.Event: the code that a handler interrupts may hold its lock.
        self._reader, self._writer = socket.socketpair()

    def __enter__(self) -> Self:
        heeded = [n for n in self._also if signal.getsignal(n) is not signal.SIG_IGN]
        for number in (*_STOP_SIGNALS, *heeded):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        self._reader.close()
        self._writer.close()

    async def requested(self) -> None:
        """Wait for a signal, in an event loop."""
        import asyncio  # noqa: PLC0415 - most daemons need none

        loop, is_asked = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._reader, is_asked.set)
        await is_asked.wait()
        loop.remove_reader(self._reader)

    def wait(self, timeout: float) -> bool:
        """Wait for a signal; return whether a signal has arrived."""
        if not self.stopped:
            # Never read, so that every waiting thread wakes.
            with selectors.DefaultSelector() as selector:
                selector.register(self._reader, selectors.EVENT_READ)
                selector.select(max(timeout, 0.0))
        return self.stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.stopped:
            self.asked_by = signal.Signals(number).name
            self.stopped = True
            self._stopped_at = time.monotonic()
            self._writer.send(b"\0")
        elif time.monotonic() - self._stopped_at > _SAME_SIGNAL:
            try:
                self._at_once(number)
            finally:
                os._exit(128 + number)


def end_of_signals() -> None:
    """Block the stop signals and SIGHUP while an asyncio daemon ends, in the main thread.

    A signal while the loop closes would fail the process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOP_SIGNALS, signal.SIGHUP})


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class ServiceManager:
    """A daemon's connection to systemd; does nothing without systemd.

    Speaks sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3).
    """

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        given = {name: environ.pop(name, "") for name in _VARIABLES}
        self._address = given["NOTIFY_SOCKET"]
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]
        self._has_failed = False
        #: Seconds without `alive` before systemd ends this daemon.
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
        """Return the non-blocking listening sockets that systemd passed under `name`, each once.

        `name` is ``FileDescriptorName=``; empty for all. Raises `ListenError` for a socket without
        TCP connections.
        """
        taken = [passed for passed in self._passed if name in ("", passed[0])]
        self._passed = [passed for passed in self._passed if passed not in taken]
        return [_listener(*passed) for passed in taken]

    def ready(self, status: str) -> None:
        """Report the end of a start or a reload."""
        self._tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell("RELOADING=1", f"MONOTONIC_USEC={now}")

    def stopping(self, status: str) -> None:
        self._tell("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        self._tell(f"STATUS={status}")

    def alive(self) -> None:
        """Feed the watchdog: due at least twice in `watchdog` seconds."""
        self._tell("WATCHDOG=1")

    def _tell(self, *assignments: str) -> None:
        if not self._address:
            return
        message = "\n".join(line.replace("\n", " ") for line in assignments)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(message.encode(errors="backslashreplace"), self._address)
        except OSError as error:
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
