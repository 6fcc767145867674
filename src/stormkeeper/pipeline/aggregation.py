"""Aggregates of groups of rows, and the arithmetic of Storm's statistics in columns.

numpy aggregates by the number of each row's group, in a third of Arrow's time for several columns.
The arithmetic follows `stormkeeper.statistics.aggregates`, from which Nimbus's pages are made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline.rows import one_array

#: Combined keys stay below this, so that the product of two row counts fits.
_MOST_NUMBERS: Final = 2**62

#: A count of 64 bits, as decimal; a sum has twice as many digits.
_DIGITS: Final = pa.decimal128(19)


#: What is counted on streams.
COUNTED: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Latencies (one of spouts, two of bolts), each with the count by which it is weighed.
WEIGHTS: Final = {"complete": "acked", "execute": "executed", "process": "executed"}

_CAPACITY_SECS: Final = 600

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class Groups(NamedTuple):
    """Groups of rows: each row's group, the number of groups, and whether each surely has a row."""

    of: np.ndarray
    size: int
    are_full: bool = False

    @property
    def first(self) -> np.ndarray:
        """The first row of each group; no group may be empty."""
        found = np.empty(self.size, np.int64)
        found[self.of[::-1]] = np.arange(len(self.of))[::-1]
        return found


def groups_by(rows: pa.Table, keys: Sequence[str]) -> Groups:
    """Return the groups of rows with equal values in some columns, in the order of the rows."""
    found, count = np.zeros(rows.num_rows, np.int64), 1
    for name in keys:
        numbers, most = _numbers(rows[name])
        if count * most > _MOST_NUMBERS:
            found, count = _without_gaps(found)
        found = found * most + numbers
        count *= most
    return Groups(*_without_gaps(found), are_full=True)


def grouped(
    rows: pa.Table,
    keys: Sequence[str],
    *,
    counts: Collection[str] = (),
    others: Mapping[str, str] | None = None,
) -> pa.Table:
    """Aggregate rows by groups of equal `keys`, as `aggregated` does."""
    groups = groups_by(rows, keys)
    first = pa.array(groups.first)
    found = {name: rows[name].take(first) for name in keys}
    return pa.table(found | aggregated(rows, groups, counts=counts, others=others))


def aggregated(
    rows: pa.Table,
    groups: Groups,
    *,
    counts: Collection[str] = (),
    others: Mapping[str, str] | None = None,
) -> dict[str, pa.Array]:
    """Aggregate rows by their groups, into a column by name.

    `counts` are summed up exactly, with null as 0, beyond 64 bits if need be (see `to_int64`);
    `others` have ``sum``, ``max``, ``min`` or ``any``, null for a group without values.
    """
    found = {name: _counted(rows[name], groups) for name in counts}
    for name, function in (others or {}).items():
        found[name] = _FUNCTIONS[function](rows[name], groups)
    return found


def _numbers(column: pa.ChunkedArray) -> tuple[np.ndarray, int]:
    """Return a number for each value, and the number of possible values."""
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    values = one_array(column)
    if not pa.types.is_dictionary(column.type):
        values = values.dictionary_encode("encode")
    count = len(values.dictionary)
    return pc.fill_null(values.indices, count).to_numpy(zero_copy_only=False), count + 1


def _without_gaps(numbers: np.ndarray) -> tuple[np.ndarray, int]:
    encoded = pa.array(numbers).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.intp), len(encoded.dictionary)


def _counted(column: pa.ChunkedArray, groups: Groups) -> pa.Array:
    if not pa.types.is_decimal(column.type):
        known = pc.fill_null(one_array(column), 0).to_numpy()
        largest = max(int(known.max(initial=0)), -int(known.min(initial=0)))
        if largest * len(known) <= _LARGEST:
            found = np.zeros(groups.size, np.int64)
            np.add.at(found, groups.of, known)
            return pa.array(found)
        column = column.cast(_DIGITS)
    by_group = pa.table({"group": groups.of, "count": column}).group_by("group", use_threads=False)
    found = by_group.aggregate([("count", "sum")])
    place = pc.index_in(pa.array(np.arange(groups.size)), found["group"])
    return pc.fill_null(one_array(found["count_sum"].take(place)), 0)


