"""Components whose executors share their work unevenly, for longer than chance explains.

Of n executors with equal work each has 1/n of it. The busiest one has more, for two reasons that
are no trouble. Counts scatter: as Storm counts every twentieth tuple, by
``topology.stats.sample.rate``, and adds 20, the scatter is that of a twentieth of the tuples. And
where tuples go by key, each executor has its own keys. The busiest of n executors lies about
``sqrt(2 ln n)`` standard deviations above their mean.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from stormkeeper.pipeline.analyses.alerts import after, findings, newest, until_now

#: How many buckets are looked at, and in how many of them the work has to be uneven.
BUCKETS: Final = 10
NEEDED: Final = 8

#: The scatter between executors that keys may cause: standard deviation by mean.
KEYS_CV: Final = 0.5

#: Tuples for each one that Storm counts.
SAMPLED: Final = 20.0

#: From this capacity on the busiest executor holds its topology up.
BUSY: Final = 0.9

_SUBJECT: Final = ("storm_id", "component")


def skewed_components(
    rollup: DataFrame,
    now: datetime | None = None,
    *,
    bucket_secs: int = 60,
    buckets: int = BUCKETS,
    needed: int = NEEDED,
    keys_cv: float = KEYS_CV,
    sampled: float = SAMPLED,
) -> DataFrame:
    """Return components in which one executor has too much of the work, or many have hardly any.

    ``value`` is the busiest executor's share of the work, from 0 to 1, or, where that is not too
    large, the coefficient of variation between executors. ``threshold`` is what it was compared
    with. It is critical if the busiest executor's capacity is 0.9 or more.

    Parameters
    ----------
    rollup
        ``rollup_1m``, or another with its `bucket_secs`, which suits quiet components better. Read
        are bucket, storm_id, topology, component, executors, executed, emitted, capacity,
        largest_share and executed_cv. Work is ``executed``, or ``emitted`` where that is 0 or null.
    buckets, needed
        It is found if `needed` of the last `buckets` buckets were uneven.
    keys_cv
        How unevenly keys may spread: standard deviation between executors by their mean.
    sampled
        Tuples for each one that is counted; 1 for workers that count every one.
    """
    end = after(F.col("bucket"), bucket_secs)
    rows = until_now(rollup, end, now, past_secs=(buckets + 1) * bucket_secs)
    rows = _buckets(_uneven(rows, keys_cv, sampled))
    seconds = F.unix_seconds("bucket")
    recent = Window.partitionBy(*_SUBJECT).orderBy(seconds)
    recent = recent.rangeBetween(-(buckets - 1) * bucket_secs, 0)
    for what in ("share", "cv"):
        high = F.col(f"{what}_high")
        rows = (
            rows.withColumn(f"{what}_count", F.count(F.when(high, 1)).over(recent))
            .withColumn(f"{what}_mean", F.avg(F.when(high, F.col(what))).over(recent))
            .withColumn(f"{what}_limits", F.avg(F.when(high, F.col(f"{what}_limit"))).over(recent))
        )
    rows = rows.withColumn("since", F.min("bucket").over(recent))
    rows = newest(rows, _SUBJECT, end, now, fresh_secs=2 * bucket_secs)
    one = F.col("share_count") >= needed
    found = rows.where(one | (F.col("cv_count") >= needed)).select(
        *_SUBJECT,
        "topology",
        F.when(F.col("capacity") >= BUSY, "critical").otherwise("warning").alias("severity"),
        F.when(one, F.col("share_mean")).otherwise(F.col("cv_mean")).alias("value"),
        F.when(one, F.col("share_limits")).otherwise(F.col("cv_limits")).alias("threshold"),
        F.when(
            one,
            F.format_string(
                "the busiest of %d executors had %.1f %% of the work, where up to %.1f %% is "
                "usual, in %d of the last %d buckets",
                "executors",
                F.col("share_mean") * 100,
                F.col("share_limits") * 100,
                "share_count",
                F.lit(buckets),
            ),
        )
        .otherwise(
            F.format_string(
                "the work of %d executors varied by %.1f %% of its mean, where up to %.1f %% is "
                "usual, in %d of the last %d buckets",
                "executors",
                F.col("cv_mean") * 100,
                F.col("cv_limits") * 100,
                "cv_count",
                F.lit(buckets),
            )
        )
        .alias("evidence"),
        "since",
        end.alias("seen_at"),
    )
    subject = F.concat_ws("/", *_SUBJECT)
    return findings(found, "skew", "component", subject)


def _uneven(rows: DataFrame, keys_cv: float, sampled: float) -> DataFrame:
    """Return the rows whose work was uneven: hardly any, so that all else has little to do."""
    work = F.when(F.col("executed") > 0, F.col("executed")).otherwise(F.col("emitted"))
    several = (F.col("executors") > 1) & (work > 0)
    executors = F.when(several, F.col("executors"))
    counted = F.when(several, work / sampled)
    busiest = F.sqrt(2 * F.log(executors))
    fair = F.least(F.lit(1.0), (1 + keys_cv * busiest) / executors)
    # Three standard deviations above the busiest, so that a bucket is rarely uneven by chance.
    share_limit = fair + (busiest + 3) * F.sqrt(fair * (1 - fair) / counted)
    cv_limit = 1.5 * keys_cv + 2 * F.sqrt(executors / counted)
    rows = rows.withColumns({"work": work, "share": F.col("largest_share")})
    rows = rows.withColumns({"cv": F.col("executed_cv"), "share_limit": share_limit})
    rows = rows.withColumn("cv_limit", cv_limit)
    high = {f"{what}_high": _exceeds(what, f"{what}_limit") for what in ("share", "cv")}
    return rows.withColumns(high).where("share_high or cv_high")


def _buckets(rows: DataFrame) -> DataFrame:
    """Return one row per component and bucket, also where a clock was set back."""
    names = [name for name in rows.columns if name not in {*_SUBJECT, "bucket"}]
    # One exchange of rows, by component, serves this grouping and the windows after it.
    grouped = rows.repartition(*_SUBJECT).groupBy(*_SUBJECT, "bucket")
    largest = grouped.agg(F.max_by(F.struct(*names), "work").alias("largest"))
    return largest.select(*_SUBJECT, "bucket", "largest.*")


def _exceeds(name: str, limit: str) -> Column:
    # For Spark, NaN is larger than any number.
    known = ~F.isnan(name) & ~F.isnan(limit)
    return F.coalesce(known & (F.col(name) > F.col(limit)), F.lit(False))
