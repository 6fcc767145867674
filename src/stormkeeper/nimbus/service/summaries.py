"""A summary of each topology, in memory and encoded, for the calls that list all topologies.

A call uses the newest records, texts and code. Heartbeats, crashes' errors, and the moment at which
health is judged are of the last refresh, which repeats while somebody asks.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from struct import Struct
from typing import Any, Final, NamedTuple

from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import CallRefusedError, PacemakerError, StateClosedError, StormkeeperError
from stormkeeper.nimbus import health
from stormkeeper.nimbus.health import Beat
from stormkeeper.nimbus.service.context import ServiceContext
from stormkeeper.nimbus.service.views import (
    View,
    ViewReader,
    copies,
    outline,
    uptime_secs,
    without_queries,
)
from stormkeeper.paths import Slot
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.state.storm.heartbeat_records import Activities
from stormkeeper.statistics.executor_reports import assigned_counts
from stormkeeper.thrift.nimbus import TopologySummary
from stormkeeper.thrift.records import SupervisorInfo
from stormkeeper.thrift.writer import Encoded, encode_around

log = logging.getLogger(__name__)

#: Without a call for so long, the refreshes end after the present pause.
_IDLE_SECS: Final = 30.0
#: A pause is so many times as long as the work before it; after a refresh, within bounds.
_PAUSE_FACTOR: Final = 10
_WORK_SECS: Final = 0.002
_LOOK_SECS: Final = 0.1
_SHORTEST_PAUSE_SECS: Final = 1.0
_LONGEST_PAUSE_SECS: Final = 60.0
#: Longer than the deadlines of a refresh's reads.
_FIRST_SECS: Final = 60.0
#: The longest wait of a scrape for a refresh.
_SCRAPE_SECS: Final = 1.0
_CLOSE_SECS: Final = 5.0

pack_i32: Final = Struct(">i").pack


class Reading(NamedTuple):
    """The heartbeats as last read, and when."""

    now: float
    #: The same moment by the clock of the activities.
    at: float = 0.0
    #: None: no Pacemaker answered.
    activities: Activities | None = None

    def beats(self, storm_id: str) -> dict[Slot, Beat] | None:
        if self.activities is None:
            return None
        at = self.at
        return {
            slot: Beat(
                each.activity, None if each.received_at is None else max(0.0, at - each.received_at)
            )
            for slot, each in self.activities.get(storm_id, {}).items()
        }


@dataclass(frozen=True, slots=True)
class Sources:
    """What the summaries are made of."""

    records: ClusterRecords
    texts: Mapping[str, str]
    #: The revision of this Nimbus's blobs.
    code: int
    reading: Reading
    #: The newest errors of crashing topologies.
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """A topology's summary, and what it was made of."""

    #: Without workers and time.
    view: View
    code: tuple[str, ...] | None
    error: str | None
    #: Supervisor ids of the launches.
    nodes: frozenset[str]
    #: With uptime 0, as the encoded bytes before and after leave the uptime out.
    summary: TopologySummary
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Summaries:
    """The summaries of all topologies by id, in the records' order."""

    sources: Sources
    kept: Mapping[str, Kept]


def made(
    sources: Sources,
    last: Summaries | None,
    views: ViewReader,
    pause: Callable[[], None] = lambda: None,
) -> Summaries:
    """Return the summaries; those of `last` stay for which nothing has changed.

    Without `last` the result is the same.
    """
    records = sources.records
    if last is None or last.sources.reading is not sources.reading:
        changed: Collection[str] = records.bases.keys()
    else:
        changed = _changed(sources, last, views)
        if not changed and last.sources.records.bases is records.bases:
            return replace(last, sources=sources)
    known = {} if last is None else last.kept
    kept = {}
    for storm_id in records.bases:
        pause()
        kept[storm_id] = (
            _made(sources, storm_id, known.get(storm_id), views)
            if storm_id in changed
            else known[storm_id]
        )
    return Summaries(sources, kept)


