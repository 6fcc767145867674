import pyarrow as pa
import pytest

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.current import next_liveness
from stormkeeper.pipeline.decode import decode_batch
from stormkeeper.pipeline.health import Health
from stormkeeper.pipeline.liveness import Limits
from stormkeeper.pipeline.offsets import Position
from stormkeeper.pipeline.scan import Page, Reading
from stormkeeper.pipeline.totals import COMPONENT_STATISTICS, next_statistics
from support.heartbeats import WINDOWS, bolt, heartbeat, path, spout

LIMITS = Limits(late_secs=9, timeout_secs=30)


class Tables:
    """Both tables, from batch to batch."""

    def __init__(self):
        self.liveness = None
        self.statistics = None
        self._now = 1000.0
        self._revision = 0

    def batch(self, *pulses):
        """Take in a batch of (path, details)."""
        self._now += 1
        readings = []
        for where, details in pulses:
            self._revision += 1
            readings.append(Reading(where, details, self._revision, 0.0))
        health = Health(self._now, None, Position("x", self._revision), 1e6, 1e6, 1)
        table = pa.Table.from_batches(
            [
                decode_batch(rows.of_page("a:1", Page("x", readings, self._now))),
                decode_batch(rows.of_server("a:1", health)),
            ]
        )
        self.liveness, newest = next_liveness(self.liveness, table, LIMITS)
        self.statistics = next_statistics(self.statistics, newest, self.liveness)
        assert self.statistics.schema == COMPONENT_STATISTICS
        return self

    def of(self, storm_id, window=":all-time"):
        return [
            row
            for row in self.statistics.to_pylist()
            if (row["storm_id"], row["window"]) == (storm_id, window)
        ]


def test_executors_of_one_component_are_summed_up():
    one, two = (
        bolt({("lines", "default"): 10, ("lines", "more"): 5}, 3, execute_ms=1.0),
        bolt({("lines", "default"): 45}, 4, execute_ms=5.0),
    )
    for stats in (one, two):
        stats.component = "words"
    tables = Tables().batch((path("wc-1-17"), heartbeat("wc-1-17", {(1, 1): one, (2, 2): two})))
    assert sorted({row["window"] for row in tables.statistics.to_pylist()}) == sorted(WINDOWS)
    (row,) = tables.of("wc-1-17")
    assert row | {"received_at": None, "time_secs": None} == {
        "storm_id": "wc-1-17",
        "topology": "wc",
        "component": "words",
        "kind": "bolt",
        "window": ":all-time",
        "node": "node",
        "port": 6700,
        "executors": 2,
        "emitted": 7,
        "transferred": 7,
        "executed": 60,
        "acked": 60,
        "failed": 0,
        "complete_ms_avg": None,
        "execute_ms_avg": pytest.approx((15 * 1.0 + 45 * 5.0) / 60),
        "process_ms_avg": pytest.approx((15 * 1.0 + 45 * 5.0) / 60),
        "received_at": None,
        "time_secs": None,
    }


def test_a_component_without_a_name_is_called_by_its_tasks():
    executors = {(1, 1): spout(5, acked=5), (2, 4): bolt({("?", "default"): 5})}
    found = Tables().batch((path("t"), heartbeat("t", executors))).of("t")
    assert [(r["component"], r["kind"], r["emitted"], r["executed"]) for r in found] == [
        ("tasks 1-1", "spout", 5, 0),
        ("tasks 2-4", "bolt", 0, 5),
    ]
    assert found[0]["complete_ms_avg"] == 2.5
    assert found[1]["complete_ms_avg"] is None


def test_storms_own_streams_do_not_count():
    stats = spout(5)
    stats.emitted[":all-time"]["__ack_init"] = 1000
    (row,) = Tables().batch((path("t"), heartbeat("t", {(1, 1): stats}))).of("t")
    assert row["emitted"] == 5


def test_an_average_of_nothing_is_null():
    stats = bolt({("lines", "default"): 0})
    (row,) = Tables().batch((path("t"), heartbeat("t", {(1, 1): stats}))).of("t")
    assert (row["executed"], row["execute_ms_avg"]) == (0, None)


def test_workers_are_apart_and_a_newer_pulse_replaces_its_workers_counts():
    tables = Tables().batch(
        (path("t", "n", 1), heartbeat("t", {(1, 1): spout(5)})),
        (path("t", "n", 2), heartbeat("t", {(1, 1): spout(7)})),
    )
    assert [row["emitted"] for row in tables.of("t")] == [5, 7]
    tables.batch((path("t", "n", 2), heartbeat("t", {(1, 1): spout(9)})))
    assert [(row["port"], row["emitted"]) for row in tables.of("t")] == [(1, 5), (2, 9)]
    tables.batch()
    assert [(row["port"], row["emitted"]) for row in tables.of("t")] == [(1, 5), (2, 9)]


def test_an_unreadable_pulse_leaves_the_counts_of_the_one_before():
    tables = Tables().batch((path("t"), heartbeat("t", {(1, 1): spout(5)})))
    tables.batch((path("t"), b"garbage"))
    assert [row["emitted"] for row in tables.of("t")] == [5]


def test_counts_go_with_their_worker():
    tables = Tables().batch(
        (path("t"), heartbeat("t", {(1, 1): spout(5)})),
        (path("u"), heartbeat("u", {(1, 1): spout(6)})),
    )
    tables.batch((path("t"), None))
    assert (tables.of("t"), len(tables.of("u"))) == ([], 1)


def test_a_worker_without_executors_has_no_rows():
    tables = Tables().batch((path("t"), heartbeat("t")))
    assert tables.statistics.num_rows == 0
    assert tables.liveness.num_rows == 1
