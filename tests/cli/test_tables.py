"""Topologies as lines for people."""

import pytest

from stormkeeper.cli import tables
from stormkeeper.client.looking import Component, Topology, Worker
from stormkeeper.thrift.nimbus import TopologySummary
from stormkeeper.thrift.records import ErrorInfo


def summary(name, **more):
    return TopologySummary(f"{name}-1-17", name, 4, 2, 1, 60, "ACTIVE", **more)


def test_the_table_is_storms():
    assert [*tables.of_topologies([summary("word-count", owner="alice")])] == [
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
    assert [*tables.of_errors(newest, now=1_061.0)] == [
        "a, 2 min 41 s ago:",
        "  old",
        "out, 1 min 1 s ago, at node-1:6700:",
        "  it failed:",
        "          at\\x1b x",
    ]
    assert [*tables.of_errors({}, now=0.0)] == ["No errors."]


def test_no_topologies_in_storms_words():
    assert [*tables.of_topologies([])] == ["No topologies running."]


def test_long_names_widen_their_column():
    head, _, row, other = tables.of_topologies([summary("x" * 30), summary("y")])
    assert head.index("Status") == row.index("ACTIVE") == other.index("ACTIVE") == 31


def test_all_there_is_to_say_of_a_topology():
    topology = Topology(
        id="wc-1-17",
        name="wc",
        status="ACTIVE",
        sched_status="Fully Scheduled",
        uptime_secs=61,
        owner="alice",
        replication_count=2,
        components=(
            Component(id="lines", kind="spout", executors=1, tasks=2, emitted=12_345, failed=0),
            Component(
                id="words",
                kind="bolt",
                executors=1,
                tasks=1,
                error="ValueError: no day\x1b[31m",
                error_time_secs=1_000,
            ),
        ),
        workers=(
            Worker(
                host="node-1",
                port=6700,
                supervisor_id="s1",
                supervisor="node-1",
                executors=2,
                uptime_secs=59,
            ),
            Worker(
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
    assert [*tables.of_topology(topology, now=1_090.0)] == [
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
    assert tables.duration(secs) == text
