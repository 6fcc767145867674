"""Analyses of trends: heartbeats that keep growing, and bolts that approach saturation.

A series is an array of structs with a time in seconds, ``t``, and a value, ``y``. The slope is
Theil and Sen's, the median of the slopes between all pairs of points, which a few outliers do not
bend. The significance is Mann and Kendall's z, in standard deviations of a series without a trend.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stormkeeper.pipeline.analyses.alerts import after, findings, newest, until_now, window

#: Buckets of the trend, the least number, and the last, which must grow at least half as fast: a
#: heartbeat grows a little after a start, and by a step at a rebalance.
GROWTH_BUCKETS: Final = 36
GROWTH_LEAST: Final = 24
GROWTH_STILL: Final = 12

#: Least ratio of the heartbeats' sizes at the trend's end and beginning.
GROWN: Final = 1.25

GROWTH_SIGNIFICANT: Final = 4.0

#: The default of pacemaker.thrift.message.size.max, in bytes.
LIMIT_BYTES: Final = 10 * 2**20

GROWTH_SOON_SECS: Final = 86_400

SATURATION_BUCKETS: Final = 18
SATURATION_LEAST: Final = 12
SATURATION_HORIZON_SECS: Final = 3 * 3600

#: Consecutive buckets in which saturation must be foreseen.
CONFIRMED: Final = 3

SATURATION_SOON_SECS: Final = 1800
SATURATION_SIGNIFICANT: Final = 3.0

#: Least rise of capacity over all buckets.
LEAST_RISE: Final = 0.1

#: A bolt below this capacity has no trend that would reach 1.0 within the horizon.
LEAST_CAPACITY: Final = 0.3

#: A bolt is saturated if the median of the last `LATEST` buckets reaches this.
SATURATED: Final = 0.98
LATEST: Final = 3

#: As `GROWTH_STILL`.
SATURATION_STILL: Final = 6

_SUBJECT: Final = ("storm_id", "component")


def growing_heartbeats(
    rollup: DataFrame,
    now: datetime | None = None,
    *,
    bucket_secs: int = 600,
    limit_bytes: float = LIMIT_BYTES,
) -> DataFrame:
    """Return topologies with heartbeats that have grown for six hours, and still grow.

    ``value`` is the ratio of the size to the size at the beginning, ``threshold`` 1.25. Critical if
    heartbeats reach `limit_bytes` within a day. `rollup` is ``rollup_10m``, or another with its
    `bucket_secs`.
    """
    end = after(F.col("bucket"), bucket_secs)
    rows = until_now(rollup, end, now, past_secs=(GROWTH_BUCKETS + 1) * bucket_secs)
    bytes_ = F.col("heartbeat_bytes").cast("double")
    rows = _series(rows, ("storm_id",), bytes_, (GROWTH_BUCKETS - 1) * bucket_secs)
    rows = newest(rows, ("storm_id",), end, now, fresh_secs=2 * bucket_secs)
    rows = rows.where(F.size("points") >= GROWTH_LEAST)
    rows = rows.withColumn("slopes", slopes(F.col("points")))
    rows = rows.withColumn("slope", median(F.col("slopes"))).where("slope > 0")
    seconds, first = F.unix_seconds("bucket"), F.element_at("points", 1)["t"]
    points, slope = F.col("points"), F.col("slope")
    rows = (
        rows.withColumn("z", significance(F.col("slopes"), F.size("points")))
        .withColumn("still", median(slopes(latest(points, GROWTH_STILL))))
        .withColumn("then", level(points, slope, first))
        .withColumn("level", level(points, slope, seconds))
        .withColumn("hours", (seconds - first) / 3600)
        .withColumn("times", F.when(F.col("then") > 0, F.col("level") / F.col("then")))
    )
    growing = (F.col("times") >= GROWN) & (F.col("z") >= GROWTH_SIGNIFICANT)
    soon = F.col("level") + slope * GROWTH_SOON_SECS >= limit_bytes
    found = rows.where(growing & (F.col("still") >= slope / 2)).select(
        "storm_id",
        "topology",
        F.when(soon, "critical").otherwise("warning").alias("severity"),
        F.col("times").alias("value"),
        F.lit(GROWN).alias("threshold"),
        F.format_string(
            "heartbeats have grown from %.0f to %.0f bytes in %.1f hours",
            "then",
            "level",
            "hours",
        ).alias("evidence"),
        F.timestamp_seconds(first).alias("since"),
        end.alias("seen_at"),
    )
    return findings(found, "growth", "topology", F.col("storm_id"))


def saturating_components(
    rollup: DataFrame, now: datetime | None = None, *, bucket_secs: int = 600
) -> DataFrame:
    """Return bolts with a capacity that is 1.0, or reaches 1.0 within the horizon.

    ``value`` is the time until then in seconds, ``threshold`` the horizon. Critical from half an
    hour before. `rollup` is ``rollup_10m``, or another with its `bucket_secs`.
    """
    end = after(F.col("bucket"), bucket_secs)
    rows = until_now(rollup, end, now, past_secs=(SATURATION_BUCKETS + 1) * bucket_secs)
    back_secs = (SATURATION_BUCKETS - 1) * bucket_secs
    rows = _series(rows, _SUBJECT, F.col("capacity_mean"), back_secs)
    fresh = (CONFIRMED + 1) * bucket_secs
    rows = newest(rows, _SUBJECT, end, now, fresh_secs=fresh, count=CONFIRMED)
    last = latest(F.col("points"), LATEST)
    rows = computed(rows, recent=median(last["y"]))
    saturated = (F.size("points") >= LATEST) & (F.col("recent") >= SATURATED)
    rows = rows.withColumn("saturated", saturated)
    # Drops most bolts, which are idle.
    trending = (F.size("points") >= SATURATION_LEAST) & (F.col("recent") >= LEAST_CAPACITY)
    rows = rows.where(F.col("saturated") | trending)
    rows = computed(rows, slopes=slopes(F.col("points")))
    rows = computed(rows, slope=median(F.col("slopes")))
    rows = rows.where(
        F.col("saturated") | (F.col("slope") * SATURATION_BUCKETS * bucket_secs >= LEAST_RISE)
    )
    last = latest(F.col("points"), SATURATION_STILL)
    rows = computed(
        rows,
        z=significance(F.col("slopes"), F.size("points")),
        level=level(F.col("points"), F.col("slope"), F.unix_seconds(end)),
        still=median(slopes(last)),
    )
    left = F.greatest((1 - F.col("level")) / F.col("slope"), F.lit(0.0))
    rising = (F.col("z") >= SATURATION_SIGNIFICANT) & (F.col("still") >= F.col("slope") / 2)
    left = F.when(F.col("saturated"), 0.0).otherwise(F.when(rising, left))
    rows = rows.withColumn("left", left)
    rows = computed(rows, near=F.col("left") <= SATURATION_HORIZON_SECS).where("near")
    lately = window(_SUBJECT, "bucket", (CONFIRMED - 1) * bucket_secs)
    rows = rows.withColumn("times", F.count("*").over(lately))
    rows = newest(rows, _SUBJECT, end, now, fresh_secs=2 * bucket_secs)
    confirmed = F.col("saturated") | (F.col("times") >= CONFIRMED)
    found = rows.where(confirmed).select(
        *_SUBJECT,
        "topology",
        F.when(F.col("left") <= SATURATION_SOON_SECS, "critical")
        .otherwise("warning")
        .alias("severity"),
        F.col("left").alias("value"),
        F.lit(float(SATURATION_HORIZON_SECS)).alias("threshold"),
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


def _series(rows: DataFrame, subject: tuple[str, ...], value: Column, back_secs: int) -> DataFrame:
    """Return a row per subject and bucket, with the series up to the bucket as ``points``."""
    rows = (
        rows.where(value.isNotNull() & ~F.isnan(value))
        .repartition(*subject)
        .groupBy(*subject, "bucket")
        .agg(F.max("topology").alias("topology"), F.max(value).alias("y"))
    )
    point = F.struct(F.unix_seconds("bucket").cast("double").alias("t"), "y")
    return rows.withColumn(
        "points", F.collect_list(point).over(window(subject, "bucket", back_secs))
    )


def computed(rows: DataFrame, **columns: Column) -> DataFrame:
    """Add columns, each computed once: Spark would repeat a plain expression in each use."""
    row = F.struct(*(column.alias(name) for name, column in columns.items()))
    return rows.select("*", F.inline(F.array(row)))


def median(values: Column) -> Column:
    """Return the median of an array of doubles; null if empty."""

    def middle(ordered: Column) -> Column:
        size = F.size(ordered)
        low = F.get(ordered, F.floor((size - 1) / 2).cast("int"))
        high = F.get(ordered, F.floor(size / 2).cast("int"))
        return F.when(size > 0, (low + high) / 2)

    # A lambda's argument is computed once.
    return F.get(F.transform(F.array(F.sort_array(values)), middle), F.lit(0))


def slopes(points: Column) -> Column:
    """Return the slopes per second between all pairs of points, which are in order of time."""

    def to_later(point: Column, place: Column) -> Column:
        later = F.slice(points, place + 2, F.size(points))
        later = F.filter(later, lambda other: other["t"] > point["t"])
        return F.transform(
            later, lambda other: (other["y"] - point["y"]) / (other["t"] - point["t"])
        )

    return F.flatten(F.transform(points, to_later))


def significance(slopes_: Column, size: Column) -> Column:
    """Return Mann and Kendall's z of `slopes` between `size` points; positive for a rise."""
    rising = F.aggregate(slopes_, F.lit(0.0), lambda sum_, slope: sum_ + F.signum(slope))
    spread = F.sqrt(size * (size - 1) * (2 * size + 5) / 18)
    return F.when(spread > 0, (rising - F.signum(rising)) / spread)


def level(points: Column, slope: Column, at: Column) -> Column:
    """Return the value at `at`, in seconds, of the line with this slope through the points."""
    return median(F.transform(points, lambda point: point["y"] + slope * (at - point["t"])))


def latest(points: Column, count: int) -> Column:
    return F.slice(points, F.greatest(F.size(points) - count + 1, F.lit(1)), count)
