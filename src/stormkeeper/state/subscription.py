"""Subtrees of the store, kept in memory and in sync with the store.

A subscription reads its subtrees once, and then the nodes that events name. An event means "read
again": a late, repeated or merged event costs time and never truth. After a lost connection the
subscription sets its watches again, makes its server catch up (`sync_path`), and compares the
versions of all nodes, so a snapshot never goes back in time.

Of a busy subtree at most a hundred changed values a second are read; the others wait, and the
longest waiting are read first. Nodes that come and go, and values at paths given to `hurry`, do
not wait, and `now` reads all values that wait.

>>> requests = Subtree(paths.profiler_configs(storm_id), decode=read_request)  # doctest: +SKIP
>>> subscription = Subscription(storm.state, [requests])  # doctest: +SKIP
>>> subscription.add_listener(on_changes)  # before the start: gets the first nodes, too
>>> with subscription:  # doctest: +SKIP
...     nodes = subscription.caught_up().trees[requests.path]

``docs/cluster-state.md`` has the whole example.

`Mirror` decides what to read and has no I/O; `Subscription` reads on a thread of its own.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from stormkeeper import paths
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import StateClosedError, StateUnavailableError
from stormkeeper.state.storage import EventType, NodeData, NodeStat, StateReader

log = logging.getLogger(__name__)

#: Rounds of reading after which a snapshot is published although changes keep coming. A snapshot
#: without changes since the last answer is the store's state of one moment.
_ROUNDS: Final = 100

_CLOSE_SECS: Final = 5.0

#: Most nodes read together, in each of three ways: they have to be answered within the deadline of
#: one request, and what was read before a failure is not read again.
_READS: Final = 2000

#: Most changed values of busy subtrees read in a second: 2 % of a core.
_BUSY_READS: Final = 100


class Subtree(NamedTuple):
    """A node and `depth` levels below.

    `decode` takes path and value of each node below the first, on all levels, once per version, and
    must not raise: it returns an error as the value. Without `decode` only names are kept; nodes of
    the last level have their parents' metadata. `is_busy`: many values change often, so they may
    wait.
    """

    path: str
    depth: int = 1
    decode: Callable[[str, bytes], Any] | None = None
    is_busy: bool = False

    def is_listed(self, level: int) -> bool:
        """Return whether nodes of a level are known from their parents' lists alone."""
        return self.decode is None and level == self.depth


class Node(NamedTuple):
    """A node's decoded value and metadata; of a name in a list, the parent's metadata."""

    value: Any
    stat: NodeStat


class Difference(NamedTuple):
    """A difference between two snapshots; None for an absent node."""

    path: str
    before: Node | None
    after: Node | None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Nodes by path, by subtree; what two snapshots have in common is the same objects.

    A subtree's first node is among its nodes, with the value None.

    `revision` rises by one with each snapshot.
    """

    revision: int = 0
    trees: Mapping[str, Mapping[str, Node]] = field(default_factory=dict)

    def changes_since(self, before: Snapshot) -> list[Difference]:
        """Return the differences: removals first, the deepest first, then by zxid."""
        changes = []
        for root, nodes in self.trees.items():
            old = before.trees.get(root, {})
            if nodes is old:
                continue
            changes += [Difference(path, old[path], None) for path in old.keys() - nodes.keys()]
            changes += [
                Difference(path, old.get(path), node)
                for path, node in nodes.items()
                if old.get(path) is not node
            ]
        return sorted(changes, key=_order)


#: Takes the differences to the snapshot before, in the order of `Snapshot.changes_since`.
Listener = Callable[[Sequence[Difference]], None]


def _order(change: Difference) -> tuple[int, int]:
    if change.after is None:
        return (-1, -change.path.count("/"))
    return (max(change.after.stat.created, change.after.stat.modified), change.path.count("/"))


class _ReadBudget:
    """Permits `per_sec` reads a second, and as many at once. Thread-safe."""

    def __init__(self, per_sec: int, clock: Callable[[], float]) -> None:
        self._per_sec = per_sec
        self._clock = clock
        self._lock = threading.Lock()
        self._left: float = per_sec
        self._at = clock()

    def take(self, most: int) -> int:
        """Return the number of permitted reads, at most `most`."""
        with self._lock:
            now = self._clock()
            self._left = min(self._per_sec, self._left + (now - self._at) * self._per_sec)
            self._at = now
            taken = min(most, int(self._left))
            self._left -= taken
            return taken


class Work(NamedTuple):
    """Paths to read: children's names, metadata, and values."""

    lists: list[str]
    stats: list[str]
    values: list[str]


