import logging
import threading

import pyarrow as pa
import pytest

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.current import WORKER_LIVENESS
from stormkeeper.pipeline.servers import SERVERS
from stormkeeper.pipeline.sight import ServerSeen, Sight

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


def publish(sight, servers, liveness):
    sight.published("liveness", {tables.SERVERS: servers, tables.WORKER_LIVENESS: liveness})


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "stormkeeper.pipeline.sight")

    def take():
        lines = [(record.levelname, record.getMessage()) for record in caplog.records]
        caplog.clear()
        return lines

    return take


def test_each_change_of_a_server_is_one_line(said):
    sight = Sight()
    sight.looked({"a": UP, "b": DOWN})
    assert said() == [("WARNING", f"the Pacemaker b cannot be read: {DOWN.error}")]
    for _ in range(3):
        publish(sight, servers(a=None, b="it is gone (2 tries in 0.3 s; gone)"), liveness())
    assert said() == []
    publish(sight, servers(a=None, b="wrong password"), liveness())
    assert said() == [("WARNING", "the Pacemaker b cannot be read: wrong password")]
    publish(sight, servers(a=None, b=None), liveness())
    assert said() == [("INFO", "the Pacemaker b is read again")]


def test_who_sees_nothing_says_so_once(said):
    sight = Sight()
    sight.looked({"a": DOWN, "b": DOWN})
    *_, (level, line) = said()
    assert level == "WARNING"
    assert line.startswith("no Pacemaker can be read: ")
    publish(sight, servers(a=DOWN.error, b=DOWN.error), liveness())
    assert said() == []
    publish(sight, servers(a=None, b=DOWN.error), liveness())
    assert said() == [("INFO", "the Pacemaker a is read again")]
    publish(sight, servers(a=DOWN.error, b=DOWN.error), liveness())
    assert [line.split()[0] for _, line in said()] == ["the", "no"]


def test_what_is_seen_is_that_of_the_newest_batch():
    sight = Sight(clock=lambda: 100.0)
    assert sight.seen.sees_nothing
    assert sight.seen.published_at == {}
    sight.looked({"a": UP})
    assert sight.seen.servers == {"a": ServerSeen(None, 20.0, 3)}
    publish(sight, servers(a=None), liveness("alive", "late", "late?", "dead"))
    sight.published("statistics", {})
    sight.alive()
    seen = sight.seen
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
            batches = threading.Thread(target=publish, args=(sight, servers(a=None), liveness()))
            batches.start()
            batches.join(60)
        return now or 3.0

    sight = Sight(clock)
    sight.alive()
    assert (sight.seen.started_at, sight.seen.looked_at) == (1.0, 2.0)
    assert sight.seen.batches == {"liveness": 1}
    assert sight.seen.servers.keys() == {"a"}


def test_alerts_that_are_open_are_counted():
    def alerts(*rows):
        names = ("rule", "severity", "until")
        schema = pa.schema([(name, pa.string()) for name in names])
        return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema)

    sight = Sight()
    assert sight.seen.alerts == sight.seen.failures == {}
    sight.watches(["skew", "growth"])
    sight.alerted(alerts(("skew", "warning", None)), None)
    assert sight.seen.alerts == {
        ("skew", "warning"): 1,
        ("skew", "critical"): 0,
        ("growth", "warning"): 0,
        ("growth", "critical"): 0,
    }
    assert sight.seen.alerted_at is None
    sight.failed(["growth"])
    sight.failed(["growth"])
    sight.alerted(alerts(("skew", "warning", "then"), ("skew", "critical", None)), 17.0)
    assert (sight.seen.alerts["skew", "warning"], sight.seen.alerts["skew", "critical"]) == (0, 1)
    assert sight.seen.alerted_at == 17.0
    assert sight.seen.failures == {"skew": 0, "growth": 2, "round": 0}
