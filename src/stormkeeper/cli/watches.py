"""Output of ``--watch`` and ``storm state watch``: changes of names and nodes, until Ctrl-C.

A Pacemaker is read every few seconds. A watch of ZooKeeper only says that something changed; so
each change is the difference between two reads: nothing is printed twice, and no change that is
still visible is missed.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from stormkeeper.cli.connections import horizon_text
from stormkeeper.cli.output import remark
from stormkeeper.errors import (
    AccessDeniedError,
    NoNodeError,
    PacemakerError,
    StateUnavailableError,
    StormkeeperError,
)
from stormkeeper.names import printable
from stormkeeper.state.storage import ClusterState, ConnectionState, EventType

if TYPE_CHECKING:
    from stormkeeper.conf import Address
    from stormkeeper.pacemaker.client.pool import PacemakerPool

#: Seconds between reads of Pacemakers.
_PERIOD_SECS: Final = 2.0

#: Seconds until a failed read is repeated, unless the connection comes back before.
_RETRY_SECS: Final = 1.0

_CONNECTIONS: Final = {
    ConnectionState.CONNECTED: "connected to ZooKeeper again",
    ConnectionState.SUSPENDED: "the connection to ZooKeeper is lost",
    ConnectionState.LOST: "the session with ZooKeeper has expired",
}
_MISSED: Final = "all changes during the lost connection are printed as one"


class _Listing:
    """Prints a list of names, and then each name that comes (+) or goes (-), with the time.

    `as_json`: the whole list after each change. `shown` escapes a name for a terminal.
    """

    def __init__(self, *, as_json: bool, shown: Callable[[str], str] = str) -> None:
        self._as_json = as_json
        self._shown = shown
        self._names: frozenset[str] | None = None

    @property
    def names(self) -> frozenset[str]:
        return self._names or frozenset()

    def show(self, names: Collection[str]) -> None:
        """Print the difference from the names before."""
        before, now = self._names, frozenset(names)
        if now == before:
            return
        self._names = now
        if self._as_json:
            lines = [json.dumps(sorted(now))]
        elif before is None:
            lines = [self._shown(name) for name in sorted(now)]
        else:
            moment = time.strftime("%H:%M:%S")
            changes = [("+", name) for name in sorted(now - before)]
            changes += [("-", name) for name in sorted(before - now)]
            lines = [f"{moment} {sign}{self._shown(name)}" for sign, name in changes]
        sys.stdout.writelines(f"{line}\n" for line in lines)
        sys.stdout.flush()

    def show_more(self, names: Collection[str]) -> None:
        """Print new names only, for reads that missed a server: no name counts as gone."""
        self.show(self.names.union(names))


def print_pulse_names(
    pool: PacemakerPool, path: str, *, as_json: bool, timeout_secs: float
) -> None:
    """Print the names below a path in Pacemakers, and each that comes or goes.

    Workers need up to `timeout_secs` to beat to a restarted Pacemaker; until then no missing name
    counts as gone. Raises `PacemakerError` if the first read fails.
    """
    from stormkeeper.heartbeats.coverage import unproven_on

    listing = _Listing(as_json=as_json)
    outages = _Outages(pool.clients)
    reported: set[str] = set()
    began = time.monotonic()
    names = pool.children(path)
    remark(f"watching {path}")
    listing.show(names)
    outages.report(pool.failures)
    #: Begin of the last read that found all listed names.
    all_there = began
    while True:
        time.sleep(_PERIOD_SECS)
        began = time.monotonic()
        try:
            names = pool.children(path)
        except PacemakerError as error:
            outages.report_all(error)
            continue
        outages.report(pool.failures)
        if listing.names.issubset(names):
            listing.show(names)
            all_there = began
            continue
        infos = {} if pool.failures else pool.server_infos()
        doubtful = unproven_on(infos, time.monotonic() - all_there, timeout_secs)
        for server, info in doubtful.items():
            if info.instance not in reported:
                reported.add(info.instance)
                remark(
                    f"{horizon_text(server, info)}: missing names do not count as gone until it"
                    f" has for {timeout_secs:g} s"
                )
        if (
            pool.failures
            or doubtful
            or any(isinstance(info, StormkeeperError) for info in infos.values())
        ):
            listing.show_more(names)
        else:
            listing.show(names)
            all_there = began


class _Outages:
    """Reports each change of the set of silent Pacemakers, once."""

    def __init__(self, servers: Iterable[Address]) -> None:
        self._servers = frozenset(servers)
        self._missing: frozenset[Address] = frozenset()

    def report(self, failures: Mapping[Address, str]) -> None:
        from stormkeeper.pacemaker.client.pool_reads import ALL_ANSWER, describe_failures

        text = describe_failures(failures, len(self._servers)) if failures else ALL_ANSWER
        self._report(frozenset(failures), text)

    def report_all(self, error: PacemakerError) -> None:
        self._report(self._servers, str(error))

    def _report(self, now: frozenset[Address], text: str) -> None:
        if now != self._missing:
            self._missing = now
            remark(text)


class NodeChange(NamedTuple):
    """A node's difference from the read before; `event` is created, deleted, changed or children.

    The field names are the keys of a JSON line.
    """

    event: str
    path: str
    #: The value's version; None of a deleted node.
    version: int | None = None
    #: Children that came, and that went.
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class _ReadNode(NamedTuple):
    created: int
    version: int
    children: frozenset[str]


def print_changes(state: ClusterState, top: str, *, recursive: bool, as_json: bool) -> None:
    """Print the changes of the node `top`, with `recursive` also of all nodes below.

    Raises the errors of `follow`.
    """
    for event in follow(state, top, recursive=recursive):
        if isinstance(event, NodeChange):
            sys.stdout.write((_json_line(event) if as_json else _line(event)) + "\n")
            sys.stdout.flush()
        else:
            remark(event)


def print_names(state: ClusterState, top: str, *, as_json: bool) -> None:
    """Print the names of the children of `top`, and each child that comes or goes.

    Raises the errors of `follow`.
    """
    listing = _Listing(as_json=as_json, shown=printable)
    is_due = True
    for event in follow(state, top):
        if isinstance(event, NodeChange):
            is_due = True
        else:
            remark(event)
        if is_due:
            # Without a connection, its return tries this again.
            with contextlib.suppress(StateUnavailableError):
                (names,) = state.children_many([top])
                listing.show(names or ())
                is_due = False


def follow(state: ClusterState, top: str, *, recursive: bool = False) -> Iterator[NodeChange | str]:
    """Yield for ever each change in order, and remarks: of the start, denied nodes, connections.

    Raises `StateError` if the first read fails, or the session is closed.
    """
    events: queue.SimpleQueue[tuple[EventType, str] | ConnectionState] = queue.SimpleQueue()
    registration = state.register(lambda event, path: events.put((event, path)))
    listener = events.put
    state.add_listener(listener)
    try:
        reader = _ChangeReader(state, top, recursive=recursive)
        denied = [each for each in reader.read_pending() if isinstance(each, str)]
        nodes = len(reader.known)
        text = f"watching {top}" if nodes else f"nothing at {top} yet"
        yield f"{text}, {nodes} nodes" if nodes > 1 else text
        yield from denied
        while True:
            event = None
            with contextlib.suppress(queue.Empty):
                event = events.get(timeout=_RETRY_SECS if reader.pending else None)
            if isinstance(event, ConnectionState):
                yield _CONNECTIONS[event]
            elif event is not None:
                kind, path = event
                if kind is EventType.EVENTS_MISSED:
                    yield _MISSED
                    reader.reread_all()
                else:
                    reader.pending[path] = None
            if state.connection is ConnectionState.CONNECTED:
                try:
                    yield from reader.read_pending()
                except StateUnavailableError:
                    continue  # The paths stay pending; the listener reports the connection.
    finally:
        state.remove_listener(listener)
        state.unregister(registration)


class _ChangeReader:
    """Reads nodes, leaves watches, and compares with the read before."""

    def __init__(self, state: ClusterState, top: str, *, recursive: bool) -> None:
        self._state = state
        self._top = top
        self._recursive = recursive
        self.known: dict[str, _ReadNode] = {}
        #: Paths to read, in order.
        self.pending: dict[str, None] = {top: None}

    def reread_all(self) -> None:
        self.pending |= dict.fromkeys((self._top, *self.known))

    def read_pending(self) -> Iterator[NodeChange | str]:
        """Yield the changes at the pending paths; after an error the rest stays pending.

        A denied node below the top yields a remark.
        """
        while self.pending:
            path = next(iter(self.pending))
            try:
                changes = self._changes(path)
            except AccessDeniedError as error:
                if path == self._top:
                    raise
                changes = [f"{path} is not watched: {error}"]
            del self.pending[path]
            yield from changes

    def _changes(self, path: str) -> list[NodeChange | str]:
        stat = self._state.get_stat(path, watch=True)
        was = self.known.get(path)
        changes: list[NodeChange | str] = []
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
                # Deleted since get_stat: the watch above fires, if the node was known.
                return changes
        self.known[path] = _ReadNode(stat.created, stat.version, children)
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


def _line(change: NodeChange) -> str:
    names = [f"+{name}" for name in change.added] + [f"-{name}" for name in change.removed]
    return printable(" ".join([time.strftime("%H:%M:%S"), change.event, *names, change.path]))


def _json_line(change: NodeChange) -> str:
    return json.dumps({"time": datetime.now(UTC).isoformat()} | change._asdict())