def _changed(sources: Sources, last: Summaries, views: ViewReader) -> set[str]:
    records, before, kept = sources.records, last.sources, last.kept
    old = before.records
    changed = set[str]()
    if records.bases is not old.bases:
        changed |= {i for i, base in records.bases.items() if old.bases.get(i) is not base}
    if records.assignments is not old.assignments:
        found = records.assignments
        changed |= {i for i, each in kept.items() if found.get(i) is not each.view.assignment}
    if records.holders is not old.holders:
        changed |= {i for i, e in kept.items() if copies(records, i) != e.view.replication_count}
    if sources.texts != before.texts:
        texts = sources.texts
        changed |= {i for i, each in kept.items() if texts.get(i) != each.view.sched_status}
    if sources.errors != before.errors:
        changed |= {i for i, each in kept.items() if sources.errors.get(i) != each.error}
    if sources.code != before.code:
        changed |= {i for i, each in kept.items() if views.code_version(i) != each.code}
    if records.supervisors is not old.supervisors:
        moved = {
            id_
            for id_ in records.supervisors.keys() | old.supervisors.keys()
            if _workers(records.supervisors.get(id_)) != _workers(old.supervisors.get(id_))
        }
        if moved:
            changed |= {i for i, each in kept.items() if not moved.isdisjoint(each.nodes)}
    return changed & records.bases.keys()


def _workers(info: SupervisorInfo | None) -> tuple[object, object] | None:
    return None if info is None else (info.used_ports, info.slots)


def _made(sources: Sources, storm_id: str, known: Kept | None, views: ViewReader) -> Kept:
    code, error = views.code_version(storm_id), sources.errors.get(storm_id)
    base = sources.records.bases[storm_id]
    submitted = known.view.submitted if known is not None and known.code == code else None
    if submitted is None and code is not None:
        found = views.read_code(storm_id, base)
        submitted = None if found is None else outline(found)
    view = views.view(
        sources.records,
        storm_id,
        base,
        submitted=submitted,
        text=sources.texts.get(storm_id),
        beats=sources.reading.beats(storm_id),
        now=sources.reading.now,
    )
    # The health of single workers takes much room, and no list shows it.
    shown = health.with_error(without_queries(view.health), error)
    view = replace(view, workers={}, health=shown, now=0.0)
    if known is not None and (known.view, known.code, known.error) == (view, code, error):
        return known
    summary = topology_summary(view)
    before, after = encode_around(summary, "uptime_secs")
    launches = (None if view.assignment is None else view.assignment.launches) or ()
    nodes = frozenset(each.node for each in launches)
    return Kept(view, code, error, nodes, summary, before, after)


def topology_summary(view: View) -> TopologySummary:
    counts = assigned_counts(view.assignment)
    return TopologySummary(
        **view.common_fields,
        num_tasks=counts.num_tasks,
        num_executors=counts.num_executors,
        num_workers=counts.num_workers,
        topology_version=view.base.topology_version,
    )


class Refresher:
    """Repeats `refresh` on a thread while somebody asks. Safe for many threads.

    After a failure the next call begins anew; a failure of the first refresh reaches the calls that
    wait for it.
    """

    def __init__(self, refresh: Callable[[], None], name: str) -> None:
        self._refresh = refresh
        self._name = name
        self._lock = threading.Lock()
        #: Done after the first refresh; None while nobody asks.
        self._first: Future[None] | None = None
        self._until = 0.0
        self._resumed = self._paused_secs = 0.0
        self._thread = PeriodicThread(name, self._step, logger=log)

    def ensure(self, idle_secs: float = _IDLE_SECS, wait_secs: float = _FIRST_SECS) -> None:
        """Wait for the first refresh, and keep up the refreshes for `idle_secs`.

        Raises `CallRefusedError` after `wait_secs`.
        """
        with self._lock:
            if self._thread.is_closing:
                raise StateClosedError(f"{self._name}: closed")
            self._until = max(self._until, time.monotonic() + idle_secs)
            first = self._first
            if first is None:
                first = self._first = Future()
                if self._thread.is_running:
                    self._thread.wake()
                else:
                    self._thread.start()
        try:
            first.result(wait_secs)
        except TimeoutError as error:
            if first.done():
                raise
            raise CallRefusedError(
                f"the heartbeats were not read within {wait_secs:g} s: ask again in a moment"
            ) from error

    def close(self) -> None:
        self._thread.close(_CLOSE_SECS)

    def pause(self) -> None:
        """After some work, sleep so that other threads run, unless a list waits for the refresh."""
        worked = time.thread_time() - self._resumed
        if worked < _WORK_SECS:
            return
        began = now = time.monotonic()
        until = began + _PAUSE_FACTOR * worked
        while now < until and not self._thread.is_closing and not self._is_awaited(now):
            time.sleep(min(_LOOK_SECS, until - now))
            now = time.monotonic()
        if self._thread.is_closing:
            raise StateClosedError(f"{self._name}: closed")
        self._paused_secs += now - began
        self._resumed = time.thread_time()

    def _is_awaited(self, now: float) -> bool:
        first = self._first
        return first is not None and not first.done() and now < self._until

    def _step(self) -> float:
        with self._lock:
            first = self._first
            if first is None or (first.done() and time.monotonic() > self._until):
                self._first = None
                return math.inf
        began = self._resumed = time.thread_time()
        self._paused_secs = 0.0
        try:
            self._refresh()
        except BaseException as error:
            with self._lock:
                self._first = None
            if not first.done():
                first.set_exception(error)
            log.debug("%s ends: %s", self._name, error)
            return math.inf
        if not first.done():
            first.set_result(None)
        worked = time.thread_time() - began
        pause = max(_SHORTEST_PAUSE_SECS, _PAUSE_FACTOR * worked - self._paused_secs)
        return min(pause, _LONGEST_PAUSE_SECS)


