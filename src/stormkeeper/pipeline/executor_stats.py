"""The table ``executor_stats``, a row per executor, window and stream; and sums of such counts.

The arithmetic of sums is Storm's, in columns, as in `stormkeeper.statistics.aggregates`.

To add a column, describe it in `table_columns.EXECUTOR_STATS`. A heartbeat's column is one of
`rows.TYPED`, an executor's a field of `decoding.layout.EXECUTOR` named in `_EXECUTOR`, a stream's a
field of `decoding.layout.COUNTER`, which both decoding engines fill. A computed column of a worker
is made in `split_pulses` and named in `_COMPUTED`; one of an executor is made there and named in
`_EXECUTOR`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoding.layout import COUNTER
from stormkeeper.pipeline.table_columns import EXECUTOR_STATS

#: The window of the capacity, whichever window is requested.
CAPACITY_WINDOW: Final = "600"

ALL_TIME: Final = ":all-time"

WINDOWS: Final = (CAPACITY_WINDOW, "10800", "86400", ALL_TIME)

_EXECUTOR: Final = ("task_start", "task_end", "component", "kind")

#: Columns of the heartbeat, and the computed columns of its worker.
_OF_WORKER: Final = tuple(
    name
    for name in EXECUTOR_STATS.names
    if name not in _EXECUTOR and COUNTER.get_field_index(name) < 0
)
_COMPUTED: Final = ("topology",)

#: The columns of decoded pulses that are read. Raises `KeyError` if a column has no source.
READ: Final = tuple(
    rows.TYPED.field(name).name for name in (*_OF_WORKER, "executors") if name not in _COMPUTED
)

#: Target size of a piece's rows; an Arrow column of texts is limited to 2 GiB.
_PIECE_BYTES: Final = 16 << 20

#: Estimated bytes of a row, without the component's name, which may be long.
_ROW_BYTES: Final = 256

#: Tallies hold a kind's position here; `layout._KINDS` has another order.
KINDS: Final = pa.array(["spout", "bolt"])


def cut_pulses(pulses: pa.Table) -> Iterator[pa.Table]:
    """Cut decoded pulses into pieces with rows of `_PIECE_BYTES` at most, or one pulse."""
    start = 0
    # A column of lists of many gigabytes has several chunks.
    for chunk in pulses["executors"].chunks:
        lists, executors = _flattened(chunk)
        names = _encoded(executors["component"])
        name_bytes = pc.fill_null(pc.binary_length(names.dictionary).take(names.indices), 0)
        count = pc.add(pc.list_value_length(executors["counters"]).cast(pa.int64()), len(WINDOWS))
        cost = pa.table({"of": lists, "bytes": pc.multiply(count, pc.add(name_bytes, _ROW_BYTES))})
        of_pulse = cost.group_by("of", use_threads=False).aggregate([("bytes", "sum")])
        first, size = 0, 0
        for number, more in zip(*(column.to_pylist() for column in of_pulse), strict=True):
            if size and size + more > _PIECE_BYTES:
                yield pulses.slice(start + first, number - first)
                first, size = number, 0
            size += more
        yield pulses.slice(start + first, len(chunk) - first)
        start += len(chunk)


def executor_stats(pulses: pa.Table) -> pa.Table:
    """Lay out the counts of executors, a row per executor, window and stream.

    A window without counts has a row without a stream. Undecoded pulses give no rows. Cut many
    pulses by `cut_pulses` before.
    """
    return executor_rows(split_pulses(pulses)).cast(EXECUTOR_STATS)


def executor_rows(read: SplitPulses) -> pa.Table:
    """Return the rows of `executor_stats`; columns of text are dictionary-encoded."""
    workers, executors, counters = read
    # Keep the order of the pulses, which is usually by `read_at`; then the store need not sort.
    counters = _in_every_window(counters, executors.num_rows)
    executor_of = rows.one_array(counters["executor"])
    worker_of = rows.one_array(executors["worker"]).take(executor_of)
    columns = {name: counters[name] for name in COUNTER.names}
    columns |= {name: rows.one_array(workers[name]).take(worker_of) for name in _OF_WORKER}
    columns |= {name: rows.one_array(executors[name]).take(executor_of) for name in _EXECUTOR}
    return pa.table({name: columns[name] for name in EXECUTOR_STATS.names})


class SplitPulses(NamedTuple):
    """Decoded pulses as three tables without repetition; columns of text are dictionary-encoded.

    ``executors`` have the row number of their ``worker``, ``counters`` that of their ``executor``.
    ``place`` numbers the pairs of executor and window, by executor and then as in `WINDOWS`; it is
    null for a window that is not Storm's.
    """

    workers: pa.Table
    executors: pa.Table
    counters: pa.Table


def split_pulses(pulses: pa.Table) -> SplitPulses:
    pulses = pulses.select(READ)
    if pulses["executors"].null_count:
        pulses = pulses.filter(pc.is_valid(pulses["executors"]))
    worker_of, executors = _flattened(rows.one_array(pulses["executors"]))
    executor_of, counters = _flattened(executors["counters"])
    counters |= {name: _encoded(counters[name]) for name in ("window", "source", "stream")}
    workers = {"topology": rows.topology_names(pulses["storm_id"])}
    workers |= {name: rows.one_array(pulses[name]) for name in _OF_WORKER if name not in workers}
    executors |= {"component": _component(executors)}
    executors = {name: executors[name] for name in _EXECUTOR} | {"worker": worker_of}
    windows = counters["window"]
    window = pc.index_in(windows.dictionary, pa.array(WINDOWS)).take(windows.indices)
    first = pc.multiply(executor_of.cast(pa.int64()), len(WINDOWS))
    counters |= {"executor": executor_of, "place": pc.add(first, window.cast(pa.int64()))}
    return SplitPulses(
        pa.table({name: _encoded(workers[name]) for name in _OF_WORKER}),
        pa.table({name: _encoded(column) for name, column in executors.items()}),
        pa.table(counters),
    )


def is_workers_own(table: pa.Table) -> pa.ChunkedArray:
    """Each of Storm's workers has an executor below task 1."""
    return pc.less(table["task_start"], 1)


