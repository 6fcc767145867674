"""The tables of what was counted, from batch to batch."""

import random
from dataclasses import replace
from functools import partial
from math import inf, nan

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.executor_stats import (
    cut_pulses,
    executor_rows,
    executor_stats,
    split_pulses,
)
from stormkeeper.pipeline.summaries import (
    ENCODED,
    StatisticsUpdate,
    component_stats,
    tally_rows,
    topology_stats,
    worker_stats,
)
from stormkeeper.pipeline.table_columns import (
    COMPONENT_STATS,
    EXECUTOR_STATS,
    TOPOLOGY_STATS,
    WORKER_STATS,
)
from stormkeeper.pipeline.worker_liveness import next_reports
from stormkeeper.thrift.writer import Release
from support.heartbeats import bolt, change_of, decoded_batch, heartbeat, page_of, path, spout
from support.reported_topologies import heartbeats_of, reported

LIMITS = LivenessLimits(late_secs=9, timeout_secs=30)

SCHEMAS = {
    tables.WORKER_STATS: WORKER_STATS,
    tables.EXECUTOR_STATS: EXECUTOR_STATS,
    tables.COMPONENT_STATS: COMPONENT_STATS,
    tables.TOPOLOGY_STATS: TOPOLOGY_STATS,
}


def counted(previous, newest, reports):
    """The tables that follow, whole."""
    read = [split_pulses(piece) for pulses in newest for piece in cut_pulses(pulses)]
    counting = StatisticsUpdate()
    for some in read:
        counting.add(some)
    sums = None if previous is None else previous.cast(ENCODED)
    found = counting.tables(lambda: sums, None, reports)
    found[tables.EXECUTOR_STATS] = map(executor_rows, read)
    whole = {}
    for name, schema in SCHEMAS.items():
        parts = [found[name]] if isinstance(found[name], pa.Table) else found[name]
        whole[name] = pa.concat_tables([schema.empty_table(), *(p.cast(schema) for p in parts)])
    return whole


class Tables:
    """The tables, from batch to batch; of logs, what the newest batch added."""

    def __init__(self):
        self.reports = None
        self.counted = {}
        self._now = 1000.0
        self._revision = 0

    def batch(self, *pulses):
        """Take in a batch of (path, details)."""
        self._now += 1
        readings = []
        for where, details in pulses:
            self._revision += 1
            readings.append(change_of(where, details, self._revision, 0.0))
        health = Coverage(self._now, None, Position("x", self._revision), 1e6, 1e6, 1)
        return self.read(page_of("x", readings, self._now), health)

    def read(self, page, health):
        """Take in a batch as it was read."""
        batch = decoded_batch([rows.page_rows("a:1", [page]), rows.server_row("a:1", health)])
        self.reports, newest = next_reports(self.reports, batch.rows, LIMITS, period_secs=3)
        self.counted = counted(
            self.counted.get(tables.WORKER_STATS), batch.pulses(newest), self.reports
        )
        assert {name: table.schema for name, table in self.counted.items()} == SCHEMAS
        return self

    def of(self, name, window=":all-time", **values):
        return [
            row
            for row in self.counted[name].to_pylist()
            if row["window"] == window and values.items() <= row.items()
        ]

    def emitted(self, name, **values):
        return [row["emitted"] for row in self.of(name, **values)]


def one(id_, port, emitted):
    return path(id_, "n", port), heartbeat(id_, {(port, port): spout(emitted)})


def test_a_topology_is_the_sum_of_its_workers_whichever_are_new():
    found = Tables().batch(one("t-1-17", 1, 5), one("t-1-17", 2, 7), one("u-1-17", 1, 100))
    assert sorted(found.emitted(tables.TOPOLOGY_STATS)) == [12, 100]
    found.batch(one("t-1-17", 2, 9))
    (row,) = found.of(tables.TOPOLOGY_STATS)  # the other one has nothing new
    assert (row["topology"], row["workers"], row["executors"]) == ("t", 2, 2)
    assert row["emitted"] == 5 + 9
    assert row["read_at"].timestamp() == 1002.0
    assert {r["component"]: r["emitted"] for r in found.of(tables.COMPONENT_STATS)} == {
        "tasks 1-1": 5,
        "tasks 2-2": 9,
    }
    # All of a topology's rows are of one reading, whoever was in it.
    assert {r["read_at"] for r in found.of(tables.COMPONENT_STATS)} == {row["read_at"]}
    assert found.emitted(tables.EXECUTOR_STATS) == [9]
    assert sorted(found.emitted(tables.WORKER_STATS)) == [5, 9, 100]


