"""Buckets of a minute and of more, by hand; at random, see `test_buckets`."""

import random
from collections import defaultdict
from datetime import UTC, datetime
from statistics import fmean, pstdev

import pyarrow as pa
import pytest

from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.executor_counters import TIMES, counters
from stormkeeper.pipeline.executor_stats import COUNTED, WEIGHTS
from stormkeeper.pipeline.rollups import (
    OPEN,
    ROLLUPS,
    add_sums,
    merge_buckets,
    next_rollups,
    rollup,
    sum_changes,
)
from stormkeeper.pipeline.spark_statistics import coarser
from stormkeeper.pipeline.summaries import tally_rows
from stormkeeper.pipeline.table_columns import EXECUTOR_STATS, ROLLUP

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
        sums = add_sums(sums, sum_changes(pa.Table.from_pylist(changes, schema=CHANGES)))
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
    (ten,) = found(merge_buckets(pa.Table.from_pylist(rows_, schema=ROLLUP), 10)).values()
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
    assert found(df.transform(coarser, 10).toArrow().cast(ROLLUP)) == found(
        merge_buckets(table, 10)
    )


#: A whole hour, of which the tests begin in the 57th minute.
HOUR = 1_700_002_800.0
BEGAN = HOUR - 190.0

REPORTS = pa.schema(
    [
        *(("storm_id", pa.string()), ("node", pa.string()), ("port", pa.int32())),
        *(("bytes", pa.int64()), ("skipped", pa.int64())),
    ]
)


def at(secs):
    return datetime.fromtimestamp(secs, UTC)


class Pipeline:
    """The tables of roll-ups, in memory."""

    def __init__(self):
        self.present = {}
        self.logs = defaultdict(list)

    def batch(self, began, readings, reports=None, took=0.5):
        """Take in a batch: the readings of workers, as `Worker.reading` returns them.

        It `took` so long by the pipeline's clock, less if that was set back meanwhile.
        """
        stats = [row for reading in readings for row in reading["rows"]]
        said = reports or [{name: reading[name] for name in REPORTS.names} for reading in readings]
        found = next_rollups(
            self.present.get,
            counters(tally_rows(pa.Table.from_pylist(stats, schema=EXECUTOR_STATS))),
            pa.Table.from_pylist(said, schema=REPORTS),
            (began, began + took),
        )
        for name, table in found.items():
            if name in ROLLUPS.values():
                self.logs[name] += table.to_pylist()
            else:
                self.present[name] = table
        return self

    def rollup(self, minutes=1):
        rows = self.logs[ROLLUPS[minutes]]
        by_key = {(row["bucket"], row["storm_id"], row["component"]): row for row in rows}
        assert len(by_key) == len(rows)
        return by_key


class Worker:
    """A worker that counts at random, and restarts."""

    def __init__(self, chance, port, tasks, began):
        self.chance, self.port, self.tasks = chance, port, tasks
        self.server, self.incarnation = "a:1", 0
        self._start(began)

    def _start(self, began):
        self.began = began
        self.incarnation += 1
        self.counts = {task: dict.fromkeys(COUNTED, 0) for task in self.tasks}
        self.ms = {task: dict.fromkeys(WEIGHTS, 0.0) for task in self.tasks}

    def restart(self, began):
        self._start(began)

    def count(self):
        for task, counts in self.counts.items():
            for name in COUNTED:
                counts[name] += self.chance.choice([0, self.chance.randrange(500)])
            if task % 3 == 0:
                counts["executed"] = 0

    def reading(self, received, clock=0.0):
        """What a heartbeat that was received then says, as rows, and as what is known of it.

        The clock of those who read it is ahead by `clock`.
        """
        uptime = received - self.began
        common = {
            **{"read_at": None, "received_at": at(received + clock), "storm_id": "t-1-17"},
            **{"topology": "t", "node": "n", "port": self.port, "server": self.server},
            **{"instance": "x", "revision": int(received * 10), "time_secs": int(received - 7)},
            **{"uptime_secs": int(uptime), "stream": "default", "partial": False},
        }
        executors, rows = {}, []
        for task, counts in self.counts.items():
            kind = ("spout", "bolt", "bolt")[task % 3]
            averages = {name: self.chance.uniform(0, 9) for name in WEIGHTS}
            whose = {
                **{"task_start": task, "task_end": task + 1, "kind": kind},
                "component": ("lines", "words", "out")[task % 3],
            }
            recent = self.chance.randrange(1000)
            for window, said in ((":all-time", counts), ("600", {"executed": recent})):
                latencies = {f"{name}_ms_avg": value for name, value in averages.items()}
                rows.append({**common, **whose, "window": window, **said, **latencies})
            busy = averages["execute"] * recent / (min(int(uptime), 600) * 1000.0)
            executors[task] = {
                **{"kind": kind, "component": whose["component"], "counts": dict(counts)},
                "ms": {name: averages[name] * counts[weight] for name, weight in WEIGHTS.items()},
                "capacity": busy if kind == "bolt" else None,
            }
        return {
            **{"storm_id": "t-1-17", "node": "n", "port": self.port, "at": received},
            **{"bytes": self.chance.randrange(1000), "skipped": self.chance.randrange(5)},
            **{"rows": rows, "uptime": int(uptime), "executors": executors},
            "incarnation": self.incarnation,
        }


