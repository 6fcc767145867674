"""Topologies as lines for people."""

import pytest

from stormkeeper.cli import topology_tables
from stormkeeper.client.topology_view import (
    ComponentView,
    HealthView,
    QueryView,
    TopologyView,
    WorkerView,
)
from stormkeeper.supervisor.slots import _how_it_ended
from stormkeeper.thrift.nimbus import TopologySummary
from stormkeeper.thrift.records import CrashSeries, ErrorInfo, TopologyHealth
from stormkeeper.topology.faults import crash


def summary(name, **more):
    return TopologySummary(f"{name}-1-17", name, 4, 2, 1, 60, "ACTIVE", **more)


def test_the_table_is_storms():
    assert [*topology_tables.storm_table([summary("word-count", owner="alice")])] == [
        "Topology_name        Status     Num_tasks  Num_workers  Uptime_secs  Topology_Id"
        "          Owner",
        "-" * 88,
        "word-count           ACTIVE     4          1            60           word-count-1-17"
        "      alice",
    ]


def test_errors_are_shown_whole_the_newest_last():
    newest = {
        "out": ErrorInfo("it failed:\n\tat\x1b x", 1_000, "node-1", 6700),
        "a": ErrorInfo("old", 900),
    }
    assert [*topology_tables.error_lines(newest, now=1_061.0)] == [
        "a, 2 min 41 s ago:",
        "  old",
        "out, 1 min 1 s ago, at node-1:6700:",
        "  it failed:",
        "          at\\x1b x",
    ]
    assert [*topology_tables.error_lines({}, now=0.0)] == ["No errors."]


def test_no_topologies_in_storms_words():
    assert [*topology_tables.storm_table([])] == ["No topologies running."]
    assert [*topology_tables.fitting_table([], 20)] == ["No topologies running."]


def test_a_terminal_that_is_too_narrow_gets_a_narrower_table():
    found = [summary("word-count"), summary("y" * 60)]
    assert [*topology_tables.fitting_table(found, 1_000)] == [*topology_tables.storm_table(found)]
    lines = [*topology_tables.fitting_table(found, 60)]
    assert lines[0].split()[0] == "NAME"
    assert [len(each) <= 60 for each in lines] == [True] * 3
    assert lines[2].endswith("…")


def test_the_table_says_how_topologies_do():
    health = TopologyHealth("crashing", "once, 5 s ago: no day", CrashSeries(1, 17, "no day"))
    head, _, first, second = topology_tables.storm_table(
        [summary("a", health=health), summary("b")]
    )
    assert head.endswith("Owner                Health")
    assert first.index("crashing: once, 5 s ago: no day") == head.index("Health")
    assert second.endswith(" -")
    values = topology_tables.topology_values(summary("a", health=health))["health"]
    assert (values["state"], values["crashes"], values["error"]) == ("crashing", 1, "no day")
    assert topology_tables.topology_values(summary("b"))["health"] is None


def shown(**more):
    """Return the lines of a topology whose one worker has run for a minute."""
    worker = {"host": "h", "port": 6700, "supervisor_id": "s", "supervisor": "h", "executors": 1}
    topology = TopologyView(
        id="wc-1-17",
        name="wc",
        status="ACTIVE",
        sched_status="Fully Scheduled",
        uptime_secs=90,
        owner="",
        replication_count=None,
        components=more.pop("components", ()),
        workers=(WorkerView(**worker, **{"uptime_secs": 60, **more.pop("worker", {})}),),
        reporting_workers=1,
        **more,
    )
    return [*topology_tables.topology_lines(topology, now=1_000.0)]


def test_what_a_topology_and_its_queries_do():
    lines = shown(
        health=HealthView(state="stuck", text="its JVM has not answered for 40 s"),
        worker={"uptime_secs": 0, "health": "stuck: its JVM has not answered for 40 s"},
        queries=(
            QueryView(name="a", last_batch=7, since_last_secs=3.2),
            QueryView(name="b", running_batch=0, running_secs=61.0),
        ),
    )
    assert "  health    stuck: its JVM has not answered for 40 s" in lines
    assert "h:6700  1          stuck: its JVM has not answered for 40 s" in lines
    assert lines[-3:] == [
        "QUERY  LAST BATCH  RUNNING BATCH",
        "a      7, 3 s ago  -",
        "b      -           0, for 1 min 1 s",
    ]


@pytest.mark.parametrize(("uptime", "is_over"), [(60, True), (0, False), (200, False)])
def test_an_end_that_nobody_saw_is_over_when_the_worker_runs(uptime, is_over):
    error = crash(6700, 1, _how_it_ended(None))
    kind = {"id": "q", "kind": "bolt", "executors": 1, "tasks": 1}
    of_it = ComponentView(**kind, error=error, error_time_secs=900)
    lines = shown(components=(of_it,), worker={"uptime_secs": uptime})
    assert any("exit code is not known" in line for line in lines) is not is_over
    other = ComponentView(**kind, error="ValueError: no day", error_time_secs=900)
    assert shown(components=(other,))[-1] == "q, 1 min 40 s ago: ValueError: no day"


def test_long_names_widen_their_column():
    head, _, row, other = topology_tables.storm_table([summary("x" * 30), summary("y")])
    assert head.index("Status") == row.index("ACTIVE") == other.index("ACTIVE") == 31


def test_all_there_is_to_say_of_a_topology():
    topology = TopologyView(
        id="wc-1-17",
        name="wc",
        status="ACTIVE",
        sched_status="Fully Scheduled",
        uptime_secs=61,
        owner="alice",
        replication_count=2,
        components=(
            ComponentView(id="lines", kind="spout", executors=1, tasks=2, emitted=12_345, failed=0),
            ComponentView(
                id="words",
                kind="bolt",
                executors=1,
                tasks=1,
                error="ValueError: no day\x1b[31m",
                error_time_secs=1_000,
            ),
        ),
        workers=(
            WorkerView(
                host="node-1",
                port=6700,
                supervisor_id="s1",
                supervisor="node-1",
                executors=2,
                uptime_secs=59,
            ),
            WorkerView(
                host="node-2",
                port=6700,
                supervisor_id="s2",
                supervisor="node-2",
                executors=1,
                uptime_secs=0,
            ),
        ),
        reporting_workers=1,
    )
    assert [*topology_tables.topology_lines(topology, now=1_090.0)] == [
        "wc: ACTIVE, submitted 1 min 1 s ago",
        "  id        wc-1-17",
        "  owner     alice",
        "  schedule  Fully Scheduled",
        "  code on   2 Nimbuses",
        "",
        "COMPONENT  KIND   EXECUTORS  TASKS  EMITTED  FAILED",
        "lines      spout  1          2      12,345   0",
        "words      bolt   1          1      -        -",
        "",
        "WORKER       EXECUTORS  RUNS FOR",
        "node-1:6700  2          59 s",
        "node-2:6700  1          no pulse yet",
        "",
        r"words, 1 min 30 s ago: ValueError: no day\x1b[31m",
    ]


@pytest.mark.parametrize(
    ("secs", "text"),
    [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7_260, "2 h 1 min"), (90_000, "1 d 1 h")],
)
def test_durations(secs, text):
    assert topology_tables.duration(secs) == text
