import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.paths import WorkerId, parse_workerbeat
from stormkeeper.pipeline import rows, worker_liveness
from stormkeeper.pipeline.table_columns import WORKER_LIVENESS, WORKER_REPORTS
from stormkeeper.pipeline.worker_liveness import liveness, next_liveness
from support.heartbeats import (
    change_of,
    decode_batch,
    decode_table,
    heartbeat,
    page_of,
    path,
    spout,
)

LIMITS = LivenessLimits(late_secs=9, timeout_secs=30)
NOW = 1_772_366_400.0
A, B = "a:6699", "b:6699"


def time_at(seconds):
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def raw(now, readings, servers=(A, B), *, horizon=1e6, down=()):
    """Return rows of the source: readings by server, and a row per server."""
    batches = []
    for server in servers:
        if server in readings:
            batches.append(rows.page_rows(server, [page_of("x", readings[server], now)]))
        health = Coverage(now, "gone") if server in down else Coverage(now, None, Position("x", 9))
        if server not in down:
            health = Coverage(now, None, Position("x", 9), horizon, horizon, 1)
        batches.append(rows.server_row(server, health))
    return pa.Table.from_batches(batches)


def typed(*args, **kwargs):
    table = raw(*args, **kwargs)
    return pa.Table.from_batches([decode_batch(b) for b in table.to_batches()])


def test_the_arrow_schema_is_the_one_that_spark_expects():
    assert to_arrow_schema(from_arrow_schema(WORKER_LIVENESS), timezone="UTC") == WORKER_LIVENESS


def test_a_batch_becomes_a_row_per_worker():
    beat = heartbeat(time_secs=1234, uptime_secs=77)
    batch = typed(NOW, {A: [change_of(path("wc-1-17"), beat, 5, 10.25)]})
    table = next_liveness(None, batch, LIMITS)
    assert table.schema == WORKER_LIVENESS
    (row,) = table.to_pylist()
    assert row == {
        "storm_id": "wc-1-17",
        "topology": "wc",
        "node": "node",
        "port": 6700,
        "status": "late",
        "stale": False,
        "age_secs": 10.25,
        "last_seen": time_at(NOW - 10.25),
        "updated_at": time_at(NOW),
        "server": A,
        "instance": "x",
        "revision": 5,
        "time_secs": 1234,
        "started_at": None,
        "moved_from": None,
        "moved_at": None,
    }


def test_the_table_is_all_that_is_carried_on():
    """Whatever is remembered of a worker survives its way through the table."""
    one = [change_of(path("t"), heartbeat(time_secs=3), 5, 0.0)]
    two = [change_of(path("t"), heartbeat(time_secs=6), 2, 0.0)]
    table = next_liveness(None, typed(NOW, {A: one}), LIMITS)
    table = next_liveness(table, typed(NOW + 5, {B: two}, down=[A]), LIMITS)
    moved = table.to_pylist()[0]
    assert (moved["server"], moved["moved_from"], moved["moved_at"]) == (B, A, time_at(NOW + 5))
    table = next_liveness(table, typed(NOW + 40, {}, down=[A]), LIMITS)
    (row,) = table.to_pylist()
    assert row == moved | {"age_secs": 35.0, "status": "dead", "updated_at": time_at(NOW + 40)}
    # Had its death not been carried on, it would be late now that no server answers.
    table = next_liveness(table, typed(NOW + 50, {}, down=[A, B]), LIMITS)
    assert table["status"].to_pylist() == ["dead"]


def test_completion_is_carried_on():
    last = [change_of(path("t"), heartbeat(completed=True), 5, 0.0)]
    table = next_liveness(None, typed(NOW, {A: last}), LIMITS)
    table = next_liveness(table, typed(NOW + 500, {A: []}), LIMITS)
    assert table.select(["status", "age_secs"]).to_pylist() == [
        {"status": "completed", "age_secs": 500.0}
    ]


def test_who_is_forgotten_is_remembered_without_a_row(tmp_path):
    """The pulse of a dead worker stays on a Java Pacemaker, and its clock is ahead."""

    def batch(now):
        page = page_of(
            WITHOUT_REVISIONS, [change_of(path("t"), heartbeat(time_secs=2**31 - 1))], now
        )
        server = rows.server_row(A, Coverage(now, None, Position(WITHOUT_REVISIONS, 0)))
        return pa.Table.from_batches([decode_batch(b) for b in (rows.page_rows(A, [page]), server)])

    table, found = None, []
    for secs in (0, 31, 3601, 3606, 3611):
        table = next_liveness(table, batch(NOW + secs), LIMITS)
        found.append(table["status"].to_pylist())
        pq.write_table(table, tmp_path / "liveness.parquet")
        table = pq.read_table(tmp_path / "liveness.parquet")
    assert found == [["alive"], ["dead"], [], [], []]


