import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.table_columns import WORKER_REPORTS
from stormkeeper.pipeline.worker_liveness import next_reports
from support.heartbeats import change_of, decode_batch, heartbeat, page_of, path

LIMITS = LivenessLimits(late_secs=9, timeout_secs=30)
NOW = 1_772_366_400.0
A, B = "a:6699", "b:6699"


def batch(now, instance="x", **changes):
    """Return a batch of both servers; of A, a, with changes, and of B, b."""
    found = []
    for server in (A, B):
        page = page_of(instance, changes.get(server[0], []), now)
        health = Coverage(now, None, Position(instance, 9), 1e6, 1e6, 1)
        found += [rows.page_rows(server, [page]), rows.server_row(server, health)]
    return pa.Table.from_batches([decode_batch(one) for one in found])


def beat(revision, age=0.0, **more):
    return change_of(path("t-1-17"), heartbeat("t-1-17", **more), revision, age)


def step(previous, found):
    table, is_newest = next_reports(previous, found, LIMITS, period_secs=3)
    return table, found.filter(is_newest)


def test_the_arrow_schema_is_the_one_that_spark_expects():
    assert to_arrow_schema(from_arrow_schema(WORKER_REPORTS), timezone="UTC") == WORKER_REPORTS


def test_only_the_newest_of_copies_counts_and_is_handed_on():
    old, new = beat(5, 8.0, time_secs=3), beat(2, 2.0, time_secs=9)
    table, newest = step(None, batch(NOW, a=[old], b=[new]))
    assert newest["server"].to_pylist() == [B]
    (row,) = table.to_pylist()
    assert (row["server"], row["time_secs"], row["bytes"]) == (B, 9, len(new.details))
    assert row["received_at"].timestamp() == NOW - 2


def test_what_a_worker_said_stays_until_it_says_something_else():
    table, _ = step(None, batch(NOW, a=[beat(5, completed=True, uptime_secs=7)]))
    first = table.to_pylist()
    assert (first[0]["completed"], first[0]["uptime_secs"]) == (True, 7)
    table, newest = step(table, batch(NOW + 60))
    assert (table.to_pylist(), newest.num_rows) == (first, 0)
    table, newest = step(table, batch(NOW + 60, a=[beat(5, 60.0, completed=True)]))  # read again
    assert (table.to_pylist(), newest.num_rows) == (first, 0)
    garbage = change_of(path("t-1-17"), b"garbage", 6, 0.0)
    (row,) = step(table, batch(NOW + 61, a=[garbage]))[0].to_pylist()
    assert (row["completed"], row["uptime_secs"], row["bytes"]) == (None, None, 7)
    assert "ClusterWorkerHeartbeat" in row["error"]


def test_who_is_gone_or_silent_for_an_hour_has_no_report():
    table, _ = step(None, batch(NOW, a=[beat(5)]))
    assert step(table, batch(NOW + 3600))[0].num_rows == 1
    assert step(table, batch(NOW + 3601))[0].num_rows == 0
    gone = change_of(path("t-1-17"), None, 6, 0.0)
    assert step(table, batch(NOW + 1, a=[gone]))[0].num_rows == 0


def test_who_is_forgotten_is_not_taken_for_new():
    """The pulse of a dead worker stays on a Java Pacemaker, and its clock is ahead."""
    last = change_of(path("t"), heartbeat(time_secs=2**31 - 1))

    def found(now):
        read = (
            rows.page_rows(A, [page_of(WITHOUT_REVISIONS, [last], now)]),
            rows.server_row(A, Coverage(now, None, Position(WITHOUT_REVISIONS, 0))),
        )
        return pa.Table.from_batches([decode_batch(one) for one in read])

    table, counts = None, []
    for secs in (0, 31, 3601, 3606, 3611):
        table, newest = step(table, found(NOW + secs))
        counts.append((table.num_rows, newest.num_rows))
    assert counts == [(1, 1), (1, 0), (0, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("passed", "uptime", "is_same"),
    [(3, 13, True), (3, 11, True), (5, 10, True), (60, 67, True), (60, 56, False), (3, 9, False)],
)
def test_a_worker_was_started_when_its_first_report_says(passed, uptime, is_same):
    """Pulses travel for different times; who is up for less than it was is another one."""
    table, _ = step(None, batch(NOW, a=[beat(5, uptime_secs=10)]))
    (first,) = table["started_at"].to_pylist()
    assert first.timestamp() == NOW - 10
    garbage = change_of(path("t-1-17"), b"garbage", 6, 0.0)
    assert step(table, batch(NOW + 1, a=[garbage]))[0]["started_at"].to_pylist() == [first]
    table, _ = step(table, batch(NOW + passed, a=[beat(7, uptime_secs=uptime)]))
    (then,) = table["started_at"].to_pylist()
    assert then.timestamp() == (NOW - 10 if is_same else NOW + passed - uptime)


@pytest.mark.parametrize(
    ("after", "then", "skipped"),
    [
        (3, beat(6), 0),
        (15, beat(600, uptime_secs=99), 4),
        (15, beat(7, uptime_secs=99), 1),  # its server counted no more
        (600, beat(600, uptime_secs=7), 1),  # it was started again, seven seconds ago
        (1, beat(600), 0),
    ],
)
def test_pulses_between_two_readings_are_counted_as_skipped(after, then, skipped):
    table, _ = step(None, batch(NOW, a=[beat(5, uptime_secs=10)]))
    assert table["skipped"].to_pylist() == [0]
    table, _ = step(table, batch(NOW + after, a=[then]))
    assert table["skipped"].to_pylist() == [skipped]


def test_pulses_that_are_no_workers_are_left_out():
    stray = change_of("/workerbeats/stray", heartbeat(), 5, 1.0)
    table, newest = step(None, batch(NOW, a=[stray]))
    assert (table.num_rows, newest.num_rows) == (0, 0)
