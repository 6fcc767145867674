"""From a micro-batch to published tables: the driver's work for each batch.

All statistics of a large cluster at once would take gigabytes: a part has some topologies with all
their workers, and a file in each ``current`` table. All tables of a batch are published in one
step, because Spark repeats a batch after a crash with other content.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from stormkeeper.heartbeats.change_pages import Part
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.heartbeats.stores import uncollected
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_store import Made, Rows, TableStore
from stormkeeper.pipeline import rollups, rows, tables, worker_liveness
from stormkeeper.pipeline.batch import AddNames, Batch, part_numbers, read_parts, release_memory
from stormkeeper.pipeline.executor_counters import OWNERSHIP
from stormkeeper.pipeline.executor_stats import cut_pulses, executor_rows, split_pulses
from stormkeeper.pipeline.status import next_servers
from stormkeeper.pipeline.summaries import ENCODED, StatisticsUpdate
from stormkeeper.pipeline.worker_events import FLAP_SECS, next_events
from stormkeeper.pipeline.worker_liveness import KNOWN_SECS, next_rejected, next_reports

log = logging.getLogger(__name__)

#: Reads this part of a table, by name; with `since`, all parts of a log, without its older files.
#: `schema` chooses columns.
ReadPrevious = Callable[..., pa.Table | None]

#: Computes a query's next tables (of a log, the new rows) from the previous tables, the batch, and
#: the first and last time of its read, in seconds since the epoch.
ComputeTables = Callable[[ReadPrevious, Batch, tuple[float, float]], Made]

#: Called after publishing, with the batch's tables named in `_REPORTED`; with none for statistics.
OnPublished = Callable[[Mapping[str, Rows]], None]

#: Returns the known ``topology.worker.timeout.secs`` by topology id.
ReadTimeouts = Callable[[], Mapping[str, float]]

#: Moves times in a previous table, by name, to the present clock.
ToPresentClock = Callable[[str, pa.Table | None], pa.Table | None]

_REPORTED: Final = (tables.SERVERS, tables.WORKER_LIVENESS)

#: The configuration key for the number of parts, and the default workers per part.
PARTS_KEY: Final = "pipeline.statistics.parts"
WORKERS_OF_PART: Final = 8192

#: Workers from which a part takes much more memory than intended.
_TOO_MANY: Final = 4 * WORKERS_OF_PART

#: Smaller steps of the clock are ignored, such as NTP's.
_SMALL_SECS: Final = 2.0

#: Columns compared with the times of new pulses.
_HEARD: Final = {
    tables.WORKER_LIVENESS: ("last_seen", "moved_at"),
    tables.WORKER_REPORTS: ("received_at",),
    tables.EXECUTOR_COUNTERS: ("at",),
}

#: Tables with times on the driver's clock; others have the readers' times.
_BY_OUR_CLOCK: Final = frozenset({tables.WORKER_LIVENESS, tables.WORKER_REPORTS})


@dataclass(eq=False)
class TableUpdater:
    """Updates a query's tables with each micro-batch; a repeated batch changes nothing."""

    store: TableStore
    compute: ComputeTables
    on_published: OnPublished = lambda _: None
    parts: int = 1

    def __post_init__(self) -> None:
        self._clock = Clock()

    def __call__(self, batch: DataFrame, number: int) -> None:
        origin = batch_origin(batch, number)
        if self.store.has(origin):
            return
        began, on_time = time.time(), self._clock.look()
        reported: dict[str, Rows] = {}

        def computed() -> Iterator[Made]:
            read = read_parts(batch, self.parts)
            # Nothing here refers to a part's rows: they are freed once written.
            for part in [Part(one, self.parts) for one in range(self.parts)]:
                before = _previous_reader(self.store, part, on_time)
                yield self._computed(before, next(read), began, reported)
                release_memory()
            next(read, None)  # exhausts the iterator, which ends its threads here and in Spark

        with uncollected():
            self.store.publish_in_parts(origin, computed())
        self.on_published(reported)

    def _computed(
        self, before: ReadPrevious, batch: Batch, began: float, reported: dict[str, Rows]
    ) -> Made:
        for name, rows_ in self.compute(before, batch, (began, time.time())):
            if name in _REPORTED:
                reported[name] = rows_
            yield name, rows_