def _reduced(
    function: np.ufunc,
    start: Callable[[np.dtype], float | int],
    column: pa.ChunkedArray,
    groups: Groups,
) -> pa.Array:
    """Reduce the values of each group with a function of two arguments; null without values."""
    values = one_array(column)
    if pa.types.is_timestamp(column.type):
        values = values.cast(pa.int64())
    begin = start(np.dtype(values.type.to_pandas_dtype()))
    known = pc.fill_null(values, begin).to_numpy()
    found = np.full(groups.size, begin, known.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        function.at(found, groups.of, known)
    is_none = None if groups.are_full and not values.null_count else ~_any_valid(values, groups)
    return pa.array(found, values.type, mask=is_none).cast(column.type)


def _summed(column: pa.ChunkedArray, groups: Groups) -> pa.Array:
    if pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    return _reduced(np.add, lambda _: 0, column, groups)


def _any(column: pa.ChunkedArray, groups: Groups) -> pa.Array:
    values = one_array(column)
    found = _any_of(pc.fill_null(values, False), groups)
    return pa.array(found, mask=~_any_valid(values, groups))


def _any_valid(values: pa.Array, groups: Groups) -> np.ndarray:
    return _any_of(values.is_valid(), groups)


def _any_of(wanted: pa.BooleanArray, groups: Groups) -> np.ndarray:
    found = np.zeros(groups.size, np.uint8)
    np.maximum.at(found, groups.of, wanted.cast(pa.uint8()).to_numpy())
    return found.view(np.bool_)


def _least(kind: np.dtype) -> float | int:
    return -np.inf if kind.kind == "f" else int(np.iinfo(kind).min)


def _greatest(kind: np.dtype) -> float | int:
    return np.inf if kind.kind == "f" else int(np.iinfo(kind).max)


_FUNCTIONS: Final[dict[str, Callable[[pa.ChunkedArray, Groups], pa.Array]]] = {
    "sum": _summed,
    "max": partial(_reduced, np.fmax, _least),
    "min": partial(_reduced, np.fmin, _greatest),
    "any": _any,
}


def to_int64(count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return sums of counts in 64 bits, limited to the range of 64 bits."""
    if pa.types.is_decimal(count.type):
        smallest, largest = (pa.scalar(bound, pa.decimal128(38)) for bound in (_SMALLEST, _LARGEST))
        count = pc.min_element_wise(pc.max_element_wise(count, smallest), largest)
    return count.cast(pa.int64())


def to_float64(count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return counts or their sums as doubles, rounded where doubles have gaps."""
    return count.cast(pa.float64(), safe=False)


def finite(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values with 0 for infinite values and NaN; null stays null."""
    return pc.if_else(pc.is_finite(values), values, 0.0)


def terms(average: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return average times count, 0 if not finite: the addend of an average over several."""
    return finite(pc.multiply(average, to_float64(count)))


def average(total: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an average from the sum of `terms` and the total count; null if the count is 0."""
    weight = to_float64(count)
    weight = pc.if_else(pc.greater(weight, 0.0), weight, pa.scalar(None, pa.float64()))
    return pc.divide(pc.fill_null(finite(total), 0.0), weight)


def whole_ms(total: pa.ChunkedArray) -> pa.ChunkedArray:
    """Cut sums of `terms` to whole numbers of 64 bits, as Storm's page of a topology does."""
    cut = pc.max_element_wise(pc.trunc(finite(total)), -(2.0**63), skip_nulls=False)
    return pc.min_element_wise(cut, 2.0**63, skip_nulls=False)


def capacity(recent_ms: pa.ChunkedArray, uptime_secs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the share of the last ten minutes, or of a shorter life, spent executing.

    `recent_ms` is the sum of the `terms` of execute latency in the ten-minute window (null: 0),
    `uptime_secs` the worker's uptime.
    """
    secs = pc.min_element_wise(uptime_secs.cast(pa.int64()), _CAPACITY_SECS, skip_nulls=False)
    of_ms = pc.multiply(pc.if_else(pc.greater(secs, 0), secs, None).cast(pa.float64()), 1000.0)
    return pc.fill_null(pc.divide(pc.fill_null(finite(recent_ms), 0.0), of_ms), 0.0)