class Mirror:
    """The nodes of subtrees as known, and what to read next. Pure; for one thread."""

    def __init__(self, subtrees: Iterable[Subtree]) -> None:
        self._subtrees = {each.path: each for each in subtrees}
        self._trees: dict[str, dict[str, Node]] = {path: {} for path in self._subtrees}
        self._children: dict[str, set[str]] = {}
        self._lists: dict[str, None] = {}
        self._stats: dict[str, None] = {}
        self._values: dict[str, None] = {}
        #: Paths of changed values that wait, the longest waiting first.
        self.waiting: dict[str, None] = {}
        self._changed = set(self._subtrees)
        #: Nodes as of the last snapshot, of paths that changed since.
        self._before: dict[str, Node | None] = {}
        self._snapshot = Snapshot()
        #: Answers older than what is known: the server of a new session lags behind.
        self.old_answers = 0

    def compare_all(self, *, with_lists: bool = False) -> None:
        """Read the metadata of all nodes but listed ones, and then what differs.

        `with_lists`: read all lists too, as a watch on children comes with the list.
        """
        self._stats |= dict.fromkeys(self._subtrees)
        for root, nodes in self._trees.items():
            subtree, top = self._subtrees[root], root.count("/")
            levels = {path: path.count("/") - top for path in nodes}
            self._stats |= {path: None for path in nodes if not subtree.is_listed(levels[path])}
            if with_lists:
                self._lists |= {path: None for path in nodes if levels[path] < subtree.depth}

    def on_event(self, event: EventType, path: str, *, may_wait: bool = False) -> None:
        place = self._place(path)
        if place is None:
            return
        subtree, level = place
        if event is EventType.NODE_CHILDREN_CHANGED:
            if level < subtree.depth:
                self._lists[path] = None
        elif level and subtree.decode is not None:
            if may_wait:
                self.waiting[path] = None
            else:
                self._values[path] = None
        elif not level:
            # Also when its value changed: a watch is used up.
            self._stats[path] = None
        elif event is not EventType.NODE_DATA_CHANGED:
            if subtree.is_listed(level):
                self._lists[paths.parent(path)] = None
            else:
                self._stats[path] = None

    def on_deletion(self, path: str) -> None:
        """Take a node for deleted, and look for a new one in the list.

        A look at the node itself would leave a watch, on client and server, that stays.
        """
        place = self._place(path)
        if place is not None and place[1]:
            self._remove(path)
            self._lists[paths.parent(path)] = None
        else:
            self.on_event(EventType.NODE_DELETED, path)

    def end_waits(self, paths: Iterable[str]) -> None:
        """Read the values at `paths` that wait with the next work."""
        self._values |= {path: None for path in paths if path in self.waiting}

    def take(self) -> Work | None:
        """Return what to read next, None if all else is known; `restore` the work that failed."""
        if not (self._lists or self._stats or self._values):
            return None
        queues = (self._lists, self._stats, self._values)
        work = Work(*(list(itertools.islice(queue, _READS)) for queue in queues))
        for queue, taken in zip(queues, work, strict=True):
            for path in taken:
                del queue[path]
        for path in work.values:
            self.waiting.pop(path, None)
        return work

    def restore(self, work: Work) -> None:
        self._lists |= dict.fromkeys(work.lists)
        self._stats |= dict.fromkeys(work.stats)
        self._values |= dict.fromkeys(work.values)

    def listed(self, path: str, names: Sequence[str] | None) -> None:
        if names is None:
            self._remove(path)
            return
        below = {f"{path}/{name}" for name in names}
        known = self._children.get(path, set())
        for gone in known - below:
            self._remove(gone)
        subtree, level = self._placed(path)
        new = dict.fromkeys(sorted(below - known))
        if path not in self._trees[subtree.path]:
            self._stats[path] = None  # nothing is known below an unknown node
        elif subtree.is_listed(level + 1):
            self._put_names(subtree, path, new)
        elif subtree.decode is None:
            self._stats |= new
        else:
            self._values |= new

    def checked(self, path: str, stat: NodeStat | None) -> None:
        """Take a node's metadata, and read the value if it differs."""
        subtree, level = self._placed(path)
        if stat is None:
            self._remove(path)
            return
        known = self._trees[subtree.path].get(path)
        if level and subtree.decode is not None and not _has_same_value(known, stat):
            self._values[path] = None
        else:
            self._put(path, Node(known.value if known is not None else None, stat))

    def read(self, path: str, found: NodeData | None) -> None:
        """Take a node's value and metadata."""
        subtree, _ = self._placed(path)
        if found is None:
            self._remove(path)
            return
        known = self._trees[subtree.path].get(path)
        value = None if known is None else known.value
        if subtree.decode is not None and not _has_same_value(known, found.stat):
            value = subtree.decode(path, found.data)
        self._put(path, Node(value, found.stat))

    def changes(self) -> list[Difference]:
        """Return the differences to the last snapshot; before `snapshot`."""
        changes = [
            Difference(path, before, self._trees[self._placed(path)[0].path].get(path))
            for path, before in self._before.items()
        ]
        return sorted((one for one in changes if one.before is not one.after), key=_order)

    def snapshot(self) -> Snapshot:
        """Return the nodes as known; the last snapshot if nothing changed."""
        self._before.clear()
        if self._changed:
            trees = dict(self._snapshot.trees)
            for root in self._changed:
                trees[root] = MappingProxyType(dict(self._trees[root]))
            self._changed.clear()
            self._snapshot = Snapshot(self._snapshot.revision + 1, MappingProxyType(trees))
        return self._snapshot

    def _place(self, path: str) -> tuple[Subtree, int] | None:
        """Return the subtree with `path`, and the level below the subtree's first node."""
        for root, subtree in self._subtrees.items():
            if paths.is_at_or_below(path, root):
                level = path.count("/") - root.count("/")
                return (subtree, level) if level <= subtree.depth else None
        return None

    def _placed(self, path: str) -> tuple[Subtree, int]:
        place = self._place(path)
        assert place is not None, path
        return place

    def _put(self, path: str, node: Node) -> None:
        subtree, level = self._placed(path)
        nodes = self._trees[subtree.path]
        known = nodes.get(path)
        if known is not None and _is_older(node.stat, known.stat):
            self.old_answers += 1
            self._stats[path] = None
            return
        if level < subtree.depth and not _has_same_children(known, node.stat):
            self._lists[path] = None
        if known is None or known.stat != node.stat:
            self._before.setdefault(path, known)
            nodes[path] = node
            self._changed.add(subtree.path)
        if level:
            self._children.setdefault(paths.parent(path), set()).add(path)

    def _put_names(self, subtree: Subtree, parent: str, names: Iterable[str]) -> None:
        nodes = self._trees[subtree.path]
        for path in names:
            self._before.setdefault(path, None)
            nodes[path] = Node(None, nodes[parent].stat)
            self._children.setdefault(parent, set()).add(path)
            self._changed.add(subtree.path)

    def _remove(self, path: str) -> None:
        subtree, level = self._placed(path)
        if level:
            for names in (self._lists, self._stats, self._values, self.waiting):
                names.pop(path, None)
        for child in self._children.pop(path, ()):
            self._remove(child)
        self._children.get(paths.parent(path), set()).discard(path)
        known = self._trees[subtree.path].pop(path, None)
        if known is not None:
            self._before.setdefault(path, known)
            self._changed.add(subtree.path)


