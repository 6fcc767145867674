"""From a micro-batch to published tables: the driver's work for each batch.

A batch has new pulses of some workers only, but a topology's sums are of all its workers: so the
sums of each worker's newest pulse are a table of their own.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from stormkeeper.heartbeats.change_pages import Part
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.heartbeats.stores import uncollected
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_store import Made, Rows, TableStore
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import partitions, rollups, tables, worker_liveness
from stormkeeper.pipeline.aggregation import groups_by
from stormkeeper.pipeline.batch import AddNames, Batch, Pulses, read_parts, release_memory
from stormkeeper.pipeline.executor_counters import OWNERSHIP, READINGS, counters, superseded_workers
from stormkeeper.pipeline.executor_stats import SplitPulses, cut_pulses, executor_rows, split_pulses
from stormkeeper.pipeline.liveness_columns import worker_keys
from stormkeeper.pipeline.partitions import Clock, ReadPrevious
from stormkeeper.pipeline.status import next_servers
from stormkeeper.pipeline.summaries import (
    ENCODED,
    component_stats,
    tally_pulses,
    topology_stats,
    worker_stats,
)
from stormkeeper.pipeline.worker_events import FLAP_SECS, next_events
from stormkeeper.pipeline.worker_reports import KNOWN_SECS, next_rejected, next_reports

#: Computes a query's next tables (of a log, the new rows only) from the previous tables, the batch,
#: and the earliest and latest time at which the batch was read, in seconds since the epoch.
ComputeTables = Callable[[ReadPrevious, Batch, tuple[float, float]], Made]

#: Called when a batch was published, with the tables `_REPORTED` of the batch.
OnPublished = Callable[[Mapping[str, Rows]], None]

_REPORTED: Final = (tables.SERVERS, tables.WORKER_LIVENESS)

#: Returns the known ``topology.worker.timeout.secs`` by topology id.
ReadTimeouts = Callable[[], Mapping[str, float]]

_WORKER: Final = pa.schema([READINGS.field(name) for name in WorkerId._fields])


class TableUpdater:
    """Updates a query's tables with each micro-batch; a repeated batch changes nothing.

    Spark repeats a batch after a crash with other content. So all tables are published in one step.
    """

    def __init__(
        self,
        store: TableStore,
        compute: ComputeTables,
        on_published: OnPublished = lambda _: None,
        parts: int = 1,
    ) -> None:
        self._tables = store
        self._compute = compute
        self._on_published = on_published
        self._parts = parts
        self._clock = Clock()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Publish the tables of a micro-batch, unless published already."""
        origin = batch_origin(batch, number)
        if self._tables.has(origin):
            return
        began, on_time = time.time(), self._clock.look()
        reported: dict[str, Rows] = {}

        def computed() -> Iterator[Made]:
            read = read_parts(batch, self._parts)
            # Nothing here refers to a part's rows, so that they are freed once they are written.
            for part in [Part(one, self._parts) for one in range(self._parts)]:
                before = partitions.read_previous(self._tables, part, on_time)
                yield self._computed(before, next(read), began, reported)
                release_memory()
            next(read, None)  # exhausts the iterator, which ends its threads here and in Spark

        with uncollected():
            self._tables.publish_in_parts(origin, computed())
        self._on_published(reported)

    def _computed(
        self, before: ReadPrevious, batch: Batch, began: float, reported: dict[str, Rows]
    ) -> Made:
        for name, rows in self._compute(before, batch, (began, time.time())):
            if name in _REPORTED:
                reported[name] = rows
            yield name, rows


def batch_origin(batch: DataFrame, number: int) -> Origin:
    """Return the identity of a micro-batch, within the function of ``foreachBatch``."""
    context = batch.sparkSession.sparkContext
    return Origin(str(context.getLocalProperty("sql.streaming.queryId")), number)


def liveness_tables(
    limits: LivenessLimits,
    read_last_pulses: worker_liveness.ReadLastPulses = worker_liveness.no_last_pulses,
    reports: Callable[[], pa.Table | None] = lambda: None,
    timeouts: ReadTimeouts = dict,
) -> ComputeTables:
    """Return the function that computes the liveness query's tables, from rows without values."""

    def compute(before: ReadPrevious, batch: Batch, between: tuple[float, float]) -> Made:
        previous = before(tables.WORKER_LIVENESS)
        now_known = replace(limits, timeouts=timeouts())
        liveness = worker_liveness.next_liveness(
            previous, batch.rows, now_known, between, read_last_pulses, reports=reports()
        )
        _, now = between
        since = datetime.fromtimestamp(now - FLAP_SECS, UTC)
        recent = partial(before, tables.WORKER_EVENTS, since)
        events = next_events(recent, previous, liveness, limits=now_known, now=now)
        yield tables.WORKER_LIVENESS, liveness
        yield tables.WORKER_EVENTS, events
        yield tables.SERVERS, next_servers(before(tables.SERVERS), batch.rows)

    return compute


