"""Buckets of a minute and of more, beside the same by plain arithmetic, and by hand."""

import random
from collections import defaultdict
from datetime import UTC, datetime
from statistics import fmean, pstdev

import pyarrow as pa
import pytest

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.statistics import coarser, rollup
from stormkeeper.pipeline.statistics.increments import COUNTS, TIMES
from stormkeeper.pipeline.statistics.rollups import COLUMNS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MINUTE = 1_700_000_040.0  # a whole one

INCREMENTS = pa.schema(
    [
        *((name, pa.string()) for name in ("storm_id", "topology", "node")),
        *((name, pa.int32()) for name in ("port", "task_start", "task_end")),
        *((name, pa.string()) for name in ("component", "kind")),
        ("at", rows.TIMESTAMP),
        *((name, pa.int64()) for name in COUNTS),
        *((name, pa.float64()) for name in TIMES),
        ("capacity", pa.float64()),
        *((name, pa.int64()) for name in ("bytes", "skipped")),
        ("secs", pa.float64()),
        ("restarted", pa.bool_()),
    ]
)


def increment(port, task, at, executed, **more):
    row = {
        **{"storm_id": "t-1-17", "topology": "t", "node": "n", "port": port},
        **{"task_start": task, "task_end": task, "component": "words", "kind": "bolt"},
        **{"at": MINUTE + at, **dict.fromkeys(COUNTS, 0), **dict.fromkeys(TIMES, 0.0)},
        **{"executed": executed, "execute_ms": 2.0 * executed, "capacity": 0.25},
        **{"bytes": 100, "skipped": 0, "secs": 15.0, "restarted": False},
    }
    return row | more


def table(spark, increments):
    columns = {name: [row[name] for row in increments] for name in INCREMENTS.names}
    columns["at"] = rows.timestamps(columns["at"])
    return spark.createDataFrame(pa.table(columns, INCREMENTS))


def found(df):
    assert tuple(df.columns) == COLUMNS
    return {(r["bucket"], r["component"]): r for r in df.toArrow().to_pylist()}


def of_bucket(secs):
    return datetime.fromtimestamp(MINUTE + secs, UTC)


# --- any increments -------------------------------------------------------------------------------


def some_increments(chance):
    found = []
    for task in range(1, 13):
        spout = task > 8
        for at in range(0, 1800, 15):
            if chance.random() < 0.1:
                continue
            executed = 0 if spout else chance.choice([0, chance.randrange(1000)])
            acked = chance.randrange(100)
            found.append(
                increment(task % 4, task, at + chance.uniform(0, 9), executed)
                | {
                    "component": "lines" if spout else ("words", "out")[task % 2],
                    "kind": "spout" if spout else "bolt",
                    "emitted": chance.randrange(1000),
                    "acked": acked,
                    "execute_ms": executed * chance.uniform(0, 9),
                    "complete_ms": acked * chance.uniform(0, 9) if spout else 0.0,
                    "capacity": None if spout else chance.random(),
                }
            )
    return found


def plainly(increments):
    """What a bucket of a component says, by plain arithmetic."""
    by_executor = defaultdict(list)
    for row in increments:
        by_executor[row["task_start"]].append(row)
    executed = [sum(row["executed"] for row in of) for of in by_executor.values()]
    emitted = [sum(row["emitted"] for row in of) for of in by_executor.values()]
    kind = increments[0]["kind"]
    weights = {"complete": "acked", "execute": "executed", "process": "executed"}
    shares = emitted if kind == "spout" else executed
    row = {name: sum(one[name] for one in increments) for name in COUNTS}
    for name, weight in weights.items():
        some = row[weight] > 0 and (name == "complete") == (kind == "spout")
        total = sum(one[f"{name}_ms"] for one in increments)
        row[f"{name}_ms_avg"] = total / row[weight] if some else None
    capacities = [one["capacity"] for one in increments if one["capacity"] is not None]
    return row | {
        "workers": len({one["port"] for one in increments}),
        "executors": len(by_executor),
        "tasks": len(by_executor),
        "capacity": max(capacities, default=None),
        "capacity_mean": fmean(capacities) if capacities else None,
        "largest_share": max(shares) / sum(shares) if sum(shares) else None,
        "executed_cv": pstdev(executed) / fmean(executed) if sum(executed) else None,
        "interval_secs": 15.0,
        "heartbeat_bytes": 100.0,
    }


