"""Analyses of the workload: uneven shares within components, and unusual throughput.

Of n executors with equal work the busiest, about ``sqrt(2 ln n)`` standard deviations above the
mean, has more than 1/n for two harmless reasons. Counts scatter, as Storm counts every twentieth
tuple (``topology.stats.sample.rate``) as 20; and where tuples go by key, keys differ.

Throughput is compared with the median of the last hours, with the median distance (MAD) as scatter;
a daily rhythm moves slowly beside that. From the second day on, the past also says how much this
time of day differs from the hours before.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stormkeeper.pipeline.analyses.alerts import after, findings, newest, until_now, window
from stormkeeper.pipeline.analyses.trends import computed, median

#: Judged buckets, and how many of them must be uneven.
BUCKETS: Final = 10
NEEDED: Final = 8

#: The scatter between executors that keys may cause: standard deviation by mean.
KEYS_CV: Final = 0.5

#: Tuples for each that Storm counts.
SAMPLED: Final = 20.0

#: From this capacity on, the busiest executor delays the topology.
BUSY: Final = 0.9

_SUBJECT: Final = ("storm_id", "component")

_of_topology: Final = partial(window, ("storm_id",), "bucket")


#: Consecutive buckets that must differ, and the buckets before, which are the past.
RECENT: Final = 2
PAST: Final = 18
LEAST_PAST: Final = 12

#: Throughput is unusual below this part of the past, or above this multiple.
FALLEN: Final = 0.5
RISEN: Final = 3.0

#: Least difference from the past, in standard deviations.
DEVIATIONS: Final = 5.0

#: Half the width of "this time of day", in buckets.
TIME_OF_DAY: Final = 3

DAY_SECS: Final = 86_400


def skewed_components(
    rollup: DataFrame,
    now: datetime | None = None,
    *,
    bucket_secs: int = 60,
    sampled: float = SAMPLED,
) -> DataFrame:
    """Return components in which an executor has too much of the work, or many have hardly any.

    ``value`` is the busiest executor's share of the work (``executed``, or else ``emitted``), or
    the coefficient of variation between executors. A capacity of 0.9 is critical. 8 of the last
    10 buckets must be uneven by more than keys and sampling explain; workers count every
    `sampled`-th tuple.
    `rollup` is ``rollup_1m``, or another with its `bucket_secs`, which suits quiet components
    better.
    """
    end = after(F.col("bucket"), bucket_secs)
    rows = until_now(rollup, end, now, past_secs=(BUCKETS + 1) * bucket_secs)
    rows = _buckets(_uneven(rows, sampled))
    recent = window(_SUBJECT, "bucket", (BUCKETS - 1) * bucket_secs)
    for what in ("share", "cv"):
        high = F.col(f"{what}_high")
        rows = (
            rows.withColumn(f"{what}_count", F.count(F.when(high, 1)).over(recent))
            .withColumn(f"{what}_mean", F.avg(F.when(high, F.col(what))).over(recent))
            .withColumn(f"{what}_limits", F.avg(F.when(high, F.col(f"{what}_limit"))).over(recent))
        )
    rows = rows.withColumn("since", F.min("bucket").over(recent))
    rows = newest(rows, _SUBJECT, end, now, fresh_secs=2 * bucket_secs)
    one = F.col("share_count") >= NEEDED
    found = rows.where(one | (F.col("cv_count") >= NEEDED)).select(
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
                F.lit(BUCKETS),
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
                F.lit(BUCKETS),
            )
        )
        .alias("evidence"),
        "since",
        end.alias("seen_at"),
    )
    subject = F.concat_ws("/", *_SUBJECT)
    return findings(found, "skew", "component", subject)


def _uneven(rows: DataFrame, sampled: float) -> DataFrame:
    """Keep the rows of uneven work: hardly any, so that the rest has little to do."""
    work = F.when(F.col("executed") > 0, F.col("executed")).otherwise(F.col("emitted"))
    several = (F.col("executors") > 1) & (work > 0)
    executors = F.when(several, F.col("executors"))
    counted = F.when(several, work / sampled)
    busiest = F.sqrt(2 * F.log(executors))
    fair = F.least(F.lit(1.0), (1 + KEYS_CV * busiest) / executors)
    # Three standard deviations above the busiest, so that a bucket is rarely uneven by chance.
    share_limit = fair + (busiest + 3) * F.sqrt(fair * (1 - fair) / counted)
    cv_limit = 1.5 * KEYS_CV + 2 * F.sqrt(executors / counted)
    rows = rows.withColumns({"work": work, "share": F.col("largest_share")})
    rows = rows.withColumns({"cv": F.col("executed_cv"), "share_limit": share_limit})
    rows = rows.withColumn("cv_limit", cv_limit)
    high = {f"{what}_high": _exceeds(what, f"{what}_limit") for what in ("share", "cv")}
    return rows.withColumns(high).where("share_high or cv_high")


def _buckets(rows: DataFrame) -> DataFrame:
    """Return a row per component and bucket, also where a clock was set back."""
    names = [name for name in rows.columns if name not in {*_SUBJECT, "bucket"}]
    # One exchange, by component, serves this grouping and the windows after it.
    grouped = rows.repartition(*_SUBJECT).groupBy(*_SUBJECT, "bucket")
    largest = grouped.agg(F.max_by(F.struct(*names), "work").alias("largest"))
    return largest.select(*_SUBJECT, "bucket", "largest.*")


def _exceeds(name: str, limit: str) -> Column:
    # For Spark, NaN is larger than any number.
    known = ~F.isnan(name) & ~F.isnan(limit)
    return F.coalesce(known & (F.col(name) > F.col(limit)), F.lit(False))


def unusual_throughput(
    rollup: DataFrame, now: datetime | None = None, *, bucket_secs: int = 600
) -> DataFrame:
    """Return topologies with a throughput far from the last three hours'.

    ``value`` is the median of the last buckets in tuples per second, ``threshold`` the limit that
    was crossed. A fall below a tenth of that limit is critical. Throughput is what the spouts
    acked; or emitted, if nothing is acked; or what bolts executed, if no spout has counts. `rollup`
    is ``rollup_10m``, or another with its `bucket_secs`.
    """
    end = after(F.col("bucket"), bucket_secs)
    past_secs = DAY_SECS + (RECENT + PAST + 1) * bucket_secs
    rows = _series(until_now(rollup, end, now, past_secs=past_secs), bucket_secs)
    rows = _windows(rows, bucket_secs)
    rows = newest(rows, ("storm_id",), end, now, fresh_secs=2 * bucket_secs)
    rows = _measured(rows)
    scatter = F.greatest(
        1.4826 * F.col("mad"), F.sqrt(SAMPLED * F.col("usual")), 0.05 * F.col("usual")
    )
    low = F.least(FALLEN * F.col("usual"), F.col("usual") - DEVIATIONS * scatter)
    high = F.greatest(RISEN * F.col("usual"), F.col("usual") + DEVIATIONS * scatter)
    # Yesterday's change at this time of day moves both limits outwards only.
    down, up = F.least("daily_low", F.lit(1.0)), F.greatest("daily_high", F.lit(1.0))
    rows = computed(rows, low=low * down, high=high * up, level=median(F.col("recent")))
    fell = (F.array_max("recent") < F.col("low")) & (F.col("low") > 0) & ~_often_low()
    rose = F.array_min("recent") > F.col("high")
    enough = (F.size("recent") == RECENT) & (F.size("past") >= LEAST_PAST) & (F.col("usual") > 0)
    level = F.col("level") / bucket_secs
    limit = F.when(fell, F.col("low")).otherwise(F.col("high")) / bucket_secs
    found = rows.where(enough & (fell | rose)).select(
        "storm_id",
        "topology",
        F.when(fell & (level < limit / 10), "critical").otherwise("warning").alias("severity"),
        level.alias("value"),
        limit.alias("threshold"),
        F.format_string(
            "%s tuples a second, where %s were usual in the %s hours before",
            F.format_number(level, 1),
            F.format_number(F.col("usual") / bucket_secs, 1),
            F.format_number(F.size("past") * bucket_secs / 3600, 1),
        ).alias("evidence"),
        after(F.col("bucket"), (1 - RECENT) * bucket_secs).alias("since"),
        end.alias("seen_at"),
    )
    return findings(found, "throughput", "topology", F.col("storm_id"))


def _series(rollup: DataFrame, bucket_secs: int) -> DataFrame:
    spout = F.col("kind") == "spout"
    rows = (
        rollup.repartition("storm_id")
        .groupBy("storm_id", "bucket")
        .agg(
            F.max("topology").alias("topology"),
            F.sum(F.when(spout, F.col("acked").cast("double"))).alias("acked"),
            F.sum(F.when(spout, F.col("emitted").cast("double"))).alias("emitted"),
            F.sum(F.when(F.col("kind") == "bolt", F.col("executed").cast("double"))).alias(
                "executed"
            ),
        )
    )
    lately = _of_topology((RECENT + PAST) * bucket_secs)
    done = F.coalesce("executed", F.lit(0.0))
    for name in ("emitted", "acked"):
        some = F.max(name).over(lately) > 0
        done = F.when(some, F.coalesce(name, F.lit(0.0))).otherwise(done)
    return rows.withColumn("done", done)


def _windows(rows: DataFrame, bucket_secs: int) -> DataFrame:
    point = F.struct(F.unix_seconds("bucket").alias("t"), F.col("done").alias("y"))
    earliest = (RECENT + PAST - 1) * bucket_secs
    latest = RECENT * bucket_secs
    near = TIME_OF_DAY * bucket_secs
    then = _of_topology(DAY_SECS + near, DAY_SECS - near)
    before_then = _of_topology(DAY_SECS + earliest, DAY_SECS + latest)
    return (
        rows.withColumn(
            "recent", F.collect_list("done").over(_of_topology((RECENT - 1) * bucket_secs))
        )
        .withColumn("past", F.collect_list(point).over(_of_topology(earliest, latest)))
        .withColumn("then", F.collect_list("done").over(then))
        .withColumn("before_then", F.collect_list("done").over(before_then))
    )


def _measured(rows: DataFrame) -> DataFrame:
    known = (F.size("then") >= TIME_OF_DAY) & (F.size("before_then") >= LEAST_PAST)
    rows = computed(
        rows,
        usual=median(F.col("past.y")),
        before=F.when(known, median(F.col("before_then"))),
    )
    distances = F.transform("past.y", lambda done: F.abs(done - F.col("usual")))
    # Without work before that time of day, its rise is unknown.
    low, high = (
        F.when(F.col("before") > 0, extreme("then") / F.col("before"))
        for extreme in (F.array_min, F.array_max)
    )
    return computed(rows, mad=median(distances), daily_low=low, daily_high=high)


def _often_low() -> Column:
    """Return whether the past was as low before, and rose again: an intermittent load."""
    low = F.col("low")
    normal = F.array_max(
        F.transform(F.filter("past", lambda point: point["y"] >= low), lambda point: point["t"])
    )
    earlier = F.filter("past", lambda point: (point["y"] < low) & (point["t"] < normal))
    return F.size(earlier) >= RECENT
