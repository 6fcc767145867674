"""What executors counted between readings, across restarts, clocks that are set, and late beats."""

import random
from collections import defaultdict
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.pipeline import rows, table_updates, tables
from stormkeeper.pipeline.executor_counters import (
    COUNTERS,
    OWNERSHIP,
    READINGS,
    TIMES,
    counters,
    increments,
    superseded_workers,
)
from stormkeeper.pipeline.executor_stats import COUNTED, executor_stats
from stormkeeper.pipeline.summaries import tally_rows
from support.heartbeats import bolt, change_of, heartbeat, path, spout
from support.one_query import Machine
from support.reported_topologies import decoded

EPOCH = 1_700_000_000.0
EVER = datetime.min.replace(tzinfo=UTC)
MEASURES = (*COUNTED, *TIMES)


def reading(worker, at, uptime_secs, count, *, revision, clock=0.0, task=1, **more):
    """A reading of an executor whose worker's clock is ahead by `clock`, where all counts equal."""
    sent = more.pop("sent", at)
    row = {
        **{"storm_id": "t-1-17", "topology": "t", "node": "n", "port": worker},
        **{"task_start": task, "task_end": task, "component": "words", "kind": "bolt"},
        **{"server": "a:1", "instance": "x", "revision": revision, "at": EPOCH + at},
        **{"time_secs": int(EPOCH + sent + clock), "uptime_secs": uptime_secs},
        **dict.fromkeys(COUNTED, count),
        **dict.fromkeys(TIMES, 2.5 * count),
        "capacity": 0.5,
    }
    return row | more


def table(readings, schema=READINGS):
    columns = {name: [row[name] for row in readings] for name in schema.names}
    columns["at"] = rows.timestamps(columns["at"])
    return pa.table(columns, schema)


class Executors:
    """What is known of executors, of which each batch has at most one reading."""

    def __init__(self):
        self._known = {}
        self.counted = defaultdict(list)

    def read(self, batch, since=EVER):
        """Take in a batch; return its increments."""
        previous = table(self._known.values(), COUNTERS)
        changes, readings = increments(table(batch), previous, since)
        assert changes.num_rows == readings.num_rows
        found = changes.to_pylist()
        for row in found:
            assert (row["before"] is None) == ((row["port"], row["task_start"]) not in self._known)
            self.counted[row["port"]].append(row)
        of = {(row["port"], row["task_start"]) for row in found}
        for row in batch:
            if (key := (row["port"], row["task_start"])) in of:
                self._known.pop(key, None)
                self._known[key] = row
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


def test_increments_add_up_to_the_totals_of_incarnations():
    """Whatever is read of what they sent, some of it twice."""
    chance = random.Random(12)
    batches = defaultdict(list)
    expected, restarts, readings = {}, {}, 0
    for worker in range(200):
        read = [beat for beat in beats_of(chance, worker) if chance.random() < 0.4]
        newest, batch = {}, 0
        for incarnation, row in read:
            newest[incarnation] = row
            batches[batch].append(row)
            readings += 1
            batch += 1
            if chance.random() < 0.3:  # read again: a little earlier or later, as clocks go
                again = row | {"at": row["at"] + chance.uniform(-0.005, 0.005)}
                batches[batch].append(again)
                batch += 1
        if newest:
            expected[worker] = {
                name: sum(row[name] for row in newest.values()) for name in MEASURES
            }
            restarts[worker] = len(newest) - 1
    executors = Executors()
    for batch in batches.values():
        executors.read(batch)
    counted = executors.counted
    assert {
        worker: {name: sum(row[name] for row in of) for name in MEASURES}
        for worker, of in counted.items()
    } == expected
    assert {worker: sum(row["restarted"] for row in of) for worker, of in counted.items()} == (
        restarts
    )
    assert all(
        row[name] >= 0 for of in counted.values() for row in of for name in (*COUNTED, "secs")
    )
    assert sum(restarts.values()) > 100
    assert sum(map(len, counted.values())) == readings


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        pytest.param(
            [
                reading(1, 10.2, 10, 100, revision=1),
                reading(1, 25.2, 25, 160, revision=2),
                reading(1, 50.2, 10, 30, revision=3),
            ],
            [(100, 10.0, False), (60, 15.0, False), (30, 10.0, True)],
            id="restarted; what it counted after its last reading is not known",
        ),
        pytest.param(
            [reading(1, 3.5, 3, 5, revision=4), reading(1, 5.5, 1, 9, revision=5)],
            [(5, 3.0, False), (9, 1.0, True)],
            id="it started again after a second, with an uptime that fell",
        ),
        pytest.param(
            [
                reading(1, 10.0, 10, 7, revision=6),
                reading(1, 30.0, 13, 8, revision=1, sent=13.0, server="b:1"),
            ],
            [(7, 10.0, False), (1, 20.0, False)],
            id="it came late, to another server",
        ),
        pytest.param(
            [
                reading(1, 10.0, 10, 7, revision=7),
                reading(1, 20.0, 20, 9, revision=8, clock=3600.0),
            ],
            [(7, 10.0, False), (2, 10.0, False)],
            id="its clock was set",
        ),
        pytest.param(
            [
                reading(1, 10.0, 10, 7, revision=7),
                reading(1, -3580.0, 20, 9, revision=8, sent=20.0),
            ],
            [(7, 10.0, False), (2, 0.0, False)],
            id="the clock of those who read it was set",
        ),
        pytest.param(
            [reading(1, 10.0, 10, 7, revision=9), reading(1, 11.0, 11, 6, revision=10)],
            [(7, 10.0, False), (6, 11.0, True)],
            id="a count that fell cannot be of the same incarnation",
        ),
        pytest.param(
            [
                reading(1, 10.0, 10, 7, revision=9),
                reading(1, 12.0, 6, 4, revision=3, sent=6.0, server="b:1"),
                reading(1, 13.0, 13, 9, revision=10),
            ],
            [(7, 10.0, False), (2, 3.0, False)],
            id="an earlier one that another server had",
        ),
        pytest.param(
            [
                reading(1, 10.0, -(2**31), 2**63 - 1, revision=11) | {"time_secs": 2**63 - 1},
                reading(1, 11.0, 2**31 - 1, 0, revision=12) | {"time_secs": -(2**63)},
            ],
            [(2**63 - 1, 0.0, False), (0, float(2**31 - 1), True)],
            id="it says what it likes",
        ),
    ],
)
def test_reading_counts_from_the_one_before_or_the_start(readings, expected):
    executors = Executors()
    for one in readings:
        executors.read([one])
    (found,) = executors.counted.values()
    assert [(row["executed"], row["secs"], row["restarted"]) for row in found] == expected


