import pytest

from stormkeeper.statistics.executor_reports import (
    AssignedCounts,
    ExecutorReport,
    assigned_counts,
    assigned_slots,
    reports,
)
from stormkeeper.thrift.records import (
    Assignment,
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    NodeInfo,
    SpoutStats,
)
from support.heartbeats import spout
from support.statistics_examples import KEYS, example


def assignment(places, hosts=None):
    return Assignment(
        "/code",
        node_host=hosts,
        executor_node_port={tasks: NodeInfo(node, set(ports)) for tasks, node, *ports in places},
    )


def beat(executors, uptime_secs=10):
    stats = {ExecutorInfo(*tasks): found for tasks, found in executors.items()}
    return ClusterWorkerHeartbeat("t", stats, 0, uptime_secs)


def test_each_executor_has_what_its_own_worker_says_of_it():
    one, other = spout(1), spout(2)
    found = reports(
        assignment([((3, 4), "n", 6701), ((1, 2), "n", 6700)], {"n": "host"}),
        {1: "a", 2: "a", 3: "b", 4: "b"},
        {
            ("n", 6700): beat({(1, 2): one, (3, 4): spout(7)}),
            ("n", 6701): beat({(3, 4): other}, uptime_secs=20),
        },
    )
    assert found == (
        ExecutorReport(1, 2, "a", "n", "host", 6700, 10, one),
        ExecutorReport(3, 4, "b", "n", "host", 6701, 20, other),
    )
    assert [executor.num_tasks for executor in found] == [2, 2]
    assert [executor.slot for executor in found] == [("n", 6700), ("n", 6701)]


def test_executor_missing_in_a_heartbeat_has_no_uptime():
    found = reports(assignment([((1, 1), "n", 1)], {"n": "h"}), {1: "a"}, {("n", 1): beat({})})
    assert found == (ExecutorReport(1, 1, "a", "n", "h", 1, 0, None),)


def test_executor_without_heartbeat_has_no_uptime():
    found = reports(assignment([((1, 1), "n", 1)], {"n": "h"}), {1: "a"}, {})
    assert found == (ExecutorReport(1, 1, "a", "n", "h", 1, 0, None),)


def test_a_supervisor_without_a_host_is_named_by_its_id():
    for hosts in (None, {}, {"other": "h"}):
        (found,) = reports(assignment([((1, 1), "n", 1)], hosts), {1: "a"}, {})
        assert found.host == "n"


def test_executors_without_component_or_slot_are_skipped():
    found = reports(
        assignment([((1, 1), "n", 1), ((2, 2), "n", 1), ((3, 3), "n")]), {1: "a", 3: "a"}, {}
    )
    assert [executor.task_start for executor in found] == [1]


@pytest.mark.parametrize("nothing", [None, Assignment("/code")])
def test_what_is_not_assigned_has_no_executors(nothing):
    assert reports(nothing, {1: "a"}, {("n", 1): beat({(1, 1): spout(1)})}) == ()
    assert assigned_counts(nothing) == AssignedCounts(0, 0, 0)


def test_what_is_assigned_is_counted():
    places = [((1, 1), "n", 1), ((2, 4), "n", 1), ((5, 5), "n", 2), ((6, 6), "m", 1), ((7, 7), "m")]
    assert assigned_counts(assignment(places)) == AssignedCounts(
        num_tasks=7, num_executors=5, num_workers=3
    )


def test_slots_are_counted_by_supervisor():
    one = assignment([((1, 1), "n", 1), ((2, 2), "n", 1), ((3, 3), "m", 1)])
    other = assignment([((1, 1), "n", 2), ((2, 2), "k")])
    assert assigned_slots(one) == {("n", 1), ("m", 1)}
    assert assigned_slots(other) == {("n", 2)}, "a place without a port is no slot"
    assert assigned_slots(Assignment("/code")) == set()


# --- as Storm's getTopologyInfo ------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_the_executors_of_a_topology_are_those_that_storm_lists(key):
    listed = example(key).answers["topology_info"]["executors"]
    assert len(listed) == len(example(key).executors)
    for report, summary in zip(example(key).executors, in_order(listed), strict=True):
        assert report == ExecutorReport(
            **summary["executor_info"],
            component_id=summary["component_id"],
            supervisor_id=report.supervisor_id,
            host=summary["host"],
            port=summary["port"],
            uptime_secs=summary["uptime_secs"],
            stats=stats_of(summary["stats"]) if "stats" in summary else None,
        )


def in_order(summaries):
    return sorted(summaries, key=lambda summary: summary["executor_info"]["task_start"])


def stats_of(noted):
    specific = noted["specific"]
    spouts = {name: SpoutStats(**found) for name, found in specific.items() if name == "spout"}
    bolts = {
        name: BoltStats(**{statistic: of_sources(by) for statistic, by in found.items()})
        for name, found in specific.items()
        if name == "bolt"
    }
    return ExecutorStats(
        noted["emitted"],
        noted["transferred"],
        ExecutorSpecificStats(**spouts, **bolts),
        noted["rate"],
    )


def of_sources(by_window):
    return {
        window: {GlobalStreamId(**source): value for source, value in pairs or []}
        for window, pairs in by_window.items()
    }
