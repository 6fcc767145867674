"""The tables ``worker_stats``, ``component_stats`` and ``topology_stats``: the sums of executors.

A batch has new pulses of some workers only, but a topology's sums are of all: the sums of each
worker's newest pulse are a table, kept from batch to batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.history.table_store import Rows
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.executor_counters import OWNERSHIP, READINGS, counters, superseded_workers
from stormkeeper.pipeline.executor_stats import (
    CAPACITY_WINDOW,
    COUNTED,
    KINDS,
    WEIGHTS,
    WINDOWS,
    SplitPulses,
    average,
    capacity,
    grouped,
    is_storms_own,
    is_workers_own,
    largest_of,
    terms,
    to_int64,
    whole_ms,
)
from stormkeeper.pipeline.table_columns import COMPONENT_STATS, TOPOLOGY_STATS, WORKER_STATS

#: Counts; ``_all`` includes Storm's own streams.
COUNTS: Final = (
    *("emitted", "transferred", "emitted_all", "transferred_all"),
    *("executed", "acked", "failed"),
)

#: Sums of average times count; in ``_page`` cut to whole milliseconds for each executor.
_TOTALS: Final = tuple(f"{name}_ms" for name in WEIGHTS)
_PAGE_TOTALS: Final = tuple(f"{name}_page_ms" for name in WEIGHTS)

_WORKER: Final = WorkerId._fields

#: The columns of ``executor_stats`` that are summed, or are keys.
SUMMED: Final = (
    *(*_WORKER, "component", "kind", "task_start", "task_end", "window", "stream"),
    *("read_at", "uptime_secs", "partial", *COUNTED, *(f"{name}_ms_avg" for name in WEIGHTS)),
)

_READING: Final = ("topology", "server", "instance", "revision", "time_secs", "received_at")

_OF_STREAMS: Final = dict.fromkeys(_TOTALS, "sum") | {"partial": "any"}

_SIZES: Final = ("workers", "executors", "tasks")

_OF_KIND: Final = {"complete": "spout", "execute": "bolt", "process": "bolt"}

#: `WORKER_STATS` with dictionaries of texts.
ENCODED: Final = pa.schema(
    (field.name, pa.dictionary(pa.int32(), field.type) if field.type == pa.string() else field.type)
    for field in WORKER_STATS
)


def tally_rows(executors: pa.Table) -> pa.Table:
    """Sum each executor's streams, in each of Storm's windows; kinds become numbers.

    `executors` are rows of ``executor_stats``, one report per executor, or results of this
    function, concatenated.
    """
    keys = [*_WORKER, "component", "task_start", "task_end", "window"]
    keys += ["kind", "read_at", "uptime_secs"]
    keys += [name for name in _READING if name in executors.column_names]
    if "emitted_all" not in executors.column_names:
        counted = pc.and_(
            pc.invert(is_workers_own(executors)), pc.is_in(executors["window"], pa.array(WINDOWS))
        )
        executors = _streams(executors.filter(counted))
        kind = pc.index_in(executors["kind"], KINDS)
        executors = rows.replace_column(executors, "kind", kind)
    return grouped(executors, keys, counts=COUNTS, others=_OF_STREAMS)


def tally_pulses(read: SplitPulses) -> pa.Table:
    """Return the `tally_rows` of split pulses, a single pulse per worker.

    Groups by ``place``, which is faster than by ten columns.
    """
    workers, executors, counters = read
    sums = grouped(_streams(counters), ["place"], counts=COUNTS, others=_OF_STREAMS)
    places = pa.arange(0, executors.num_rows * len(WINDOWS))
    executor = pc.divide(places, len(WINDOWS))
    wanted = pc.invert(pc.fill_null(is_workers_own(executors), False)).take(executor)
    places, executor = (column.filter(rows.one_array(wanted)) for column in (places, executor))
    sums = sums.take(pc.index_in(places, sums["place"]))
    window = pc.subtract(places, pc.multiply(executor, len(WINDOWS))).cast(pa.int32())
    kind = pc.index_in(executors["kind"].cast(pa.string()), KINDS)
    executors = rows.replace_column(executors, "kind", kind).take(executor)
    workers = workers.take(executors["worker"])
    columns = {name: workers[name] for name in (*_WORKER, *_READING, "read_at", "uptime_secs")}
    columns |= {name: executors[name] for name in ("component", "task_start", "task_end", "kind")}
    columns |= {name: pc.fill_null(sums[name], 0) for name in COUNTS}
    columns |= {name: sums[name] for name in _TOTALS}
    columns["window"] = pa.DictionaryArray.from_arrays(window, pa.array(WINDOWS))
    columns["partial"] = pc.fill_null(sums["partial"], False)
    return pa.table(columns)


def _streams(counters: pa.Table) -> pa.Table:
    found = counters
    own = is_storms_own(found["stream"])
    columns = rows.columns_by_name(found)
    for name in ("emitted", "transferred"):
        columns[f"{name}_all"] = found[name]
        columns[name] = pc.if_else(own, None, found[name])
    for name, weight in WEIGHTS.items():
        columns[f"{name}_ms"] = terms(found[f"{name}_ms_avg"], found[weight])
    return pa.table(columns)


def sum_workers(executors: pa.Table) -> pa.Table:
    """Sum the result of `tally_rows` or `tally_pulses` by worker, component and window."""
    found = executors
    for name in WEIGHTS:
        found = found.append_column(f"{name}_page_ms", whole_ms(found[f"{name}_ms"]))
    is_recent = pc.equal(found["window"], CAPACITY_WINDOW)
    recent = capacity(found["execute_ms"], found["uptime_secs"])
    last = found["task_end"].cast(pa.int64())
    tasks = pc.add(pc.subtract(last, found["task_start"].cast(pa.int64())), 1)
    more = {
        "capacity": pc.if_else(is_recent, recent, None),
        "tasks": tasks,
        "executors": pa.repeat(1, found.num_rows),
    }
    for name, column in more.items():
        found = found.append_column(name, column)
    others = dict.fromkeys(("kind", "read_at", "capacity"), "max") | {"partial": "any"}
    others |= dict.fromkeys((*_TOTALS, *_PAGE_TOTALS, "tasks", "executors"), "sum")
    return grouped(found, [*_WORKER, "component", "window"], counts=COUNTS, others=others)


def worker_stats(executors: pa.Table) -> pa.Table:
    """Return the result of `sum_workers` with the columns `ENCODED`."""
    found = sum_workers(executors)
    columns = rows.columns_by_name(found)
    columns |= {name: to_int64(found[name]) for name in COUNTS}
    kind = rows.one_array(found["kind"]).cast(pa.int32())
    columns["kind"] = pa.DictionaryArray.from_arrays(kind, KINDS)
    columns["topology"] = rows.topology_names(found["storm_id"])
    columns["partial"] = pc.fill_null(found["partial"], False)
    return pa.table(columns, schema=ENCODED)


def component_stats(workers: pa.Table) -> pa.Table:
    """Sum workers' counts by component and window: the rows of Storm's pages."""
    others = dict.fromkeys((*_SIZES, *_TOTALS, *_PAGE_TOTALS), "sum")
    others |= dict.fromkeys(("kind", "capacity", "read_at"), "max") | {"partial": "any"}
    keys = ["storm_id", "component", "window"]
    found = grouped(_numbered(workers), keys, counts=COUNTS, others=others)
    kind = KINDS.take(rows.one_array(found["kind"]))
    columns = rows.columns_by_name(found)
    columns |= {"kind": kind, "topology": rows.topology_names(found["storm_id"])}
    columns["partial"] = pc.fill_null(found["partial"], False)
    columns["read_at"] = largest_of(found, "read_at", ["storm_id"])
    busiest = pc.max_element_wise(largest_of(found, "capacity", ["storm_id", "component"]), 0.0)
    columns["capacity"] = pc.if_else(pc.equal(kind, "bolt"), busiest, None)
    for name, weight in WEIGHTS.items():
        is_of_kind = pc.equal(kind, _OF_KIND[name])
        for total, said in ((f"{name}_ms", "avg"), (f"{name}_page_ms", "page")):
            value = average(found[total], found[weight])
            columns[f"{name}_ms_{said}"] = pc.if_else(is_of_kind, value, None)
    columns |= {name: to_int64(found[name]) for name in COUNTS}
    return pa.table(columns, schema=COMPONENT_STATS)


def topology_stats(workers: pa.Table) -> pa.Table:
    """Sum workers' counts by topology and window: Storm's ``TopologyStats``."""
    counts = [name for name in COUNTS if name != "executed"]
    others = dict.fromkeys(("executors", "tasks", "complete_ms"), "sum")
    others |= dict.fromkeys(("workers", "read_at"), "max")
    found = grouped(_of_topology(workers), [*_WORKER, "window"], counts=counts, others=others)
    others |= {"workers": "sum"}
    found = grouped(found, ["storm_id", "window"], counts=counts, others=others)
    columns = rows.columns_by_name(found)
    columns["read_at"] = largest_of(found, "read_at", ["storm_id"])
    columns["topology"] = rows.topology_names(found["storm_id"])
    columns["complete_ms_avg"] = average(found["complete_ms"], found["acked"])
    columns |= {name: to_int64(found[name]) for name in COUNTS if name in columns}
    return pa.table(columns, schema=TOPOLOGY_STATS)


def concat_sums(parts: Sequence[pa.Table]) -> pa.Table:
    """Concatenate sums, some of which may exceed 64 bits."""
    return pa.concat_tables(parts, promote_options="permissive")


def _numbered(workers: pa.Table) -> pa.Table:
    if not pa.types.is_integer(workers["kind"].type):
        kind = pc.index_in(workers["kind"].cast(pa.string()), KINDS)
        workers = rows.replace_column(workers, "kind", kind)
    return workers.append_column("workers", pa.repeat(1, workers.num_rows))


def _of_topology(workers: pa.Table) -> pa.Table:
    """Set columns to null where a row does not count for the topology."""
    workers = _numbered(workers)
    visible = pc.invert(is_storms_own(workers["component"]))
    spouts = pc.and_(visible, pc.fill_null(pc.equal(workers["kind"], 0), False))
    columns = rows.columns_by_name(workers)
    for name in ("emitted", "transferred"):
        columns[name] = pc.if_else(visible, workers[name], None)
    for name in ("acked", "failed", "complete_ms"):
        columns[name] = pc.if_else(spouts, workers[name], None)
    return pa.table(columns | {"workers": visible.cast(pa.int64())})


class StatisticsUpdate:
    """Sums up the newest pulses of a batch, some at a time, and updates the summaries."""

    def __init__(self) -> None:
        self._readings = [READINGS.empty_table()]
        self._sums = [ENCODED.empty_table()]
        self._workers = [rows.WORKER.empty_table()]

    def add(self, split: SplitPulses) -> None:
        """Add pulses, a single pulse per worker."""
        executors = tally_pulses(split)
        self._readings.append(counters(executors))
        self._sums.append(worker_stats(executors))
        workers = split.workers.select(WorkerId._fields)
        self._workers.append(workers.cast(rows.WORKER))

    def readings(self) -> pa.Table:
        return pa.concat_tables(self._readings)

    def tables(
        self,
        previous: Callable[[], pa.Table | None],
        previous_counters: pa.Table | None,
        reports: pa.Table,
    ) -> dict[str, Rows]:
        """Return ``worker_stats``, and the new rows of ``component_stats`` and ``topology_stats``.

        `previous` reads ``worker_stats``; `reports` are the next worker reports. A worker with an
        unreadable new pulse keeps its sums.
        """
        read = pa.concat_tables(self._workers)
        kept, sums = _kept(previous, read, reports), self._sums
        if len(gone := self._superseded(previous_counters, read, reports)):
            kept, *sums = [_of_workers(some, gone, others=True) for some in (kept, *sums)]
        workers = pa.concat_tables([kept, *sums]).unify_dictionaries()
        is_changed = pc.is_in(workers["storm_id"], pc.unique(read["storm_id"]))
        changed = rows.where(workers, is_changed)
        return {
            tables.WORKER_STATS: [workers],
            tables.COMPONENT_STATS: component_stats(changed),
            tables.TOPOLOGY_STATS: topology_stats(changed),
        }

    def _superseded(
        self, previous_counters: pa.Table | None, read: pa.Table, reports: pa.Table
    ) -> pa.Array:
        held = self.readings().select(OWNERSHIP.names)
        if previous_counters is not None:
            workers = rows.worker_keys(previous_counters)
            is_silent = pc.invert(pc.is_in(workers, rows.worker_keys(read)))
            is_known = pc.is_in(workers, rows.worker_keys(reports))
            silent = previous_counters.filter(pc.and_(is_silent, is_known))
            held = pa.concat_tables([held, silent])
        return superseded_workers(held)


def _kept(previous: Callable[[], pa.Table | None], read: pa.Table, reports: pa.Table) -> pa.Table:
    """Return the sums of workers with a report and without a new reading."""
    known = rows.worker_keys(reports)
    silent = known.filter(pc.invert(pc.is_in(known, rows.worker_keys(read))))
    # Usually every worker has beaten since the batch before: nothing is read.
    before = previous() if len(silent) else None
    if before is None:
        return ENCODED.empty_table()
    kept = _of_workers(before.replace_schema_metadata(), silent)
    return kept.cast(WORKER_STATS).cast(ENCODED)  # drops unused texts, which would grow for ever


def _of_workers(table: pa.Table, workers: pa.Array, *, others: bool = False) -> pa.Table:
    is_one = pc.is_in(rows.worker_keys(table.select(_WORKER).cast(rows.WORKER)), workers)
    return table.filter(pc.invert(is_one) if others else is_one)