def test_an_unreadable_pulse_is_a_sign_of_life():
    batch = typed(NOW, {A: [change_of(path("t"), b"garbage", 5, 1.0)]})
    (row,) = next_liveness(None, batch, LIMITS).to_pylist()
    assert (row["status"], row["time_secs"]) == ("alive", None)


def test_pulses_that_are_no_workers_are_left_out():
    batch = typed(NOW, {A: [change_of("/workerbeats/stray", heartbeat(), 5, 1.0)]})
    assert next_liveness(None, batch, LIMITS).num_rows == 0


def test_a_tombstone_takes_the_row_away():
    table = next_liveness(
        None, typed(NOW, {A: [change_of(path("t"), heartbeat(), 5, 0.0)]}), LIMITS
    )
    gone = typed(NOW + 1, {A: [change_of(path("t"), None, 6, 0.0)]})
    assert next_liveness(table, gone, LIMITS).num_rows == 0


def test_time_goes_by_the_servers_rows_when_nothing_else_comes():
    table = next_liveness(
        None, typed(NOW, {A: [change_of(path("t"), heartbeat(), 5, 0.0)]}), LIMITS
    )
    table = next_liveness(table, typed(NOW + 31, {}), LIMITS)
    assert table["age_secs"].to_pylist() == [31.0]
    assert table["status"].to_pylist() == ["dead"]


def test_who_is_unproven_is_late_and_stale_from_batch_to_batch():
    table = next_liveness(
        None, typed(NOW, {A: [change_of(path("t"), heartbeat(), 5, 0.0)]}), LIMITS
    )
    for silent_secs, stale in ((25.0, False), (40.0, True), (41.0, True)):
        gone = typed(NOW + silent_secs, {}, down={A})
        table = next_liveness(table, gone, LIMITS)
        (row,) = table.to_pylist()
        assert (row["status"], row["stale"]) == ("late", stale)
    back = typed(NOW + 42, {A: []})
    (row,) = next_liveness(table, back, LIMITS).to_pylist()
    assert (row["status"], row["stale"]) == ("dead", False)


def test_a_java_pacemaker_has_neither_ages_nor_revisions():
    page = page_of(
        WITHOUT_REVISIONS, [change_of(path("t"), heartbeat(time_secs=int(NOW) - 5))], NOW
    )
    server = rows.server_row(A, Coverage(NOW, None, Position(WITHOUT_REVISIONS, 0)))
    batches = [decode_batch(batch) for batch in (rows.page_rows(A, [page]), server)]
    (row,) = next_liveness(None, pa.Table.from_batches(batches), LIMITS).to_pylist()
    assert (row["age_secs"], row["instance"], row["revision"]) == (5.0, None, None)


@pytest.mark.parametrize("ahead", [-60, 60])
def test_ages_are_right_whatever_the_clocks_of_readers_say(ahead):
    """Of two Pacemakers one is down; the other is read on a machine whose clock is wrong."""

    def batch(now, revision):
        pulse = change_of(path("t"), heartbeat(), revision, 1.5)
        page = rows.page_rows(A, [page_of("x", [pulse], now + ahead)])
        health = Coverage(now + ahead, None, Position("x", revision), 1e6, 1e6, 1)
        found = [page, rows.server_row(A, health), rows.server_row(B, Coverage(now, "gone"))]
        return pa.Table.from_batches([decode_batch(b) for b in found])

    table = None
    for revision, now in enumerate((NOW, NOW + 5)):
        between = (now - 0.25, now + 0.25)
        table = next_liveness(table, batch(now, revision), LIMITS, between)
        (row,) = table.to_pylist()
        assert (row["status"], row["age_secs"]) == ("alive", 1.5)
        assert row["last_seen"] == time_at(now - 1.5)
    # Read on its own, as `liveness` does, there is no other clock than the readers'.
    (row,) = next_liveness(None, batch(NOW, 1), LIMITS).to_pylist()
    assert (row["status"], row["age_secs"]) == ("alive", 1.5)


def test_server_read_long_after_others_keeps_pulse_times():
    readings = [change_of(path("t"), heartbeat(), 5, 1.0)]
    early = typed(NOW, {A: readings}, servers=[A])
    late = typed(NOW + 4, {}, servers=[B])
    table = next_liveness(None, pa.concat_tables([early, late]), LIMITS, (NOW - 1, NOW + 60))
    (row,) = table.to_pylist()
    assert (row["last_seen"], row["age_secs"]) == (time_at(NOW - 1), 5.0)
    assert row["updated_at"] == time_at(NOW + 4)


