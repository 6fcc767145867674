"""Following the changes of nodes, for as long as somebody looks.

A watch says "look again" and nothing more, so what changed is found by comparing what is there with
what was there: nothing is told twice, and nothing is missed that is still to be seen.
"""

import contextlib
import json
import queue
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from stormkeeper.cli.listing import Listing, remark
from stormkeeper.errors import AccessDeniedError, NoNodeError, StateUnavailableError
from stormkeeper.names import printable
from stormkeeper.state.storage import ClusterState, ConnectionState, EventType

#: How soon what could not be looked at is tried again, in seconds, if the connection does not come
#: back before.
_RETRY_SECS: Final = 1.0


_CONNECTIONS: Final = {
    ConnectionState.CONNECTED: "ZooKeeper is reached again",
    ConnectionState.SUSPENDED: "ZooKeeper is not reached",
    ConnectionState.LOST: "the session with ZooKeeper has ended",
}


class NodeChange(NamedTuple):
    """What happened to a node since it was last read."""

    #: ``created``, ``deleted``, ``changed`` (its value) or ``children``.
    event: str
    path: str
    #: The version of its value; None where it is gone.
    version: int | None = None
    #: Names of children that came, and that went.
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Started(NamedTuple):
    """From now on changes are seen."""

    #: Nodes watched; 0 where there is none yet.
    nodes: int


class Denied(NamedTuple):
    """A node below the followed one may not be read."""

    path: str
    message: str


#: What `follow` tells of: ``EVENTS_MISSED`` after a session was lost.
Told = Started | NodeChange | Denied | ConnectionState | EventType


class _Known(NamedTuple):
    created: int
    version: int
    children: frozenset[str]


def run(
    state: ClusterState, top: str, *, recursive: bool, as_json: bool, was_absent: bool = False
) -> None:
    """Print the changes at `top`, and with `recursive` below it, until interrupted.

    Parameters
    ----------
    state, top, recursive, was_absent
        As for `follow`.
    as_json
        Print objects, not lines for people.

    Raises
    ------
    StateError
        It could not be looked at in the beginning, or the session was closed.
    """
    for told in follow(state, top, recursive=recursive, was_absent=was_absent):
        if isinstance(told, NodeChange):
            sys.stdout.write((_object(told) if as_json else _line(told)) + "\n")
            sys.stdout.flush()
        else:
            remark(_said_of(told, top))


def run_list(state: ClusterState, top: str, *, as_json: bool) -> None:
    """Print the names of the children of `top`, and those that come and go, until interrupted.

    Raises
    ------
    StateError
        As `run`.
    """
    listing = Listing(as_json=as_json, shown=printable)
    is_due = False
    for told in follow(state, top):
        is_due |= isinstance(told, Started | NodeChange)
        if not isinstance(told, NodeChange):
            remark(_said_of(told, top))
        if is_due:
            # Where the connection is away, this is tried again when it is told to be back.
            with contextlib.suppress(StateUnavailableError):
                (names,) = state.children_many([top])
                listing.show(names or ())
                is_due = False


def follow(
    state: ClusterState, top: str, *, recursive: bool = False, was_absent: bool = False
) -> Iterator[Told]:
    """Yield `Started`, then the nodes that may not be read, then for ever each change in order.

    Parameters
    ----------
    state, top
        The node to follow.
    recursive
        Follow all below it, too.
    was_absent
        It is known that nothing was there a moment ago: what is there now has been created.

    Raises
    ------
    StateError
        As `run`.
    """
    heard: queue.SimpleQueue[tuple[EventType, str] | ConnectionState] = queue.SimpleQueue()
    registration = state.register(lambda event, path: heard.put((event, path)))
    listener = heard.put
    state.add_listener(listener)
    try:
        following = _Following(state, top, recursive=recursive)
        if was_absent:
            yield Started(0)
            yield from following.look()
        denied = [told for told in following.look() if isinstance(told, Denied)]
        if not was_absent:
            yield Started(len(following.known))
        yield from denied
        while True:
            told = _next(heard, _RETRY_SECS if following.pending else None)
            if isinstance(told, ConnectionState):
                yield told
            elif told is not None:
                event, path = told
                if event is EventType.EVENTS_MISSED:
                    yield event
                    following.look_at_all()
                else:
                    following.pending[path] = None
            if state.connection is ConnectionState.CONNECTED:
                try:
                    yield from following.look()
                except StateUnavailableError:
                    continue  # What is pending stays so; the listener tells of the connection.
    finally:
        state.remove_listener(listener)
        state.unregister(registration)


