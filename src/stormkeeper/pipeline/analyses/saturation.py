"""Bolts that will have no time left, and when.

Capacity is the part of the time that a bolt's executors spend executing; at 1.0 they cannot take
more. The trend is that of the last three hours, and is followed only three hours ahead: a daily
rhythm that peaks below 0.75 does not look like a way to 1.0 then.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from stormkeeper.pipeline.analyses import trend
from stormkeeper.pipeline.analyses.alerts import after, findings, newest, until_now

#: Buckets of the trend, and how many of them have to be there.
BUCKETS: Final = 18
LEAST: Final = 12

#: How far ahead the trend is followed, in seconds.
HORIZON_SECS: Final = 3 * 3600

#: In how many buckets, one after the other, it is foreseen.
CONFIRMED: Final = 3

#: From here on, saturation is critical, in seconds.
SOON_SECS: Final = 1800

#: Least significance of a trend, and least rise of capacity over all buckets.
SIGNIFICANT: Final = 3.0
LEAST_RISE: Final = 0.1

#: A bolt that is busy for less than this has no trend that would reach 1.0 within the horizon.
LEAST_CAPACITY: Final = 0.3

#: The median of the last `LATEST` buckets from which on a bolt counts as saturated already.
SATURATED: Final = 0.98
LATEST: Final = 3

#: The last buckets, which have to rise at least half as fast: else the rise is over.
STILL: Final = 6

_SUBJECT: Final = ("storm_id", "component")


def saturating_components(
    rollup: DataFrame,
    now: datetime | None = None,
    *,
    bucket_secs: int = 600,
    horizon_secs: float = HORIZON_SECS,
    significant: float = SIGNIFICANT,
) -> DataFrame:
    """Return bolts whose capacity is 1.0 already, or reaches it within the horizon.

    ``value`` is the time until then in seconds, 0 for those that are there; ``threshold`` the
    horizon. It is critical from half an hour before.

    Parameters
    ----------
    rollup
        ``rollup_10m``, or another with its `bucket_secs`. Read are bucket, storm_id, topology,
        component and capacity_mean.
    horizon_secs
        How far ahead a trend is followed.
    significant
        Mann and Kendall's z from which on a trend counts.
    """
    end = after(F.col("bucket"), bucket_secs)
    rows = until_now(rollup, end, now, past_secs=(BUCKETS + 1) * bucket_secs)
    known = F.col("capacity_mean").isNotNull() & ~F.isnan("capacity_mean")
    rows = (
        rows.where(known)
        .repartition(*_SUBJECT)
        .groupBy(*_SUBJECT, "bucket")
        .agg(F.max("topology").alias("topology"), F.max("capacity_mean").alias("capacity"))
    )
    seconds = F.unix_seconds("bucket")
    window = Window.partitionBy(*_SUBJECT).orderBy(seconds)
    window = window.rangeBetween(-(BUCKETS - 1) * bucket_secs, 0)
    point = F.struct(seconds.cast("double").alias("t"), F.col("capacity").alias("y"))
    rows = rows.withColumn("points", F.collect_list(point).over(window))
    fresh = (CONFIRMED + 1) * bucket_secs
    rows = newest(rows, _SUBJECT, end, now, fresh_secs=fresh, count=CONFIRMED)
    last = trend.latest(F.col("points"), LATEST)
    rows = trend.computed(rows, recent=trend.median(last["y"]))
    saturated = (F.size("points") >= LATEST) & (F.col("recent") >= SATURATED)
    rows = rows.withColumn("saturated", saturated)
    # Most bolts are idle, and need no more work.
    trending = (F.size("points") >= LEAST) & (F.col("recent") >= LEAST_CAPACITY)
    rows = rows.where(F.col("saturated") | trending)
    rows = trend.computed(rows, slopes=trend.slopes(F.col("points")))
    rows = trend.computed(rows, slope=trend.median(F.col("slopes")))
    rows = rows.where(F.col("saturated") | (F.col("slope") * BUCKETS * bucket_secs >= LEAST_RISE))
    latest = trend.latest(F.col("points"), STILL)
    rows = trend.computed(
        rows,
        z=trend.significance(F.col("slopes"), F.size("points")),
        level=trend.level(F.col("points"), F.col("slope"), F.unix_seconds(end)),
        still=trend.median(trend.slopes(latest)),
    )
    left = F.greatest((1 - F.col("level")) / F.col("slope"), F.lit(0.0))
    rising = (F.col("z") >= significant) & (F.col("still") >= F.col("slope") / 2)
    left = F.when(F.col("saturated"), 0.0).otherwise(F.when(rising, left))
    rows = rows.withColumn("left", left)
    rows = trend.computed(rows, near=F.col("left") <= horizon_secs).where("near")
    lately = Window.partitionBy(*_SUBJECT).orderBy(seconds)
    lately = lately.rangeBetween(-(CONFIRMED - 1) * bucket_secs, 0)
    rows = rows.withColumn("times", F.count("*").over(lately))
    rows = newest(rows, _SUBJECT, end, now, fresh_secs=2 * bucket_secs)
    confirmed = F.col("saturated") | (F.col("times") >= CONFIRMED)
    found = rows.where(confirmed).select(
        *_SUBJECT,
        "topology",
        F.when(F.col("left") <= SOON_SECS, "critical").otherwise("warning").alias("severity"),
        F.col("left").alias("value"),
        F.lit(float(horizon_secs)).alias("threshold"),
        F.when(
            F.col("saturated"),
            F.format_string("capacity was %.2f in the last %d buckets", "recent", F.lit(LATEST)),
        )
        .otherwise(
            F.format_string(
                "capacity is %.2f and has risen by %.2f an hour: 1.0 in %.1f hours",
                "level",
                F.col("slope") * 3600,
                F.col("left") / 3600,
            )
        )
        .alias("evidence"),
        end.alias("since"),
        end.alias("seen_at"),
    )
    subject = F.concat_ws("/", *_SUBJECT)
    return findings(found, "saturation", "component", subject)
