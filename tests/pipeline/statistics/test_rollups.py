"""Buckets of a minute and of more, by hand; at random, see `test_buckets`."""

from datetime import UTC, datetime
from statistics import fmean, pstdev

import pyarrow as pa
import pytest

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.statistics import coarser
from stormkeeper.pipeline.statistics.increments import TIMES
from stormkeeper.pipeline.statistics.rollups import (
    OPEN,
    ROLLUP,
    longer,
    rollup,
    summed,
    together,
)
from stormkeeper.pipeline.statistics.sums import COUNTED

MINUTE = 1_700_000_040.0  # a whole one

CHANGES = pa.schema(
    [
        *((name, pa.string()) for name in ("storm_id", "topology")),
        *((name, pa.int32()) for name in ("worker", "task_start", "task_end")),
        *((name, pa.string()) for name in ("component", "kind")),
        ("bucket", rows.TIMESTAMP),
        *((name, pa.int64()) for name in COUNTED),
        *((name, pa.float64()) for name in (*TIMES, "capacity", "secs", "done")),
        ("restarted", pa.bool_()),
        *((name, pa.int64()) for name in ("bytes", "skipped")),
    ]
)


def change(port, task, executed, done=None, **more):
    row = {
        **{"storm_id": "t-1-17", "topology": "t", "worker": port},
        **{"task_start": task, "task_end": task, "component": "words", "kind": "bolt"},
        **{"bucket": of_bucket(0), **dict.fromkeys(COUNTED, 0), **dict.fromkeys(TIMES, 0.0)},
        **{"executed": executed, "execute_ms": 2.0 * executed, "capacity": 0.25, "done": done},
        **{"bytes": 100, "skipped": 0, "secs": 15.0, "restarted": False},
    }
    return row | more


def of_bucket(secs):
    return datetime.fromtimestamp(MINUTE + secs, UTC)


def minutes(*batches):
    """The roll-up of batches of changes."""
    sums = OPEN.empty_table()
    for changes in batches:
        sums = together(sums, summed(pa.Table.from_pylist(changes, schema=CHANGES)))
    return rollup(sums)


def found(table):
    assert table.schema == ROLLUP
    return {(r["bucket"], r["component"]): r for r in table.to_pylist()}


def same(there, expected):
    assert {name: there[name] for name in expected} == {
        name: value if value is None else pytest.approx(value, rel=1e-9)
        for name, value in expected.items()
    }


def two_minutes():
    # Two executors of a worker, which restarted; one of another. They were read twice.
    restart = {"restarted": True, "skipped": 3}
    later = {"bucket": of_bucket(60)}
    return [
        [
            change(1, 1, 10, **restart, capacity=0.5),
            change(1, 2, 10, **restart),
            change(2, 3, 60, skipped=2, bytes=300, execute_ms=900.0),
        ],
        [
            change(1, 1, 20, 10.0, bytes=200, secs=30.0),
            change(1, 2, 0, 10.0, bytes=200),
        ],
        [
            change(1, 1, 2**62, **later),
            change(1, 2, 2**62, **later),
            change(2, 3, 2**62, **later),
            change(1, 9, 0, component="idle", **later),
            change(1, 9, 0, component="unknown", kind=None, capacity=None, **later),
            change(1, 4, 0, emitted=6, acked=2, complete_ms=9.0, capacity=None, **later)
            | {"component": "lines", "kind": "spout"},
        ],
    ]


def test_minutes_by_hand():
    by_minute = found(minutes(*two_minutes()))
    expected = {
        **{"workers": 2, "executors": 3, "tasks": 3, "executed": 100, "emitted": 0},
        **{"execute_ms_avg": 9.8, "process_ms_avg": 0.0, "complete_ms_avg": None},
        **{"capacity": 0.5, "capacity_mean": 0.3, "restarts": 1, "readings": 3, "skipped": 5},
        **{"heartbeat_bytes": 200.0, "interval_secs": 30.0, "largest_share": 0.6},
        "executed_cv": pstdev([30, 10, 60]) / fmean([30, 10, 60]),
    }
    same(by_minute[of_bucket(0), "words"], expected)
    second = by_minute[of_bucket(60), "words"]
    same(second, {"executed": 2**63 - 1, "restarts": 0, "largest_share": 1 / 3})
    nothing = {"largest_share": None, "executed_cv": None}
    same(by_minute[of_bucket(60), "idle"], {"executed": 0, "capacity": 0.25, **nothing})
    same(by_minute[of_bucket(60), "unknown"], {"kind": None, "capacity_mean": None, **nothing})
    spout = {"complete_ms_avg": 4.5, "execute_ms_avg": None, "executed_cv": None}
    same(by_minute[of_bucket(60), "lines"], {"largest_share": 1.0, "capacity": None, **spout})


def test_longer_buckets_by_hand():
    first, second = (
        {"kind": "bolt", "executed": 10, "execute_ms_avg": 2.0, "capacity_mean": 0.5},
        {"kind": "bolt", "executed": 30, "execute_ms_avg": 4.0, "capacity_mean": None},
    )
    first |= {"largest_share": 0.5, "executed_cv": 1.0, "heartbeat_bytes": 100.0, "capacity": 0.9}
    second |= {"largest_share": 0.9, "executed_cv": 0.0, "heartbeat_bytes": 400.0, "capacity": 0.8}
    sizes = [{"workers": 2, "readings": 1, "skipped": 4}, {"workers": 1, "readings": 2}]
    times = [{"bucket": of_bucket(120), "interval_secs": 7.0}, {"bucket": of_bucket(180)}]
    named = {"storm_id": "t-1-17", "topology": "t", "component": "words"}
    parts = [first | sizes[0] | times[0] | named, second | sizes[1] | times[1] | named]
    rows_ = [{**dict.fromkeys(ROLLUP.names), **part} for part in parts]
    (ten,) = found(longer(pa.Table.from_pylist(rows_, schema=ROLLUP), 10)).values()
    expected = {
        **{"executed": 40, "execute_ms_avg": 3.5, "workers": 2},
        **{"capacity": 0.9, "capacity_mean": 0.5, "heartbeat_bytes": 300.0, "skipped": 4},
        **{"largest_share": 0.8, "executed_cv": 0.25, "interval_secs": 7.0, "readings": 3},
    }
    assert ten["bucket"].timestamp() % 600 == 0
    same(ten, expected)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_makes_the_same_longer_buckets(spark):
    table = minutes(*two_minutes())
    df = spark.createDataFrame(table)
    assert found(df.transform(coarser, 10).toArrow().cast(ROLLUP)) == found(longer(table, 10))
