"""What executors counted between readings, across restarts, clocks that are set, and late beats.

A job of Spark takes its time, so all workers of a test are in one.
"""

import random
from collections import defaultdict
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.statistics import counters, counters_now, executor_stats, increments
from stormkeeper.pipeline.statistics.increments import COUNTS, TIMES
from support.heartbeats import bolt, change_of, heartbeat, path, spout
from support.reported_topologies import decoded

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EPOCH = 1_700_000_000.0
MEASURES = (*COUNTS, *TIMES)

READINGS = pa.schema(
    [
        *((name, pa.string()) for name in ("storm_id", "topology", "node")),
        *((name, pa.int32()) for name in ("port", "task_start", "task_end")),
        *((name, pa.string()) for name in ("component", "kind", "server", "instance")),
        ("revision", pa.int64()),
        ("time_secs", pa.int64()),
        ("uptime_secs", pa.int32()),
        ("at", rows.TIMESTAMP),
        *((name, pa.int64()) for name in COUNTS),
        *((name, pa.float64()) for name in TIMES),
        ("capacity", pa.float64()),
        *((name, pa.int64()) for name in ("bytes", "skipped")),
    ]
)


def reading(worker, at, uptime_secs, count, *, revision, clock=0.0, task=1, **more):
    """A reading of an executor whose worker's clock is ahead by `clock`, where all counts equal."""
    sent = more.pop("sent", at)
    row = {
        **{"storm_id": "t-1-17", "topology": "t", "node": "n", "port": worker},
        **{"task_start": task, "task_end": task, "component": "words", "kind": "bolt"},
        **{"server": "a:1", "instance": "x", "revision": revision, "at": EPOCH + at},
        **{"time_secs": int(EPOCH + sent + clock), "uptime_secs": uptime_secs},
        **dict.fromkeys(COUNTS, count),
        **dict.fromkeys(TIMES, 2.5 * count),
        **{"capacity": 0.5, "bytes": 100, "skipped": 1},
    }
    return row | more


def table(spark, readings):
    columns = {name: [row[name] for row in readings] for name in READINGS.names}
    columns["at"] = rows.timestamps(columns["at"])
    return spark.createDataFrame(pa.table(columns, READINGS))


def kept(spark, df):
    """The rows as a table of their own, as they would be stored between two batches."""
    found = df.toArrow()
    return found, spark.createDataFrame(found)


def counted(df):
    """By worker: what increments say, in the order of time."""
    found = defaultdict(list)
    for row in df.orderBy("at").collect():
        found[row.port].append((row.executed, row.secs, row.restarted))
    return found


# --- any readings ---------------------------------------------------------------------------------


def beats_of(chance, worker):
    """Everything that a worker's executor sent, as readings, each with its incarnation."""
    beats, start, at, clock = [], chance.uniform(0, 100), 0.0, chance.choice([0.0, -40.0, 500.0])
    clock_is_set = chance.random() < 0.3
    for incarnation in range(chance.randint(1, 4)):
        count = 0
        uptime = chance.uniform(0, 3)
        lives = uptime + chance.uniform(8, 60)
        while uptime < lives:
            late = 0.0 if clock_is_set or chance.random() < 0.9 else chance.uniform(0, 6)
            at = max(at + 0.5, start + uptime + chance.uniform(0, 0.5) + late)
            count += chance.choice([0, 1, chance.randrange(1000)])
            row = reading(
                worker,
                *(at, int(uptime), count),
                **{"revision": len(beats), "clock": clock, "sent": start + uptime},
            )
            beats.append((incarnation, row))
            uptime += chance.uniform(1, 4)
            if clock_is_set and chance.random() < 0.1:
                clock += chance.choice([-3600.0, 7.0, 90.0])
        start += uptime + chance.uniform(4, 30)
    return beats


