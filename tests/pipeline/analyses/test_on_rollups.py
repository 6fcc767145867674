"""The analyses read the roll-ups that `stormkeeper.pipeline.statistics` makes."""

import pytest
from pyspark.sql import functions as F

from stormkeeper.pipeline.analyses.growth import growing_heartbeats
from stormkeeper.pipeline.analyses.saturation import saturating_components
from stormkeeper.pipeline.analyses.skew import skewed_components
from stormkeeper.pipeline.analyses.throughput import unusual_throughput
from stormkeeper.pipeline.statistics import coarser, rollup
from stormkeeper.pipeline.statistics.increments import COUNTS, TIMES

pytestmark = [pytest.mark.slow, pytest.mark.spark]

HOURS = 8


def increments(spark):
    """Return what a spout and two bolts count, each with four executors, every 20 s.

    In one bolt, one executor has most of the work. The other one's capacity rises to 0.95. In the
    last half hour the spout, and with it all, does a tenth; heartbeats grow all the time.
    """
    hours = F.col("second") / 3600
    late = F.col("second") >= HOURS * 3600 - 1800
    share = F.when((F.col("component") == "uneven") & (F.col("task") == 0), 20).otherwise(1)
    work = (F.when(late, 100).otherwise(1000) * share).cast("bigint")
    seconds = spark.range(0, HOURS * 3600, 20).withColumnRenamed("id", "second")
    tasks = spark.range(4).withColumnRenamed("id", "task")
    components = spark.createDataFrame([("spout",), ("uneven",), ("filling",)], "component string")
    rows = seconds.crossJoin(tasks).crossJoin(components)
    place = F.when(F.col("component") == "spout", 0).when(F.col("component") == "uneven", 4)
    task = (place.otherwise(8) + F.col("task")).cast("int")
    capacity = F.when(F.col("component") == "filling", 0.95 - 0.1 * (HOURS - hours)).otherwise(0.1)
    return rows.select(
        F.lit("t-1-17").alias("storm_id"),
        F.lit("t").alias("topology"),
        F.lit("n").alias("node"),
        (6700 + F.col("task")).cast("int").alias("port"),
        task.alias("task_start"),
        task.alias("task_end"),
        "component",
        F.when(F.col("component") == "spout", "spout").otherwise("bolt").alias("kind"),
        F.timestamp_seconds(1_700_000_400 + F.col("second")).alias("at"),
        *(work.alias(name) for name in COUNTS),
        *(F.lit(1.0).alias(name) for name in TIMES),
        capacity.alias("capacity"),
        (10_000 + 1000 * hours).cast("bigint").alias("bytes"),
        F.lit(0).cast("bigint").alias("skipped"),
        F.lit(20.0).alias("secs"),
        F.lit(False).alias("restarted"),
    )


def test_what_was_counted_is_found(spark):
    minutes = increments(spark).transform(rollup).localCheckpoint()
    ten = minutes.transform(coarser, 10).localCheckpoint()
    end = F.timestamp_seconds(F.lit(1_700_000_400 + HOURS * 3600))
    found = (
        skewed_components(minutes)
        .unionByName(unusual_throughput(ten))
        .unionByName(saturating_components(ten))
        .unionByName(growing_heartbeats(ten))
    )
    rows = found.where(F.col("seen_at") == end).collect()
    assert sorted(one.id for one in rows) == [
        "growth/t-1-17",
        "saturation/t-1-17/filling",
        "skew/t-1-17/uneven",
        "throughput/t-1-17",
    ]
