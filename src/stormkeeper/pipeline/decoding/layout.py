"""The Arrow types of decoded heartbeats, and functions that build columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

#: Limit of a decompressed heartbeat: the largest known have some hundred kilobytes. Decoded, a
#: heartbeat takes ten times its size in memory, in plain Python forty times.
HEARTBEAT_BYTES: Final = 16 * 1024 * 1024

#: Limit of the names in a heartbeat's rows, which each row repeats.
NAME_BYTES: Final = HEARTBEAT_BYTES

#: Texts recur: their numbers are decoded, sent and looked up faster.
NUMBER: Final = pa.int32()
TEXT: Final = pa.dictionary(NUMBER, pa.string())

#: Both engines fill these by position: three names, counts, averages, `partial` last.
COUNTER: Final = pa.struct(
    {
        **dict.fromkeys(("window", "source", "stream"), TEXT),
        **dict.fromkeys(("emitted", "transferred", "executed", "acked", "failed"), pa.int64()),
        **dict.fromkeys(("complete_ms_avg", "execute_ms_avg", "process_ms_avg"), pa.float64()),
        "partial": pa.bool_(),
    }.items()
)

EXECUTOR: Final = pa.struct(
    [
        ("task_start", pa.int32()),
        ("task_end", pa.int32()),
        ("component", TEXT),
        ("kind", TEXT),
        ("rate", pa.float64()),
        ("counters", pa.list_(COUNTER)),
    ]
)

#: Without a heartbeat all others are null; `error` says why a value was not decoded.
HEARTBEAT: Final[dict[str, pa.DataType]] = {
    "time_secs": pa.int64(),
    "uptime_secs": pa.int32(),
    "executors": pa.list_(EXECUTOR),
    "completed": pa.bool_(),
    "error": pa.string(),
}

#: Not an Arrow array: the first imports pandas, which planning does not need.
_KINDS: Final = ("bolt", "spout")


def plain(of: pa.DataType) -> pa.DataType:
    """Replace `TEXT` with texts, as in tables and Spark."""
    if pa.types.is_list(of):
        return pa.list_(plain(of.value_type))
    if pa.types.is_struct(of):
        return pa.struct([(field.name, plain(field.type)) for field in of])
    return of.value_type if pa.types.is_dictionary(of) else of


def memory(size: int) -> pa.Buffer:
    return pa.allocate_buffer(size, resizable=True)


def column(
    of: pa.DataType, count: int, values: pa.Buffer, valid: pa.Buffer | None = None
) -> pa.Array:
    """Build a column; `valid` has a bit for each value."""
    return pa.Array.from_buffers(of, count, [valid, values])


def texts(count: int, offsets: pa.Buffer, data: pa.Buffer) -> pa.Array:
    """Build a column of texts from adjoining characters."""
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, data])


def chosen(
    among: pa.Array, numbers: pa.Buffer, count: int, valid: pa.Buffer | None = None
) -> pa.Array:
    """Build a column of `TEXT`, given the number of each row's text."""
    return pa.DictionaryArray.from_arrays(column(pa.int32(), count, numbers, valid), among)


def kinds(numbers: pa.Buffer, count: int, valid: pa.Buffer) -> pa.Array:
    """`numbers` are positions in `_KINDS`."""
    return chosen(pa.array(_KINDS, pa.string()), numbers, count, valid)


def structs(of: pa.StructType, columns: Sequence[pa.Array]) -> pa.Array:
    """Build a column of structs without nulls."""
    return pa.StructArray.from_arrays(columns, fields=list(of))


def lists(
    values: pa.Array, count: int, offsets: pa.Buffer, valid: pa.Buffer | None = None
) -> pa.Array:
    """`offsets` are the beginnings of the lists."""
    of = pa.list_(values.type)
    return pa.Array.from_buffers(of, count, [valid, offsets], children=[values])


def reasons(found: Sequence[str | None]) -> pa.Array:
    return pa.array(found, pa.string())
