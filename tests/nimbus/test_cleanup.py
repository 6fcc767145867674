import threading

import pytest

from stormkeeper.nimbus.cleanup import CheckpointRetention, Cleaner, gone_since
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import Credentials, LogConfig, StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Codec
from support.heartbeats import heartbeat, path
from support.leaders import lead
from support.waiting import until

GONE, THERE, COMING = "gone-1-1", "there-2-1", "coming-3-1"


def test_a_topology_is_gone_since_that_was_seen_first():
    since = gone_since({}, [GONE, THERE], [THERE], 5.0)
    assert since == {GONE: 5.0}
    assert gone_since(since, [GONE, COMING], [THERE], 9.0) == {GONE: 5.0, COMING: 9.0}
    assert gone_since(since, [], [THERE], 9.0) == {}
    # It is there again, as one that was being submitted.
    assert gone_since(since, [GONE], [GONE], 9.0) == {}


@pytest.fixture
def storm(memory):

    storm = StormClusterState(memory.open(), Codec())
    yield storm
    storm.disconnect()


@pytest.fixture
def leader(storm):
    leader = lead(storm)
    for storm_id in (GONE, THERE, COMING):
        leader.setup_heartbeats(storm_id)
        leader.setup_errors(storm_id)
        leader.setup_backpressure(storm_id)
        storm.heartbeats.beat(path(storm_id), heartbeat(storm_id))
        storm.report_error(storm_id, "words", "it failed")
    leader.activate_storm(THERE, StormBase("there", TopologyStatus.ACTIVE, 1))
    return leader


def cleaner(storm, kept_secs, clock=lambda: 0.0):
    retention = CheckpointRetention(tuple, kept_secs=None, clock=clock)
    return Cleaner(
        storm, lambda: [COMING], retention, period_secs=0.01, kept_secs=kept_secs, clock=clock
    )


def test_what_is_left_of_a_topology_goes_when_it_is_time(storm, leader):
    now = [0.0]
    looked = threading.Semaphore(0)

    def clock():
        looked.release()
        return now[0]

    one = cleaner(storm, 300.0, clock)
    one.begin(leader)
    for _ in range(20):
        assert looked.acquire(timeout=60)
    assert GONE in storm.heartbeat_storms()
    now[0] = 300.0
    until(lambda: GONE not in storm.backpressure_topologies())
    one.end()
    for left in (storm.heartbeat_storms(), storm.error_topologies(), storm.task_storms()):
        assert GONE not in left
    assert {THERE, COMING} <= {*storm.heartbeat_storms()} & {*storm.error_topologies()}


def test_secrets_of_a_submission_that_was_never_finished_go_too(storm, leader):
    for storm_id in (GONE, THERE, COMING, "lost-4-1"):
        leader.set_credentials(storm_id, Credentials({"password": "hunter2"}))
        leader.set_topology_log_config(storm_id, LogConfig({}))
    one = cleaner(storm, 0.0)
    one.begin(leader)
    until(lambda: not {GONE, "lost-4-1"} & {*storm.kept_storms()})
    one.end()
    assert storm.credentials("lost-4-1") is None
    assert {THERE, COMING} == {*storm.kept_storms()}
    assert storm.credentials(THERE).creds == {"password": "hunter2"}


def test_who_does_not_lead_cleans_nothing(storm, leader):
    one = cleaner(storm, 0.0)
    storm.state.delete_node(leader.fence.path)
    one.begin(leader)
    until(lambda: not one._thread._thread.is_alive())
    one.end()
    assert GONE in storm.heartbeat_storms()