def same(there, expected):
    there = {name: there[name] for name in expected}
    numbers = {name for name, value in expected.items() if value is not None}
    assert {name for name, value in there.items() if value is not None} == numbers
    assert {name: there[name] for name in numbers} == pytest.approx(
        {name: expected[name] for name in numbers}, rel=1e-9, abs=1e-7
    )


def test_a_bucket_has_what_came_in_it_and_longer_ones_are_made_of_shorter_ones(spark):
    increments = some_increments(random.Random(3))
    df = table(spark, increments).cache()
    by_minute = rollup(df).cache()
    expected = defaultdict(list)
    for row in increments:
        bucket = of_bucket((row["at"] - MINUTE) // 60 * 60)
        expected[bucket, row["component"]].append(row)
    minutes = found(by_minute)
    assert minutes.keys() == expected.keys()
    for key, of in expected.items():
        same(minutes[key], plainly(of))
    tens = found(coarser(by_minute, 10))
    direct = found(rollup(df, 10))
    hours = found(coarser(coarser(by_minute, 10), 60))
    at_once = found(coarser(by_minute, 60))
    for longer, other, mins in ((tens, direct, 10), (hours, at_once, 60)):
        assert longer.keys() == other.keys()
        for key, row in longer.items():
            drop = {"bucket", "storm_id", "topology", "component", "kind"}
            same(other[key], {name: row[name] for name in row.keys() - drop})
            assert key[0].timestamp() % (60 * mins) == 0
    sums = defaultdict(list)
    for row in increments:
        at = row["at"] // 600 * 600
        sums[datetime.fromtimestamp(at, UTC), row["component"]].append(row)
    exact = {*COUNTS, *(f"{name}_ms_avg" for name in ("complete", "execute", "process"))}
    assert tens.keys() == sums.keys()
    for key, of in sums.items():
        same(tens[key], {name: value for name, value in plainly(of).items() if name in exact})


# --- by hand --------------------------------------------------------------------------------------


def test_buckets_by_hand(spark):
    restart = {"restarted": True, "skipped": 3}
    increments = [
        # Two executors of a worker, which restarted; one of another.
        increment(1, 1, 5, 10, **restart, capacity=0.5, bytes=100),
        increment(1, 2, 5, 10, **restart, bytes=100),
        increment(1, 1, 20, 20, bytes=200, secs=30.0),
        increment(1, 2, 20, 0, bytes=200),
        increment(2, 3, 10, 60, skipped=2, bytes=350, execute_ms=900.0),
        # The next minute.
        increment(1, 1, 61, 2**62),
        increment(1, 2, 61, 2**62),
        increment(2, 3, 61, 2**62),
        increment(1, 9, 61, 0, component="idle"),
        increment(1, 9, 90, 0, component="unknown", kind=None, bytes=None, skipped=None),
    ]
    df = table(spark, increments).cache()
    minutes = found(rollup(df))
    first = minutes[of_bucket(0), "words"]
    expected = {
        **{"workers": 2, "executors": 3, "tasks": 3, "executed": 100, "emitted": 0},
        **{"execute_ms_avg": 9.8, "process_ms_avg": 0.0, "complete_ms_avg": None},
        **{"capacity": 0.5, "capacity_mean": 0.3, "restarts": 1, "readings": 3, "skipped": 5},
        **{"heartbeat_bytes": 250.0, "interval_secs": 30.0, "largest_share": 0.6},
        "executed_cv": pstdev([30, 10, 60]) / fmean([30, 10, 60]),
    }
    same(first, expected)
    second = minutes[of_bucket(60), "words"]
    assert (second["executed"], second["restarts"]) == (2**63 - 1, 0)
    assert second["largest_share"] == pytest.approx(1 / 3)
    idle = minutes[of_bucket(60), "idle"]
    assert (idle["executed"], idle["largest_share"], idle["executed_cv"]) == (0, None, None)
    unknown = minutes[of_bucket(60), "unknown"]
    assert (unknown["kind"], unknown["heartbeat_bytes"], unknown["skipped"]) == (None, None, None)
    parts = [rollup(df.where(f"port = {port}")) for port in (1, 2)]
    merged = found(coarser(parts[0].union(parts[1]), 1))[of_bucket(0), "words"]
    assert (merged["executed"], merged["readings"], merged["skipped"]) == (100, 3, 5)
    assert merged["execute_ms_avg"] == pytest.approx(9.8)
