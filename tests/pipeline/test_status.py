import logging
import threading

import pyarrow as pa
import pytest

from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pipeline import decoded_rows, rows, tables
from stormkeeper.pipeline.batch import merge_server_rows
from stormkeeper.pipeline.status import ServerStatus, StatusTracker, cause, next_servers
from stormkeeper.pipeline.table_columns import SERVERS, WORKER_LIVENESS
from support.heartbeats import change_of, page_of

UP, DOWN = (
    Coverage(1.0, None, None, 30.0, 20.0, 3),
    Coverage(1.0, "it is gone (1 try in 0.0 s; gone)"),
)


def servers(**reasons):
    found = [
        {"server": name, "reachable": reason is None, "reason": reason, "keys": 4}
        for name, reason in reasons.items()
    ]
    return pa.Table.from_pylist(found, schema=SERVERS)


def liveness(*statuses):
    rows = [{"status": status.rstrip("?"), "stale": status.endswith("?")} for status in statuses]
    return pa.Table.from_pylist(rows, schema=WORKER_LIVENESS)


def publish(tracker, servers, liveness):
    tracker.record_batch("liveness", {tables.SERVERS: servers, tables.WORKER_LIVENESS: liveness})


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "stormkeeper.pipeline.status")

    def take():
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return lines

    return take


def test_each_change_of_a_server_is_one_line(said):
    tracker = StatusTracker()
    tracker.record_coverage({"a": UP, "b": DOWN})
    assert said() == [("WARNING", f"the Pacemaker b cannot be read: {DOWN.error}")]
    for _ in range(3):
        publish(tracker, servers(a=None, b="it is gone (2 tries in 0.3 s; gone)"), liveness())
    assert said() == []
    publish(tracker, servers(a=None, b="wrong password"), liveness())
    assert said() == [("WARNING", "the Pacemaker b cannot be read: wrong password")]
    publish(tracker, servers(a=None, b=None), liveness())
    assert said() == [("INFO", "the Pacemaker b is read again")]


def test_who_sees_nothing_says_so_once(said):
    tracker = StatusTracker()
    tracker.record_coverage({"a": DOWN, "b": DOWN})
    *_, (level, line) = said()
    assert level == "WARNING"
    assert line.startswith("no Pacemaker can be read: ")
    publish(tracker, servers(a=DOWN.error, b=DOWN.error), liveness())
    assert said() == []
    publish(tracker, servers(a=None, b=DOWN.error), liveness())
    assert said() == [("INFO", "the Pacemaker a is read again")]
    publish(tracker, servers(a=DOWN.error, b=DOWN.error), liveness())
    assert [line.split()[0] for _, line in said()] == ["the", "no"]


def test_what_is_seen_is_that_of_the_newest_batch():
    tracker = StatusTracker(clock=lambda: 100.0)
    assert tracker.current.sees_nothing
    assert tracker.current.published_at == {}
    tracker.record_coverage({"a": UP})
    assert tracker.current.servers == {"a": ServerStatus(None, 20.0, 3)}
    publish(tracker, servers(a=None), liveness("alive", "late", "late?", "dead"))
    tracker.record_batch("statistics", {})
    tracker.record_alive()
    seen = tracker.current
    assert seen.batches == {"liveness": 1, "statistics": 1}
    assert {name: at for name, (at, _) in seen.published_at.items()} == dict.fromkeys(
        ("liveness", "statistics"), 100.0
    )
    assert seen.looked_at == 100.0
    assert seen.workers == {"alive": 1, "late": 2, "dead": 1}
    assert seen.stale == 1
    assert not seen.sees_nothing


def test_what_two_threads_take_in_at_once_is_all_seen():
    """The clock is asked in the middle of taking something in; there the other thread comes."""
    times = iter([1.0, 2.0])

    def clock():
        now = next(times, None)
        if now == 2.0:
            batches = threading.Thread(target=publish, args=(tracker, servers(a=None), liveness()))
            batches.start()
            batches.join(60)
        return now or 3.0

    tracker = StatusTracker(clock)
    tracker.record_alive()
    assert (tracker.current.started_at, tracker.current.looked_at) == (1.0, 2.0)
    assert tracker.current.batches == {"liveness": 1}
    assert tracker.current.servers.keys() == {"a"}


