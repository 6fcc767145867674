"""The arithmetic: sums held within 64 bits, averages, capacity.

The rules are those of `stormkeeper.statistics.tallies`, which Nimbus's pages are made of.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: What is counted on streams.
COUNTED: Final = ("emitted", "transferred", "executed", "acked", "failed")

#: Latencies, each with the count that it is weighed by: a spout's, and two of a bolt.
WEIGHTS: Final = {"complete": "acked", "execute": "executed", "process": "executed"}

_CAPACITY_SECS: Final = 600

_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


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
