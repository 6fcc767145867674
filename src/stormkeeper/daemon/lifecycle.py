"""How a daemon begins and ends: its ready line, its stop signals, its parent, its limits.

The first SIGTERM or SIGINT asks a daemon to stop; one more than a second later ends it at once.
"""

import ctypes
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, MutableMapping
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from stormkeeper.daemon.logs import is_json
from stormkeeper.errors import ListenError

if TYPE_CHECKING:
    import asyncio


_log = logging.getLogger(__name__)

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

#: Seconds after the first signal in which one more counts as the same. systemd, ``timeout`` and
#: terminals send a signal both to a process and to its group.
_SAME_SIGNAL: Final = 1.0

#: Who starts a daemon that should die with it sets this to its process id (or to ``1``).
DIE_WITH_PARENT: Final = "STORMKEEPER_DIE_WITH_PARENT"

_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>


def announce(line: str) -> None:
    """Say at once that a daemon is ready: on stdout, or, where the log is JSON, as a record of it.

    If stdout and stderr go to the same place, every line there is JSON then.
    """
    if is_json():
        _log.info("%s", line)
        return
    # This bypasses the buffer of `print`, in which another thread may have begun a line.
    os.write(sys.stdout.fileno(), f"{line}\n".encode())
    sys.stdout.flush()


class StopSignals:
    """Turns SIGTERM and SIGINT into a flag while it is entered; for daemons without asyncio.

    Enter it once, in the main thread, as signal handlers require. Any thread may wait for it. At
    the end the former handlers are put back. One more signal within `_SAME_SIGNAL` seconds changes
    nothing. A later one ends the process at once.

    Parameters
    ----------
    also
        Further signals that ask to stop, where they are not ignored.
    at_once
        Called with the later signal's number before the process ends, from within a signal handler.

    Examples
    --------
    >>> with StopSignals() as stop:
    ...     while not stop.wait(0.0):
    ...         break
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
        self._stopped = False
        self._asked_by = ""
        self._stopped_at = 0.0
        # Not a threading.Event: its lock may be held by the very code that a handler interrupts.
        self._reader, self._writer = socket.socketpair()

    def __enter__(self) -> Self:
        heeded = [n for n in self._also if signal.getsignal(n) is not signal.SIG_IGN]
        for number in (*_STOP_SIGNALS, *heeded):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        self._reader.close()
        self._writer.close()

    @property
    def stopped(self) -> bool:
        """Whether a signal has come."""
        return self._stopped

    @property
    def asked_by(self) -> str:
        """The name of the signal that has come first; empty if none has."""
        return self._asked_by

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a signal; return whether one has come."""
        if not self._stopped:
            # What comes is never read, so that every waiting thread sees it.
            with selectors.DefaultSelector() as selector:
                selector.register(self._reader, selectors.EVENT_READ)
                selector.select(max(timeout, 0.0))
        return self._stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self._stopped:
            self._asked_by = signal.Signals(number).name
            self._stopped = True
            self._stopped_at = time.monotonic()
            self._writer.send(b"\0")
        elif time.monotonic() - self._stopped_at > _SAME_SIGNAL:
            try:
                self._at_once(number)
            finally:
                os._exit(128 + number)


def stop_requested(loop: "asyncio.AbstractEventLoop") -> "asyncio.Future[int]":
    """Return a future that the first SIGTERM or SIGINT fulfils with its number.

    For daemons on asyncio. The handlers stay until the loop is closed, or `end_of_signals`. One
    more signal within `_SAME_SIGNAL` seconds changes nothing. A later one ends the process at once.
    """
    stop: asyncio.Future[int] = loop.create_future()
    asked_at = 0.0

    def on_signal(number: int) -> None:
        nonlocal asked_at
        if not stop.done():
            asked_at = loop.time()
            stop.set_result(number)
        elif loop.time() - asked_at > _SAME_SIGNAL:
            name = signal.Signals(number).name
            _log.warning("ended at once by one more %s: what was not yet done is not done", name)
            os._exit(128 + number)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    return stop


def end_of_signals() -> None:
    """Block all signals but SIGKILL while a daemon on asyncio that has stopped comes to its end.

    Call it in the main thread. Without it, a signal that comes while asyncio closes its loop ends
    the process as if it had failed, or meets a loop that is half closed.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_STOP_SIGNALS, signal.SIGHUP})


def die_with_parent() -> None:
    """Arrange for a SIGTERM when the parent dies, if the environment asks for it (Linux only).

    Does nothing unless `DIE_WITH_PARENT` is set, and takes it out of the environment: a daemon that
    this process starts has another parent. Linux sends the signal when the *thread* that started
    this process ends: start such daemons from a thread that outlives them.
    """
    wanted = os.environ.pop(DIE_WITH_PARENT, "")
    if not wanted or sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    # A parent that died before the call sends nothing any more.
    expected = int(wanted) if wanted.isdigit() and wanted != "1" else parent
    if os.getppid() != expected:
        signal.raise_signal(signal.SIGTERM)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this user have; a connection is one."""
    import resource  # noqa: PLC0415 - absent where there are no such limits

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
