"""The arithmetic: sums within 64 bits, averages, and the tally of each executor.

The rules are those of `stormkeeper.statistics.tallies`. A count is summed up in two halves of 32
bits, which do not overflow on the way: Spark would end the query, and decimals are slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.functions import col

from stormkeeper.pipeline.statistics.executors import (
    CAPACITY_WINDOW,
    WINDOWS,
    is_workers_own,
)

_CAPACITY_SECS: Final = 600

#: What is counted; ``_all`` also on Storm's own streams.
COUNTS: Final = (
    *("emitted", "transferred", "emitted_all", "transferred_all"),
    *("executed", "acked", "failed"),
)

#: Latencies, each with the count that it is weighed by: a spout's, and two of a bolt.
WEIGHTS: Final = {"complete": "acked", "execute": "executed", "process": "executed"}

#: Which kind of component it is, as a number: Spark's quick way to aggregate has no strings.
SPOUT: Final = 1
BOLT: Final = 2

_LOW: Final = 0xFFFFFFFF
_HALF: Final = 2**31
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


def halves(name: str, count: Column | None = None) -> list[Column]:
    """Return the sums of a count's halves, for ``agg``; `whole` puts them together.

    Parameters
    ----------
    name
        What the halves are called by.
    count
        The count; by default, the column `name`.
    """
    count = col(name) if count is None else count
    return [
        fn.sum(fn.shiftright(count, 32)).alias(f"{name} high"),
        fn.sum(count.bitwiseAND(fn.lit(_LOW))).alias(f"{name} low"),
    ]


def sums(names: Iterable[str]) -> list[Column]:
    """Return sums under the same names, for ``agg``."""
    return [fn.sum(col(f"`{name}`")).alias(name) for name in names]


def halves_of(counts: Iterable[str]) -> list[str]:
    """Return the names of counts' halves."""
    return [f"{name} {half}" for name in counts for half in ("high", "low")]


def whole(name: str) -> Column:
    """Return the sum of a count from its halves, held within 64 bits; 0 where there was none."""
    low = fn.coalesce(f"{name} low", fn.lit(0))
    high = fn.coalesce(f"{name} high", fn.lit(0)) + fn.shiftright(low, 32)
    found = (
        fn.when(high >= _HALF, _LARGEST)
        .when(high < -_HALF, _SMALLEST)
        .otherwise(fn.shiftleft(high, 32).bitwiseOR(low.bitwiseAND(fn.lit(_LOW))))
    )
    return found.cast("bigint")


def as_double(name: str) -> Column:
    """Return the sum of a count from its halves, as one divides by it: beyond 64 bits, too."""
    return fn.coalesce(
        col(f"`{name} high`").cast("double") * float(2**32) + col(f"`{name} low`"), fn.lit(0.0)
    )


def finite(value: Column) -> Column:
    """Return `value`, or 0 where it is no finite number."""
    # Spark takes NaN to be larger than infinity.
    return fn.when(fn.abs(value) < inf, value).otherwise(0.0)


def average(total: Column, weight: Column) -> Column:
    """Return an average from the sum of its terms; null where nothing weighs."""
    return fn.when(weight > 0, finite(total) / weight)


def executor_tallies(df: DataFrame) -> DataFrame:
    """Sum up each executor's streams, in each window.

    Parameters
    ----------
    df
        Rows of `executor_stats`, one report per executor.

    Returns
    -------
    Rows by ``storm_id``, ``node``, ``port``, ``component``, ``task_start``, ``task_end`` and
    ``window``, of Storm's. They have the `halves` of `COUNTS`; each latency's ``… terms``, the sum
    of average times count in milliseconds, and ``… page``, the same cut down to a whole number;
    ``capacity``, in its window alone; and ``kind``, ``read_at``, ``partial``, ``tasks``.
    """
    own = ~col("stream").startswith("__")
    kind = fn.when(col("kind") == "spout", SPOUT).when(col("kind") == "bolt", BOLT)
    keys = [
        *("storm_id", "node", "port", "component", "task_start", "task_end", "window"),
        *("kind", "read_at", "uptime_secs"),
    ]
    found = (
        df.where(~is_workers_own(col("task_start")) & col("window").isin(*WINDOWS))
        .select(
            *(kind.alias(name) if name == "kind" else col(name) for name in keys),
            "partial",
            *(fn.when(own, col(name)).alias(name) for name in ("emitted", "transferred")),
            *(col(name).alias(f"{name}_all") for name in ("emitted", "transferred")),
            *("executed", "acked", "failed"),
            *(
                finite(col(f"{name}_ms_avg") * col(weight)).alias(f"{name} terms")
                for name, weight in WEIGHTS.items()
            ),
        )
        .groupBy(*keys)
        .agg(
            *(half for name in COUNTS for half in halves(name)),
            *sums(f"{name} terms" for name in WEIGHTS),
            fn.max("partial").alias("partial"),
        )
    )
    terms = {name: fn.coalesce(f"{name} terms", fn.lit(0.0)) for name in WEIGHTS}
    recent = fn.when(col("window") == CAPACITY_WINDOW, capacity(terms["execute"]))
    return found.select(
        *(*keys[:-1], "partial"),
        *(col(f"`{name}`") for name in halves_of(COUNTS)),
        *(total.alias(f"{name} terms") for name, total in terms.items()),
        *(_cut(total).alias(f"{name} page") for name, total in terms.items()),
        recent.alias("capacity"),
        (col("task_end").cast("bigint") - col("task_start") + 1).alias("tasks"),
    )


def capacity(recent_ms: Column) -> Column:
    """Return the share of the last ten minutes, or of its life, that an executor spent executing.

    Parameters
    ----------
    recent_ms
        Sum of average times count in the window of ten minutes; the row has ``uptime_secs``.
    """
    secs = fn.least(col("uptime_secs"), fn.lit(_CAPACITY_SECS))
    return fn.when(secs > 0, finite(recent_ms) / (secs * 1000.0)).otherwise(0.0)


def _cut(terms: Column) -> Column:
    """Cut a sum down to a whole number that 64 bits hold, as Storm's page of a topology does."""
    some = finite(terms)
    return fn.least(fn.greatest(some - some % 1.0, fn.lit(-(2.0**63))), fn.lit(2.0**63))
