"""Sums of groups of rows, and Storm's arithmetic of statistics in columns.

The arithmetic follows `stormkeeper.statistics.aggregates`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

COUNTED: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Latencies (one of spouts, two of bolts), each with the count that weighs it.
WEIGHTS: Final = {"complete": "acked", "execute": "executed", "process": "executed"}

_CAPACITY_SECS: Final = 600

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1

#: A count of 64 bits as decimal; Arrow sums decimals with 38 digits.
_DIGITS: Final = pa.decimal128(19)


def grouped(
    rows: pa.Table,
    keys: Sequence[str],
    *,
    counts: Collection[str] = (),
    others: Mapping[str, str] | None = None,
) -> pa.Table:
    """Aggregate rows by groups of equal `keys`, in any order.

    `counts` are summed exactly, with null as 0, beyond 64 bits if need be (see `to_int64`);
    `others` name functions of pyarrow.
    """
    wanted = dict.fromkeys(counts, "sum") | dict(others or {})
    columns = {name: rows[name] for name in (*keys, *wanted)}
    columns |= {name: _exact(rows[name]) for name in counts}
    by_group = pa.table(columns).unify_dictionaries().group_by(keys, use_threads=False)
    found = by_group.aggregate([*wanted.items()])
    found = found.rename_columns([*keys, *wanted])
    for name in counts:
        place = found.column_names.index(name)
        found = found.set_column(place, name, pc.fill_null(found[name], 0))
    return found


def _exact(counts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cast counts to decimals if 64 bits may not hold the sum: Arrow's sums wrap around."""
    if pa.types.is_decimal(counts.type):
        return counts
    bounds = pc.min_max(counts).as_py().values()
    largest = max(abs(bound or 0) for bound in bounds)
    return counts if largest * len(counts) <= _LARGEST else counts.cast(_DIGITS)


def largest_of(rows: pa.Table, column: str, keys: Sequence[str]) -> pa.ChunkedArray:
    """For each row, return the largest value of `column` among rows with equal `keys`."""
    key = pc.binary_join_element_wise(*(rows[name].cast(pa.string()) for name in keys), "/")
    by_key = pa.table({"key": key, column: rows[column]}).group_by("key", use_threads=False)
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

    `recent_ms` is the sum of the `terms` of execute latency in the ten-minute window (null: 0).
    """
    secs = pc.min_element_wise(uptime_secs.cast(pa.int64()), _CAPACITY_SECS, skip_nulls=False)
    of_ms = pc.multiply(pc.if_else(pc.greater(secs, 0), secs, None).cast(pa.float64()), 1000.0)
    return pc.fill_null(pc.divide(pc.fill_null(finite(recent_ms), 0.0), of_ms), 0.0)
