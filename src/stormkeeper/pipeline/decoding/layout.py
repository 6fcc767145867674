"""What decoded heartbeats are in Arrow, and how columns are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

#: What a heartbeat may decompress to, in bytes. The largest that are known have some hundred
#: kilobytes. In memory one takes up to ten times its bytes, and in plain Python forty times.
HEARTBEAT_BYTES: Final = 16 * 1024 * 1024

#: What the names of its windows, components and streams may take in its rows, in bytes: each has
#: its own, so that a long one grows with their number.
NAME_BYTES: Final = HEARTBEAT_BYTES

#: Texts come again and again: numbers of them are decoded, sent and looked up in less time.
NUMBER: Final = pa.int32()
TEXT: Final = pa.dictionary(NUMBER, pa.string())

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

#: The columns of a heartbeat, all null where there is none but for `error`, which says why.
HEARTBEAT: Final[dict[str, pa.DataType]] = {
    "time_secs": pa.int64(),
    "uptime_secs": pa.int32(),
    "executors": pa.list_(EXECUTOR),
    "completed": pa.bool_(),
    "error": pa.string(),
}

#: Not a column, as Arrow imports pandas to make the first one: those who only plan what is read
#: need neither.
_KINDS: Final = ("bolt", "spout")


def plain(of: pa.DataType) -> pa.DataType:
    """Return a type with texts in the place of `TEXT`, as tables and Spark have them."""
    if pa.types.is_list(of):
        return pa.list_(plain(of.value_type))
    if pa.types.is_struct(of):
        return pa.struct([(field.name, plain(field.type)) for field in of])
    return of.value_type if pa.types.is_dictionary(of) else of


def memory(size: int) -> pa.Buffer:
    """Return memory that can grow, for a column."""
    return pa.allocate_buffer(size, resizable=True)


def column(
    of: pa.DataType, count: int, values: pa.Buffer, valid: pa.Buffer | None = None
) -> pa.Array:
    """Make a column of memory that has its values, and a bit for each that is not null."""
    return pa.Array.from_buffers(of, count, [valid, values])


def texts(count: int, offsets: pa.Buffer, data: pa.Buffer) -> pa.Array:
    """Make a column of texts that lie one after another."""
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, data])


def chosen(
    among: pa.Array, numbers: pa.Buffer, count: int, valid: pa.Buffer | None = None
) -> pa.Array:
    """Make a column of `TEXT` of memory that has the texts' numbers."""
    return pa.DictionaryArray.from_arrays(column(pa.int32(), count, numbers, valid), among)


def kinds(numbers: pa.Buffer, count: int, valid: pa.Buffer) -> pa.Array:
    """Make the column of kinds of memory that has their places in `_KINDS`."""
    return chosen(pa.array(_KINDS, pa.string()), numbers, count, valid)


def structs(of: pa.StructType, columns: Sequence[pa.Array]) -> pa.Array:
    """Make a column of structs, none of them null."""
    return pa.StructArray.from_arrays(columns, fields=list(of))


def lists(
    values: pa.Array, count: int, offsets: pa.Buffer, valid: pa.Buffer | None = None
) -> pa.Array:
    """Make a column of lists of memory that says where each begins."""
    of = pa.list_(values.type)
    return pa.Array.from_buffers(of, count, [valid, offsets], children=[values])


def reasons(found: Sequence[str | None]) -> pa.Array:
    """Make the column of errors."""
    return pa.array(found, pa.string())
