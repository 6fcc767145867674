import logging

import pytest

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.follower import FollowedHeartbeats
from stormkeeper.nimbus.cluster_status import ClusterStatusTracker
from stormkeeper.nimbus.scheduling.planning import Assign, FinishRebalance, Remove
from support.clusters import NOW, cluster, launch, supervisor, topology

UP, DOWN = Coverage(NOW), Coverage(NOW, error="connection refused")


@pytest.fixture
def status():
    status = ClusterStatusTracker(lambda: 5.0)
    status.record_leadership(7)
    return status


def look(status, *, unproven=(), coverage=None):
    workers = (launch("s1:6700", "q", claim=1), launch("s1:6701", "r", claim=2))
    seen = cluster(
        supervisor("s1"),
        supervisor("s2"),
        topology("wc", "q r", launches=workers),
        unproven=unproven,
    )
    heartbeats = FollowedHeartbeats(None, {"a": UP} if coverage is None else coverage, 0.0)
    status.record_round(seen, heartbeats, 0.25)


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def test_what_a_leader_sees(status):
    look(status, unproven=[2])
    seen = status.status
    assert (seen.epoch, seen.leaderships, seen.rounds, seen.round_secs) == (7, 1, 1, 0.25)
    assert (seen.supervisors, seen.slots, seen.free_slots) == (2, 4, 2)
    assert (seen.topologies, seen.workers) == ({"active": 1}, {"alive": 1, "unproven": 1})


def test_who_does_not_lead_sees_nothing_of_it(status):
    look(status)
    status.record_leadership(None)
    seen = status.status
    assert (seen.epoch, seen.supervisors, seen.workers, seen.leaderships) == (None, 0, {}, 1)


def test_what_was_done_is_counted(status):
    for action in (Assign("a", ()), Assign("b", ()), Remove("a"), FinishRebalance("b")):
        status.record_action(action)
    assert status.status.actions == {"assign": 2, "remove": 1, "rebalance": 1}
    status.record_failure()
    assert status.status.failures == 1


def test_self_preservation_is_logged_at_begin_and_end(status, caplog):
    caplog.set_level(logging.INFO)
    look(status)
    assert said(caplog) == []
    look(status, unproven=[1, 2])
    look(status, unproven=[1])
    look(status)
    assert said(caplog) == [
        "self-preservation: 2 workers are silent, and no server can vouch that they are dead:"
        " no worker is moved",
        "self-preservation ended: the state of every worker is known again",
    ]


def test_pacemakers_that_did_not_answer_are_counted(status):
    look(status, coverage={"a": UP, "b": DOWN})
    assert status.status.unread == 1


def test_it_is_told_that_no_pacemaker_can_be_read(status, caplog):
    look(status, coverage={})
    look(status, coverage={})
    assert said(caplog) == ["no Pacemaker can be read: no worker is moved until one answers"]
