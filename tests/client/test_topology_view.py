"""What Nimbus tells, as values."""

import pytest

from stormkeeper.client import topology_view
from stormkeeper.thrift.nimbus import (
    CommonAggregateStats,
    ComponentAggregateStats,
    ComponentType,
    TopologyPageInfo,
    WorkerSummary,
)
from stormkeeper.thrift.records import ErrorInfo

TRACEBACK = 'Traceback (most recent call last):\n  File "job.py", line 5\nValueError: no day\n'


def stats(kind, *, error=None, **common):
    return ComponentAggregateStats(
        ComponentType[kind], CommonAggregateStats(**common), last_error=error
    )


def test_a_page_in_an_order_of_its_own():
    error = ErrorInfo(TRACEBACK, 1_700, "node", 6700)
    page = TopologyPageInfo(
        "wc-1-17",
        name="wc",
        uptime_secs=17,
        status="ACTIVE",
        owner="alice",
        sched_status="Fully Scheduled",
        replication_count=2,
        id_to_bolt_agg_stats={
            "words": stats("BOLT", num_executors=1, num_tasks=2, emitted=7, failed=0),
            "counts": stats("BOLT", num_executors=1, num_tasks=1, error=error),
        },
        id_to_spout_agg_stats={"lines": stats("SPOUT", num_executors=1, num_tasks=1)},
        num_workers=1,
        workers=[
            WorkerSummary("s2", "node-2", 6700, num_executors=1, uptime_secs=5),
            WorkerSummary("s1", "node-1", 6701, num_executors=2),
        ],
    )
    found = topology_view.view_of_page(page)
    assert [(each.id, each.kind) for each in found.components] == [
        ("lines", "spout"),
        ("counts", "bolt"),
        ("words", "bolt"),
    ]
    assert found.components[1].error == "ValueError: no day"
    assert found.components[1].error_time_secs == 1_700
    assert (found.components[2].tasks, found.components[2].emitted) == (2, 7)
    assert [each.place for each in found.workers] == ["node-1:6701", "node-2:6700"]
    assert [each.uptime_secs for each in found.workers] == [0, 5]
    assert found.reporting_workers == 1
    assert found.sched_status == "Fully Scheduled"


def test_workers_on_one_host_and_port_show_their_supervisors():
    workers = [
        WorkerSummary("0123456789", "node", 6700),
        WorkerSummary("abcdefghij", "node", 6700),
        WorkerSummary("abcdefghij", "node", 6701),
    ]
    found = topology_view.view_of_page(TopologyPageInfo("wc-1-17", workers=workers)).workers
    places = ["node (01234567):6700", "node (abcdefgh):6700", "node:6701"]
    assert sorted(each.place for each in found) == places


def test_a_page_that_says_next_to_nothing():
    found = topology_view.view_of_page(TopologyPageInfo("wc-1-17"))
    assert (found.name, found.status, found.sched_status) == ("wc-1-17", "?", "")
    assert (found.components, found.workers) == ((), ())


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (TRACEBACK, "ValueError: no day"),
        (f"the query 'out' failed:\n{TRACEBACK}", "the query 'out' failed: ValueError: no day"),
        ("java.lang.RuntimeException: no day\n\tat a.B.c(B.java:1)\n", None),
        ("the worker ended with exit code 1\nits log: …", None),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_the_line_that_says_what_happened(error, line):
    assert topology_view.newest_line(error) == (error.splitlines()[0] if line is None else line)
