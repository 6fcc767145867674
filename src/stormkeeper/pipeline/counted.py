"""What was counted: the tables that readings of workers make, and how a batch changes them.

A batch has new readings of some workers; a topology's sums are of all of its workers. So what each
worker has counted, as its newest reading said it, is kept in a table of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.judging import worker_keys
from stormkeeper.pipeline.statistics.grouping import groups_by
from stormkeeper.pipeline.statistics.increments import READINGS, counters
from stormkeeper.pipeline.statistics.readings import Apart
from stormkeeper.pipeline.statistics.summaries import (
    ENCODED,
    WORKER_STATS,
    component_stats,
    tallied,
    topology_stats,
    worker_stats,
)
from stormkeeper.tables.store import Rows


class Counting:
    """Sums up what the newest pulses of a batch say, some at a time."""

    def __init__(self) -> None:
        self._readings = [READINGS.empty_table()]
        self._sums = [ENCODED.empty_table()]
        self._workers = [WORKER_STATS.empty_table().select(WorkerId._fields)]

    def add(self, read: Apart) -> None:
        """Take in pulses of some workers, one of each."""
        executors = tallied(read)
        self._readings.append(counters(executors))
        self._sums.append(worker_stats(executors))
        workers = read.workers.select(WorkerId._fields)
        self._workers.append(workers.cast(self._workers[0].schema))

    def readings(self) -> pa.Table:
        """Return what executors have counted in all, as `buckets.next_rollups` takes it."""
        return pa.concat_tables(self._readings)

    def tables(self, previous: Callable[[], pa.Table | None], reports: pa.Table) -> dict[str, Rows]:
        """Return the next table of workers' sums, and the rows that are new in the logs.

        Parameters
        ----------
        previous
            Reads the table of workers' sums so far, as `ENCODED`; None at the beginning.
        reports
            The next table of worker reports; workers that are not in it have no sums either.

        Returns
        -------
        By name: ``worker_stats``, to be written in a thread; and ``component_stats`` and
        ``topology_stats`` of the topologies of which a worker has a new reading. A pulse that
        cannot be read leaves what the one before it said.
        """
        read = pa.concat_tables(self._workers)
        kept = _kept(previous, read, reports)
        is_changed = pc.is_in(kept["storm_id"], pc.unique(read["storm_id"]))
        of_changed = pa.concat_tables([kept.filter(is_changed), *self._sums])
        return {
            tables.WORKER_STATS: [pa.concat_tables([kept, *self._sums]).unify_dictionaries()],
            tables.COMPONENT_STATS: component_stats(of_changed),
            tables.TOPOLOGY_STATS: topology_stats(of_changed),
        }


def _kept(previous: Callable[[], pa.Table | None], read: pa.Table, reports: pa.Table) -> pa.Table:
    """Return the rows of workers that are reported of and have no new reading."""
    known = worker_keys(reports)
    silent = known.filter(pc.invert(pc.is_in(known, worker_keys(read))))
    # Of those who beat several times between two batches, which is usual, nothing is to be read.
    before = previous() if len(silent) else None
    if before is None:
        return ENCODED.empty_table()
    before = before.replace_schema_metadata()
    workers = groups_by(before, WorkerId._fields)
    one_each = before.select(WorkerId._fields).take(workers.first)
    is_silent = pc.is_in(worker_keys(one_each.cast(read.schema)), silent)
    return _without_unused(before.filter(is_silent.take(workers.of)))


def _without_unused(rows: pa.Table) -> pa.Table:
    """Return rows whose dictionaries have what is used, else they would keep all that ever was."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            chunks = [_of_used(chunk) for chunk in rows[field.name].chunks]
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    return rows


def _of_used(texts: pa.DictionaryArray) -> pa.DictionaryArray:
    used = pc.unique(texts.indices).drop_null()
    numbers = pc.index_in(texts.indices, used)
    return pa.DictionaryArray.from_arrays(numbers, texts.dictionary.take(used))
