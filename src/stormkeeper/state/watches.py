"""A session's watches and callbacks: which watches are armed, and the thread that calls back.

ZooKeeper keeps a watch for one connection only. So a session remembers which watches it left and
what it had seen of each node; when a connection is back, it looks again and reports the difference
as the event that the server could not send.

The store's own threads only queue events, so that a callback may use the store and delays no
answer.
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
    """What a watch watches of a node; ZooKeeper keeps the two apart."""

    #: Existence and value.
    NODE = "node"

    #: Names of the children.
    CHILDREN = "children"


class NodeChanges(NamedTuple):
    """The last changes of a node that a read saw, in the store's count (zxids)."""

    created: int
    modified: int
    children_modified: int


class NodeWatch(NamedTuple):
    """A watch of a node."""

    watched: WatchKind
    path: str


#: The watches that an event at their path uses up (ZooKeeper's DataTree and WatchManager): a
#: deleted node has lost its children too.
WATCHES_USED_UP: Final = {
    EventType.NODE_CREATED: (WatchKind.NODE,),
    EventType.NODE_DATA_CHANGED: (WatchKind.NODE,),
    EventType.NODE_DELETED: (WatchKind.NODE, WatchKind.CHILDREN),
    EventType.NODE_CHILDREN_CHANGED: (WatchKind.CHILDREN,),
    EventType.EVENTS_MISSED: (),
}


def missed(
    watched: WatchKind, before: NodeChanges | None, now: NodeChanges | None
) -> EventType | None:
    """Return the event that a watch missed between two looks, None without a change.

    None for `before` or `now` stands for an absent node.
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
    """The watches of a session that have not fired yet. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[NodeWatch, NodeChanges | None] = {}
        #: The number of the connection that each was left in.
        self._left_in: dict[NodeWatch, int] = {}

    def arm(self, watch: NodeWatch, seen: NodeChanges | None, connection: int = 0) -> None:
        """Add a watch that a read left, with the changes that the read saw.

        `connection` is the number of connections that the session had had by then.
        """
        with self._lock:
            self._seen[watch] = seen
            self._left_in[watch] = connection

    def left_again(self, watch: NodeWatch, connection: int) -> None:
        """Record that an armed watch was left again in a later connection."""
        with self._lock:
            if watch in self._seen:
                self._left_in[watch] = connection

    def fire(self, event: EventType, path: str) -> bool:
        """Remove the watches that an event uses up; return whether there were any."""
        if not self._seen:
            return False
        with self._lock:
            watches = [NodeWatch(watched, path) for watched in WATCHES_USED_UP[event]]
            used = [watch for watch in watches if watch in self._seen]
            for watch in used:
                del self._seen[watch], self._left_in[watch]
            return bool(used)

    def missed(self, watch: NodeWatch, now: NodeChanges | None) -> EventType | None:
        """Return the event that an armed watch missed, now that the node looks like `now`."""
        with self._lock:
            if watch not in self._seen:
                return None
            return missed(watch.watched, self._seen[watch], now)

    def all(self) -> list[NodeWatch]:
        """Return the armed watches."""
        with self._lock:
            return list(self._seen)

    def left_before(self, connection: int) -> list[NodeWatch]:
        """Return the watches that were left in earlier connections; the server forgot them."""
        with self._lock:
            return [watch for watch, left_in in self._left_in.items() if left_in < connection]


log = logging.getLogger(__name__)

#: Timeout of `Callbacks.close` for a running callback, in seconds.
CLOSE_SECS = 5.0


class Callbacks:
    """Registered callbacks and listeners, called one at a time on a thread of that name."""

    def __init__(self, name: str) -> None:
        self._registrations: dict[int, EventCallback] = {}
        self._listeners: list[ConnectionListener] = []
        self._ids = itertools.count(1)
        self._closed = False
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._start()

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

    def queue_event(self, event: EventType, path: str) -> None:
        """Queue an event for all callbacks registered when it is delivered; does not block."""
        self._queue.put(lambda: self._tell_event(event, path))

    def queue_connection(self, state: ConnectionState) -> None:
        """Queue a connection state for every listener; does not block."""
        self._queue.put(lambda: self._tell_connection(state))

    def close(self) -> None:
        """Deliver nothing more, and end the thread, unless called on that thread."""
        self._closed = True
        self._queue.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECS)
            if self._thread.is_alive():
                log.warning("a callback still runs %s s after its store was closed", CLOSE_SECS)

    def _start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while (telling := self._queue.get()) is not None:
            telling()

    def _tell_event(self, event: EventType, path: str) -> None:
        # A copy, as callbacks register and unregister; checked again, as one may unregister
        # another.
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
        """Log an exception, so that the other callbacks are called all the same."""
        try:
            yield
        except BaseException:  # SystemExit would end only this thread
            log.exception("%s", failure)
