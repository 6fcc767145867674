"""One-shot watches that outlive connections and sessions: which are armed, what they missed.

A watch is kept on the server for as long as one connection lasts. So a session remembers which
it left, and what it had seen of each node; when a connection is back it looks again, and tells
the difference as the event that the server could not send.

Nothing here does any I/O.
"""

import enum
import threading
from typing import Final, NamedTuple

from stormkeeper.state.storage import EventType


class Watched(enum.Enum):
    """What of a node is watched; ZooKeeper keeps these two apart."""

    #: Its existence and its value.
    NODE = "node"

    #: The names of its children.
    CHILDREN = "children"


class Seen(NamedTuple):
    """When a node that was read had last changed, in the store's count of changes (its zxid)."""

    created: int
    modified: int
    children_modified: int


class Watch(NamedTuple):
    """A watch: of what, at which path."""

    watched: Watched
    path: str


#: What of a node an event at its path tells of, and so which watches it uses up (ZooKeeper's
#: DataTree and WatchManager): a node that is gone has lost its children too.
TOLD: Final = {
    EventType.NODE_CREATED: (Watched.NODE,),
    EventType.NODE_DATA_CHANGED: (Watched.NODE,),
    EventType.NODE_DELETED: (Watched.NODE, Watched.CHILDREN),
    EventType.NODE_CHILDREN_CHANGED: (Watched.CHILDREN,),
    EventType.EVENTS_MISSED: (),
}


def missed(watched: Watched, before: Seen | None, now: Seen | None) -> EventType | None:
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
    if watched is Watched.CHILDREN:
        if (before.created, before.children_modified) != (now.created, now.children_modified):
            return EventType.NODE_CHILDREN_CHANGED
    elif (before.created, before.modified) != (now.created, now.modified):
        return EventType.NODE_DATA_CHANGED
    return None


class ArmedWatches:
    """The watches of one session that have not fired yet. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Watch, Seen | None] = {}
        #: In which of the session's connections each was left.
        self._left_in: dict[Watch, int] = {}

    def arm(self, watch: Watch, seen: Seen | None, connection: int = 0) -> None:
        """Remember a watch that a read left, and what that read saw.

        Parameters
        ----------
        connection
            The number of connections that the session had had when it read.
        """
        with self._lock:
            self._seen[watch] = seen
            self._left_in[watch] = connection

    def left_again(self, watch: Watch, connection: int) -> None:
        """Remember that a watch, if it has not fired, was left in a later connection."""
        with self._lock:
            if watch in self._seen:
                self._left_in[watch] = connection

    def fire(self, event: EventType, path: str) -> bool:
        """Forget the watches that an event uses up; returns whether there were any."""
        if not self._seen:
            return False
        with self._lock:
            watches = [Watch(watched, path) for watched in TOLD[event]]
            used = [watch for watch in watches if watch in self._seen]
            for watch in used:
                del self._seen[watch], self._left_in[watch]
            return bool(used)

    def missed(self, watch: Watch, now: Seen | None) -> EventType | None:
        """Return what `watch` missed if it is still armed, now that its node looks like `now`."""
        with self._lock:
            if watch not in self._seen:
                return None
            return missed(watch.watched, self._seen[watch], now)

    def all(self) -> list[Watch]:
        """Return the watches that are armed."""
        with self._lock:
            return list(self._seen)

    def left_before(self, connection: int) -> list[Watch]:
        """Return those that were left in earlier connections, and that the server has forgotten."""
        with self._lock:
            return [watch for watch, left_in in self._left_in.items() if left_in < connection]
