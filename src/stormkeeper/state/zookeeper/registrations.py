"""The ephemeral nodes of a process, made again in each new session until they are there.

One that cannot be made, as the servers refuse it or something else is at its path, keeps no other
from being made. It is tried again, after pauses that grow, until it is there or is withdrawn; what
is there is never replaced, as it may be another session's by right.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from stormkeeper.errors import (
    StateAuthenticationError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.zookeeper.connection import Connection
from stormkeeper.state.zookeeper.tree import Tree

log = logging.getLogger(__name__)

#: The first pause, each twice the one before, and the longest, in seconds.
FIRST_PAUSE_SECS: Final = 1.0
LONGEST_PAUSE_SECS: Final = 10.0

#: How many paths a line of the log names.
_NAMED: Final = 3


class Failures:
    """Failures in a row of what is tried again for ever: how long to wait, and what to log."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def failed(self) -> float:
        """Count one, and return the pause before the next attempt, in seconds.

        Clients of one ensemble that failed together do not try again together.
        """
        longest = FIRST_PAUSE_SECS * 2.0 ** min(self._in_a_row, 30)
        self._in_a_row += 1
        return min(longest, LONGEST_PAUSE_SECS) * random.uniform(0.5, 1.0)

    @property
    def is_told(self) -> bool:
        """Whether the newest is logged: the first, the second, the fourth and so on."""
        return self._in_a_row & (self._in_a_row - 1) == 0

    def forget(self) -> None:
        """Take note that it went well."""
        self._in_a_row = 0


class Registrations:
    """The registrations of a session, by path. Safe for many threads.

    Parameters
    ----------
    connection
        Whose sessions are followed.
    tree
        Makes the nodes.
    node
        Returns the whole path in ZooKeeper.
    """

    def __init__(self, connection: Connection, tree: Tree, node: Callable[[str], str]) -> None:
        self._connection = connection
        self._tree = tree
        self._node = node
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        # Those that are still to be made in the newest session that was seen.
        self._missing: dict[str, None] = {}
        self._seen_session: int | None = None
        self._failures = Failures()
        self._retry_at = 0.0
        #: The session that all were last made in, or were tried.
        self.made_in: int | None = None

    def begin(self) -> None:
        """Take note of the first session."""
        self.made_in = self._seen_session = self._connection.session_id

    @contextmanager
    def held(self, deadline: float) -> Iterator[None]:
        """Keep them, and their nodes, from being made again; to `put` and to `withdraw`.

        Raises
        ------
        StateUnavailableError
            They are being made again, and were not done by the deadline.
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
        """Remember a node that was made; while `held`."""
        self._values[path] = data
        self._missing.pop(path, None)

    def withdraw(self, paths: Collection[str]) -> None:
        """Forget nodes, registered or not; while `held`."""
        for path in paths:
            self._values.pop(path, None)
            self._missing.pop(path, None)

    def has(self, path: str) -> bool:
        """Return whether there is a registration at a path, as of now."""
        return path in self._values

    def paths(self) -> list[str]:
        """Return where there are registrations, as of now."""
        return list(self._values)

    def missing(self) -> list[str]:
        """Return the paths of those that are not there yet, as of now."""
        return list(self._missing)

    def due_secs(self) -> float | None:
        """Return when the next attempt is due; None: when there is a new session."""
        return max(0.0, self._retry_at - time.monotonic()) if self._missing else None

    def make_again(self) -> None:
        """Make what is not there in this session, if that is due.

        Raises
        ------
        StateUnavailableError, StateClosedError
            The connection is gone; the rest is made when it is back.
        StateAuthenticationError
            So is the session, whose user was refused.
        """
        connection = self._connection
        with self.held(connection.deadline()):
            session = connection.session_id
            if session != self._seen_session:
                self._seen_session = session
                self._missing = dict.fromkeys(self._values)
                self._failures.forget()
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
            self._tell([path for path in wanted if path not in refusals], refusals)

    def _make(self, path: str) -> Exception | None:
        """Make one again; returns why not, if that is a matter of this one alone."""
        connection = self._connection
        try:
            # Each has its own time: all together, many would never be done.
            self._tree.recreate_ephemeral(
                self._node(path), self._values[path], connection.deadline()
            )
        except (StateUnavailableError, StateClosedError):
            raise
        except StateAuthenticationError as error:
            if connection.state is not ConnectionState.CONNECTED:
                # The whole session was refused; another one will be made.
                raise
            return error
        except Exception as error:
            return error
        return None

    def _tell(self, made: list[str], refusals: dict[str, Exception]) -> None:
        if made:
            log.info("registered again: %s", _named(made))
        if not refusals:
            self._failures.forget()
            return
        self._retry_at = time.monotonic() + self._failures.failed()
        if self._failures.is_told:
            error = next(iter(refusals.values()))
            log.warning(
                "not registered yet, and tried again: %s: %s",
                _named(list(refusals)),
                error,
                # With what is not said by a store there is no telling without it.
                exc_info=None if isinstance(error, StateError) else error,
            )


def _named(paths: list[str]) -> str:
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {more} more" if more > 0 else "")