def batch_origin(batch: DataFrame, number: int) -> Origin:
    """Return the identity of a micro-batch; call within ``foreachBatch``."""
    context = batch.sparkSession.sparkContext
    return Origin(str(context.getLocalProperty("sql.streaming.queryId")), number)


def liveness_tables(
    limits: LivenessLimits,
    read_last_pulses: worker_liveness.ReadLastPulses = worker_liveness.no_last_pulses,
    reports: Callable[[], pa.Table | None] = lambda: None,
    timeouts: ReadTimeouts = dict,
) -> ComputeTables:
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
    is_warned = False

    def compute(before: ReadPrevious, batch: Batch, between: tuple[float, float]) -> Made:
        reports, newest = next_reports(
            before(tables.WORKER_REPORTS), batch.rows, limits, period_secs, between
        )
        nonlocal is_warned
        # The number of parts is fixed at the start.
        if reports.num_rows > _TOO_MANY and not is_warned:
            is_warned = True
            log.warning(
                "the parts of statistics have grown to %d workers: restart the pipeline, which "
                "then has a part for each %d workers, or set %s to more",
                *(reports.num_rows, WORKERS_OF_PART, PARTS_KEY),
            )
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


def _executor_stats(pulses: Iterable[pa.Table], update: StatisticsUpdate) -> Made:
    """Yield rows of ``executor_stats``, and add to `update`: pulses are unpacked once."""
    for piece in itertools.chain.from_iterable(map(cut_pulses, pulses)):
        split = split_pulses(piece)
        # The store lays out and writes these rows in a thread, beside the rest of the work.
        yield tables.EXECUTOR_STATS, map(executor_rows, [split])
        update.add(split)


def _previous_reader(store: TableStore, part: Part, on_time: ToPresentClock) -> ReadPrevious:
    """Read a part of a query's tables, with times on the present clock."""

    def read(
        name: str, since: datetime | None = None, schema: pa.Schema | None = None
    ) -> pa.Table | None:
        written = store.read_parts(name, schema)
        if (part.count == 1 and len(written) <= 1) or since is not None:
            return on_time(name, store.read(name, since, schema))
        if len(written) == part.count:
            return on_time(name, written[part.number]())
        return on_time(name, _part_of(written, part) if written else None)

    return read


def _part_of(written: Sequence[Callable[[], pa.Table]], part: Part) -> pa.Table:
    """Read a part from the files of another number of parts, as after a start with more."""
    found, notes = [], []
    for read in written:
        table = read()
        notes.append(table.schema.metadata or {})
        mine = pc.equal(part_numbers(table, part.count), part.number)
        found.append(table.replace_schema_metadata().filter(mine))
    merged = worker_liveness.merge_forgotten(notes, part.has) | rollups.merge_marks(notes)
    return pa.concat_tables(found).replace_schema_metadata(merged)


@dataclass(eq=False)
class Clock:
    """Moves times in previous tables to a clock that was set in between.

    Otherwise silent workers would age by that step, and die; new pulses would look like a restart,
    or like the future.
    """

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    _ahead: float | None = field(default=None, init=False)

    def look(self) -> ToPresentClock:
        """Compare the clocks; times by the driver's clock that are later than now become now."""
        now = self.wall()
        before, self._ahead = self._ahead, now - self.steady()
        set_secs = 0.0 if before is None else self._ahead - before
        if abs(set_secs) <= _SMALL_SECS:
            set_secs = 0.0

        def on_time(name: str, table: pa.Table | None) -> pa.Table | None:
            if table is None or name not in _HEARD:
                return table
            latest = now if name in _BY_OUR_CLOCK else inf
            for column in _HEARD[name]:
                if column in table.column_names:
                    table = _moved(table, column, set_secs, latest)
            if set_secs:
                table = table.replace_schema_metadata(
                    worker_liveness.move_forgotten(table, set_secs)
                )
            return table

        return on_time


def _moved(table: pa.Table, name: str, secs: float, latest: float) -> pa.Table:
    heard = known = table[name]
    if secs:
        heard = pc.add(heard, pa.scalar(timedelta(seconds=secs))).cast(heard.type)
    last = pc.max(heard).as_py()
    if last is not None and last.timestamp() > latest + _SMALL_SECS:
        at = rows.timestamps([latest])[0]
        heard = pc.if_else(pc.greater(heard, at), at, heard)
    return table if heard is known else rows.replace_column(table, name, heard)