class _Following:
    """What is known of the nodes, and which of them to read next."""

    def __init__(self, state: ClusterState, top: str, *, recursive: bool) -> None:
        self._state = state
        self._top = top
        self._recursive = recursive
        self.known: dict[str, _Known] = {}
        #: Paths to look at, in order.
        self.pending: dict[str, None] = {top: None}

    def look_at_all(self) -> None:
        """Read every node again."""
        self.pending |= dict.fromkeys((self._top, *self.known))

    def look(self) -> Iterator[NodeChange | Denied]:
        """Look at what is pending, leave watches, and yield what changed.

        Raises
        ------
        StateUnavailableError
            The store was not reached; what was not looked at is still pending.
        """
        while self.pending:
            path = next(iter(self.pending))
            try:
                changes = self._changes(path)
            except AccessDeniedError as error:
                if path == self._top:
                    raise
                changes = [Denied(path, str(error))]
            del self.pending[path]
            yield from changes

    def _changes(self, path: str) -> list[NodeChange | Denied]:
        stat = self._state.get_stat(path, watch=True)
        was = self.known.get(path)
        changes: list[NodeChange | Denied] = []
        if was is not None and (stat is None or stat.created != was.created):
            del self.known[path]
            changes.append(NodeChange("deleted", path))
            was = None
        if stat is None:
            return changes
        children: frozenset[str] = frozenset()
        if not stat.owner:  # An ephemeral node has no children.
            try:
                children = frozenset(self._state.get_children(path, watch=True))
            except NoNodeError:
                # It went meanwhile; the watch above will say so, if it was known at all.
                return changes
        self.known[path] = _Known(stat.created, stat.version, children)
        if was is None:
            changes.append(NodeChange("created", path, stat.version))
        else:
            if stat.version != was.version:
                changes.append(NodeChange("changed", path, stat.version))
            if children != was.children:
                added, removed = sorted(children - was.children), sorted(was.children - children)
                changes.append(
                    NodeChange("children", path, stat.version, tuple(added), tuple(removed))
                )
        if self._recursive:
            new = children if was is None else children - was.children
            self.pending |= dict.fromkeys(f"{path.removesuffix('/')}/{n}" for n in sorted(new))
        return changes


def _next(
    heard: "queue.SimpleQueue[tuple[EventType, str] | ConnectionState]", timeout: float | None
) -> tuple[EventType, str] | ConnectionState | None:
    try:
        return heard.get(timeout=timeout)
    except queue.Empty:
        return None


def _line(change: NodeChange) -> str:
    names = [f"+{name}" for name in change.added] + [f"-{name}" for name in change.removed]
    said = " ".join([time.strftime("%H:%M:%S"), change.event, *names, change.path])
    return printable(said)


def _object(change: NodeChange) -> str:
    return json.dumps({"time": datetime.now(UTC).isoformat()} | change._asdict())


def _said_of(told: Started | Denied | ConnectionState | EventType, top: str) -> str:
    if isinstance(told, Started):
        if not told.nodes:
            return f"nothing at {top} yet"
        return f"watching {top}" + (f", {told.nodes} nodes" if told.nodes > 1 else "")
    if isinstance(told, Denied):
        return printable(f"{told.path} is not watched: {told.message}")
    if isinstance(told, ConnectionState):
        return _CONNECTIONS[told]
    return "the session was lost: what changed meanwhile is told as one change"
