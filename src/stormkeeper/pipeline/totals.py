"""What components counted, summed up per worker and window: the table of component statistics.

The rules are those of `stormkeeper.statistics.tallies`, which Nimbus's pages are made of.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.current import topology_name, worker_keys

_COUNTS: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Averages, which kind of component has each, and the count that it is weighed by.
_WEIGHTS: Final = {
    "complete_ms_avg": ("spout", "acked"),
    "execute_ms_avg": ("bolt", "executed"),
    "process_ms_avg": ("bolt", "executed"),
}

_SMALLEST: Final = pa.scalar(-(2**63), pa.decimal128(38))
_LARGEST: Final = pa.scalar(2**63 - 1, pa.decimal128(38))

_WORKER: Final = ("storm_id", "node", "port")
_GROUP: Final = ("storm_id", "topology", "node", "port", "component", "kind", "window")

#: One row per worker, component and window. Counts are 0 where nothing was reported; averages are
#: null then. Where `partial` is true, there were more rows than were counted; it is null in rows
#: of a table from before that column.
COMPONENT_STATISTICS: Final = pa.schema(
    [
        ("storm_id", pa.string()),
        ("topology", pa.string()),
        ("component", pa.string()),
        ("kind", pa.string()),
        ("window", pa.string()),
        ("node", pa.string()),
        ("port", pa.int32()),
        ("executors", pa.int64()),
        *((name, pa.int64()) for name in _COUNTS),
        ("partial", pa.bool_()),
        *((name, pa.float64()) for name in _WEIGHTS),
        ("received_at", rows.TIMESTAMP),
        ("time_secs", pa.int64()),
    ]
)


def next_statistics(previous: pa.Table | None, newest: pa.Table, reports: pa.Table) -> pa.Table:
    """Return the next table of component statistics.

    Parameters
    ----------
    previous
        The table so far; None at the beginning.
    newest
        The rows of the batch that are workers' newest pulses, as `reports.next_reports` gives
        them. A worker's counts are replaced by those of its newest pulse that could be read.
    reports
        The next table of worker reports; workers that are not in it have no rows here either.
    """
    newest = newest.filter(pc.is_valid(newest["executors"]))
    found = _sums(newest)
    if previous is not None:
        kept = previous.filter(pc.is_in(worker_keys(previous), worker_keys(reports)))
        kept = kept.filter(pc.invert(pc.is_in(worker_keys(kept), worker_keys(newest))))
        found = pa.concat_tables([kept, found], promote_options="default")
        found = found.select(COMPONENT_STATISTICS.names)
    order = ("storm_id", "component", "window", "node", "port")
    return found.sort_by([(name, "ascending") for name in order])


def _sums(pulses: pa.Table) -> pa.Table:
    counters = _counters(pulses)
    for average, (_, weight) in _WEIGHTS.items():
        term = pc.multiply(counters[average], _doubles(counters[weight]))
        finite = pc.if_else(pc.is_finite(term), term, 0.0)
        counters = counters.append_column(f"{average} total", finite)
    totals = [f"{average} total" for average in _WEIGHTS]
    for name in _COUNTS:
        # A sum of counts may be more than 64 bits hold.
        counters = counters.set_column(
            counters.column_names.index(name), name, counters[name].cast(pa.decimal128(19))
        )
    grouped = counters.group_by(list(_GROUP)).aggregate(
        [
            ("task_start", "count_distinct"),
            ("partial", "any"),
            ("received_at", "max"),
            ("time_secs", "max"),
            *((name, "sum") for name in (*_COUNTS, *totals)),
        ]
    )
    columns = {name: grouped[name] for name in _GROUP}
    columns["executors"] = grouped["task_start_count_distinct"]
    columns |= {name: _whole(grouped[f"{name}_sum"]) for name in _COUNTS}
    columns["partial"] = grouped["partial_any"]
    for average, (kind, weight) in _WEIGHTS.items():
        total = pc.fill_null(grouped[f"{average} total_sum"], 0.0)
        total = pc.if_else(pc.is_finite(total), total, 0.0)
        counted = pc.fill_null(_doubles(grouped[f"{weight}_sum"]), 0.0)
        some = pc.and_(pc.equal(grouped["kind"], kind), pc.greater(counted, 0.0))
        columns[average] = pc.divide(total, pc.if_else(some, counted, None))
    columns["received_at"] = grouped["received_at_max"]
    columns["time_secs"] = grouped["time_secs_max"]
    return pa.table({name: columns[name] for name in COMPONENT_STATISTICS.names}).cast(
        COMPONENT_STATISTICS
    )


def _whole(sums: pa.ChunkedArray) -> pa.ChunkedArray:
    held = pc.min_element_wise(pc.max_element_wise(pc.fill_null(sums, 0), _SMALLEST), _LARGEST)
    return held.cast(pa.int64())


def _doubles(counts: pa.ChunkedArray) -> pa.ChunkedArray:
    # A worker may count to where doubles have gaps: the nearest one will do for a weight.
    return counts.cast(pa.float64(), safe=False)


def _counters(pulses: pa.Table) -> pa.Table:
    """Lay the nested counters out, one row each, with their worker's and executor's columns."""
    pulses = pulses.combine_chunks()
    lists = _array(pulses["executors"])
    executors = pa.Table.from_struct_array(pc.list_flatten(lists))
    beside = pulses.select([*_WORKER, "received_at", "time_secs"])
    names = [topology_name(storm_id) for storm_id in beside["storm_id"].to_pylist()]
    beside = beside.append_column("topology", pa.array(names, pa.string()))
    beside = beside.take(pc.list_parent_indices(lists))
    tasks = pc.binary_join_element_wise(
        executors["task_start"].cast(pa.string()), executors["task_end"].cast(pa.string()), "-"
    )
    label = pc.binary_join_element_wise(pa.scalar("tasks"), tasks, " ")
    beside = beside.append_column("component", pc.coalesce(executors["component"], label))
    beside = beside.append_column("kind", executors["kind"])
    beside = beside.append_column("task_start", executors["task_start"])
    lists = _array(executors["counters"])
    counters = pa.Table.from_struct_array(pc.list_flatten(lists))
    beside = beside.take(pc.list_parent_indices(lists))
    for name in counters.column_names:
        beside = beside.append_column(name, counters[name])
    # What goes out on streams of Storm's own, such as __ack_ack, is not what the topology emits.
    own = pc.invert(pc.starts_with(beside["stream"], "__"))
    for name in ("emitted", "transferred"):
        place = beside.column_names.index(name)
        beside = beside.set_column(place, name, pc.if_else(own, beside[name], None))
    # Tasks are numbered from 1: the others are what each of Storm's workers has for itself.
    return beside.filter(pc.greater(beside["task_start"], 0))


def _array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
