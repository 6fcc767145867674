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

`Mirror` (`subtrees`) decides what to read and has no I/O; `Subscription` reads on a thread of its
own.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, Self

from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import StateClosedError, StateUnavailableError
from stormkeeper.state.storage import EventType, NodeData, NodeStat, StateReader
from stormkeeper.state.subtrees import Difference, Mirror, Snapshot, Subtree, Work

log = logging.getLogger(__name__)

#: Rounds of reading after which a snapshot is published although changes keep coming. A snapshot
#: without changes since the last answer is the store's state of one moment.
_ROUNDS: Final = 100

_CLOSE_SECS: Final = 5.0

#: Most changed values of busy subtrees read in a second: 2 % of a core.
_BUSY_READS: Final = 100

#: Takes the differences to the snapshot before, in the order of `Snapshot.changes_since`.
Listener = Callable[[Sequence[Difference]], None]


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

    def now(self, *, may_wait: bool = False) -> Snapshot:
        """Return a snapshot with every write to the store before this call; as `caught_up`.

        With `may_wait`, values of busy subtrees may wait. Takes at most two calls' deadlines.
        """
        self._state.sync_path(self._roots[0])
        if may_wait or not self._busy:
            return self.caught_up()
        with self._published:
            self._asked += 1
            asked = self._asked
        self._thread.wake()
        return self._awaited(asked, None)

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