def test_rows_without_values_name_their_workers():
    odd = ["/workerbeats/stray", "/workerbeats/t/-6700", "/workerbeats/t/n-1/2", "/other/t/n-1"]
    odd += ["/workerbeats//n-1", "/workerbeats/t/n-1234567890", "/workerbeats/t/n-\u0661", "/"]
    workers = [path("t"), "/workerbeats/t-1-17/n-1-2.example-0670", "/workerbeats/t\nu/n\n-1"]
    changes = [change_of(one, b"", number, 1.0) for number, one in enumerate([*workers, *odd])]
    page = page_of("x", [change._replace(details=None) for change in changes], NOW)
    server = rows.server_row(A, Coverage(NOW, "gone"))
    batch = pa.Table.from_batches([rows.page_rows(A, [page]), server])
    found = decode_table(batch)
    assert found["storm_id"].null_count == len(odd) + 1
    assert found["revision"].to_pylist() == batch["revision"].to_pylist()
    assert found["time_secs"].null_count == found["error"].null_count == batch.num_rows
    with_value = raw(NOW, {A: [change_of(path("t"), heartbeat(time_secs=7), 5, 0.0)]})
    assert decode_table(with_value)["time_secs"].to_pylist()[0] == 7


@given(st.lists(st.text("/-a1\u0661\n", max_size=12).map("/workerbeats/".__add__), max_size=20))
def test_paths_are_read_as_one_by_one(paths):
    changes = [change_of(path, None, 5, 0.0)._replace(size=1) for path in paths]
    batch = pa.Table.from_batches([rows.page_rows(A, [page_of("x", changes, NOW)])])
    found = decode_table(batch).select(WorkerId._fields).to_pylist()
    parsed = [parse_workerbeat(path) for path in paths]
    nobody = dict.fromkeys(WorkerId._fields)
    assert found == [worker._asdict() if worker else nobody for worker in parsed]


def test_start_time_comes_from_the_report_and_stays():
    def reports(started):
        found = {"storm_id": "t", "node": "node", "port": 6700, "started_at": started}
        return pa.Table.from_pylist([found], schema=WORKER_REPORTS)

    readings = {A: [change_of(path(name), heartbeat(), 5, 0.0) for name in ("t", "u")]}
    table, found = None, []
    for said in (None, reports(time_at(NOW - 9)), None, reports(None), reports(time_at(NOW))):
        table = next_liveness(table, typed(NOW, readings), LIMITS, reports=said)
        assert table.schema.remove_metadata() == WORKER_LIVENESS
        found.append(table["started_at"].to_pylist())
    assert found == [[None, None], *[[time_at(NOW - 9), None]] * 3, [time_at(NOW), None]]


def test_of_the_silent_is_asked_what_they_said_last():
    """And nobody is dead whose last words could not be read though their server answers."""
    readings = [
        change_of(path(name), heartbeat(), number, age)
        for number, (name, age) in enumerate(
            {"alive": 1.0, "late": 10.0, "dead": 31.0, "done": 31.0, "unread": 31.0}.items()
        )
    ]
    asked = []

    def read_last_pulses(silent, servers):
        asked.append((set(silent["storm_id"].to_pylist()), set(servers)))
        done, *unread = (WorkerId(name, "node", 6700) for name in ("done", "unread", "late"))
        return worker_liveness.LastPulseFacts({done}, set(unread))

    batch = typed(NOW, {A: readings}, down=[B])
    table = next_liveness(None, batch, LIMITS, None, read_last_pulses)
    assert asked == [({"late", "dead", "done", "unread"}, {A})]
    found = {row["storm_id"]: (row["status"], row["stale"]) for row in table.to_pylist()}
    assert found == {
        "alive": ("alive", False),
        "late": ("late", False),
        "dead": ("dead", False),
        "done": ("completed", False),
        "unread": ("late", True),
    }


@pytest.mark.spark
def test_liveness_is_a_transform(spark):
    readings = {
        A: [
            change_of(path("t"), heartbeat("t", {(1, 1): spout(1)}), 5, 1.0),
            change_of(path("u"), heartbeat("u"), 6, 45.0),
        ],
        B: [change_of(path("v"), heartbeat("v"), 7, 45.0)],
    }
    df = spark.createDataFrame(raw(NOW, readings)).repartition(3)
    found = {row.storm_id: row for row in df.transform(liveness).collect()}
    assert {name: row.status for name, row in found.items()} == {
        "t": "alive",
        "u": "dead",
        "v": "dead",
    }
    assert found["t"].last_seen.timestamp() == NOW - 1
    patient = df.transform(liveness, late_secs=50, timeout_secs=60).collect()
    assert {row.status for row in patient} == {"alive"}
