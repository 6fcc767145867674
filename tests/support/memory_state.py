"""The cluster's state in memory, with the semantics of ZooKeeper and failures on demand.

A `MemoryEnsemble` is the server; each session with it is a `ClusterState`. There is no clock: a
session ends, is cut off or loses an answer when a test says so, and a call while the session is cut
off fails at once.
"""

import contextlib
import enum
import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from stormkeeper import paths
from stormkeeper.errors import (
    InvalidPathError,
    NodeExistsError,
    OutcomeUnknownError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import (
    DIRECTORY,
    ClusterState,
    ConnectionListener,
    ConnectionState,
    Create,
    Delete,
    EventCallback,
    EventType,
    NodeData,
    NodeStat,
    Operation,
    Result,
    SetData,
    VersionedData,
    check_paths,
)
from stormkeeper.state.watches import (
    WATCHES_USED_UP,
    Callbacks,
    NodeWatch,
    TreeObservers,
    WatchKind,
)
from support.memory_tree import Event, MemoryTree, Node, apply_all

T = TypeVar("T")

#: Takes the tree's count of changes, the id of the session that wrote, and what it asked for.
CommitListener = Callable[[int, int, Sequence[Operation]], None]

#: Changes a tree, and returns a result and what happened.
Change = Callable[[MemoryTree], tuple[T, list[Event]]]

log = logging.getLogger(__name__)


class Losing(enum.Enum):
    """What a connection that breaks in mid-write takes with it."""

    REQUEST = "request"
    ANSWER = "answer"


class InlineCallbacks(Callbacks):
    """Callbacks without a thread: `run_pending` runs them."""

    _is_running = False

    def _start(self) -> None:
        pass

    def run_pending(self) -> bool:
        """Run queued callbacks, and those that they queue; return whether there were any.

        Within a callback it does nothing and returns False.
        """
        if self._is_running or self._queue.empty():
            return False
        self._is_running = True
        try:
            while not self._queue.empty():
                call = self._queue.get()
                if call is not None:
                    call()
        finally:
            self._is_running = False
        return True

    @contextmanager
    def _logged(self, failure: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            log.exception("%s", failure)


class MemoryState(ClusterState):
    """A `ClusterState` in memory: a session with a `MemoryEnsemble`, which makes it."""

    def __init__(self, server: "MemoryEnsemble", session_id: int, callbacks: Callbacks) -> None:
        self._server = server
        self._session_id = session_id
        self._callbacks = callbacks
        self._connection = ConnectionState.CONNECTED
        self._closed = False
        #: Of this connection, as the server has them.
        self._armed: set[NodeWatch] = set()
        self._observers = TreeObservers()
        self._registrations: dict[str, bytes] = {}
        # Those that could not be made again, and others that are none any more.
        self._unregistered: set[str] = set()
        #: Whether the server has ended the session, and it does not know yet.
        self.ended = False
        #: What will be lost of the next write.
        self.losing: Losing | None = None

    @property
    def connection(self) -> ConnectionState:
        """See `ClusterState.connection`."""
        return self._connection

    @property
    def session_id(self) -> int:
        """The id of the newest session."""
        return self._session_id

    @property
    def session_timeout_secs(self) -> float:
        """See `StateReader.session_timeout_secs`; without a clock, a session ends when told to."""
        return math.inf

    @property
    def call_timeout_secs(self) -> float:
        """See `StateReader.call_timeout_secs`."""
        return 15.0

    @property
    def unregistered(self) -> list[str]:
        """See `ClusterState.unregistered`."""
        with self._server.lock:
            return sorted(self._unregistered & self._registrations.keys())

    @property
    def recovery_defects(self) -> int:
        """See `StateReader.recovery_defects`; what it does is done by whoever reconnects."""
        return 0

    def get_data(self, path: str, watch: bool = False) -> bytes | None:
        """See `StateReader.get_data`."""
        found = self._look(path, watch)
        return None if found is None else found.data

    def get_data_with_version(self, path: str, watch: bool = False) -> VersionedData | None:
        """See `StateReader.get_data_with_version`."""
        found = self._look(path, watch)
        return None if found is None else VersionedData(found.data, found.stat.version)

    def get_version(self, path: str, watch: bool = False) -> int | None:
        """See `StateReader.get_version`."""
        found = self._look(path, watch)
        return None if found is None else found.stat.version

    def get_stat(self, path: str, watch: bool = False) -> NodeStat | None:
        """See `StateReader.get_stat`."""
        found = self._look(path, watch)
        return None if found is None else found.stat

    def node_exists(self, path: str, watch: bool = False) -> bool:
        """See `StateReader.node_exists`."""
        return self._look(path, watch) is not None

    def get_children(self, path: str, watch: bool = False) -> list[str]:
        """See `StateReader.get_children`."""
        with self._reading(path) as tree:
            return self._list(tree, path, watch)

    def read_many(
        self, paths: Sequence[str], watch: bool = False, *, watch_absent: bool = True
    ) -> list[NodeData | None]:
        """See `StateReader.read_many`."""
        with self._reading(*paths) as tree:
            return [
                self._read(tree, path, watch and (watch_absent or tree.find(path) is not None))
                for path in paths
            ]

    def stat_many(self, paths: Sequence[str], watch: bool = False) -> list[NodeStat | None]:
        """See `StateReader.stat_many`."""
        found = self.read_many(paths, watch)
        return [None if one is None else one.stat for one in found]

    def children_many(self, paths: Sequence[str], watch: bool = False) -> list[list[str] | None]:
        """See `StateReader.children_many`."""
        with self._reading(*paths) as tree:
            return [
                None if tree.find(path) is None else self._list(tree, path, watch) for path in paths
            ]

    def children_data(self, path: str, watch: bool = False) -> dict[str, NodeData]:
        """See `StateReader.children_data`."""
        with self._reading(path) as tree:
            names = self._list(tree, path, watch)
            return {name: _told(tree.get(f"{path.rstrip('/')}/{name}")) for name in names}

    def set_data(self, path: str, data: bytes, *, workers_digest: str | None = None) -> None:  # noqa: ARG002
        """See `StateWriter.set_data`; there are no ACLs here."""
        self._write(path, SetData(path, data), lambda tree: tree.put(path, data))

    def set_ephemeral_node(self, path: str, data: bytes) -> None:
        """See `ClusterState.set_ephemeral_node`."""
        with self._server.lock:
            self._write(
                path,
                Create(path, data, ephemeral=True),
                lambda tree: tree.put_ephemeral(path, data, self._session_id),
            )
            self._registrations[path] = data
            self._unregistered.discard(path)

    def withdraw_registration(self, path: str) -> None:
        """See `ClusterState.withdraw_registration`."""
        paths.check(path)
        with self._server.lock:
            self._registrations.pop(path, None)

    def create_sequential(self, path: str, data: bytes) -> str:
        """See `ClusterState.create_sequential`."""
        paths.check(path)
        return self._change(
            f"create {path}",
            [Create(path, data, ephemeral=True, sequential=True)],
            lambda tree: tree.create_sequential(path, data, self._session_id),
        )

    def mkdirs(self, path: str, *, workers_digest: str | None = None) -> None:  # noqa: ARG002
        """See `StateWriter.mkdirs`; there are no ACLs here."""
        self._write(path, Create(path, DIRECTORY), lambda tree: tree.make_directory(path))

    def delete_node(self, path: str) -> None:
        """See `StateWriter.delete_node`."""
        if path == "/":
            raise InvalidPathError("the root of the cluster's state is not deleted")
        paths.check(path)
        with self._server.lock:
            # Whether or not it comes to pass: who deletes a registration does not want it back.
            for registered in [p for p in self._registrations if paths.is_at_or_below(p, path)]:
                del self._registrations[registered]
            self._write(path, Delete(path), lambda tree: tree.delete(path))

    def commit(self, operations: Sequence[Operation]) -> list[Result]:
        """See `StateWriter.commit`."""
        check_paths(operations)
        with self._server.lock:
            results = self._change(
                f"commit a transaction of {len(operations)} operations",
                operations,
                lambda tree: apply_all(tree, operations, self._session_id),
            )
            for operation in operations:
                if isinstance(operation, Delete):
                    self._registrations.pop(operation.path, None)
            return results

    def watch_tree(self, path: str, observer: EventCallback) -> bool:
        """See `StateReader.watch_tree`."""
        with self._reading(path):
            self._observers.add(path, observer)
            return self._server.has_tree_watches

    def unwatch_tree(self, path: str, observer: EventCallback) -> None:
        """See `StateReader.unwatch_tree`."""
        self._observers.remove(path, observer)

    def sync_path(self, path: str) -> None:
        """See `ClusterState.sync_path`."""
        with self._reading(path):
            pass

    def register(self, callback: EventCallback) -> int:
        """See `ClusterState.register`."""
        return self._callbacks.register(callback)

    def unregister(self, registration: int) -> None:
        """See `ClusterState.unregister`."""
        self._callbacks.unregister(registration)

    def add_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.add_listener`."""
        self._callbacks.add_listener(listener)

    def remove_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.remove_listener`."""
        self._callbacks.remove_listener(listener)

    def close(self) -> None:
        """See `ClusterState.close`."""
        with self._server.lock:
            if self._closed:
                return
            self._closed = True
            self._connection = ConnectionState.LOST
            self._server.leave(self)
        self._observers.notify_missed()
        # Not under the lock: a callback that runs may want it.
        self._callbacks.close()

    # The ensemble calls these, under its lock.

    def become(self, state: ConnectionState) -> None:
        """Take on a connection state, and tell it."""
        self._connection = state
        self._callbacks.queue_connection(state)
        if state is not ConnectionState.CONNECTED:
            self._armed.clear()
            self._observers.notify_missed()

    def hear(self, event: Event) -> None:
        """Tell an event if a watch was left for it, unless the session is cut off."""
        if self._connection is not ConnectionState.CONNECTED or self.ended:
            return
        is_tree_event = event.type is not EventType.NODE_CHILDREN_CHANGED
        used_up = {NodeWatch(watched, event.path) for watched in WATCHES_USED_UP[event.type]}
        is_fired = not self._armed.isdisjoint(used_up)
        self._armed -= used_up
        if is_fired or (self._server.has_tree_watches and is_tree_event):
            self._observers.notify(*event)
        if is_fired:
            self._callbacks.queue_event(*event)

    def reconnect(self) -> None:
        """Have the connection back, in a new session if this one was ended, with what it had."""
        if self.ended:
            self.become(ConnectionState.LOST)
            self._session_id = self._server.new_id()
            self.ended = False
            self._register_again()
        self.become(ConnectionState.CONNECTED)
        self._callbacks.queue_event(EventType.EVENTS_MISSED, "/")

    def deliver(self) -> bool:
        """Run the callbacks that are queued, inline; returns whether there were any."""
        return isinstance(self._callbacks, InlineCallbacks) and self._callbacks.run_pending()

    def _register_again(self) -> None:
        # Without a clock, what cannot be made now waits for the next session.
        self._unregistered.clear()
        tree = self._server.tree
        for path, data in self._registrations.items():
            try:
                if tree.find(path) is not None:
                    raise NodeExistsError("others made it meanwhile, and have it")
                events = tree.put_ephemeral(path, data, self._session_id)
            except StateError as error:
                self._unregistered.add(path)
                log.warning("not registered yet: %s: %s", path, error)
            else:
                self._server.commit(self, [Create(path, data, ephemeral=True)], events)

    def _look(self, path: str, watch: bool) -> NodeData | None:
        with self._reading(path) as tree:
            return self._read(tree, path, watch)

    def _read(self, tree: MemoryTree, path: str, watch: bool) -> NodeData | None:
        node = tree.find(path)
        if watch:
            self._armed.add(NodeWatch(WatchKind.NODE, path))
        return None if node is None else _told(node)

    def _list(self, tree: MemoryTree, path: str, watch: bool) -> list[str]:
        node = tree.get(path)
        if watch:
            self._armed.add(NodeWatch(WatchKind.CHILDREN, path))
        return sorted(node.children)

    def _write(
        self, path: str, operation: Operation, write: Callable[[MemoryTree], list[Event]]
    ) -> None:
        paths.check(path)
        self._change(f"write {path}", [operation], lambda tree: (None, write(tree)))

    def _change(self, what: str, operations: Sequence[Operation], change: Change[T]) -> T:
        """Carry out a write, unless its answer, and perhaps itself, is to be lost."""
        with self._connected(what, OutcomeUnknownError):
            losing, self.losing = self.losing, None
            if losing is None:
                return self._carry_out(operations, change)
            self.become(ConnectionState.SUSPENDED)
            if losing is Losing.ANSWER:
                # A refusal is an answer, too.
                with contextlib.suppress(StateError):
                    self._carry_out(operations, change)
            raise OutcomeUnknownError(
                f"cannot {what}: the connection was lost meanwhile; it may have been done or not"
            )

    def _carry_out(self, operations: Sequence[Operation], change: Change[T]) -> T:
        result, events = change(self._server.tree)
        self._server.commit(self, operations, events)
        return result

    @contextmanager
    def _reading(self, *wanted: str) -> Iterator[MemoryTree]:
        for path in wanted:
            paths.check(path)
        with self._connected(f"read {', '.join(wanted[:3])}", StateUnavailableError) as tree:
            yield tree

    @contextmanager
    def _connected(self, what: str, ended: type[StateUnavailableError]) -> Iterator[MemoryTree]:
        """Lock the tree; find out, by an error of type `ended`, that the session has ended."""
        with self._server.lock:
            if self._closed:
                raise StateClosedError(f"cannot {what}: this session was closed")
            if self._connection is not ConnectionState.CONNECTED:
                raise StateUnavailableError(
                    f"cannot {what}: the session is cut off (the connection is"
                    f" {self._connection.name})"
                )
            if self.ended:
                former = self._session_id
                self.reconnect()
                raise ended(f"cannot {what}: session {former} has ended")
            yield self._server.tree


def _told(node: Node) -> NodeData:
    return NodeData(node.data, node.stat)


class MemoryEnsemble:
    """A tree of nodes that several sessions share. Safe for many threads.

    Parameters
    ----------
    inline
        Have no threads: callbacks run in `deliver`, so that a simulation says when.
    on_commit
        Told of every write that changed something, in order, also of those whose answer was lost;
        under the ensemble's lock. What a write asked for is told, not each step of it: of
        ``mkdirs`` a `Create`, of ``delete_node`` a `Delete`. The nodes that go with a session are
        not told.
    has_tree_watches
        Whether watches of whole trees exist, as since ZooKeeper 3.6.

    Examples
    --------
    >>> ensemble = MemoryEnsemble(inline=True)
    >>> state = ensemble.session()
    >>> registration = state.register(lambda event, path: print(event.value, path))
    >>> state.get_data("/storms", watch=True)
    >>> state.set_data("/storms", b"")
    >>> ensemble.deliver()
    created /storms
    """

    def __init__(
        self,
        *,
        inline: bool = False,
        on_commit: CommitListener | None = None,
        has_tree_watches: bool = True,
    ) -> None:
        self.has_tree_watches = has_tree_watches
        self.lock = threading.RLock()
        self.tree = MemoryTree()
        self._inline = inline
        self._on_commit = on_commit
        self._sessions: list[MemoryState] = []
        self._ids = itertools.count(1)

    def session(self) -> MemoryState:
        """Open a session."""
        with self.lock:
            name = "state callbacks"
            callbacks = InlineCallbacks(name) if self._inline else Callbacks(name)
            session = MemoryState(self, self.new_id(), callbacks)
            self._sessions.append(session)
            return session

    def suspend(self, session: MemoryState) -> None:
        """Cut a session off: its calls fail, and it hears of nothing, until `resume`."""
        with self.lock:
            if session.connection is ConnectionState.CONNECTED:
                session.become(ConnectionState.SUSPENDED)

    def resume(self, session: MemoryState) -> None:
        """Give a session that was cut off its connection back; it is told what it missed.

        Where it was ended meanwhile, it learns that, and goes on as a new one.
        """
        with self.lock:
            if session.connection is ConnectionState.SUSPENDED:
                session.reconnect()

    def expire(self, session: MemoryState) -> None:
        """End a session, as after a long silence; it learns that and goes on as a new one."""
        with self.lock:
            self.end_session(session)
            session.reconnect()

    def end_session(self, session: MemoryState) -> None:
        """End a session without its knowing; it hears of nothing from now on.

        It learns that by its next call, which fails (`OutcomeUnknownError` from one that writes,
        `StateUnavailableError` from one that reads), or by `resume` or `expire`, and goes on as a
        new one.
        """
        with self.lock:
            if not session.ended:
                session.ended = True
                self._forget_nodes(session)

    def lose_answer(self, session: MemoryState, *, applied: bool) -> None:
        """Have a session's next write fail with `OutcomeUnknownError`, and cut it off with that.

        Parameters
        ----------
        session
            Whose.
        applied
            Whether the write is carried out before its answer is lost.
        """
        with self.lock:
            session.losing = Losing.ANSWER if applied else Losing.REQUEST

    def deliver(self, session: MemoryState | None = None) -> None:
        """Run the callbacks that are queued, of one session or of all, and what they queue.

        Each session's run in the order in which their reasons happened, the sessions' in that in
        which they were opened. Does nothing unless the ensemble is inline, or in a callback.
        """
        if not self._inline:
            return
        chosen = self._sessions if session is None else [session]
        while any(each.deliver() for each in list(chosen)):
            pass

    # Sessions call these, under the lock.

    def new_id(self) -> int:
        """Return the id of a session that begins."""
        return next(self._ids)

    def commit(
        self, session: MemoryState, operations: Sequence[Operation], events: list[Event]
    ) -> None:
        """Tell what a session's write did, if it did anything."""
        if not events:
            return
        if self._on_commit is not None:
            self._on_commit(self.tree.changes, session.session_id, operations)
        self._publish(events)

    def leave(self, session: MemoryState) -> None:
        """Forget a session that was closed."""
        self._forget_nodes(session)
        self._sessions.remove(session)

    def _forget_nodes(self, session: MemoryState) -> None:
        for path in self.tree.owned_by(session.session_id):
            self._publish(self.tree.delete(path))

    def _publish(self, events: list[Event]) -> None:
        for event in events:
            for session in self._sessions:
                session.hear(event)