def is_storms_own(names: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(names.type):
        return pc.starts_with(names, "__")
    found = rows.one_array(names)
    return pc.starts_with(found.dictionary, "__").take(found.indices)


def _flattened(lists: pa.Array) -> tuple[pa.Array, dict[str, pa.Array]]:
    elements = pc.list_flatten(lists)
    names = [field.name for field in elements.type]
    return pc.list_parent_indices(lists), dict(zip(names, elements.flatten(), strict=True))


def _in_every_window(counters: pa.Table, executors: int) -> pa.Table:
    """Add an empty counter for each window in which an executor has none."""
    is_missing = np.ones(executors * len(WINDOWS), np.bool_)
    is_missing[pc.drop_null(counters["place"]).to_numpy()] = False
    missing = np.flatnonzero(is_missing)
    if not len(missing):
        return counters
    of_missing, window = np.divmod(missing, len(WINDOWS))
    empty = {field.name: pa.nulls(len(missing), field.type) for field in counters.schema}
    empty["executor"] = pa.array(of_missing, counters["executor"].type)
    empty["window"] = pa.DictionaryArray.from_arrays(window.astype(np.int32), pa.array(WINDOWS))
    empty["partial"] = pa.repeat(pa.scalar(False), len(missing))
    found = pa.concat_tables([counters, pa.table(empty)]).unify_dictionaries()
    order = np.argsort(found["executor"].to_numpy(), kind="stable")
    return found.combine_chunks().take(order)


def _component(executors: dict[str, pa.Array]) -> pa.Array:
    first, last = (executors[name].cast(pa.string()) for name in ("task_start", "task_end"))
    tasks = pc.binary_join_element_wise("tasks ", first, "-", last, "")
    own = pc.less(executors["task_start"], 1)
    return pc.coalesce(executors["component"], pc.if_else(own, "__system", tasks))


def _encoded(column: pa.Array) -> pa.Array:
    return column.dictionary_encode() if pa.types.is_string(column.type) else column


COUNTED: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Latencies (one of spouts, two of bolts), each with the count that weighs it.
WEIGHTS: Final = {"complete": "acked", "execute": "executed", "process": "executed"}

_CAPACITY_SECS: Final = 600

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

#: A count of 64 bits as decimal; Arrow sums decimals with 38 digits.
_DIGITS: Final = pa.decimal128(19)


def grouped(
    table: pa.Table,
    keys: Sequence[str],
    *,
    counts: Collection[str] = (),
    others: Mapping[str, str] | None = None,
) -> pa.Table:
    """Aggregate rows by `keys`; `others` name functions of pyarrow.

    `counts` are summed exactly, with null as 0, beyond 64 bits if need be (see `to_int64`).
    """
    wanted = dict.fromkeys(counts, "sum") | dict(others or {})
    columns = {name: table[name] for name in (*keys, *wanted)}
    columns |= {name: _exact(table[name]) for name in counts}
    by_group = pa.table(columns).unify_dictionaries().group_by(keys, use_threads=False)
    found = by_group.aggregate([*wanted.items()])
    found = found.rename_columns([*keys, *wanted])
    for name in counts:
        found = rows.replace_column(found, name, pc.fill_null(found[name], 0))
    return found


def _exact(counts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cast counts to decimals if 64 bits may not hold the sum: Arrow's sums wrap around."""
    if pa.types.is_decimal(counts.type):
        return counts
    bounds = pc.min_max(counts).as_py().values()
    largest = max(abs(bound or 0) for bound in bounds)
    return counts if largest * len(counts) <= _LARGEST else counts.cast(_DIGITS)


def largest_of(table: pa.Table, column: str, keys: Sequence[str]) -> pa.ChunkedArray:
    """For each row, return the largest value of `column` among rows with equal `keys`."""
    key = pc.binary_join_element_wise(*(table[name].cast(pa.string()) for name in keys), "/")
    by_key = pa.table({"key": key, column: table[column]}).group_by("key", use_threads=False)
    largest = by_key.aggregate([(column, "max")])
    return largest[f"{column}_max"].take(pc.index_in(key, largest["key"]))


def to_int64(count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Limit sums of counts to 64 bits."""
    if pa.types.is_decimal(count.type):
        smallest, largest = (pa.scalar(bound, pa.decimal128(38)) for bound in (_SMALLEST, _LARGEST))
        count = pc.min_element_wise(pc.max_element_wise(count, smallest), largest)
    return count.cast(pa.int64())


def to_float64(count: pa.ChunkedArray) -> pa.ChunkedArray:
    return count.cast(pa.float64(), safe=False)


def finite(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Replace infinite values and NaN with 0; null stays null."""
    return pc.if_else(pc.is_finite(values), values, 0.0)


def terms(average: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return average times count, 0 if not finite."""
    return finite(pc.multiply(average, to_float64(count)))


def average(total: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Divide a sum of `terms` by the total count; null if the count is 0."""
    weight = to_float64(count)
    weight = pc.if_else(pc.greater(weight, 0.0), weight, pa.scalar(None, pa.float64()))
    return pc.divide(pc.fill_null(finite(total), 0.0), weight)


def whole_ms(total: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cut sums of `terms` to whole numbers of 64 bits, as Storm's page of a topology does."""
    cut = pc.max_element_wise(pc.trunc(finite(total)), -(2.0**63), skip_nulls=False)
    return pc.min_element_wise(cut, 2.0**63, skip_nulls=False)


def capacity(recent_ms: pa.ChunkedArray, uptime_secs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the share of the last ten minutes, or of a shorter life, spent executing.

    `recent_ms` is the time spent in the ten-minute window, by the `terms` of execute latency.
    """
    secs = pc.min_element_wise(uptime_secs.cast(pa.int64()), _CAPACITY_SECS, skip_nulls=False)
    of_ms = pc.multiply(pc.if_else(pc.greater(secs, 0), secs, None).cast(pa.float64()), 1000.0)
    return pc.fill_null(pc.divide(pc.fill_null(finite(recent_ms), 0.0), of_ms), 0.0)
