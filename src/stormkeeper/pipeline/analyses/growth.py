"""Topologies whose heartbeats become larger and larger.

A worker's heartbeat has a row per stream and window of each of its executors. It grows a little
after a start, and by a step when a topology is rebalanced. One that goes on growing for hours has
streams that never end, and one day no Pacemaker accepts it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from stormkeeper.pipeline.analyses import trend
from stormkeeper.pipeline.analyses.alerts import after, findings, newest, until_now

#: Buckets of the trend, how many of them have to be there, and the last ones, which have to grow
#: at least half as fast: else the growth is over, or was a step.
BUCKETS: Final = 36
LEAST: Final = 24
STILL: Final = 12

#: How many times as large heartbeats are at the end of the trend as at its beginning, at least.
GROWN: Final = 1.25

#: Least significance of a trend: Mann and Kendall's z.
SIGNIFICANT: Final = 4.0

#: The longest message that a Pacemaker accepts: the default of pacemaker.thrift.message.size.max.
LIMIT_BYTES: Final = 10 * 2**20

#: It is critical if the limit is nearer than this, in seconds.
SOON_SECS: Final = 86_400


def growing_heartbeats(
    rollup: DataFrame,
    now: datetime | None = None,
    *,
    bucket_secs: int = 600,
    grown: float = GROWN,
    limit_bytes: float = LIMIT_BYTES,
) -> DataFrame:
    """Return topologies whose heartbeats have grown for six hours, and still do.

    ``value`` is how many times as large they are as at the beginning of the trend; ``threshold``
    is `grown`. It is critical if they reach `limit_bytes` within a day.

    Parameters
    ----------
    rollup
        ``rollup_10m``, or another with its `bucket_secs`. Read are bucket, storm_id, topology and
        heartbeat_bytes; the largest component's counts.
    grown
        The least growth that is found.
    limit_bytes
        The longest heartbeat that is accepted: ``pacemaker.thrift.message.size.max``.
    """
    end = after(F.col("bucket"), bucket_secs)
    rows = until_now(rollup, end, now, past_secs=(BUCKETS + 1) * bucket_secs)
    bytes_ = F.col("heartbeat_bytes").cast("double")
    rows = (
        rows.where(bytes_.isNotNull() & ~F.isnan(bytes_))
        .repartition("storm_id")
        .groupBy("storm_id", "bucket")
        .agg(F.max("topology").alias("topology"), F.max(bytes_).alias("bytes"))
    )
    seconds = F.unix_seconds("bucket")
    window = Window.partitionBy("storm_id").orderBy(seconds)
    window = window.rangeBetween(-(BUCKETS - 1) * bucket_secs, 0)
    point = F.struct(seconds.cast("double").alias("t"), F.col("bytes").alias("y"))
    rows = rows.withColumn("points", F.collect_list(point).over(window))
    rows = newest(rows, ("storm_id",), end, now, fresh_secs=2 * bucket_secs)
    rows = rows.where(F.size("points") >= LEAST)
    rows = rows.withColumn("slopes", trend.slopes(F.col("points")))
    rows = rows.withColumn("slope", trend.median(F.col("slopes"))).where("slope > 0")
    first = F.element_at("points", 1)["t"]
    points, slope = F.col("points"), F.col("slope")
    rows = (
        rows.withColumn("z", trend.significance(F.col("slopes"), F.size("points")))
        .withColumn("still", trend.median(trend.slopes(trend.latest(points, STILL))))
        .withColumn("then", trend.level(points, slope, first))
        .withColumn("level", trend.level(points, slope, seconds))
        .withColumn("hours", (seconds - first) / 3600)
        .withColumn("times", F.when(F.col("then") > 0, F.col("level") / F.col("then")))
    )
    growing = (F.col("times") >= grown) & (F.col("z") >= SIGNIFICANT)
    soon = F.col("level") + slope * SOON_SECS >= limit_bytes
    found = rows.where(growing & (F.col("still") >= slope / 2)).select(
        "storm_id",
        "topology",
        F.when(soon, "critical").otherwise("warning").alias("severity"),
        F.col("times").alias("value"),
        F.lit(float(grown)).alias("threshold"),
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
