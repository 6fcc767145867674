"""A clock that is set between two batches."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.pipeline import table_updates, tables, worker_liveness
from stormkeeper.pipeline.rollups import EXECUTOR_COUNTERS
from stormkeeper.pipeline.table_columns import WORKER_LIVENESS, WORKER_REPORTS
from stormkeeper.pipeline.table_updates import Clock
from support.heartbeats import change_of, heartbeat, path, spout
from support.one_query import NOW, Machine

LIMITS = LivenessLimits(9, 30, forget_secs=600)


@pytest.fixture
def watched():
    return Machine(table_updates.liveness_tables(LIMITS))


@pytest.fixture
def counted():
    return Machine(table_updates.statistics_tables(LIMITS, period_secs=3.0))


def status_of(made, storm_id="t"):
    (row,) = [r for r in made[tables.WORKER_LIVENESS].to_pylist() if r["storm_id"] == storm_id]
    return row["status"], row["stale"], round(row["age_secs"])


@pytest.mark.parametrize("set_secs", [3600.0, -3600.0, 1.5])
def test_who_said_nothing_since_is_as_old_as_before(watched, set_secs):
    """A worker beats once, and is late and dead by its silence, however often the clock is set."""

    def status(changes=None):
        status, _, age = status_of(watched.batch(changes))
        return status, age

    small = set_secs if abs(set_secs) < 2 else 0
    assert status({"a:1": [change_of(path("t"), heartbeat(), 1, 1.0)]}) == ("alive", 1)
    watched.pass_by(5)
    watched.wall += set_secs
    assert status() == ("alive", round(6.1 + small))
    watched.pass_by(5)
    assert status() == ("late", round(11.2 + small))
    watched.wall += set_secs
    watched.pass_by(10)
    assert status()[0] == "late"
    watched.pass_by(10)
    assert status()[0] == "dead"


@pytest.mark.parametrize("set_secs", [0.0, 3600.0, -3600.0])
def test_a_server_that_is_away_does_not_vouch_for_a_silence(watched, set_secs):
    """Though workers have left it, if that was before others' last pulses there."""
    beats = [path("t"), path("u")]
    watched.batch({"a:1": [change_of(where, heartbeat(), 1, 0.0) for where in beats]})
    watched.pass_by(5)
    watched.batch({"b:1": [change_of(beats[1], heartbeat(), 1, 0.0)]})
    watched.pass_by(5)
    watched.batch({"a:1": [change_of(beats[0], heartbeat(), 2, 0.0)]}, revision=2)
    watched.wall += set_secs
    watched.pass_by(40)
    status, stale, _ = status_of(watched.batch(up=["b:1"]))
    assert (status, stale) == ("late", True)


def test_start_with_a_late_clock_keeps_no_dead_worker_alive(watched):
    watched.batch({"a:1": [change_of(path("t"), heartbeat(), 1, 0.0)]})
    watched.wall -= 3600
    watched.start()
    assert status_of(watched.batch())[0] == "alive"
    watched.wall += 3600
    watched.pass_by(31)
    status, _, age = status_of(watched.batch())
    assert (status, age) == ("dead", 31)


def beat(emitted, uptime, at, revision=1):
    details = heartbeat("t", {(1, 1): spout(emitted)}, uptime_secs=uptime, time_secs=int(at))
    return [change_of(path("t"), details, revision, 0.0)]


@pytest.mark.parametrize("set_secs", [0.0, 10.0, 3600.0, -10.0, -3600.0])
def test_nothing_counts_twice_where_the_workers_clock_is_set_too(counted, set_secs):
    """As on a machine that was asleep; uptimes go by a clock that nobody sets."""
    counted.batch({"a:1": beat(1_000, 60, counted.wall)})
    (first,) = counted.kept[tables.WORKER_REPORTS].to_pylist()
    counted.pass_by(20)
    counted.wall += set_secs
    made = counted.batch({"a:1": beat(1_100, 80, counted.wall, 2)}, revision=2)
    (second,) = counted.kept[tables.WORKER_REPORTS].to_pylist()
    assert second["started_at"] == first["started_at"]
    assert second["skipped"] <= 7
    (known,) = counted.kept[tables.EXECUTOR_COUNTERS].to_pylist()
    assert known["emitted"] == 1_100
    minutes = [
        made[name].to_pylist() for name in (tables.ROLLUP_OPEN, tables.ROLLUP_1M) if name in made
    ]
    assert sum(row["emitted"] for rows_ in minutes for row in rows_) in (100, 1_100)
    assert sum(row["restarts"] for rows_ in minutes for row in rows_) == 0


def test_pulses_on_another_server_count_after_a_clock_step(counted):
    counted.batch({"a:1": beat(5, 60, counted.wall)})
    counted.wall -= 1800
    counted.pass_by(15)
    counted.batch({"b:1": beat(9, 75, counted.wall)})
    (report,) = counted.kept[tables.WORKER_REPORTS].to_pylist()
    assert (report["server"], report["uptime_secs"]) == ("b:1", 75)
    (known,) = counted.kept[tables.EXECUTOR_COUNTERS].to_pylist()
    assert known["emitted"] == 9


@pytest.mark.parametrize("set_secs", [3600.0, -3600.0])
def test_forgotten_workers_follow_the_clock_that_was_set(watched, set_secs):
    watched.batch({"a:1": [change_of(path("t"), heartbeat(), 1, 0.0)]})
    watched.pass_by(40)
    watched.batch()  # it is dead
    watched.pass_by(700)
    watched.batch(up=["b:1"])
    (before,) = worker_liveness.forgotten(watched.kept[tables.WORKER_LIVENESS])
    watched.wall += set_secs
    watched.batch(up=["b:1"])
    (after,) = worker_liveness.forgotten(watched.kept[tables.WORKER_LIVENESS])
    assert after == before._replace(last_seen=pytest.approx(before.last_seen + set_secs))


def test_what_is_noted_on_a_table_stays():
    wall = [NOW]
    clock = Clock(lambda: wall[0], lambda: 7.0)
    noted = WORKER_LIVENESS.empty_table().replace_schema_metadata({"a": "b"})
    assert clock.look()(tables.WORKER_LIVENESS, noted) is noted
    wall[0] += 60
    on_time = clock.look()
    moved = on_time(tables.WORKER_LIVENESS, noted)
    assert moved.schema.equals(noted.schema, check_metadata=True)
    assert on_time(tables.WORKER_LIVENESS, None) is None


def test_when_a_worker_was_started_stays_as_it_was_said():
    wall, started = [NOW], datetime.fromtimestamp(NOW - 60, UTC)
    clock = Clock(lambda: wall[0], lambda: 7.0)
    clock.look()
    wall[0] += 3600
    table = pa.Table.from_pylist(
        [{"received_at": datetime.fromtimestamp(NOW, UTC), "started_at": started}, {}],
        WORKER_REPORTS,
    )
    moved, other = clock.look()(tables.WORKER_REPORTS, table).to_pylist()
    assert moved["received_at"].timestamp() == NOW + 3600
    assert moved["started_at"] == started
    assert (other["received_at"], other["started_at"]) == (None, None)


def test_readings_by_another_machines_fast_clock_stay():
    """So their distances stay, by which an executor's incarnations are told apart."""
    ahead = {"at": datetime.fromtimestamp(NOW + 600, UTC)}
    table = pa.Table.from_pylist([ahead], EXECUTOR_COUNTERS)
    on_time = Clock(lambda: NOW, lambda: 7.0).look()
    assert on_time(tables.EXECUTOR_COUNTERS, table) is table
