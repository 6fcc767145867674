"""What components counted, summed up per worker and window: the table of component statistics."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.current import topology_name

_COUNTS: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Averages, and the count that weighs each: the calls that it is the average of.
_WEIGHTS: Final = {
    "complete_ms_avg": "acked",
    "execute_ms_avg": "executed",
    "process_ms_avg": "executed",
}

_WORKER: Final = ("storm_id", "node", "port")
_GROUP: Final = ("storm_id", "topology", "node", "port", "component", "kind", "window")

#: One row per worker, component and window. Counts are of the streams that the topology declared,
#: 0 where nothing was reported; averages are null then. Where `partial` is true, there were more
#: rows than were counted; it is null in rows of a table from before that column.
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


def next_statistics(previous: pa.Table | None, newest: pa.Table, liveness: pa.Table) -> pa.Table:
    """Return the next table of component statistics.

    Parameters
    ----------
    previous
        The table so far; None at the beginning.
    newest
        The rows of the batch that are workers' newest pulses, as `current.next_liveness` gives
        them. A worker's counts are replaced by those of its newest pulse that could be read.
    liveness
        The next liveness table; workers that are not in it have no rows here either.
    """
    newest = newest.filter(pc.is_valid(newest["executors"]))
    found = _sums(newest)
    if previous is not None:
        kept = previous.filter(pc.is_in(_keys(previous), _keys(liveness)))
        kept = kept.filter(pc.invert(pc.is_in(_keys(kept), _keys(newest))))
        found = pa.concat_tables([kept, found], promote_options="default")
        found = found.select(COMPONENT_STATISTICS.names)
    order = ("storm_id", "component", "window", "node", "port")
    return found.sort_by([(name, "ascending") for name in order])


def _sums(pulses: pa.Table) -> pa.Table:
    counters = _counters(pulses)
    for average, weight in _WEIGHTS.items():
        counted = pc.if_else(pc.is_valid(counters[average]), counters[weight], None)
        weighed = pc.multiply(counters[average], _doubles(counted))
        counters = counters.append_column(f"{average} total", weighed)
        counters = counters.append_column(f"{average} weight", counted)
    sums = [name for name in counters.column_names if name.endswith((" total", " weight"))]
    grouped = counters.group_by(list(_GROUP)).aggregate(
        [
            ("task_start", "count_distinct"),
            ("partial", "any"),
            ("received_at", "max"),
            ("time_secs", "max"),
            *((name, "sum") for name in (*_COUNTS, *sums)),
        ]
    )
    columns = {name: grouped[name] for name in _GROUP}
    columns["executors"] = grouped["task_start_count_distinct"]
    columns |= {name: pc.fill_null(grouped[f"{name}_sum"], 0) for name in _COUNTS}
    columns["partial"] = grouped["partial_any"]
    for average in _WEIGHTS:
        weight = _doubles(grouped[f"{average} weight_sum"])
        some = pc.if_else(pc.greater(weight, 0), weight, None)
        columns[average] = pc.divide(grouped[f"{average} total_sum"], some)
    columns["received_at"] = grouped["received_at_max"]
    columns["time_secs"] = grouped["time_secs_max"]
    return pa.table({name: columns[name] for name in COMPONENT_STATISTICS.names}).cast(
        COMPONENT_STATISTICS
    )


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
    # Streams of Storm's own, such as __ack_ack, are not what the topology's author counts.
    return beside.filter(pc.invert(pc.starts_with(beside["stream"], "__")))


def _keys(table: pa.Table) -> pa.Array:
    port = table["port"].cast(pa.string())
    # A storm id is a path segment, so the slash ends it; a port has no dash.
    return pc.binary_join_element_wise(
        table["storm_id"], pc.binary_join_element_wise(table["node"], port, "-"), "/"
    ).combine_chunks()


def _array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