def test_counts_from_before_the_first_look_are_no_increment():
    since = datetime.fromtimestamp(EPOCH + 100, UTC)
    executors = Executors()
    old, young = reading(1, 150.0, 120, 900, revision=1), reading(2, 150.0, 40, 80, revision=2)
    found = executors.read([old, young], since)
    assert [(row["executed"], row["execute_ms"], row["secs"]) for row in found] == [
        (0, 0.0, 0.0),
        (80, 200.0, 40.0),
    ]
    (row,) = executors.read([reading(1, 160.0, 130, 905, revision=3)], since)
    assert (row["executed"], row["secs"]) == (5, 10.0)


def test_counters_are_of_all_time_without_storms_own_streams():
    words = bolt({("lines", "default"): 10, ("lines", "__tick"): 5}, 3, execute_ms=2.0)
    words.emitted[":all-time"]["__ack_ack"] = 1000
    words.specific.bolt.executed["600"] = dict.fromkeys(words.specific.bolt.executed["600"], 10)
    executors = {(1, 2): words, (3, 3): spout(8, acked=4), (-1, -1): spout(1)}
    for stats in executors.values():
        stats.component = "c"
    beat = heartbeat("t-1-17", executors, time_secs=100, uptime_secs=20)
    pulses = decoded([change_of(path("t-1-17"), beat, 7, 1.5)], EPOCH)
    found = counters(tally_rows(executor_stats(pulses))).sort_by("task_start")
    assert found.schema == READINGS
    first, second = found.to_pylist()
    assert [first[name] for name in COUNTED] == [3, 3, 15, 15, 0]
    assert [first[name] for name in TIMES] == [0.0, 30.0, 30.0]
    assert first["capacity"] == 2 * 10 * 2.0 / 20_000
    assert [second[name] for name in (*COUNTED, "capacity")] == [8, 8, 0, 4, 0, None]
    assert [second[name] for name in TIMES] == [10.0, 0.0, 0.0]
    for row in (first, second):
        assert (row["revision"], row["topology"], row["component"]) == (7, "t", "c")
        assert row["at"] == datetime.fromtimestamp(EPOCH - 1.5, UTC)


def held(*executors):
    """Rows of (worker, first task, last task, start), which were read when its uptime was 100."""
    rows = [
        {
            "storm_id": worker.partition("/")[0],
            "node": worker.partition("/")[2],
            "port": 6700,
            "task_start": first,
            "task_end": last,
            "at": datetime.fromtimestamp(start + 100, UTC),
            "uptime_secs": 100,
        }
        for worker, first, last, start in executors
    ]
    return pa.Table.from_pylist(rows, OWNERSHIP)