class TopologySummaries:
    """Keeps the `Summaries` while somebody asks. Safe for many threads."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._views = ViewReader(context)
        self._refresher = Refresher(self._refresh, "nimbus summaries")
        self._lock = threading.Lock()
        self._made: Summaries | None = None
        self._activities = context.storm.follow_activities(self._refresher.pause)
        #: Encoded with uptimes: the summaries and the second.
        self._encoded: tuple[Mapping[str, Kept], int, tuple[TopologySummary, ...]] = ({}, 0, ())

    def close(self) -> None:
        self._refresher.close()

    def newest(self) -> Summaries:
        """Return the summaries by the newest records; errors are those of the reads."""
        self._refresher.ensure()
        return self._newest()

    def count_health(self) -> tuple[dict[str, int], float | None]:
        """Return the number of topologies by health, and the heartbeats' age in seconds.

        Before the first refresh they are empty and None.
        """
        try:
            with suppress(CallRefusedError):
                # A scraper asks seldom: one refresh is enough.
                self._refresher.ensure(0.0, _SCRAPE_SECS)
            found = None if self._made is None else self._newest()
        except StormkeeperError as error:
            log.debug("the health of topologies cannot be read: %s", error)
            found = None
        if found is None:
            return {}, None
        age_secs = max(0.0, self._context.clock() - found.sources.reading.now)
        return health.counts(each.view.health for each in found.kept.values()), age_secs

    def _newest(self) -> Summaries:
        records = self._context.storm.view.with_holders()
        with self._lock:
            last = self._made
            assert last is not None
            self._made = self._advanced(records, last.sources.reading, last.sources.errors, last)
            return self._made

    def encoded(self, summaries: Summaries) -> list[TopologySummary]:
        """Return the encoded summaries with the present uptimes, instead of records."""
        now = self._context.clock()
        kept, second = summaries.kept, int(now)
        known = self._encoded
        # Uptimes count from whole seconds, so all change at once.
        if known[0] is not kept or known[1] != second:
            found: list[Any] = [
                Encoded(
                    TopologySummary,
                    each.before,
                    pack_i32(uptime_secs(each.view.base, now)),
                    each.after,
                )
                for each in kept.values()
            ]
            known = self._encoded = (kept, second, tuple(found))
        return list(known[2])

    def _refresh(self) -> None:
        # First: a launch that is newer than its pulse has not beaten.
        records = self._context.storm.view.with_holders()
        reading = Reading(self._context.clock())
        try:
            at, activities = self._activities.read()
            reading = reading._replace(at=at, activities=activities)
        except PacemakerError as error:
            log.debug("health is shown without heartbeats: %s", error)
        found = self._advanced(records, reading, {}, self._made, self._refresher.pause)
        errors = self._views.read_errors(each.view for each in found.kept.values())
        if errors:
            found = self._advanced(records, reading, errors, found)
        with self._lock:
            self._made = found

    def _advanced(
        self,
        records: ClusterRecords,
        reading: Reading,
        errors: Mapping[str, str],
        last: Summaries | None,
        pause: Callable[[], None] = lambda: None,
    ) -> Summaries:
        sources = Sources(
            records, self._context.sched_status(), self._context.submitted.revision, reading, errors
        )
        return made(sources, last, self._views, pause)
