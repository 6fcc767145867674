"""The arithmetic: sums by groups of rows, held within 64 bits, averages, capacity.

The rules are those of `stormkeeper.statistics.tallies`, which Nimbus's pages are made of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

#: What is counted on streams.
COUNTED: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Latencies, each with the count that it is weighed by: a spout's, and two of a bolt.
WEIGHTS: Final = {"complete": "acked", "execute": "executed", "process": "executed"}

_CAPACITY_SECS: Final = 600

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

#: A count in as many digits as 64 bits have, of which a sum has twice as many.
_DIGITS: Final = pa.decimal128(19)


def grouped(
    rows: pa.Table,
    keys: Sequence[str],
    *,
    counts: Collection[str] = (),
    others: Mapping[str, str] | None = None,
) -> pa.Table:
    """Aggregate rows by groups; the columns keep their names.

    Parameters
    ----------
    rows
        What is to be aggregated.
    keys
        Columns that tell groups from each other.
    counts
        Columns that are summed up exactly, null taken for 0: of 64 bits, or what this function made
        of such. `held` brings them back to 64 bits, which a sum may exceed.
    others
        Arrow's function for each other column, such as ``{"complete_ms": "sum"}``.
    """
    rows = rows.select([*keys, *counts, *(others or {})])
    for name in counts:
        rows = _with(rows, name, _addable(rows[name]))
    # Numbers are told apart in half the time that texts take.
    texts = {}
    for name in keys:
        if pa.types.is_string(rows[name].type):
            rows = _with(rows, name, rows[name].dictionary_encode())
        if pa.types.is_dictionary(rows[name].type):
            encoded = rows[name].unify_dictionaries().combine_chunks()
            texts[name] = encoded.dictionary
            rows = _with(rows, name, encoded.indices)
    functions = dict.fromkeys(counts, "sum") | dict(others or {})
    # On one thread a sum has the same order every time, and takes less CPU.
    found = rows.group_by(list(keys), use_threads=False).aggregate(list(functions.items()))
    found = found.select([*keys, *(f"{name}_{function}" for name, function in functions.items())])
    found = found.rename_columns([*keys, *functions])
    for name, values in texts.items():
        found = _with(found, name, values.take(found[name].combine_chunks()))
    for name in counts:
        found = _with(found, name, pc.fill_null(found[name], 0))
    return found


def numbers_of(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Return a number for each row that tells it from those with other texts in some columns."""
    found = pa.repeat(pa.scalar(0, pa.int64()), table.num_rows)
    for name in keys:
        texts = table[name].combine_chunks().dictionary_encode("encode")
        found = pc.add(pc.multiply(found, len(texts.dictionary)), texts.indices.cast(pa.int64()))
    return found


def held(count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return sums of counts in 64 bits: one that they do not hold is the nearest that they do."""
    if pa.types.is_decimal(count.type):
        smallest, largest = (pa.scalar(bound, pa.decimal128(38)) for bound in (_SMALLEST, _LARGEST))
        count = pc.min_element_wise(pc.max_element_wise(count, smallest), largest)
    return count.cast(pa.int64())


def doubles(count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return counts, or sums of them, as one multiplies with them or divides by them.

    A worker may count to where doubles have gaps: the nearest one will do.
    """
    return count.cast(pa.float64(), safe=False)


def finite(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values with 0 in the place of what is no finite number; null stays null."""
    return pc.if_else(pc.is_finite(values), values, 0.0)


def terms(average: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return average times count, as an average over several of them adds up; 0 if not finite."""
    return finite(pc.multiply(average, doubles(count)))


def average(total: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an average from the sum of its `terms` and that of its counts; null for none."""
    weight = doubles(count)
    weight = pc.if_else(pc.greater(weight, 0.0), weight, pa.scalar(None, pa.float64()))
    return pc.divide(pc.fill_null(finite(total), 0.0), weight)


def whole_ms(total: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cut sums of `terms` down to whole numbers of 64 bits, as Storm's page of a topology does."""
    cut = pc.max_element_wise(pc.trunc(finite(total)), -(2.0**63), skip_nulls=False)
    return pc.min_element_wise(cut, 2.0**63, skip_nulls=False)


def capacity(recent_ms: pa.ChunkedArray, uptime_secs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the share of the last ten minutes, or of its life, that an executor spent executing.

    Parameters
    ----------
    recent_ms
        Sum of its `terms` of execute latency in the window of ten minutes; null: 0.
    uptime_secs
        Of its worker.
    """
    secs = pc.min_element_wise(uptime_secs.cast(pa.int64()), _CAPACITY_SECS, skip_nulls=False)
    of_ms = pc.multiply(pc.if_else(pc.greater(secs, 0), secs, None).cast(pa.float64()), 1000.0)
    return pc.fill_null(pc.divide(pc.fill_null(finite(recent_ms), 0.0), of_ms), 0.0)


def _addable(count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return counts in a type in which their sum cannot overflow: that of the counts, if it can."""
    if pa.types.is_decimal(count.type):
        return count
    bounds = pc.min_max(count).as_py()
    largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
    if largest * len(count) <= _LARGEST:
        return count
    return count.cast(_DIGITS)


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)