def test_alerts_that_are_open_are_counted():
    def alerts(*rows):
        names = ("rule", "severity", "until")
        schema = pa.schema([(name, pa.string()) for name in names])
        return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)

    tracker = StatusTracker()
    assert tracker.current.alerts == tracker.current.failures == {}
    tracker.record_rules(["skew", "growth"])
    tracker.record_alerts(alerts(("skew", "warning", None)), None)
    assert tracker.current.alerts == {
        ("skew", "warning"): 1,
        ("skew", "critical"): 0,
        ("growth", "warning"): 0,
        ("growth", "critical"): 0,
    }
    assert tracker.current.alerted_at is None
    tracker.record_failures(["growth"])
    tracker.record_failures(["growth"])
    tracker.record_alerts(alerts(("skew", "warning", "then"), ("skew", "critical", None)), 17.0)
    assert (
        tracker.current.alerts["skew", "warning"],
        tracker.current.alerts["skew", "critical"],
    ) == (
        0,
        1,
    )
    assert tracker.current.alerted_at == 17.0
    assert tracker.current.failures == {"skew": 0, "growth": 2, "round": 0}


POSITION = Position("i", 7)


def up(at):
    return Coverage(at, None, POSITION, 30.0, 20.0, 3)


def batch(**servers):
    """Return a batch as the pipeline reads it, of these servers and one pulse."""
    pulse = rows.page_rows(
        "b", [page_of("i", [change_of("/workerbeats/wc-1-17/n-1", b"x", 7, 1.0)], 5.0)]
    )
    found = [pulse, *(rows.server_row(name, health) for name, health in servers.items())]
    return pa.Table.from_batches(list(decoded_rows.decode_batches(iter(found))))


def test_every_server_has_a_row_whether_it_answers_or_not():
    table = next_servers(None, batch(b=Coverage(11.0, "it hangs"), a=up(10.0)))
    assert table.schema == SERVERS
    a, b = table.to_pylist()
    assert (a["server"], a["reachable"], a["reason"]) == ("a", True, None)
    assert (a["instance"], a["revision"], a["keys"]) == ("i", 7, 3)
    assert (a["uptime_secs"], a["horizon_secs"], a["reset"]) == (30.0, 20.0, False)
    assert a["since"].timestamp() == a["read_at"].timestamp() == 10
    assert (b["server"], b["reachable"], b["reason"]) == ("b", False, "it hangs")
    assert b["horizon_secs"] is None


def test_a_server_is_as_it_is_since_that_changed():
    table, since = None, []
    states = [up(1.0), up(2.0), Coverage(3.0, "down"), Coverage(4.0, "refused"), up(5.0)]
    for health in states:
        table = next_servers(table, batch(a=health))
        (row,) = table.to_pylist()
        assert row["read_at"].timestamp() == health.read_at
        since.append(row["since"].timestamp())
    assert since == [1, 1, 3, 3, 5]


def test_a_server_that_is_no_longer_read_has_no_row():
    before = next_servers(None, batch(a=up(1.0), b=up(1.0)))
    assert next_servers(before, batch(b=up(2.0)))["server"].to_pylist() == ["b"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "a did not answer X (1 try in 0.0 s; gone)",
            "a did not answer Y (2 tries in 4.0 s; gone)",
            1,
        ),
        (
            "a did not answer X (1 try in 0.0 s; gone)",
            "a did not answer X (1 try in 0.0 s; far)",
            0,
        ),
        ("a did not answer X (1 try in 2.0 s)", "a did not answer Y (1 try in 2.1 s)", 1),
        ("refused after 3 s", "refused after 12 s", 1),
        ("refused", "not trusted", 0),
    ],
)
def test_a_failure_is_the_same_as_long_as_its_cause_is(one, other, same):
    assert (cause(one) == cause(other)) == bool(same)


def test_server_is_read_if_all_of_its_parts_were():
    def of_parts(*parts):
        found = [rows.server_row("a", health, reset=reset) for health, reset in parts]
        return merge_server_rows(
            pa.Table.from_batches(list(decoded_rows.decode_batches(iter(found))))
        )

    found = of_parts((up(3.0), False), (up(2.0), True), (up(4.0), False))
    (row,) = next_servers(None, found).to_pylist()
    assert (row["reachable"], row["reset"], row["read_at"].timestamp()) == (True, True, 2.0)
    found = of_parts((up(3.0), False), (Coverage(4.0, "it hangs"), False))
    (row,) = next_servers(None, found).to_pylist()
    assert (row["reachable"], row["reason"]) == (False, "it hangs")
    pulses_and_servers = batch(a=up(1.0), b=up(1.0))
    assert merge_server_rows(pulses_and_servers) is pulses_and_servers
    doubled = pa.concat_tables([pulses_and_servers, pulses_and_servers])
    assert merge_server_rows(doubled)["kind"].to_pylist().count("pulse") == 2
    assert next_servers(None, merge_server_rows(doubled)).num_rows == 2
