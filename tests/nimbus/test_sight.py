import logging

import pytest

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.protocols import Heartbeats
from stormkeeper.nimbus.scheduling.actions import Assign, FinishRebalance, Remove
from stormkeeper.nimbus.sight import Sight
from support.clusters import NOW, cluster, launch, supervisor, topology

UP, DOWN = Coverage(NOW), Coverage(NOW, error="connection refused")


@pytest.fixture
def sight():
    sight = Sight(lambda: 5.0)
    sight.leads(7)
    return sight


def look(sight, *, unproven=(), coverage=None):
    workers = (launch("s1:6700", "q", claim=1), launch("s1:6701", "r", claim=2))
    seen = cluster(
        supervisor("s1"),
        supervisor("s2"),
        topology("wc", "q r", launches=workers),
        unproven=unproven,
    )
    sight.looked(seen, Heartbeats({}, {"a": UP} if coverage is None else coverage), 0.25)


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def test_what_a_leader_sees(sight):
    look(sight, unproven=[2])
    seen = sight.seen
    assert (seen.epoch, seen.reigns, seen.rounds, seen.round_secs) == (7, 1, 1, 0.25)
    assert (seen.supervisors, seen.slots, seen.free_slots) == (2, 4, 2)
    assert (seen.topologies, seen.workers) == ({"active": 1}, {"alive": 1, "unproven": 1})


def test_who_does_not_lead_sees_nothing_of_it(sight):
    look(sight)
    sight.leads(None)
    seen = sight.seen
    assert (seen.epoch, seen.supervisors, seen.workers, seen.reigns) == (None, 0, {}, 1)


def test_what_was_done_is_counted(sight):
    for action in (Assign("a", ()), Assign("b", ()), Remove("a"), FinishRebalance("b")):
        sight.did(action)
    assert sight.seen.actions == {"assign": 2, "remove": 1, "rebalance": 1}
    sight.failed()
    assert sight.seen.failures == 1


def test_self_preservation_is_told_when_it_begins_and_when_it_ends(sight, caplog):
    caplog.set_level(logging.INFO)
    look(sight)
    assert said(caplog) == []
    look(sight, unproven=[1, 2])
    look(sight, unproven=[1])
    look(sight)
    assert said(caplog) == [
        "self-preservation: 2 workers are silent, and no server can vouch that they are dead:"
        " nobody is moved for that",
        "self-preservation is over: of every worker it is known how it is",
    ]


def test_pacemakers_that_did_not_answer_are_counted(sight):
    look(sight, coverage={"a": UP, "b": DOWN})
    assert sight.seen.unread == 1


def test_it_is_told_that_no_pacemaker_can_be_read(sight, caplog):
    look(sight, coverage={})
    look(sight, coverage={})
    assert said(caplog) == ["no Pacemaker can be read: no worker is moved until one is"]