def test_all_increments_together_are_what_all_incarnations_counted(spark):
    """Whatever is read of what they sent, in whichever order, once or twice."""
    chance = random.Random(12)
    batches = [[] for _ in range(4)]
    expected, restarts = {}, {}
    for worker in range(200):
        read = [beat for beat in beats_of(chance, worker) if chance.random() < 0.4]
        newest = {}
        for place, (incarnation, row) in enumerate(read):
            newest[incarnation] = row
            batch = place * len(batches) // len(read)
            batches[batch].append(row)
            if chance.random() < 0.5:  # read again, with or after the others
                again = row | {"at": row["at"] + chance.uniform(-0.005, 0.005)}
                batches[min(batch + chance.randint(0, 1), len(batches) - 1)].append(again)
        if newest:
            expected[worker] = [
                pytest.approx(sum(row[name] for row in newest.values()), abs=0) for name in MEASURES
            ]
            restarts[worker] = len(newest) - 1
    found = defaultdict(lambda: [0] * len(MEASURES))
    restarted = dict.fromkeys(restarts, 0)
    readings = 0
    previous = None
    for batch in batches:
        chance.shuffle(batch)
        new = table(spark, batch)
        for row in increments(new, previous).toArrow().to_pylist():
            worker = row["port"]
            assert all(row[name] >= 0 for name in COUNTS)
            assert row["secs"] >= 0
            found[worker] = [a + row[n] for a, n in zip(found[worker], MEASURES, strict=True)]
            restarted[worker] += row["restarted"]
            readings += 1
        _, previous = kept(spark, counters_now(new, previous))
    assert found == expected
    assert restarted == restarts
    assert sum(restarts.values()) > 100
    assert readings == len({(row["port"], row["revision"]) for batch in batches for row in batch})


# --- by hand --------------------------------------------------------------------------------------


def test_a_reading_counts_from_the_one_before_or_from_the_workers_start(spark):
    readings = [
        # Restarted at 40; what the first incarnation counted after its last reading is not known.
        reading(1, 10.2, 10, 100, revision=1),
        reading(1, 25.2, 25, 160, revision=2),
        reading(1, 50.2, 10, 30, revision=3),
        # It started again after a second, with an uptime that fell.
        reading(2, 3.5, 3, 5, revision=4),
        reading(2, 5.5, 1, 9, revision=5),
        # It came late, to another server.
        reading(3, 10.0, 10, 7, revision=6),
        reading(3, 30.0, 13, 8, revision=1, sent=13.0, server="b:1"),
        # Its clock was set.
        reading(4, 10.0, 10, 7, revision=7),
        reading(4, 20.0, 20, 9, revision=8, clock=3600.0),
        # A count that fell cannot be of the same incarnation.
        reading(5, 10.0, 10, 7, revision=9),
        reading(5, 11.0, 11, 6, revision=10),
        # It says what it likes.
        reading(6, 10.0, -(2**31), 2**63 - 1, revision=11) | {"time_secs": 2**63 - 1},
        reading(6, 11.0, 2**31 - 1, 0, revision=12) | {"time_secs": -(2**63)},
    ]
    found = counted(increments(table(spark, readings)))
    assert {worker: [(n, again) for n, _, again in of] for worker, of in found.items()} == {
        1: [(100, False), (60, False), (30, True)],
        2: [(5, False), (9, True)],
        3: [(7, False), (1, False)],
        4: [(7, False), (2, False)],
        5: [(7, False), (6, True)],
        6: [(2**63 - 1, False), (0, True)],
    }
    assert [secs for _, secs, _ in found[1]] == [10.0, 15.0, 10.0]
    assert [secs for _, secs, _ in found[3]] == [10.0, 20.0]


def test_counters_are_of_all_time_without_storms_own_streams(spark):
    words = bolt({("lines", "default"): 10, ("lines", "__tick"): 5}, 3, execute_ms=2.0)
    words.emitted[":all-time"]["__ack_ack"] = 1000
    words.specific.bolt.executed["600"] = dict.fromkeys(words.specific.bolt.executed["600"], 10)
    executors = {(1, 2): words, (3, 3): spout(8, acked=4), (-1, -1): spout(1)}
    for stats in executors.values():
        stats.component = "c"
    beat = heartbeat("t-1-17", executors, time_secs=100, uptime_secs=20)
    df = spark.createDataFrame(decoded([change_of(path("t-1-17"), beat, 7, 1.5)], EPOCH))
    reports = spark.createDataFrame(
        [("t-1-17", "node", 6700, "a:1", "x", 7, 234, 5)],
        "storm_id string, node string, port int, server string, instance string, revision bigint,"
        " bytes int, skipped int",
    )
    found = df.transform(executor_stats).transform(counters, reports).orderBy("task_start")
    assert found.columns == READINGS.names
    first, second = found.toArrow().to_pylist()
    assert [first[name] for name in COUNTS] == [3, 3, 15, 15, 0]
    assert [first[name] for name in TIMES] == [0.0, 30.0, 30.0]
    assert first["capacity"] == 2 * 10 * 2.0 / 20_000
    assert [second[name] for name in (*COUNTS, "capacity")] == [8, 8, 0, 4, 0, None]
    assert [second[name] for name in TIMES] == [10.0, 0.0, 0.0]
    for row in (first, second):
        assert (row["bytes"], row["skipped"], row["revision"]) == (234, 5, 7)
        assert row["at"] == datetime.fromtimestamp(EPOCH - 1.5, UTC)
