"""What was counted: the tables that readings of workers make, and how a batch changes them.

A batch has new readings of some workers; a topology's sums are of all of its workers. So what each
worker has counted, as its newest reading said it, is kept in a table of its own.
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

from stormkeeper.heartbeats.following import Part
from stormkeeper.heartbeats.liveness import Limits
from stormkeeper.heartbeats.uncollected import uncollected
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_store import Made, Rows, TableStore
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import partitions, rollups, tables, worker_liveness
from stormkeeper.pipeline.aggregation import groups_by
from stormkeeper.pipeline.batch import Batch, Named, Pulses, give_back, read_parts
from stormkeeper.pipeline.executor_counters import HELD, READINGS, counters, superseded_workers
from stormkeeper.pipeline.executor_stats import SplitPulses, laid_out, pieces, split_pulses
from stormkeeper.pipeline.liveness_columns import worker_keys
from stormkeeper.pipeline.partitions import Before, Clock
from stormkeeper.pipeline.status import next_servers
from stormkeeper.pipeline.summaries import (
    ENCODED,
    component_stats,
    tallied,
    topology_stats,
    worker_stats,
)
from stormkeeper.pipeline.worker_events import FLAP_SECS, next_events
from stormkeeper.pipeline.worker_reports import KNOWN_SECS, next_rejected, next_reports

_WORKER: Final = pa.schema([READINGS.field(name) for name in WorkerId._fields])


class StatisticsUpdate:
    """Sums up what the newest pulses of a batch say, some at a time."""

    def __init__(self) -> None:
        self._readings = [READINGS.empty_table()]
        self._sums = [ENCODED.empty_table()]
        self._workers = [_WORKER.empty_table()]

    def add(self, read: SplitPulses) -> None:
        """Take in pulses of some workers, one of each."""
        executors = tallied(read)
        self._readings.append(counters(executors))
        self._sums.append(worker_stats(executors))
        workers = read.workers.select(WorkerId._fields)
        self._workers.append(workers.cast(_WORKER))

    def readings(self) -> pa.Table:
        """Return what executors have counted in all, as `buckets.next_rollups` takes it."""
        return pa.concat_tables(self._readings)

    def tables(
        self,
        previous: Callable[[], pa.Table | None],
        executors: pa.Table | None,
        reports: pa.Table,
    ) -> dict[str, Rows]:
        """Return the next table of workers' sums, and the rows that are new in the logs.

        Parameters
        ----------
        previous
            Reads the table of workers' sums so far, as `ENCODED`; None at the beginning.
        executors
            The newest readings of executors so far, as `HELD`; None at the beginning.
        reports
            The next table of worker reports; workers that are not in it have no sums either.

        Returns
        -------
        By name: ``worker_stats``, to be written in a thread; and ``component_stats`` and
        ``topology_stats`` of the topologies of which a worker has a new reading. A pulse that
        cannot be read leaves what the one before it said.
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
        held = self.readings().select(HELD.names)
        if executors is not None:
            workers = worker_keys(executors)
            is_silent = pc.invert(pc.is_in(workers, worker_keys(read)))
            is_known = pc.is_in(workers, worker_keys(reports))
            held = pa.concat_tables([held, executors.filter(pc.and_(is_silent, is_known))])
        return superseded_workers(held)


def _kept(previous: Callable[[], pa.Table | None], read: pa.Table, reports: pa.Table) -> pa.Table:
    """Return the rows of workers that are reported of and have no new reading."""
    known = worker_keys(reports)
    silent = known.filter(pc.invert(pc.is_in(known, worker_keys(read))))
    # Of those who beat several times between two batches, which is usual, nothing is to be read.
    before = previous() if len(silent) else None
    if before is None:
        return ENCODED.empty_table()
    return _without_unused(_of_workers(before.replace_schema_metadata(), silent))


def _of_workers(table: pa.Table, workers: pa.Array, *, others: bool = False) -> pa.Table:
    """Return the rows of these workers, or of all others."""
    found = groups_by(table, WorkerId._fields)
    one_each = table.select(WorkerId._fields).take(found.first)
    is_one = pc.is_in(worker_keys(one_each.cast(_WORKER)), workers)
    return table.filter((pc.invert(is_one) if others else is_one).take(found.of))


def _without_unused(table: pa.Table) -> pa.Table:
    """Return rows whose dictionaries have what is used, else they would keep all that ever was."""
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            chunks = [_of_used(chunk) for chunk in table[field.name].chunks]
            table = table.set_column(place, field, pa.chunked_array(chunks, field.type))
    return table


