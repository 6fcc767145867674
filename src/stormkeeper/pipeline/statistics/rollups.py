"""What components counted minute by minute, and in longer buckets."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.functions import col

from stormkeeper.pipeline.statistics.increments import COUNTS, TIMES
from stormkeeper.pipeline.statistics.tallies import (
    WEIGHTS,
    as_double,
    average,
    halves,
    halves_of,
    sums,
    whole,
)

_KEYS: Final = ("bucket", "storm_id", "topology", "component", "kind")
_SIZES: Final = ("workers", "executors", "tasks")

#: The columns of a roll-up, in their order.
COLUMNS: Final = (
    *(*_KEYS, *_SIZES, *COUNTS),
    *(f"{name}_ms_avg" for name in WEIGHTS),
    *("capacity", "capacity_mean", "restarts", "heartbeat_bytes", "readings", "skipped"),
    *("interval_secs", "largest_share", "executed_cv"),
)


def rollup(df: DataFrame, minutes: int = 1) -> DataFrame:
    """Sum up increments by component and bucket of time.

    Parameters
    ----------
    df
        Rows of `increments`.
    minutes
        Length of a bucket. More than 1 is the same as `coarser` of buckets of 1.

    Returns
    -------
    One row per component and bucket in which one of its executors was read:

    - ``bucket``, its start (UTC), by the time of receipt; ``storm_id``, ``topology``,
      ``component``, ``kind``; ``workers``, ``executors``, ``tasks`` that were read.
    - ``emitted``, ``transferred``, ``executed``, ``acked``, ``failed`` since the readings before.
    - ``complete_ms_avg`` of a spout, ``execute_ms_avg`` and ``process_ms_avg`` of a bolt: averages
      over what the bucket counted, and null where it counted nothing.
    - ``capacity``, the largest that was read, and ``capacity_mean`` over executors and readings.
    - ``restarts`` of workers; ``heartbeat_bytes``, the mean over workers, null if not known;
      ``readings``, the heartbeats that were read; ``skipped``, those that were not.
    - ``interval_secs``: the longest time between a reading and the one before. Where it is longer
      than the bucket, counts are also of the time before the bucket.
    - ``largest_share``: the largest executor's share of what was executed, or of what a spout
      emitted. ``executed_cv``: by how much executors differ in what they executed, their standard
      deviation divided by their mean. Null where nothing was.
    """
    if minutes != 1:
        return coarser(rollup(df), minutes)
    executor = [*_KEYS, "node", "port", "task_start", "task_end"]
    by_executor = (
        df.withColumn("bucket", _bucket(col("at"), 1))
        .groupBy(*executor)
        .agg(
            *(half for name in COUNTS for half in halves(name)),
            *sums([*TIMES, "skipped"]),
            fn.sum(col("restarted").cast("bigint")).alias("restarts"),
            fn.count(fn.lit(1)).alias("readings"),
            fn.max("capacity").alias("capacity"),
            fn.sum("capacity").alias("capacity total"),
            fn.avg("bytes").alias("heartbeat_bytes"),
            fn.max("secs").alias("interval_secs"),
        )
    )
    executed = as_double("executed")
    share = fn.when(col("kind") == "spout", as_double("emitted")).otherwise(executed)
    tasks = col("task_end").cast("bigint") - col("task_start") + 1
    added = [*halves_of(COUNTS), *TIMES, "tasks", "share", "executed", "squares", "capacity total"]
    # Executors of one worker are read and restarted together, whose heartbeat is one.
    by_worker = (
        by_executor.select(
            "*",
            tasks.alias("tasks"),
            share.alias("share"),
            executed.alias("executed"),
            (executed * executed).alias("squares"),
        )
        .groupBy(*_KEYS, "node", "port")
        .agg(
            *sums(added),
            fn.sum("readings").alias("executor readings"),
            fn.count(fn.lit(1)).alias("executors"),
            fn.max("share").alias("largest"),
            *(_max(name) for name in ("readings", "restarts", "skipped", "heartbeat_bytes")),
            *(_max(name) for name in ("capacity", "interval_secs")),
        )
    )
    found = by_worker.groupBy(*_KEYS).agg(
        *sums([*added, "executors", "executor readings", "readings", "restarts", "skipped"]),
        fn.count(fn.lit(1)).alias("workers"),
        *(_max(name) for name in ("capacity", "interval_secs", "largest")),
        fn.avg("heartbeat_bytes").alias("heartbeat_bytes"),
    )
    spread = col("executors") * col("squares") - col("executed") * col("executed")
    return found.select(
        *(*_KEYS, *_SIZES),
        *(whole(name).alias(name) for name in COUNTS),
        *(
            _of_kind(name, average(col(f"{name}_ms"), as_double(weight))).alias(f"{name}_ms_avg")
            for name, weight in WEIGHTS.items()
        ),
        "capacity",
        (col("`capacity total`") / col("`executor readings`")).alias("capacity_mean"),
        *("restarts", "heartbeat_bytes", "readings", "skipped", "interval_secs"),
        fn.when(col("share") > 0, col("largest") / col("share")).alias("largest_share"),
        fn.when(
            col("executed") > 0, fn.sqrt(fn.greatest(spread, fn.lit(0.0))) / col("executed")
        ).alias("executed_cv"),
    ).select(*COLUMNS)


def coarser(df: DataFrame, minutes: int) -> DataFrame:
    """Put the buckets of a roll-up together to longer ones.

    Parameters
    ----------
    df
        Rows of `rollup`, or of this function. Several rows of one bucket, made of increments that
        came one after another, become one, too.
    minutes
        Length of the new buckets: a multiple of that of the old ones.

    Returns
    -------
    The columns of `rollup`. Counts, ``restarts``, ``readings`` and ``skipped`` are sums; averages
    weigh by their counts, ``capacity_mean`` and ``heartbeat_bytes`` by readings. ``workers``,
    ``executors``, ``tasks``, ``capacity`` and ``interval_secs`` are the largest. ``largest_share``
    and ``executed_cv`` are means over the old buckets, weighed by what was counted.
    """
    share = fn.when(col("kind") == "spout", col("emitted")).otherwise(col("executed"))
    weights = {f"{name}_ms_avg": col(weight) for name, weight in WEIGHTS.items()}
    weights |= dict.fromkeys(("capacity_mean", "heartbeat_bytes"), col("readings"))
    weights |= {"largest_share": share, "executed_cv": col("executed")}
    means = []
    for name, weight in weights.items():
        counted = fn.when(col(name).isNotNull(), weight.cast("double"))
        means.append(average(fn.sum(col(name) * counted), fn.sum(counted)).alias(name))
    found = (
        df.withColumn("bucket", _bucket(col("bucket"), minutes))
        .groupBy(*_KEYS)
        .agg(
            *(half for name in COUNTS for half in halves(name)),
            *sums(["restarts", "readings", "skipped"]),
            *(_max(name) for name in (*_SIZES, "capacity", "interval_secs")),
            *means,
        )
    )
    return found.withColumns({name: whole(name) for name in COUNTS}).select(*COLUMNS)


def _bucket(at: Column, minutes: int) -> Column:
    secs = 60 * minutes
    return fn.timestamp_seconds(fn.floor(fn.unix_seconds(at) / secs) * secs)


def _max(name: str) -> Column:
    return fn.max(name).alias(name)


def _of_kind(latency: str, value: Column) -> Column:
    return fn.when(col("kind") == ("spout" if latency == "complete" else "bolt"), value)
