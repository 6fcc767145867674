"""What was counted: the tables that readings of workers make, and how a batch changes them.

A batch has new readings of some workers; a topology's sums are of all of its workers. So what each
worker has counted, as its newest reading said it, is kept in a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.history.table_store import Rows
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.judging import worker_keys
from stormkeeper.pipeline.statistics.grouping import groups_by
from stormkeeper.pipeline.statistics.holders import HELD, superseded
from stormkeeper.pipeline.statistics.increments import READINGS, counters
from stormkeeper.pipeline.statistics.readings import Apart
from stormkeeper.pipeline.statistics.summaries import (
    ENCODED,
    component_stats,
    tallied,
    topology_stats,
    worker_stats,
)

_WORKER: Final = pa.schema([READINGS.field(name) for name in WorkerId._fields])


class Counting:
    """Sums up what the newest pulses of a batch say, some at a time."""

    def __init__(self) -> None:
        self._readings = [READINGS.empty_table()]
        self._sums = [ENCODED.empty_table()]
        self._workers = [_WORKER.empty_table()]

    def add(self, read: Apart) -> None:
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
        return superseded(held)


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
