"""The table ``executor_stats``: counts of executors, a row per executor, window and stream.

To add a column, describe it in `table_columns.EXECUTOR_STATS`. A heartbeat's column is one of
`rows.TYPED`, an executor's a field of `decoding.layout.EXECUTOR` named in `_EXECUTOR`, a stream's a
field of `decoding.layout.COUNTER`, which both decoding engines fill. A computed column of a worker
is made in `split_pulses` and named in `_COMPUTED`; one of an executor is made there and named in
`_EXECUTOR`.
"""

from __future__ import annotations

from collections.abc import Iterator
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

#: Target size of a piece's rows; a single pulse may need more. An Arrow column of texts is limited
#: to 2 GiB.
_PIECE_BYTES: Final = 16 << 20

#: Estimated bytes of a row, without the component's name, which may be long.
_ROW_BYTES: Final = 256

#: Tallies hold a kind's position here; `layout._KINDS` has another order.
KINDS: Final = pa.array(["spout", "bolt"])


def cut_pulses(pulses: pa.Table) -> Iterator[pa.Table]:
    """Cut decoded pulses into pieces, each with rows of `_PIECE_BYTES` at most, or one pulse."""
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

    A component that the worker does not name is called ``tasks 1-3``, after the executor's tasks;
    the component of a Storm worker's own executor, of task -1, is ``__system``. A window without
    counts has a row without a stream. Undecoded pulses give no rows. Cut many pulses by
    `cut_pulses` before.
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