def gone(*executors):
    return {key.removesuffix("-6700") for key in superseded_workers(held(*executors)).to_pylist()}


@pytest.mark.parametrize(
    ("executors", "superseded_"),
    [
        ([], set()),
        ([("t/a", 1, 3, 0), ("t/a", 4, 4, 0), ("t/b", 5, 6, 50), ("u/c", 1, 9, 60)], set()),
        ([("t/a", 1, 3, 0), ("t/b", 1, 3, 50)], {"t/a"}),
        ([("t/b", 1, 3, 50), ("t/a", 1, 3, 0)], {"t/a"}),
        # A rebalance: other executors of the same tasks.
        ([("t/a", 1, 4, 0), ("t/b", 1, 2, 50), ("t/c", 3, 4, 50)], {"t/a"}),
        ([("t/b", 1, 4, 50), ("t/a", 2, 2, 0), ("t/a", 9, 9, 0)], {"t/a"}),
        # Who has taken what the newer one has taken since.
        ([("t/a", 1, 1, 0), ("t/b", 1, 1, 50), ("t/c", 1, 1, 90)], {"t/a", "t/b"}),
        # Of the tasks of one worker, whatever it says, none is another's.
        ([("t/a", 1, 5, 0), ("t/a", 2, 3, 0)], set()),
        ([("t/a", -(2**31), 2**31 - 1, 0), ("t/b", 7, 7, 50), ("u/c", 1, 1, 0)], {"t/a"}),
        ([("t/a", 9, 1, 0), ("t/b", 5, 5, 50)], set()),
    ],
)
def test_tasks_are_those_of_who_was_started_last(executors, superseded_):
    assert gone(*executors) == superseded_


def test_what_a_worker_had_before_is_not_its_own():
    """It was started anew without the first task, which another has had since before that."""
    before = held(("t/a", 1, 1, 0))
    now = held(("t/b", 1, 1, 50), ("t/a", 2, 2, 90), ("t/b", 2, 2, 50))
    found = superseded_workers(pa.concat_tables([before, now])).to_pylist()
    assert found == ["t/b-6700"]
    assert superseded_workers(pa.concat_tables([before, now.slice(0, 2)])).to_pylist() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from("tu"), st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 2)
        ),
        max_size=12,
    )
)
def test_no_task_is_left_to_two(drawn):
    starts = {"a": 0, "b": 10, "c": 20, "d": 30}
    executors = {
        (f"{topology}/{node}", first, first + more, starts[node])
        for topology, node, first, more in drawn
    }
    found = gone(*executors)
    tasks = {}
    for worker, first, last, start in executors:
        tasks.setdefault((start, worker), set()).update(range(first, last + 1))
    holders = {}
    for (_, worker), of_worker in sorted(tasks.items(), reverse=True):
        topology = worker.partition("/")[0]
        others = holders.setdefault(topology, set())
        assert (worker in found) == bool(others & of_worker), worker
        if worker not in found:
            others |= of_worker


def test_an_executor_that_was_moved_counts_once():
    machine = Machine(table_updates.statistics_tables(LivenessLimits(9, 30), period_secs=3.0))

    def beat(node, emitted, uptime, revision, tasks=((1, 1), (2, 2))):
        executors = {each: spout(emitted) for each in tasks}
        details = heartbeat("t-1-17", executors, uptime_secs=uptime)
        return change_of(path("t-1-17", node), details, revision, 0.0)

    def counted(made):
        (row,) = [
            row for row in made[tables.TOPOLOGY_STATS].to_pylist() if row["window"] == ":all-time"
        ]
        return row["workers"], row["tasks"], row["emitted"]

    made = machine.batch({"a:1": [beat("n1", 100, 500, 1), beat("n9", 7, 500, 2, [(3, 3)])]})
    assert counted(made) == (2, 3, 207)
    machine.pass_by(60)
    made = machine.batch({"a:1": [beat("n2", 5, 20, 3)]}, revision=3)
    assert counted(made) == (2, 3, 17)
    machine.pass_by(15)
    # The first one was only cut off, and beats on.
    made = machine.batch({"a:1": [beat("n1", 120, 575, 4), beat("n2", 6, 35, 5)]}, revision=5)
    assert counted(made) == (2, 3, 19)
    machine.pass_by(15)
    made = machine.batch({"a:1": [beat("n9", 8, 590, 6, [(3, 3)])]}, revision=6)
    assert counted(made) == (2, 3, 20)
    machine.pass_by(15)
    # It is placed there again.
    made = machine.batch({"a:1": [beat("n1", 1, 5, 7)]}, revision=7)
    assert counted(made) == (2, 3, 10)
