"""The Arrow types of decoded heartbeats, and functions that build their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

#: Limit of a decompressed heartbeat, in bytes: the largest known have some hundred kilobytes. In
#: memory it takes ten times its bytes, in plain Python forty times.
HEARTBEAT_BYTES: Final = 16 * 1024 * 1024

#: Limit of the names in a heartbeat's rows, in bytes: each row has its own.
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

#: The columns of a heartbeat. Without a heartbeat all others are null; `error` says why a value was
#: not decoded.
HEARTBEAT: Final[dict[str, pa.DataType]] = {
    "time_secs": pa.int64(),
    "uptime_secs": pa.int32(),
    "executors": pa.list_(EXECUTOR),
    "completed": pa.bool_(),
    "error": pa.string(),
}

#: Not an Arrow array: the first one imports pandas, which planning does not need.
_KINDS: Final = ("bolt", "spout")


def plain(of: pa.DataType) -> pa.DataType:
    """Return a type with texts in place of `TEXT`, as in tables and Spark."""
    if pa.types.is_list(of):
        return pa.list_(plain(of.value_type))
    if pa.types.is_struct(of):
        return pa.struct([(field.name, plain(field.type)) for field in of])
    return of.value_type if pa.types.is_dictionary(of) else of


def memory(size: int) -> pa.Buffer:
    """Return resizable memory for a column."""
    return pa.allocate_buffer(size, resizable=True)


def column(
    of: pa.DataType, count: int, values: pa.Buffer, valid: pa.Buffer | None = None
) -> pa.Array:
    """Return a column from values and a validity bit for each."""
    return pa.Array.from_buffers(of, count, [valid, values])


def texts(count: int, offsets: pa.Buffer, data: pa.Buffer) -> pa.Array:
    """Return a column of texts from adjoining characters."""
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, data])


def chosen(
    among: pa.Array, numbers: pa.Buffer, count: int, valid: pa.Buffer | None = None
) -> pa.Array:
    """Return a column of `TEXT`, given the number of each row's text."""
    return pa.DictionaryArray.from_arrays(column(pa.int32(), count, numbers, valid), among)


def kinds(numbers: pa.Buffer, count: int, valid: pa.Buffer) -> pa.Array:
    """Return the column of kinds from their positions in `_KINDS`."""
    return chosen(pa.array(_KINDS, pa.string()), numbers, count, valid)


def structs(of: pa.StructType, columns: Sequence[pa.Array]) -> pa.Array:
    """Return a column of structs without nulls."""
    return pa.StructArray.from_arrays(columns, fields=list(of))


def lists(
    values: pa.Array, count: int, offsets: pa.Buffer, valid: pa.Buffer | None = None
) -> pa.Array:
    """Return a column of lists from the offsets of their beginnings."""
    of = pa.list_(values.type)
    return pa.Array.from_buffers(of, count, [valid, offsets], children=[values])


def reasons(found: Sequence[str | None]) -> pa.Array:
    """Return the column of errors."""
    return pa.array(found, pa.string())
