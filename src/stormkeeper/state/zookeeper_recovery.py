"""What a session had, put back after each reconnection: its registrations, then its watches.

The server keeps ephemeral nodes for as long as the session, and watches for as long as one
connection. So registrations are made again in a new session, and watches are left again in every
new connection, after what they missed has been told.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kazoo.protocol.serialization import Exists, GetChildren2
from kazoo.protocol.states import ZnodeStat

from stormkeeper.errors import (
    NoNodeError,
    StateAuthenticationError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.watches import ArmedWatches, Seen, Watch, Watched
from stormkeeper.state.zookeeper_connection import Connection
from stormkeeper.state.zookeeper_tree import Tree, Watcher

log = logging.getLogger(__name__)

#: How long the thread waits before it tries again, in seconds.
RECOVERY_PAUSE_SECS: Final = 1.0

#: How long the servers may refuse a registration, as they do while users are changed, before it is
#: given up, and the longest pause between two attempts, in seconds.
REFUSED_SECS: Final = 60.0
_LONGEST_PAUSE_SECS: Final = 10.0

#: What the watcher of something is told that may not be looked at any more.
_DENIED: Final = {
    Watched.NODE: EventType.NODE_DATA_CHANGED,
    Watched.CHILDREN: EventType.NODE_CHILDREN_CHANGED,
}


class Recovery:
    """Registrations and armed watches of a session, and the thread that puts them back.

    Parameters
    ----------
    connection
        Whose reconnections are followed.
    tree
        Makes the registrations again.
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
        connection: Connection,
        tree: Tree,
        node: Callable[[str], str],
        *,
        armed: ArmedWatches,
        watcher: Watcher,
        tell: Callable[[EventType, str], None],
    ) -> None:
        self._connection = connection
        self._tree = tree
        self._node = node
        self._armed = armed
        self._watcher = watcher
        self._tell = tell
        #: Ephemeral nodes of this process, and the session that they were last made in.
        self._registrations: dict[str, bytes] = {}
        self.registered_in: int | None = None
        self._registering = threading.Lock()
        # Registrations that the servers refuse, since when, and when they are asked again.
        self._refused: dict[str, float] = {}
        self._pause = RECOVERY_PAUSE_SECS
        self._retry_at = 0.0
        # The newest session whose predecessor's end was told.
        self._told_in: int | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zookeeper recovery", daemon=True)

    def start(self) -> None:
        """Follow the connection, which has its first session now."""
        self.registered_in = self._told_in = self._connection.session_id
        self._thread.start()

    def wake(self) -> None:
        """Look at the connection; does not wait for it."""
        self._wake.set()

    def join(self) -> None:
        """Wait a little for the thread to end, after the connection was closed."""
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(RECOVERY_PAUSE_SECS)

    @contextmanager
    def registrations(self, deadline: float) -> Iterator[dict[str, bytes]]:
        """Yield the registrations by path, and keep the thread from them and from their nodes.

        Raises
        ------
        StateUnavailableError
            They are being made again, and were not done by the deadline.
        """
        if not self._registering.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StateUnavailableError(
                "the registrations of this session are being made again, and ZooKeeper has not"
                " answered in time"
            )
        try:
            yield self._registrations
        finally:
            self._registering.release()

    def has_registered(self, path: str) -> bool:
        """Return whether there is a registration at a path, as of now."""
        return path in self._registrations

    def _run(self) -> None:
        connection = self._connection
        while not connection.closed:
            self._wake.wait(self._idle_secs())
            self._wake.clear()
            if connection.dead:
                connection.restart()
            elif connection.state is ConnectionState.CONNECTED:
                self._put_back()

    def _idle_secs(self) -> float | None:
        """Return how long there is nothing to do; None: until something happens."""
        if self._connection.state is not ConnectionState.CONNECTED:
            return RECOVERY_PAUSE_SECS
        return max(0.0, self._retry_at - time.monotonic()) if self._refused else None

    def _put_back(self) -> None:
        try:
            self._register_again()
            self._tell_new_session()
            self._look_again()
        except StateClosedError:
            pass
        except StateError as error:
            if not self._connection.closed:
                log.warning("what the ZooKeeper session had is not back yet: %s", error)
                self._connection.wait_changed(RECOVERY_PAUSE_SECS)
                self._wake.set()

    def _register_again(self) -> None:
        connection = self._connection
        with self.registrations(connection.deadline()) as registrations:
            session = connection.session_id
            refused = {p: since for p, since in self._refused.items() if p in registrations}
            self._refused = refused
            wanted = list(registrations)
            if session == self.registered_in:
                if not refused or time.monotonic() < self._retry_at:
                    return
                wanted = list(refused)
            for path in wanted:
                self._register(path, registrations)
            self.registered_in = session
            self._retry_at = time.monotonic() + self._pause
            longer = min(2 * self._pause, _LONGEST_PAUSE_SECS)
            self._pause = longer if self._refused else RECOVERY_PAUSE_SECS

    def _register(self, path: str, registrations: dict[str, bytes]) -> None:
        """Make a registration again; others must not suffer where it is refused."""
        connection = self._connection
        try:
            # Each has its own time: all together, many would never be done.
            self._tree.recreate_ephemeral(
                self._node(path), registrations[path], connection.deadline()
            )
        except (StateUnavailableError, StateClosedError):
            raise
        except StateError as error:
            if isinstance(error, StateAuthenticationError):
                if connection.state is not ConnectionState.CONNECTED:
                    # The whole session was refused; another one will be made.
                    raise
                now = time.monotonic()
                if now - self._refused.setdefault(path, now) < REFUSED_SECS:
                    log.warning("%s is not registered yet: %s", path, error)
                    return
            log.warning("%s is not registered any more: %s", path, error)
            del registrations[path]
        else:
            log.info("%s is registered again in the new session", path)
        self._refused.pop(path, None)

    def _tell_new_session(self) -> None:
        if self.registered_in != self._told_in:
            self._told_in = self.registered_in
            self._tell(EventType.EVENTS_MISSED, "/")

    def _look_again(self) -> None:
        """Tell what the armed watches missed, and arm those again that missed nothing."""
        # First without arming: what a watch missed must not leave it armed for a second time.
        for arm in (False, True):
            watches = self._armed.all()
            answers = self._connection.gather(
                "look at",
                [self._look(watch, arm) for watch in watches],
                self._connection.deadline(),
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

    def _look(self, watch: Watch, arm: bool) -> Any:
        node = self._node(watch.path)
        if arm and watch.watched is Watched.CHILDREN:
            return GetChildren2(node, self._watcher)
        return Exists(node, self._watcher if arm else None)


def _seen(answer: Any) -> Seen | None:
    """Read what kazoo answers: a stat, names of children with a stat, or that there is none."""
    if answer is None or isinstance(answer, NoNodeError):
        return None
    return seen(answer if isinstance(answer, ZnodeStat) else answer[1])


def seen(stat: ZnodeStat) -> Seen:
    """Return what a watch that is left with a read of ZooKeeper's has seen."""
    return Seen(stat.czxid, stat.mzxid, stat.pzxid)