class Account:
    """The same, plainly: it is told who restarted, and keeps everything."""

    def __init__(self):
        self.closed = self.since = None
        self.last = {}
        self.minutes = defaultdict(list)

    def batch(self, began, readings):
        if self.closed is None:
            self.closed, self.since = began // 60 * 60, began - 60
        for reading in readings:
            bucket = max(reading["at"] // 60 * 60, self.closed)
            for task, executor in reading["executors"].items():
                key = (reading["port"], task)
                before = self.last.get(key)
                same = before and before["incarnation"] == reading["incarnation"]
                counts, ms, secs = executor["counts"], executor["ms"], reading["uptime"]
                if same or (before is None and reading["at"] - reading["uptime"] <= self.since):
                    then = before or executor
                    counts = {name: counts[name] - then["counts"][name] for name in counts}
                    ms = {name: ms[name] - then["ms"][name] for name in ms}
                    secs = reading["at"] - before["at"] if before else 0.0
                row = {
                    **{"port": reading["port"], "task": task, "kind": executor["kind"]},
                    **{"counts": counts, "ms": ms, "secs": secs, "at": reading["at"]},
                    **{"restarted": bool(before and not same), "capacity": executor["capacity"]},
                    **{"bytes": reading["bytes"], "skipped": reading["skipped"]},
                }
                self.minutes[at(bucket), "t-1-17", executor["component"]].append(row)
                self.last[key] = {**executor, **{n: reading[n] for n in ("incarnation", "at")}}
        self.closed = max(self.closed, began // 60 * 60)

    def rollup(self):
        return {key: self._row(of) for key, of in self.minutes.items() if key[0] < at(self.closed)}

    def _row(self, of):
        kind = of[0]["kind"]
        counts = {name: sum(row["counts"][name] for row in of) for name in COUNTED}
        work = defaultdict(int)
        for row in of:
            work[row["port"], row["task"]] += row["counts"][
                "emitted" if kind == "spout" else "executed"
            ]
        total = sum(work.values())
        # Of a worker's heartbeat, once.
        beats = {(row["port"], row["at"]): row for row in of}.values()
        latencies = {}
        for name, weight in WEIGHTS.items():
            is_of_kind = (name == "complete") == (kind == "spout")
            ms = sum(row["ms"][name] for row in of)
            some = is_of_kind and counts[weight] > 0
            latencies[f"{name}_ms_avg"] = ms / counts[weight] if some else None
        capacities = [row["capacity"] for row in of]
        return {
            **counts,
            **latencies,
            "workers": len({row["port"] for row in of}),
            "executors": len(work),
            "tasks": 2 * len(work),
            "capacity": max(capacities) if kind == "bolt" else None,
            "capacity_mean": fmean(capacities) if kind == "bolt" else None,
            "restarts": sum(row["restarted"] for row in beats),
            "heartbeat_bytes": fmean(row["bytes"] for row in beats),
            "readings": len(beats),
            "skipped": sum(row["skipped"] for row in beats),
            "interval_secs": max(row["secs"] for row in of),
            "largest_share": max(work.values()) / total if total else None,
            "executed_cv": pstdev(work.values()) / fmean(work.values())
            if kind == "bolt" and total
            else None,
        }


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        there = {name: found[key][name] for name in row}
        assert there == {
            name: value if value is None else pytest.approx(value, rel=1e-7, abs=1e-6)
            for name, value in row.items()
        }, key


def coarse(finer, minutes):
    """The sums and the largest of finer buckets, plainly."""
    by_bucket = defaultdict(list)
    for (bucket, *whose), row in finer.items():
        start = bucket.timestamp() // (60 * minutes) * 60 * minutes
        by_bucket[at(start), *whose].append(row)
    added = (*COUNTED, "restarts", "readings", "skipped")
    largest = ("workers", "executors", "tasks", "interval_secs")
    return {
        key: {name: sum(row[name] for row in of) for name in added}
        | {name: max(row[name] for row in of) for name in largest}
        for key, of in by_bucket.items()
    }


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_roll_ups_equal_a_plain_account_of_any_readings(seed):
    """Restarts, workers that go over to another server, come late or are not read, an outage."""
    chance = random.Random(seed)
    # One was there long before anybody looked.
    workers = [
        Worker(chance, 6700 + n, range(3 * n + 1, 3 * n + 5), BEGAN - (5000 if n == 0 else 30))
        for n in range(4)
    ]
    pipeline, account = Pipeline(), Account()
    now = BEGAN
    while now < HOUR + 3630:
        readings = []
        for worker in workers:
            worker.count()
            if now - worker.began > 60 and chance.random() < 0.03:
                worker.restart(now - chance.uniform(6, 14))
                worker.count()
            if chance.random() < 0.1:
                worker.server = chance.choice(["a:1", "b:1"])
            late = chance.choice([0, 0, 0, 100]) if now - worker.began > 160 else 0
            received = now - late - chance.uniform(0, 3)
            before = account.last.get((worker.port, worker.tasks[0]), {"at": 0.0})
            if chance.random() < 0.8 and received > before["at"]:
                readings.append(worker.reading(received))
        pipeline.batch(now, readings)
        account.batch(now, readings)
        now += 1500 if HOUR + 600 < now < HOUR + 660 else chance.uniform(20, 110)
    minutes = account.rollup()
    assert len(minutes) > 40
    assert_same(pipeline.rollup(), minutes)
    for length in (10, 60):
        closed = account.closed // (60 * length) * 60 * length
        expected = coarse(minutes, length)
        expected = {key: row for key, row in expected.items() if key[0] < at(closed)}
        assert expected
        assert_same(pipeline.rollup(length), expected)


# --- by hand --------------------------------------------------------------------------------------


def bolt(task=1, began=BEGAN):
    return Worker(random.Random(0), 6700, [task], began)


def executed(pipeline, minutes=1):
    """What was executed, by the time of the bucket in seconds since the hour."""
    return [
        (row["bucket"].timestamp() - HOUR, row["executed"])
        for row in pipeline.logs[ROLLUPS[minutes]]
        if row["executed"]
    ]


def read(pipeline, worker, now, count, received=None, clock=0.0):
    """Let a worker have counted so much by now, and have it read; the pipeline's clock is ahead."""
    worker.counts[1]["executed"] = count
    reading = worker.reading(now if received is None else received, clock)
    pipeline.batch(now + clock, [reading])


def test_first_batch_after_a_minute_adds_to_it_and_closes_it():
    pipeline, worker = Pipeline(), bolt(began=HOUR)
    read(pipeline, worker, HOUR + 10, 1)
    read(pipeline, worker, HOUR + 50, 10)
    assert executed(pipeline) == []
    read(pipeline, worker, HOUR + 62, 100, received=HOUR + 59)
    assert executed(pipeline) == [(0, 100)]
    # Too late: a part of the next one.
    read(pipeline, worker, HOUR + 70, 300, received=HOUR + 59.5)
    read(pipeline, worker, HOUR + 125, 1000)
    assert executed(pipeline) == [(0, 100), (60, 200)]


def test_counts_from_downtime_are_in_the_readings_bucket():
    pipeline, worker = Pipeline(), bolt(began=HOUR)
    read(pipeline, worker, HOUR + 10, 1)
    read(pipeline, worker, HOUR + 3670, 3001)
    pipeline.batch(HOUR + 7300, [])
    assert executed(pipeline) == [(0, 1), (3660, 3000)]
    assert executed(pipeline, 10) == [(0, 1), (3600, 3000)]
    assert executed(pipeline, 60) == [(0, 1), (3600, 3000)]
    assert [row["interval_secs"] for row in pipeline.logs[ROLLUPS[60]]] == [10.0, 3660.0]


def test_late_clock_puts_readings_in_the_oldest_open_minute():
    pipeline, worker = Pipeline(), bolt(began=HOUR)
    read(pipeline, worker, HOUR + 10, 1)
    read(pipeline, worker, HOUR + 70, 10)
    for n in range(5):
        read(pipeline, worker, HOUR + 90 + 20 * n, 20 + n, clock=-600.0)
    read(pipeline, worker, HOUR + 770, 100, clock=-600.0)
    pipeline.batch(HOUR + 240, [])
    assert executed(pipeline) == [(0, 1), (60, 23), (120, 76)]
    assert sum(row["readings"] for row in pipeline.logs[ROLLUPS[1]]) == 8


def test_a_clock_that_was_a_day_ahead_stops_nothing():
    pipeline, worker = Pipeline(), bolt(began=HOUR)
    read(pipeline, worker, HOUR + 10, 1)
    day = 86400
    read(pipeline, worker, HOUR + 30, 10, clock=day)
    read(pipeline, worker, HOUR + 40, 100)
    read(pipeline, worker, HOUR + 70, 1000)
    read(pipeline, worker, HOUR + 3700, 10_000)
    pipeline.batch(HOUR + 7300, [])
    assert executed(pipeline) == [(0, 1), (day, 9), (0, 90), (60, 900), (3660, 9000)]
    assert executed(pipeline, 60) == [(0, 1), (day, 9), (0, 990), (3600, 9000)]


def test_a_clock_that_is_set_back_within_a_batch_loses_nothing():
    pipeline, worker = Pipeline(), bolt(began=HOUR)
    read(pipeline, worker, HOUR + 10, 1)
    worker.counts[1]["executed"] = 10
    pipeline.batch(HOUR + 30, [worker.reading(HOUR + 30, -7200.0)], took=-7200.0)
    read(pipeline, worker, HOUR + 90, 100, clock=-7200.0)
    pipeline.batch(HOUR + 180 - 7200, [])
    assert sum(count for _, count in executed(pipeline)) == 100


def test_a_reader_whose_clock_is_ahead_fills_no_minute_to_come():
    pipeline, worker = Pipeline(), bolt(began=HOUR)
    read(pipeline, worker, HOUR + 10, 5, received=HOUR + 5000)
    pipeline.batch(HOUR + 60, [])
    assert executed(pipeline) == [(0, 5)]


def test_component_named_within_a_minute_has_two_rows():
    pipeline, worker = Pipeline(), bolt(began=HOUR)
    for secs, name, count in ((10, "tasks 1-2", 5), (20, "words", 9), (30, "words", 10)):
        worker.counts[1]["executed"] = count
        reading = worker.reading(HOUR + secs)
        for row in reading["rows"]:
            row["component"] = name
        pipeline.batch(HOUR + secs, [reading])
    pipeline.batch(HOUR + 60, [])
    found = pipeline.logs[ROLLUPS[1]]
    assert {
        row["component"]: (row["executed"], row["executors"], row["largest_share"]) for row in found
    } == {"tasks 1-2": (5, 1, 1.0), "words": (5, 1, 1.0)}


def test_counters_stay_while_the_executor_may_return():
    pipeline, (lost, gone, heard) = Pipeline(), [bolt(began=HOUR) for _ in range(3)]
    for port, worker in enumerate((lost, gone, heard)):
        worker.port = port
    known = [worker.reading(HOUR + 10) for worker in (lost, gone, heard)]
    pipeline.batch(HOUR + 10, known)

    def counted():
        return sorted(pipeline.present[tables.EXECUTOR_COUNTERS]["port"].to_pylist())

    # Of the worker that is lost there is a report still, as its Pacemaker is down.
    day = HOUR + 86400
    pipeline.batch(day, [heard.reading(day)], [known[0], known[2]])
    assert counted() == [0, 1, 2]
    pipeline.batch(day + 20, [], [known[0], known[2]])
    assert counted() == [0, 2]
    # Nobody knows what it had counted, so that nothing counts twice.
    gone.counts[1]["executed"] = 100
    pipeline.batch(day + 30, [gone.reading(day + 30)])
    gone.counts[1]["executed"] = 107
    pipeline.batch(day + 40, [gone.reading(day + 40)])
    pipeline.batch(day + 60, [])
    assert executed(pipeline)[-1] == (86400, 7)
