"""Restores a session after each reconnection: registrations, then readers with watches.

The server keeps ephemeral nodes for a session, and watches for a connection. So a new session makes
registrations again, and every new connection reports missed events: readers read again, and leave
new watches. A failed registration is retried, and never replaces an existing node, which another
session may own by right.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.errors import (
    StateAuthenticationError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.tree import Tree

log = logging.getLogger(__name__)

FIRST_PAUSE_SECS: Final = 1.0
LONGEST_PAUSE_SECS: Final = 10.0

#: Pause between looks whether a lost connection must be restarted.
LOOK_SECS: Final = 1.0

_NAMED: Final = 3


class Registrations:
    """Registrations of a session, by path. Safe for many threads."""

    def __init__(
        self, connection: EnsembleConnection, tree: Tree, node: Callable[[str], str]
    ) -> None:
        self._connection = connection
        self._tree = tree
        self._node = node
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        # Missing in the newest session seen.
        self._missing: dict[str, None] = {}
        self._seen_session: int | None = None
        self._failures = FailureStreak(FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS, jitter=0.5)
        self._retry_at = 0.0
        #: Session in which all were last made or tried.
        self.made_in: int | None = None

    def begin(self) -> None:
        self.made_in = self._seen_session = self._connection.session_id

    @contextmanager
    def held(self, deadline: float) -> Iterator[None]:
        """Block recovery of registrations, for `put` and `withdraw`.

        Raises `StateUnavailableError` if a running recovery outlasts the deadline.
        """
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StateUnavailableError(
                "the registrations of this session are being made again, and ZooKeeper has not"
                " answered in time"
            )
        try:
            yield
        finally:
            self._lock.release()

    def put(self, path: str, data: bytes) -> None:
        """Record a made node; only while `held`."""
        self._values[path] = data
        self._missing.pop(path, None)

    def withdraw(self, paths: Collection[str]) -> None:
        """Forget nodes, registered or not; only while `held`."""
        for path in paths:
            self._values.pop(path, None)
            self._missing.pop(path, None)

    def has(self, path: str) -> bool:
        return path in self._values

    def paths(self) -> list[str]:
        return list(self._values)

    def missing(self) -> list[str]:
        return list(self._missing)

    def due_secs(self) -> float | None:
        """Return the time until the next attempt, None if nothing is missing."""
        return max(0.0, self._retry_at - time.monotonic()) if self._missing else None

    def make_again(self) -> None:
        """Make missing registrations of this session, if an attempt is due.

        Raises only errors of a lost connection or a refused session.
        """
        connection = self._connection
        with self.held(connection.deadline()):
            session = connection.session_id
            if session != self._seen_session:
                self._seen_session = session
                self._missing = dict.fromkeys(self._values)
                self._failures.reset()
            elif session == self.made_in and (not self._missing or self.due_secs()):
                return
            wanted = list(self._missing)
            refusals: dict[str, Exception] = {}
            for path in wanted:
                refusal = self._make(path)
                if refusal is None:
                    del self._missing[path]
                else:
                    refusals[path] = refusal
            self.made_in = session
            self._log_outcome([path for path in wanted if path not in refusals], refusals)

    def _make(self, path: str) -> Exception | None:
        """Make a registration; return an error that concerns no others."""
        connection = self._connection
        try:
            # A deadline each: one for all would be too short for many.
            self._tree.recreate_ephemeral(
                self._node(path), self._values[path], connection.deadline()
            )
        except (StateUnavailableError, StateClosedError):
            raise
        except StateAuthenticationError as error:
            if connection.state is not ConnectionState.CONNECTED:
                # The whole session was refused; a new session follows.
                raise
            return error
        except Exception as error:
            return error
        return None

    def _log_outcome(self, made: list[str], refusals: dict[str, Exception]) -> None:
        if made:
            log.info("registered again: %s", _named(made))
        if not refusals:
            self._failures.reset()
            return
        self._retry_at = time.monotonic() + self._failures.record()
        if self._failures.should_log:
            error = next(iter(refusals.values()))
            log.warning(
                "not registered yet, and tried again: %s: %s",
                _named(list(refusals)),
                error,
                # Other errors are defects and need a traceback.
                exc_info=None if isinstance(error, StateError) else error,
            )


def _named(paths: list[str]) -> str:
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {more} more" if more > 0 else "")


class Recovery:
    """Makes registrations again, and calls `on_missed` after each reconnection, on a thread.

    Retries failures until the connection is closed.
    """

    def __init__(
        self,
        connection: EnsembleConnection,
        registrations: Registrations,
        on_missed: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._registrations = registrations
        self._on_missed = on_missed
        self.defects = 0
        #: Number of the connection for which missed events were last reported.
        self._reported_in = 0
        self._thread = PeriodicThread(
            "zookeeper recovery",
            self._restore,
            streak=FailureStreak(FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS, jitter=0.5),
            failure="what the ZooKeeper session had is not back yet",
            logger=log,
        )

    def start(self) -> None:
        self._registrations.begin()
        self._reported_in = self._connection.times_made
        self._thread.start()

    def wake(self) -> None:
        """Look at the connection soon."""
        self._thread.wake()

    def join(self) -> None:
        self._thread.close(LOOK_SECS)

    def _restore(self) -> float | None:
        connection = self._connection
        made = connection.times_made
        try:
            if connection.needs_restart:
                connection.restart()
            elif connection.state is ConnectionState.CONNECTED:
                self._registrations.make_again()
                if made != self._reported_in:
                    self._reported_in = made
                    self._on_missed()
        except Exception as error:
            if connection.closed:
                raise StateClosedError("the session was closed") from error
            self.defects += not isinstance(error, StateError)
            raise
        return self._idle_secs()

    def _idle_secs(self) -> float | None:
        if self._connection.state is not ConnectionState.CONNECTED:
            return LOOK_SECS
        return self._registrations.due_secs()