def _of_used(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    used = pc.unique(texts.indices).drop_null()
    numbers = pc.index_in(texts.indices, used)
    return pa.DictionaryArray.from_arrays(numbers, texts.dictionary.take(used))


#: Makes a query's next tables, of logs the rows that are new, of: what reads those before, the
#: rows of a batch, and when they were read (at the earliest, at the latest).
Advance = Callable[[Before, Batch, tuple[float, float]], Made]


#: Is told that a batch has been published, and those of its tables that are `_TOLD`.
Published = Callable[[Mapping[str, Rows]], None]


_TOLD: Final = (tables.SERVERS, tables.WORKER_LIVENESS)


#: Returns the ``topology.worker.timeout.secs`` of those topologies of which it is known.
Timeouts = Callable[[], Mapping[str, float]]


def liveness_tables(
    limits: Limits,
    last_pulses: worker_liveness.ReadLastPulses = worker_liveness.no_last_pulses,
    reports: Callable[[], pa.Table | None] = lambda: None,
    timeouts: Timeouts = dict,
) -> Advance:
    """Return what makes the tables of who is alive out of rows of the source without values.

    Parameters
    ----------
    limits
        From which age on a worker is late, and dead.
    last_pulses
        Reads what silent workers said last.
    reports
        Returns the newest worker reports.
    timeouts
        Returns the topologies' own timeouts.
    """

    def advance(before: Before, batch: Batch, between: tuple[float, float]) -> Made:
        previous = before(tables.WORKER_LIVENESS)
        now_known = replace(limits, timeouts=timeouts())
        liveness = worker_liveness.next_liveness(
            previous, batch.rows, now_known, between, last_pulses, reports=reports()
        )
        _, now = between
        since = datetime.fromtimestamp(now - FLAP_SECS, UTC)
        recent = partial(before, tables.WORKER_EVENTS, since)
        events = next_events(recent, previous, liveness, limits=now_known, now=now)
        yield tables.WORKER_LIVENESS, liveness
        yield tables.WORKER_EVENTS, events
        yield tables.SERVERS, next_servers(before(tables.SERVERS), batch.rows)

    return advance


def statistics_tables(
    limits: Limits, period_secs: float, named: Named = lambda pulses: pulses
) -> Advance:
    """Return what makes the tables of what was counted out of rows as `decode.typed` gives them.

    Workers beat every `period_secs` seconds; what they do not name is `named`.
    """
    growth = partitions.Growth()

    def advance(before: Before, batch: Batch, between: tuple[float, float]) -> Made:
        found, newest = next_reports(
            before(tables.WORKER_REPORTS), batch.rows, limits, period_secs, between
        )
        growth.of_part(found.num_rows)
        counting = StatisticsUpdate()
        yield from _executor_stats(batch.pulses(newest, named), counting)
        yield tables.WORKER_REPORTS, found
        since = datetime.fromtimestamp(between[1] - KNOWN_SECS, UTC)
        yield tables.REJECTED, next_rejected(partial(before, tables.REJECTED, since), batch.rows)
        sums = partial(before, tables.WORKER_STATS, schema=ENCODED)
        executors = before(tables.EXECUTOR_COUNTERS, schema=HELD)
        counted = counting.tables(sums, executors, found)
        newest_readings = counting.readings()
        del counting
        while counted:
            yield counted.popitem()
        yield from rollups.next_rollups(before, newest_readings, found, between).items()

    return advance


def _executor_stats(pulses: Pulses, counting: StatisticsUpdate) -> Made:
    """Make the rows of pulses, and take them into sums: what is large is unpacked once for both."""
    for piece in itertools.chain.from_iterable(map(pieces, pulses)):
        read = split_pulses(piece)
        # To lay it out and to write it takes as long as all else, and goes on beside it.
        yield tables.EXECUTOR_STATS, map(laid_out, [read])
        counting.add(read)


class TableUpdater:
    """Brings a query's tables up to date with each micro-batch; one batch twice changes nothing.

    A micro-batch that is repeated after a crash is read anew, and what is read then is not what
    was read before. So all tables are published together, by one step: either that of the first
    reading was done, and the batch is not repeated, or nothing of the first reading is left.
    """

    def __init__(
        self,
        store: TableStore,
        advance: Advance,
        published: Published = lambda _: None,
        parts: int = 1,
    ) -> None:
        self._tables = store
        self._advance = advance
        self._published = published
        self._parts = parts
        self._clock = Clock()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Read the batch and publish the next tables."""
        origin = origin_of(batch, number)
        if self._tables.has(origin):
            return
        began, on_time = time.time(), self._clock.look()
        told: dict[str, Rows] = {}

        def advanced() -> Iterator[Made]:
            read = read_parts(batch, self._parts)
            # Nothing here holds what a part has, so that it goes once it is written.
            for part in [Part(one, self._parts) for one in range(self._parts)]:
                before = partitions.before(self._tables, part, on_time)
                yield self._advanced(before, next(read), began, told)
                give_back()
            next(read, None)  # Spark has more to say: that this was all

        with uncollected():
            self._tables.publish_in_parts(origin, advanced())
        self._published(told)

    def _advanced(self, before: Before, batch: Batch, began: float, told: dict[str, Rows]) -> Made:
        for name, rows in self._advance(before, batch, (began, time.time())):
            if name in _TOLD:
                told[name] = rows
            yield name, rows


def origin_of(batch: DataFrame, number: int) -> Origin:
    """Return which micro-batch that is; only in the function that is given to ``foreachBatch``."""
    context = batch.sparkSession.sparkContext
    return Origin(str(context.getLocalProperty("sql.streaming.queryId")), number)