def test_names_of_workers_that_are_gone_do_not_stay():
    """One topology is there, and beside it in each batch a new one, which is silent in the next."""
    sums, reports, revision = None, None, 0
    for batch in range(20):
        changes = [
            change_of(where, details, revision + number, 0.0)
            for number, (where, details) in enumerate(
                [one("t-1-17", 1, 5), one(f"u-{batch}-17", 1, 5)]
            )
        ]
        revision += 2
        health = Coverage(1000.0 + 60 * batch, None, Position("x", revision), 1e6, 1e6, 1)
        readings = [
            rows.page_rows("a:1", [page_of("x", changes, 1000.0 + 60 * batch)]),
            rows.server_row("a:1", health),
        ]
        taken = decoded_batch(readings)
        limits = replace(LIMITS, forget_secs=100)
        reports, newest = next_reports(reports, taken.rows, limits, period_secs=3)
        counting = StatisticsUpdate()
        for pulses in taken.pulses(newest):
            for piece in cut_pulses(pulses):
                counting.add(split_pulses(piece))
        found = counting.tables(partial(lambda now: now, sums), None, reports)
        sums = pa.concat_tables(found[tables.WORKER_STATS])
    assert sums.num_rows == 3 * 4
    assert len(sums["storm_id"].unify_dictionaries().chunk(0).dictionary) == 3


def test_a_batch_without_a_new_reading_adds_nothing():
    found = Tables().batch(one("t-1-17", 1, 5)).batch()
    assert found.emitted(tables.WORKER_STATS) == [5]
    for name in (tables.EXECUTOR_STATS, tables.COMPONENT_STATS, tables.TOPOLOGY_STATS):
        assert found.counted[name].num_rows == 0


def test_an_unreadable_pulse_leaves_the_counts_of_the_one_before():
    found = Tables().batch(one("t-1-17", 1, 5), one("t-1-17", 2, 7))
    found.batch((path("t-1-17", "n", 1), b"garbage"))
    assert found.emitted(tables.WORKER_STATS) == [5, 7]
    assert found.of(tables.TOPOLOGY_STATS) == []
    found.batch((path("t-1-17", "n", 1), b"garbage"), one("t-1-17", 2, 8))
    assert found.emitted(tables.TOPOLOGY_STATS) == [13]


def test_counts_go_with_their_worker():
    found = Tables().batch(one("t-1-17", 1, 5), one("t-1-17", 2, 7), one("u-1-17", 1, 100))
    found.batch((path("t-1-17", "n", 1), None), one("t-1-17", 2, 7))
    assert found.emitted(tables.TOPOLOGY_STATS) == [7]
    found.batch((path("t-1-17", "n", 2), None))
    assert found.emitted(tables.WORKER_STATS) == [100]
    assert found.of(tables.TOPOLOGY_STATS) == []


def test_a_worker_without_executors_has_no_rows():
    found = Tables().batch(one("t-1-17", 1, 5)).batch((path("t-1-17", "n", 1), heartbeat("t")))
    assert found.of(tables.WORKER_STATS) == []
    assert found.reports.num_rows == 1


def test_latencies_are_sums_and_capacity_is_of_ten_minutes():
    words = [bolt({("lines", "default"): 6}, 2, execute_ms=0.3), bolt({("a", "b"): 4})]
    for stats in words:
        stats.component = "words"
    beat = heartbeat("t-1-17", {(1, 2): words[0], (3, 3): words[1]}, uptime_secs=60)
    found = Tables().batch((path("t-1-17", "n", 1), beat))
    (row,) = found.of(tables.WORKER_STATS, "600")
    assert row | {"read_at": None} == {
        **{"read_at": None, "storm_id": "t-1-17", "topology": "t", "node": "n", "port": 1},
        **{"component": "words", "kind": "bolt", "window": "600", "executors": 2, "tasks": 3},
        **{"emitted": 2, "transferred": 2, "emitted_all": 2, "transferred_all": 2},
        **{"executed": 10, "acked": 10, "failed": 0, "partial": False},
        **{"complete_ms": None, "complete_page_ms": None},
        **{f"{name}_ms": pytest.approx(6 * 0.3 + 4) for name in ("execute", "process")},
        **{f"{name}_page_ms": 1.0 + 4.0 for name in ("execute", "process")},
        "capacity": pytest.approx(4 / 60_000),
    }
    assert [row["capacity"] for row in found.of(tables.WORKER_STATS, "10800")] == [None]


