"""The analyses read the roll-ups that `stormkeeper.pipeline.spark_statistics` makes."""

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.analyses.trends import growing_heartbeats, saturating_components
from stormkeeper.pipeline.analyses.workload import skewed_components, unusual_throughput
from stormkeeper.pipeline.executor_counters import TIMES
from stormkeeper.pipeline.executor_stats import COUNTED
from stormkeeper.pipeline.rollups import merge_buckets, rollup, sum_changes

pytestmark = [pytest.mark.slow, pytest.mark.spark]

HOURS = 8

BEGAN = 1_700_000_400


def minutes():
    """Return what a spout and two bolts count minute by minute, each with four executors.

    In one bolt, one executor has most of the work. The other one's capacity rises to 0.95. In the
    last half hour the spout, and with it all, does a tenth; heartbeats grow all the time.
    """
    changes = [
        _change(60 * minute, component, task)
        for minute in range(60 * HOURS)
        for component in ("spout", "uneven", "filling")
        for task in range(4)
    ]
    columns = {name: [row[name] for row in changes] for name in changes[0]}
    columns["bucket"] = rows.timestamps(columns["bucket"])
    types = {"kind": pa.string(), "done": pa.float64(), **dict.fromkeys(COUNTED, pa.int64())}
    for name, type_ in types.items():
        columns[name] = pa.array(columns[name], type_)
    return rollup(sum_changes(pa.table(columns)))


def _change(second, component, task):
    is_late = second >= HOURS * 3600 - 1800
    work = (300 if is_late else 3000) * (20 if (component, task) == ("uneven", 0) else 1)
    hours = second / 3600
    return {
        **{"storm_id": "t-1-17", "topology": "t", "worker": task},
        **{"component": component, "kind": "spout" if component == "spout" else "bolt"},
        **{"task_start": task, "task_end": task, "bucket": BEGAN + second, "done": None},
        **dict.fromkeys(COUNTED, work),
        **dict.fromkeys(TIMES, 3.0),
        "capacity": 0.95 - 0.1 * (HOURS - hours) if component == "filling" else 0.1,
        **{"bytes": round(10_000 + 1000 * hours), "skipped": 0, "secs": 60.0, "restarted": False},
    }


def test_what_was_counted_is_found(spark):
    by_minute = minutes()
    ten = spark.createDataFrame(merge_buckets(by_minute, 10)).localCheckpoint()
    minute = spark.createDataFrame(by_minute)
    end = F.timestamp_seconds(F.lit(BEGAN + HOURS * 3600))
    found = (
        skewed_components(minute)
        .unionByName(unusual_throughput(ten))
        .unionByName(saturating_components(ten))
        .unionByName(growing_heartbeats(ten))
    )
    alerts = found.where(F.col("seen_at") == end).collect()
    assert sorted(one.id for one in alerts) == [
        "growth/t-1-17",
        "saturation/t-1-17/filling",
        "skew/t-1-17/uneven",
        "throughput/t-1-17",
    ]
