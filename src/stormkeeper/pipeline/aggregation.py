"""Aggregates of groups of rows.

Each row gets the number of its group, and what is aggregated goes to that place: numpy does so in a
third of the time that Arrow takes to group rows by several columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline.rows import one_array

_LARGEST: Final = 2**63 - 1

#: Numbers of combined keys are below this: two that count rows can be multiplied.
_MOST_NUMBERS: Final = 2**62

#: A count in as many digits as 64 bits have, of which a sum has twice as many.
_DIGITS: Final = pa.decimal128(19)


#: What is counted on streams.
COUNTED: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Latencies, each with the count that it is weighed by: a spout's, and two of a bolt.
WEIGHTS: Final = {"complete": "acked", "execute": "executed", "process": "executed"}

_CAPACITY_SECS: Final = 600

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class Groups(NamedTuple):
    """Which rows belong together.

    Parameters
    ----------
    of
        The number of each row's group, as numpy indexes by it.
    size
        How many groups there are.
    are_full
        Whether each is known to have a row.
    """

    of: np.ndarray
    size: int
    are_full: bool = False

    @property
    def first(self) -> np.ndarray:
        """The first row of each group; each has one."""
        found = np.empty(self.size, np.int64)
        found[self.of[::-1]] = np.arange(len(self.of))[::-1]
        return found


def groups_by(rows: pa.Table, keys: Sequence[str]) -> Groups:
    """Return the groups of rows with the same values in some columns, in the order of the rows."""
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
    """Aggregate rows by groups; the columns keep their names.

    Parameters
    ----------
    rows
        What is to be aggregated.
    keys
        Columns that tell groups from each other; texts may be dictionaries, and stay so.
    counts, others
        As of `aggregated`.
    """
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
    """Aggregate rows by the groups that they are in.

    Parameters
    ----------
    rows
        What is to be aggregated.
    groups
        Theirs.
    counts
        Columns that are summed up exactly, null taken for 0: of 64 bits, or what this function made
        of such. `sums.held` brings them back to 64 bits, which a sum may exceed.
    others
        What is made of each other column, which has numbers, times or truth values: ``sum``,
        ``max``, ``min`` or ``any``; null of none.

    Returns
    -------
    By name, a column with the value of each group.
    """
    found = {name: _counted(rows[name], groups) for name in counts}
    for name, function in (others or {}).items():
        found[name] = _FUNCTIONS[function](rows[name], groups)
    return found


def _numbers(column: pa.ChunkedArray) -> tuple[np.ndarray, int]:
    """Return a number for each value, and how many there may be."""
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
    """Bring the values of each group together with a function of two; null where there is none."""
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
    """Return which groups have a value."""
    return _any_of(values.is_valid(), groups)


def _any_of(wanted: pa.BooleanArray, groups: Groups) -> np.ndarray:
    """Return which groups have a row that is wanted."""
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
