"""One-shot watches that outlive connections and sessions: which are armed, what they missed.

A watch is kept on the server for as long as one connection lasts. So a session remembers which
it left, and what it had seen of each node; when a connection is back it looks again, and tells
the difference as the event that the server could not send.

Nothing here does any I/O.
"""

import enum
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from stormkeeper.state.storage import ConnectionListener, ConnectionState, EventCallback, EventType


class WatchKind(enum.Enum):
    """What of a node is watched; ZooKeeper keeps these two apart."""

    #: Its existence and its value.
    NODE = "node"

    #: The names of its children.
    CHILDREN = "children"


class NodeChanges(NamedTuple):
    """When a node that was read had last changed, in the store's count of changes (its zxid)."""

    created: int
    modified: int
    children_modified: int


class NodeWatch(NamedTuple):
    """A watch: of what, at which path."""

    watched: WatchKind
    path: str


#: What of a node an event at its path tells of, and so which watches it uses up (ZooKeeper's
#: DataTree and WatchManager): a node that is gone has lost its children too.
TOLD: Final = {
    EventType.NODE_CREATED: (WatchKind.NODE,),
    EventType.NODE_DATA_CHANGED: (WatchKind.NODE,),
    EventType.NODE_DELETED: (WatchKind.NODE, WatchKind.CHILDREN),
    EventType.NODE_CHILDREN_CHANGED: (WatchKind.CHILDREN,),
    EventType.EVENTS_MISSED: (),
}


def missed(
    watched: WatchKind, before: NodeChanges | None, now: NodeChanges | None
) -> EventType | None:
    """Return the event that a watch would have fired between two looks, None for no change.

    Parameters
    ----------
    watched
        What is watched.
    before, now
        What was seen of the node when the watch was left, and later; None where there was none.
    """
    if before is None or now is None:
        if before is now:
            return None
        return EventType.NODE_DELETED if now is None else EventType.NODE_CREATED
    if watched is WatchKind.CHILDREN:
        if (before.created, before.children_modified) != (now.created, now.children_modified):
            return EventType.NODE_CHILDREN_CHANGED
    elif (before.created, before.modified) != (now.created, now.modified):
        return EventType.NODE_DATA_CHANGED
    return None


class ArmedWatches:
    """The watches of one session that have not fired yet. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[NodeWatch, NodeChanges | None] = {}
        #: In which of the session's connections each was left.
        self._left_in: dict[NodeWatch, int] = {}

    def arm(self, watch: NodeWatch, seen: NodeChanges | None, connection: int = 0) -> None:
        """Remember a watch that a read left, and what that read saw.

        Parameters
        ----------
        connection
            The number of connections that the session had had when it read.
        """
        with self._lock:
            self._seen[watch] = seen
            self._left_in[watch] = connection

    def left_again(self, watch: NodeWatch, connection: int) -> None:
        """Remember that a watch, if it has not fired, was left in a later connection."""
        with self._lock:
            if watch in self._seen:
                self._left_in[watch] = connection

    def fire(self, event: EventType, path: str) -> bool:
        """Forget the watches that an event uses up; returns whether there were any."""
        if not self._seen:
            return False
        with self._lock:
            watches = [NodeWatch(watched, path) for watched in TOLD[event]]
            used = [watch for watch in watches if watch in self._seen]
            for watch in used:
                del self._seen[watch], self._left_in[watch]
            return bool(used)

    def missed(self, watch: NodeWatch, now: NodeChanges | None) -> EventType | None:
        """Return what `watch` missed if it is still armed, now that its node looks like `now`."""
        with self._lock:
            if watch not in self._seen:
                return None
            return missed(watch.watched, self._seen[watch], now)

    def all(self) -> list[NodeWatch]:
        """Return the watches that are armed."""
        with self._lock:
            return list(self._seen)

    def left_before(self, connection: int) -> list[NodeWatch]:
        """Return those that were left in earlier connections, and that the server has forgotten."""
        with self._lock:
            return [watch for watch, left_in in self._left_in.items() if left_in < connection]


log = logging.getLogger(__name__)

#: How long `Callbacks.close` waits for a callback that runs, in seconds.
CLOSE_SECS = 5.0


class Callbacks:
    """Registered callbacks and listeners, told one at a time.

    Parameters
    ----------
    name
        Of the thread that tells them.
    inline
        Have no thread; what is queued waits for `run_pending`.
    """

    def __init__(self, name: str, *, inline: bool = False) -> None:
        self._registrations: dict[int, EventCallback] = {}
        self._listeners: list[ConnectionListener] = []
        self._ids = itertools.count(1)
        self._closed = False
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running_pending = False
        self._thread: threading.Thread | None = None
        if not inline:
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def register(self, callback: EventCallback) -> int:
        """See `ClusterState.register`."""
        registration = next(self._ids)
        self._registrations[registration] = callback
        return registration

    def unregister(self, registration: int) -> None:
        """See `ClusterState.unregister`."""
        self._registrations.pop(registration, None)

    def add_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.add_listener`."""
        self._listeners.append(listener)

    def remove_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.remove_listener`."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def tell_event(self, event: EventType, path: str) -> None:
        """Queue an event for everyone who is registered when its turn comes; does not block."""
        self._queue.put(lambda: self._tell_event(event, path))

    def tell_connection(self, state: ConnectionState) -> None:
        """Queue a connection state for every listener; does not block."""
        self._queue.put(lambda: self._tell_connection(state))

    def run_pending(self) -> bool:
        """Tell what is queued, here and now, and what that queues; inline only.

        Returns
        -------
        bool
            Whether anything was; False when a callback calls this: they run one at a time.
        """
        if self._running_pending or self._queue.empty():
            return False
        self._running_pending = True
        try:
            while not self._queue.empty():
                telling = self._queue.get()
                if telling is not None:
                    telling()
        finally:
            self._running_pending = False
        return True

    def close(self) -> None:
        """Tell nobody anything more, and end the thread, unless this is called on it."""
        self._closed = True
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECS)
            if self._thread.is_alive():
                log.warning("a callback still runs %s s after its store was closed", CLOSE_SECS)

    def _run(self) -> None:
        while (telling := self._queue.get()) is not None:
            telling()

    def _tell_event(self, event: EventType, path: str) -> None:
        # A copy, as callbacks register and unregister; asked again, as one may unregister another.
        for registration, callback in list(self._registrations.items()):
            if registration in self._registrations and not self._closed:
                with self._logged(f"a callback failed on {path} {event.value}"):
                    callback(event, path)

    def _tell_connection(self, state: ConnectionState) -> None:
        for listener in list(self._listeners):
            if listener in self._listeners and not self._closed:
                with self._logged(f"a connection listener failed on {state.value}"):
                    listener(state)

    @contextmanager
    def _logged(self, failure: str) -> Iterator[None]:
        """Log what is raised, for the others to be told all the same."""
        try:
            yield
        except BaseException as error:
            # On a thread of their own nobody is there to be ended by a SystemExit.
            if self._thread is None and not isinstance(error, Exception):
                raise
            log.exception("%s", failure)