def _has_same_value(known: Node | None, stat: NodeStat) -> bool:
    return known is not None and known.stat[1:3] == stat[1:3]


def _has_same_children(known: Node | None, stat: NodeStat) -> bool:
    return known is not None and (
        (known.stat.created, known.stat.children_modified) == (stat.created, stat.children_modified)
    )


def _is_older(stat: NodeStat, known: NodeStat) -> bool:
    return (stat.created, stat.modified) < (known.created, known.modified)


class Subscription:
    """Keeps subtrees of a store in memory, on a thread. Safe for many threads.

    The first snapshot, which is empty, has revision 0. A reader takes what is there (`snapshot`),
    a snapshot with all that the session has seen, but for waiting values (`caught_up`), or one with
    every write of any session before the call (`now`).
    """

    def __init__(
        self,
        state: StateReader,
        subtrees: Iterable[Subtree],
        *,
        name: str = "subscription",
        busy_reads: int = _BUSY_READS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        subtrees = tuple(subtrees)
        self._roots = [each.path for each in subtrees]
        self._busy = [f"{each.path}/" for each in subtrees if each.is_busy]
        self._mirror = Mirror(subtrees)
        self._clock = clock
        #: Filled by the store's threads, which must not wait.
        self._events: deque[tuple[EventType, str, bool]] = deque()
        #: Events but those of values that wait.
        self._queued = 0
        #: Whether events may have been lost since the last comparison began.
        self._has_missed = True
        self._is_persistent = True
        self._taken = 0
        #: Paths below busy subtrees whose values do not wait.
        self._hurried: Collection[str] = frozenset()
        self._busy_reads = busy_reads
        self._budget = _ReadBudget(busy_reads, clock)
        #: Whether values wait, and whether the thread reads them without being woken.
        self._has_waiting = self._is_timed = False
        self._snapshot = Snapshot()
        self._listeners: list[Listener] = []
        #: Guards the attributes below.
        self._published = threading.Condition()
        self._included = 0
        #: Calls that all waiting values be read, and calls that are answered.
        self._asked = self._answered = 0
        self._is_synced = False
        self._current_at = clock()
        self._closed = False
        self._thread = PeriodicThread(
            name,
            self._step,
            failure=f"{name}: not in sync with the store",
            recovery=f"{name}: in sync with the store again",
            logger=log,
        )

    @property
    def is_running(self) -> bool:
        return self._thread.is_running

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot, whatever its age."""
        return self._snapshot

    @property
    def age_secs(self) -> float:
        """Seconds since the snapshot was last known to equal the store; 0.0 if it is now.

        Values that wait do not count. A server that has just stopped answering is noticed as late
        as by the session.
        """
        with self._published:
            return 0.0 if self._is_current(self._queued) else self._clock() - self._current_at

    @property
    def old_answers(self) -> int:
        """Number of ignored answers that were older than what was known."""
        return self._mirror.old_answers

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self, timeout_secs: float | None = _CLOSE_SECS) -> bool:
        """End the thread; return whether that was in time. Idempotent."""
        self._end_reads()
        has_ended = self._thread.close(timeout_secs)
        # Last, as the thread may be about to watch.
        for root in self._roots:
            self._state.unwatch_tree(root, self._on_event)
        return has_ended

    def _end_reads(self) -> None:
        with self._published:
            self._closed = True
            self._published.notify_all()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` after each new snapshot, on the subscription's thread; must not block.

        Added before the start, it gets the first nodes, too.
        """
        self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Remove `listener`; fine if unknown."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def caught_up(self, timeout_secs: float | None = None) -> Snapshot:
        """Return a snapshot with every change that this session has seen, such as own writes.

        Values of busy subtrees may wait. Raises `StateUnavailableError` if the store does not
        answer in time, by default a call's, `StateClosedError` after the end of the subscription or
        session.
        """
        return self._awaited(0, timeout_secs)

    def now(self, timeout_secs: float | None = None, *, may_wait: bool = False) -> Snapshot:
        """Return a snapshot with every write to the store before this call; as `caught_up`.

        With `may_wait`, values of busy subtrees may wait.
        """
        self._state.sync_path(self._roots[0])
        if may_wait or not self._busy:
            return self.caught_up(timeout_secs)
        with self._published:
            self._asked += 1
            asked = self._asked
        self._thread.wake()
        return self._awaited(asked, timeout_secs)

    def hurry(self, paths: Collection[str]) -> None:
        """Let the values at `paths`, and no others, not wait in busy subtrees."""
        self._hurried = frozenset(paths)
        self._thread.wake()

    def _awaited(self, asked: int, timeout_secs: float | None) -> Snapshot:
        if timeout_secs is None:
            timeout_secs = self._state.call_timeout_secs

        def is_reached() -> bool:
            return self._is_current(queued) and self._answered >= asked

        with self._published:
            queued = self._queued
            self._published.wait_for(lambda: self._closed or is_reached(), timeout_secs)
            if self._closed:
                raise StateClosedError("the subscription, or its session, was closed")
            if not is_reached():
                age = self._clock() - self._current_at
                raise StateUnavailableError(
                    f"what is known of {', '.join(self._roots)} is {age:.1f} s old, and the store"
                    f" has not answered within {timeout_secs:g} s: check that a majority of the"
                    " servers runs (storm.zookeeper.servers), and the log"
                )
            return self._snapshot

    def _is_current(self, queued: int) -> bool:
        return self._is_synced and not self._has_missed and self._included >= queued

    # --- on a thread of the store's

    def _on_event(self, event: EventType, path: str) -> None:
        is_missed = event is EventType.EVENTS_MISSED
        if not is_missed and self._may_wait(event, path):
            self._events.append((event, path, True))
            if self._is_timed:
                return
        else:
            if self._is_current(self._queued):
                self._current_at = self._clock()
            if is_missed:
                self._has_missed = True
            else:
                self._events.append((event, path, False))
                self._queued += 1
        self._thread.wake()

    def _may_wait(self, event: EventType, path: str) -> bool:
        is_busy = event is EventType.NODE_DATA_CHANGED and any(map(path.startswith, self._busy))
        if not is_busy or path in self._hurried:
            return False
        if not self._has_waiting:
            self._has_waiting = not self._budget.take(1)
        return self._has_waiting

    # --- on the subscription's thread

    def _step(self) -> float | None:
        try:
            return self._synced()
        except StateClosedError:
            self._end_reads()
            raise

    def _synced(self) -> float | None:
        """Read and publish what has changed; return the seconds until values that wait are due."""
        # From here on, each event causes a further step.
        self._is_timed = False
        asked = self._asked
        if self._has_missed:
            self._watch_again()
        for round_ in itertools.count(1):
            taken = self._drain()
            if round_ == 1:
                self._end_waits(asked)
            work = self._mirror.take()
            if work is None:
                break
            # What is read may name more to read, such as the children of a new node.
            while work is not None:
                if self._thread.is_closing:
                    return None
                if not self._is_done(work):
                    self._thread.wake()
                    return None
                work = self._mirror.take()
            if round_ == _ROUNDS:
                break
        self._publish(taken, asked)
        waiting = min(len(self._mirror.waiting), self._busy_reads)
        self._is_timed = waiting > 0
        if self._events:
            self._thread.wake()
        else:
            self._has_waiting = self._is_timed
        return waiting / self._busy_reads if self._is_timed else None

    def _end_waits(self, asked: int) -> None:
        """Let values wait no more that are hurried, asked for, or the longest waiting."""
        mirror = self._mirror
        mirror.end_waits(self._hurried)
        most = len(mirror.waiting)
        if asked == self._answered:
            most = self._budget.take(most)
        mirror.end_waits(list(itertools.islice(mirror.waiting, most)))

    def _watch_again(self) -> None:
        with self._published:
            self._is_synced = False
            self._has_missed = False
        try:
            watched = [self._state.watch_tree(root, self._on_event) for root in self._roots]
            self._is_persistent = all(watched)
            # The server of a new session may lag behind the last one's.
            self._state.sync_path(self._roots[0])
        except BaseException:
            self._has_missed = True
            raise
        self._mirror.compare_all(with_lists=not self._is_persistent)

    def _drain(self) -> int:
        """Pass the events to the mirror; return how many came in all."""
        while self._events:
            event, path, may_wait = self._events.popleft()
            if event is EventType.NODE_DELETED and not self._is_persistent:
                self._mirror.on_deletion(path)
            else:
                self._mirror.on_event(event, path, may_wait=may_wait)
            self._taken += not may_wait
        return self._taken

    def _is_done(self, work: Work) -> bool:
        """Read what is to be read; return False if the answers may be of a lagging server."""
        state, mirror, watch = self._state, self._mirror, not self._is_persistent
        old = mirror.old_answers
        try:
            names = state.children_many(work.lists, watch) if work.lists else []
            stats = self._stat_many(work.stats) if work.stats else []
            values = self._read_many(work.values) if work.values else []
            if self._has_missed:
                mirror.restore(work)
                return False
            for path, below in zip(work.lists, names, strict=True):
                mirror.listed(path, below)
            for path, stat in zip(work.stats, stats, strict=True):
                mirror.checked(path, stat)
            for path, node in zip(work.values, values, strict=True):
                mirror.read(path, node)
        except BaseException:
            # Also after a defect of `decode`: what is not read must not count as read.
            mirror.restore(work)
            raise
        if mirror.old_answers != old:
            self._has_missed = True
            return False
        return True

    def _read_many(self, paths: list[str]) -> list[NodeData | None]:
        if self._is_persistent:
            return self._state.read_many(paths)
        return self._state.read_many(paths, watch=True, watch_absent=False)

    def _stat_many(self, paths: list[str]) -> list[NodeStat | None]:
        if self._is_persistent:
            return self._state.stat_many(paths)
        # A look at an absent node leaves a watch: only the first nodes' parents are not watched.
        self._state.stat_many([path for path in paths if path in self._roots], watch=True)
        return [None if node is None else node.stat for node in self._read_many(paths)]

    def _publish(self, taken: int, asked: int) -> None:
        changes, snapshot = self._mirror.changes(), self._mirror.snapshot()
        with self._published:
            is_new = snapshot is not self._snapshot
            self._snapshot = snapshot
            self._included, self._answered = taken, asked
            self._is_synced = True
            self._current_at = self._clock()
            self._published.notify_all()
        if is_new:
            for listener in list(self._listeners):
                try:
                    listener(changes)
                except Exception:
                    log.exception("a listener of the subscription failed")