def test_counts_are_partial_where_those_of_one_executor_are():
    whole, part = bolt({("lines", "default"): 10}), bolt({("lines", "default"): 4})
    for stats in (whole, part):
        stats.component = "words"
    part.partial_batches = {"600": 0, ":all-time": 1}
    beats = [heartbeat("t", {(n, n): stats}) for n, stats in ((1, whole), (2, part))]
    found = Tables().batch(*((path("t", "n", n), beat) for n, beat in enumerate(beats)))
    for window in ("600", "10800", ":all-time"):
        (row,) = found.of(tables.COMPONENT_STATS, window)
        assert row["partial"] == (window == ":all-time")


def test_sums_do_not_depend_on_the_workers_batches():
    chance = random.Random(5)
    pulses = heartbeats_of([reported(random.Random(n), f"t{n}-1-17") for n in range(40)])
    everyone = chance.sample(range(pulses.num_rows), pulses.num_rows)
    earlier = chance.sample(everyone, 30)  # a worker that comes twice counts once
    found = {}
    for batch in (earlier, everyone[:10], everyone[10:40], everyone[40:]):
        newest = pulses.take(pa.array(batch))
        found = counted(found.get(tables.WORKER_STATS), [newest], pulses)
    workers = worker_stats(tally_rows(executor_stats(pulses)))
    for summed in (component_stats, topology_stats):
        rows, expected = (
            sorted(map(repr, summed(table).to_pylist()))
            for table in (found[tables.WORKER_STATS], workers)
        )
        assert len(rows) > 100
        assert rows == expected


# --- whatever a heartbeat counts ------------------------------------------------------------------

COUNTS = st.sampled_from([-(2**63), -(2**53) - 1, 0, 1, 2**53 + 1, 2**60, 2**63 - 1])
LATENCIES = st.sampled_from([-inf, -1.0, 0.0, 2.5, 1.7e308, inf, nan])


@st.composite
def heartbeats(draw):
    streams = st.tuples(st.sampled_from("ab"), st.sampled_from(["default", "__ack"]))
    bolts = st.builds(
        bolt, st.dictionaries(streams, COUNTS, max_size=3), COUNTS, execute_ms=LATENCIES
    )
    spouts = st.builds(spout, COUNTS, acked=COUNTS)
    tasks = st.sampled_from([-(2**31), 1, 2**31 - 1])
    executors = draw(st.dictionaries(st.tuples(tasks, tasks), spouts | bolts, max_size=3))
    for stats in executors.values():
        stats.component = draw(st.sampled_from([None, "words"]))
        stats.rate = draw(LATENCIES)
    return heartbeat(
        "t",
        executors,
        time_secs=draw(COUNTS),
        uptime_secs=draw(st.sampled_from([-(2**31), 0, 2**31 - 1])),
        completed=draw(st.none() | st.booleans()),
        release=Release.STORM_3,  # in which a worker's time has 64 bits
    )


MANY = heartbeat(
    "t",
    {(1, 1): bolt({("lines", "default"): 2**60})},
    time_secs=2**63 - 1,
    release=Release.STORM_3,
)
FEW = heartbeat("t", time_secs=-(2**63), release=Release.STORM_3)


@given(st.lists(heartbeats(), min_size=1, max_size=3), st.none() | COUNTS.map(lambda ms: ms / 1000))
@example([MANY, FEW], 0.0)
@example([MANY, FEW, MANY], None)
@settings(max_examples=25)
def test_any_heartbeat_becomes_rows_that_every_reader_can_hold(beats, age_secs):
    """One that could not would end the query, and again at its every start."""
    found = Tables()
    for number, details in enumerate(beats):
        now = 1000.0 + number
        readings = [change_of(path("t"), details, None if age_secs is None else number, age_secs)]
        if age_secs is None:
            page = page_of(WITHOUT_REVISIONS, readings, now)
            health = Coverage(now, None, Position(WITHOUT_REVISIONS, 0))
        else:
            page = page_of("x", readings, now)
            health = Coverage(now, None, Position("x", number), 1e6, 1e6, 1)
        found.read(page, health)
        for table in (found.reports, *found.counted.values()):
            table.validate(full=True)
            table.to_pandas()
            table.to_pylist()


def test_count_beyond_a_doubles_precision_stays_exact():
    (row,) = Tables().batch((path("t"), MANY)).of(tables.COMPONENT_STATS)
    assert (row["executed"], row["execute_ms_avg"]) == (2**60, 1.0)