def statistics_tables(
    limits: LivenessLimits, period_secs: float, named: AddNames = lambda pulses: pulses
) -> ComputeTables:
    """Return the function that computes the statistics query's tables, from decoded rows."""
    growth = partitions.GrowthWarning()

    def compute(before: ReadPrevious, batch: Batch, between: tuple[float, float]) -> Made:
        reports, newest = next_reports(
            before(tables.WORKER_REPORTS), batch.rows, limits, period_secs, between
        )
        growth.check(reports.num_rows)
        update = StatisticsUpdate()
        yield from _executor_stats(batch.pulses(newest, named), update)
        yield tables.WORKER_REPORTS, reports
        since = datetime.fromtimestamp(between[1] - KNOWN_SECS, UTC)
        yield tables.REJECTED, next_rejected(partial(before, tables.REJECTED, since), batch.rows)
        sums = partial(before, tables.WORKER_STATS, schema=ENCODED)
        executors = before(tables.EXECUTOR_COUNTERS, schema=OWNERSHIP)
        computed = update.tables(sums, executors, reports)
        readings = update.readings()
        del update
        while computed:
            yield computed.popitem()
        yield from rollups.next_rollups(before, readings, reports, between).items()

    return compute


def _executor_stats(pulses: Pulses, update: StatisticsUpdate) -> Made:
    """Yield the rows of ``executor_stats`` and add them to `update`: pulses are unpacked once."""
    for piece in itertools.chain.from_iterable(map(cut_pulses, pulses)):
        split = split_pulses(piece)
        # The store lays out and writes these rows in a thread, beside the rest of the work.
        yield tables.EXECUTOR_STATS, map(executor_rows, [split])
        update.add(split)


class StatisticsUpdate:
    """Sums up the newest pulses of a batch, some at a time, and updates the summaries."""

    def __init__(self) -> None:
        self._readings = [READINGS.empty_table()]
        self._sums = [ENCODED.empty_table()]
        self._workers = [_WORKER.empty_table()]

    def add(self, split: SplitPulses) -> None:
        """Add pulses of some workers, a single pulse of each."""
        executors = tally_pulses(split)
        self._readings.append(counters(executors))
        self._sums.append(worker_stats(executors))
        workers = split.workers.select(WorkerId._fields)
        self._workers.append(workers.cast(_WORKER))

    def readings(self) -> pa.Table:
        """Return the counters of all executors, for `rollups.next_rollups`."""
        return pa.concat_tables(self._readings)

    def tables(
        self,
        previous: Callable[[], pa.Table | None],
        executors: pa.Table | None,
        reports: pa.Table,
    ) -> dict[str, Rows]:
        """Return ``worker_stats``, and the new rows of ``component_stats`` and ``topology_stats``.

        `previous` reads ``worker_stats``, `executors` are the newest readings before this batch,
        `reports` the next worker reports. A worker whose new pulse is unreadable keeps its sums.
        """
        read = pa.concat_tables(self._workers)
        kept, sums = _kept(previous, read, reports), self._sums
        if len(gone := self._superseded(executors, read, reports)):
            kept, *sums = [_of_workers(some, gone, others=True) for some in (kept, *sums)]
        is_changed = pc.is_in(kept["storm_id"], pc.unique(read["storm_id"]))
        of_changed = pa.concat_tables([kept.filter(is_changed), *sums])
        return {
            tables.WORKER_STATS: [pa.concat_tables([kept, *sums]).unify_dictionaries()],
            tables.COMPONENT_STATS: component_stats(of_changed),
            tables.TOPOLOGY_STATS: topology_stats(of_changed),
        }

    def _superseded(
        self, executors: pa.Table | None, read: pa.Table, reports: pa.Table
    ) -> pa.Array:
        held = self.readings().select(OWNERSHIP.names)
        if executors is not None:
            workers = worker_keys(executors)
            is_silent = pc.invert(pc.is_in(workers, worker_keys(read)))
            is_known = pc.is_in(workers, worker_keys(reports))
            held = pa.concat_tables([held, executors.filter(pc.and_(is_silent, is_known))])
        return superseded_workers(held)


def _kept(previous: Callable[[], pa.Table | None], read: pa.Table, reports: pa.Table) -> pa.Table:
    """Return the sums of workers with a report and without a new reading."""
    known = worker_keys(reports)
    silent = known.filter(pc.invert(pc.is_in(known, worker_keys(read))))
    # Usually every worker has beaten since the batch before, and nothing is read.
    before = previous() if len(silent) else None
    if before is None:
        return ENCODED.empty_table()
    return _without_unused(_of_workers(before.replace_schema_metadata(), silent))


def _of_workers(table: pa.Table, workers: pa.Array, *, others: bool = False) -> pa.Table:
    found = groups_by(table, WorkerId._fields)
    one_each = table.select(WorkerId._fields).take(found.first)
    is_one = pc.is_in(worker_keys(one_each.cast(_WORKER)), workers)
    return table.filter((pc.invert(is_one) if others else is_one).take(found.of))


def _without_unused(table: pa.Table) -> pa.Table:
    """Drop unused texts from dictionaries, which otherwise grow for ever."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            chunks = [_without_unused_texts(chunk) for chunk in table[field.name].chunks]
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


def _without_unused_texts(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    used = pc.unique(texts.indices).drop_null()
    numbers = pc.index_in(texts.indices, used)
    return pa.DictionaryArray.from_arrays(numbers, texts.dictionary.take(used))
