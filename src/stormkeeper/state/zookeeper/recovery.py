"""What a session had, put back after each reconnection: its registrations, then its watches.

The server keeps ephemeral nodes for as long as the session, and watches for as long as one
connection. So registrations are made again in a new session, and watches are left again in every
new connection, after what they missed has been told.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kazoo.protocol.states import ZnodeStat

from stormkeeper.errors import (
    NoNodeError,
    StateAuthenticationError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.watches import ArmedWatches, NodeChanges, NodeWatch, WatchKind
from stormkeeper.state.zookeeper import requests
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.requests import Request, Watcher
from stormkeeper.state.zookeeper.tree import Tree

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

    def __init__(
        self, connection: EnsembleConnection, tree: Tree, node: Callable[[str], str]
    ) -> None:
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


log = logging.getLogger(__name__)

#: How often it is looked whether a connection that is away has to be started again, in seconds.
LOOK_SECS: Final = 1.0

#: What the watcher of something is told that may not be looked at any more.
_DENIED: Final = {
    WatchKind.NODE: EventType.NODE_DATA_CHANGED,
    WatchKind.CHILDREN: EventType.NODE_CHILDREN_CHANGED,
}


class Recovery:
    """The thread that puts back a session's registrations and armed watches.

    Nothing ends it but the end of the connection: what it fails of is logged and tried again.

    Parameters
    ----------
    connection
        Whose reconnections are followed.
    registrations
        Which this has made again.
    node
        Returns the whole path in ZooKeeper.
    armed
        The watches, which this leaves again.
    watcher
        What kazoo tells events of them.
    tell
        Takes the events that they missed, and ``EVENTS_MISSED``.
    """

    def __init__(
        self,
        connection: EnsembleConnection,
        registrations: Registrations,
        node: Callable[[str], str],
        *,
        armed: ArmedWatches,
        watcher: Watcher,
        tell: Callable[[EventType, str], None],
    ) -> None:
        self._connection = connection
        self._registrations = registrations
        self._node = node
        self._armed = armed
        self._watcher = watcher
        self._tell = tell
        #: How often it failed of what it should never fail of.
        self.defects = 0
        self._failures = Failures()
        # The newest session whose predecessor's end was told.
        self._told_in: int | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zookeeper recovery", daemon=True)

    def start(self) -> None:
        """Follow the connection, which has its first session now."""
        self._registrations.begin()
        self._told_in = self._registrations.made_in
        self._thread.start()

    def wake(self) -> None:
        """Look at the connection; does not wait for it."""
        self._wake.set()

    def join(self) -> None:
        """Wait a little for the thread to end, after the connection was closed."""
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(LOOK_SECS)

    def _run(self) -> None:
        connection = self._connection
        while not connection.closed:
            is_news = self._wake.wait(self._idle_secs())
            if is_news:
                # Not where the time was up: news may have come since, and nobody has looked.
                self._wake.clear()
            try:
                if connection.dead:
                    connection.restart()
                elif connection.state is ConnectionState.CONNECTED:
                    self._put_back(is_news)
            except StateClosedError:
                pass
            except BaseException as error:
                self._failed(error)
            else:
                self._failures.forget()

    def _failed(self, error: BaseException) -> None:
        """Say what was not put back, and wait a little; it is all tried again."""
        if self._connection.closed:
            return
        is_defect = not isinstance(error, StateError)
        self.defects += is_defect
        pause = self._failures.failed()
        if self._failures.is_told:
            log.log(
                logging.ERROR if is_defect else logging.WARNING,
                "what the ZooKeeper session had is not back yet%s: %s",
                ", by a defect of Stormkeeper" * is_defect,
                repr(error) if is_defect else error,
                exc_info=error if is_defect else None,
            )
        self._connection.wait_changed(pause)
        self._wake.set()

    def _idle_secs(self) -> float | None:
        """Return how long there is nothing to do; None: until something happens."""
        if self._connection.state is not ConnectionState.CONNECTED:
            return LOOK_SECS
        return self._registrations.due_secs()

    def _put_back(self, is_news: bool) -> None:
        """Put back what is not there; only registrations where nothing has happened."""
        self._registrations.make_again()
        self._tell_new_session()
        if is_news:
            self._look_again()

    def _tell_new_session(self) -> None:
        made_in = self._registrations.made_in
        if made_in != self._told_in:
            self._told_in = made_in
            self._tell(EventType.EVENTS_MISSED, "/")

    def _look_again(self) -> None:
        """Tell what the armed watches missed, and arm those again that missed nothing.

        Not those that were left in this connection: such a watch may fire at any moment, and if it
        did so just before it is left again, it would fire twice.
        """
        made = self._connection.times_made
        # First without arming: what a watch missed must not leave it armed for a second time.
        for arm in (False, True):
            watches = self._armed.left_before(made)
            answers = self._connection.gather(
                [self._look(watch, arm) for watch in watches], self._connection.deadline()
            )
            for watch, answer in zip(watches, answers, strict=True):
                if isinstance(answer, StateError) and not isinstance(answer, NoNodeError):
                    # Whoever looks again is told the same.
                    log.warning("the watch of %s could not be left again: %s", watch.path, answer)
                    event: EventType | None = _DENIED[watch.watched]
                else:
                    event = self._armed.missed(watch, _seen(answer))
                if event is not None:
                    self._tell(event, watch.path)
                elif arm:
                    self._armed.left_again(watch, made)

    def _look(self, watch: NodeWatch, arm: bool) -> Request:
        node = self._node(watch.path)
        if arm and watch.watched is WatchKind.CHILDREN:
            return requests.children_and_stat(node, self._watcher)
        return requests.exists(node, self._watcher if arm else None)


def _seen(answer: Any) -> NodeChanges | None:
    """Read what kazoo answers: a stat, names of children with a stat, or that there is none."""
    if answer is None or isinstance(answer, NoNodeError):
        return None
    return seen(answer if isinstance(answer, ZnodeStat) else answer[1])


def seen(stat: ZnodeStat) -> NodeChanges:
    """Return what a watch that is left with a read of ZooKeeper's has seen."""
    return NodeChanges(stat.czxid, stat.mzxid, stat.pzxid)
