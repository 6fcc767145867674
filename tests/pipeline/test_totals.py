import random
from math import inf, nan

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.following import WITHOUT_REVISIONS, Position
from stormkeeper.heartbeats.liveness import Limits
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decode import decode_batch
from stormkeeper.pipeline.reports import next_reports
from stormkeeper.pipeline.totals import COMPONENT_STATISTICS, next_statistics
from stormkeeper.statistics.pages import component_page
from stormkeeper.thrift.records import GlobalStreamId
from stormkeeper.thrift.writer import Release
from support.heartbeats import WINDOWS, bolt, change_of, heartbeat, page_of, path, spout
from support.reported_topologies import reported

LIMITS = Limits(late_secs=9, timeout_secs=30)


class Tables:
    """Both tables, from batch to batch."""

    def __init__(self):
        self.reports = None
        self.statistics = None
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
        table = pa.Table.from_batches(
            [
                decode_batch(rows.of_page("a:1", page)),
                decode_batch(rows.of_server("a:1", health)),
            ]
        )
        self.reports, newest = next_reports(self.reports, table, LIMITS, period_secs=3)
        self.statistics = next_statistics(self.statistics, newest, self.reports)
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
        "partial": False,
        "complete_ms_avg": None,
        "execute_ms_avg": pytest.approx((15 * 1.0 + 45 * 5.0) / 60),
        "process_ms_avg": pytest.approx((15 * 1.0 + 45 * 5.0) / 60),
        "received_at": None,
        "time_secs": None,
    }


def test_counts_are_partial_where_those_of_one_executor_are():
    whole, part = bolt({("lines", "default"): 10}), bolt({("lines", "default"): 4})
    for stats in (whole, part):
        stats.component = "words"
    part.partial_batches = {"600": 0, ":all-time": 1}
    lines = spout(7)
    lines.component = "lines"
    executors = {(1, 1): whole, (2, 2): part, (3, 3): lines}
    tables = Tables().batch((path("t"), heartbeat("t", executors)))
    found = {(r["component"], r["window"]): r["partial"] for r in tables.statistics.to_pylist()}
    assert found == {
        (component, window): (component, window) == ("words", ":all-time")
        for component in ("words", "lines")
        for window in WINDOWS
    }


def test_of_rows_from_before_the_column_it_is_not_known_whether_they_are_partial():
    tables = Tables().batch(
        (path("t", "n", 1), heartbeat("t", {(1, 1): spout(5)})),
        (path("t", "n", 2), heartbeat("t", {(1, 1): spout(7)})),
    )
    before = tables.statistics.drop_columns(["partial"])
    tables.statistics = before.replace_schema_metadata({"stormkeeper.origin": "query/1"})
    tables.batch((path("t", "n", 2), heartbeat("t", {(1, 1): spout(9)})))
    assert [(r["emitted"], r["partial"]) for r in tables.of("t")] == [(5, None), (9, False)]
    tables.batch((path("t", "n", 1), heartbeat("t", {(1, 1): spout(6)})))
    assert [(r["emitted"], r["partial"]) for r in tables.of("t")] == [(6, False), (9, False)]


def test_a_component_without_a_name_is_called_by_its_tasks():
    executors = {(1, 1): spout(5, acked=5), (2, 4): bolt({("?", "default"): 5})}
    found = Tables().batch((path("t"), heartbeat("t", executors))).of("t")
    assert [(r["component"], r["kind"], r["emitted"], r["executed"]) for r in found] == [
        ("tasks 1-1", "spout", 5, 0),
        ("tasks 2-4", "bolt", 0, 5),
    ]
    assert found[0]["complete_ms_avg"] == 2.5
    assert found[1]["complete_ms_avg"] is None


def test_what_goes_out_on_storms_own_streams_does_not_count_and_what_comes_in_there_does():
    stats = bolt({("lines", "default"): 5, ("lines", "__tick"): 7}, 5)
    stats.emitted[":all-time"]["__ack_ack"] = 1000
    (row,) = Tables().batch((path("t"), heartbeat("t", {(1, 1): stats}))).of("t")
    assert (row["emitted"], row["executed"], row["acked"]) == (5, 12, 12)


def test_a_stream_without_an_average_is_divided_by_and_one_that_is_no_number_is_zero():
    stats = bolt({("lines", "default"): 10, ("lines", "nan"): 5, ("lines", "none"): 25})
    averages = stats.specific.bolt.execute_ms_avg[":all-time"]
    averages[GlobalStreamId("lines", "nan")] = nan
    del averages[GlobalStreamId("lines", "none")]
    averages[GlobalStreamId("lines", "uncounted")] = 1000.0
    (row,) = Tables().batch((path("t"), heartbeat("t", {(1, 1): stats}))).of("t")
    assert row["execute_ms_avg"] == 10 / 40


def test_the_executor_that_a_worker_has_for_itself_does_not_count():
    executors = {(-1, -1): spout(5), (1, 1): spout(7)}
    (row,) = Tables().batch((path("t"), heartbeat("t", executors))).of("t")
    assert row["emitted"] == 7


def test_the_rows_of_whatever_executors_report_are_those_of_nimbus():
    """A worker by itself is a topology with no other."""
    topologies = [reported(random.Random(number), f"t{number}") for number in range(60)]
    pulses, expected = [], 0
    for topology in topologies:
        for node, port in {one.slot for one in topology.executors}:
            of_worker = [one for one in topology.executors if one.slot == (node, port)]
            executors = {(e.task_start, e.task_end): e.stats for e in of_worker if e.stats}
            pulses.append((path(topology.storm_id, node, port), heartbeat("t", executors)))
    tables = Tables().batch(*pulses)
    for topology in topologies:
        for row in tables.statistics.filter(pc.field("storm_id") == topology.storm_id).to_pylist():
            slot, id_ = (row["node"], row["port"]), row["component"]
            if id_.startswith("__"):
                continue  # shown with all of its streams, or not at all
            of_worker = [one for one in topology.executors if one.slot == slot]
            page = component_page(id_, topology.components, of_worker, "600", include_sys=False)
            of_nimbus = page.window_to_stats[row["window"]]
            for name in ("emitted", "transferred", "acked", "failed"):
                assert row[name] == getattr(of_nimbus, name)
            for name in ("complete", "execute", "process"):
                latency = getattr(of_nimbus, f"{name}_latency_ms", 0.0)
                assert (row[f"{name}_ms_avg"] or 0.0) == pytest.approx(latency, rel=1e-9)
            expected += 1
    assert expected > 300


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
    assert tables.reports.num_rows == 1


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
def test_any_heartbeat_becomes_rows_that_every_reader_can_hold(beats, age_secs):
    """One that could not would end the query, and again at its every start."""
    tables = Tables()
    for number, details in enumerate(beats):
        now = 1000.0 + number
        readings = [change_of(path("t"), details, None if age_secs is None else number, age_secs)]
        if age_secs is None:
            page = page_of(WITHOUT_REVISIONS, readings, now)
            health = Coverage(now, None, Position(WITHOUT_REVISIONS, 0))
        else:
            page = page_of("x", readings, now)
            health = Coverage(now, None, Position("x", number), 1e6, 1e6, 1)
        tables.read(page, health)
    for table in (tables.reports, tables.statistics):
        table.validate(full=True)
        table.to_pandas()
        table.to_pylist()


def test_a_count_beyond_what_a_double_holds_exactly_is_kept_as_it_is():
    (row,) = Tables().batch((path("t"), MANY)).of("t")
    assert (row["executed"], row["execute_ms_avg"]) == (2**60, 1.0)
