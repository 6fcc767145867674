import dataclasses

import pytest

from stormkeeper import paths
from stormkeeper.errors import PacemakerUnavailableError
from stormkeeper.state.backends import ZOOKEEPER
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    LaunchClaim,
    NimbusSummary,
    StormBase,
    SupervisorInfo,
    WorkerLaunch,
)
from support.followed import everything
from support.heartbeats import heartbeat, path
from support.waiting import until

STORM = "wc-1-1700000000"


def base():
    return StormBase("wc", 1, 4)


def assignment():
    return Assignment("/code", {"sup": "host"})


def supervisor():
    return SupervisorInfo(1_700_000_000, "host", "sup")


def nimbus():
    return NimbusSummary("nimbus1", 6627, 5, False, "2")


def test_a_snapshot_has_all_that_there_is_and_stays_as_it_is(storm, leader, memory):
    empty = storm.snapshot()
    leader.activate_storm(STORM, base())
    leader.set_assignment(STORM, assignment())
    storm.supervisor_heartbeat("sup", supervisor())
    storm.add_nimbus_host(nimbus())
    storm.heartbeats.beat(path(STORM), heartbeat(STORM))
    found = storm.snapshot()
    assert [found.bases[STORM].name, found.assignments[STORM].node_host] == ["wc", {"sup": "host"}]
    assert found.supervisors == {"sup": supervisor()}
    assert [one.port for one in found.nimbuses.values()] == [6627]
    assert list(everything(found.heartbeats.follower)) == [path(STORM)]
    assert list(found.heartbeats.coverage) == [ZOOKEEPER]
    assert found.unreadable == frozenset()
    assert (empty.bases, everything(empty.heartbeats.follower)) == ({}, {})
    with pytest.raises(TypeError):
        found.bases["other"] = base()
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.bases = {}
    memory.delete_node(paths.storm(STORM))
    assert list(found.bases) == [STORM]


def test_what_cannot_be_read_is_named_and_not_taken_for_absent(storm, leader, memory):
    leader.set_assignment(STORM, assignment())
    memory.set_data(paths.assignment("bad-1-1"), b"no assignment")
    found = storm.snapshot()
    assert list(found.assignments) == [STORM]
    assert found.unreadable == {paths.assignment("bad-1-1")}


def test_heartbeats_are_read_last(storm, leader, monkeypatch):
    """Or a worker that was assigned meanwhile would seem never to have beaten."""
    read, done = storm.view.caught_up, []

    def then_a_worker_comes():
        leader.set_assignment(STORM, assignment())
        records = read()
        storm.heartbeats.beat(path(STORM), b"x")
        done.append(records)
        return records

    monkeypatch.setattr(storm.view, "caught_up", then_a_worker_comes)
    found = storm.snapshot(clock=lambda: len(done))
    assert found.heartbeats_at == len(done) == 1
    assert STORM in found.assignments
    assert found.heartbeats.follower.get(path(STORM))


def test_an_empty_follower_takes_the_heartbeats_itself(storm):
    follower = storm.heartbeats.follower()
    assert storm.snapshot(follower=follower).heartbeats.follower is follower
    storm.heartbeats.beat(path(STORM), b"x")
    storm.snapshot(follower=follower)
    assert follower.get(path(STORM))


def test_queries_that_have_ended_are_in_it(storm, leader):
    leader.activate_storm(STORM, base())
    assert storm.snapshot().ended == {}
    last = ClusterWorkerHeartbeat(STORM, {}, 1, 1)
    for query in ("counts", "a/b"):
        storm.set_query_ended(STORM, query, last)
    assert storm.snapshot().ended == {STORM: {"counts", "a/b"}}


def test_heartbeats_may_be_lacking_where_that_was_said(storm, leader, monkeypatch):
    asked = []

    def nobody_answers(_path, *, values, hurried):  # noqa: ARG001
        asked.append(hurried)
        raise PacemakerUnavailableError("nobody answers")

    leader.activate_storm(STORM, base())
    monkeypatch.setattr(storm.heartbeats, "read_all", nobody_answers)
    with pytest.raises(PacemakerUnavailableError):
        storm.snapshot()
    found = storm.snapshot(may_lack_heartbeats=True)
    assert (list(found.bases), everything(found.heartbeats.follower)) == ([STORM], {})
    assert found.heartbeats.coverage == {}
    assert asked == [False, True], "whoever can do without does not wait for it"


def test_claims_on_released_workers_are_read_after_the_release(storm, leader, memory, monkeypatch):
    """Or a query whose checkpoint was claimed just before would be placed without it."""
    launch = WorkerLaunch("sup", 6700, LaunchClaim(1, 2), ["q"], 0, 0, released=True)
    leader.activate_storm(STORM, base())
    leader.set_assignment(STORM, Assignment("/code", launches=[launch]))
    until(lambda: STORM in storm.view.caught_up().assignments)
    records = storm.view.caught_up()
    memory.set_data(paths.query_claim(STORM, "q"), b"")
    monkeypatch.setattr(storm.view, "caught_up", lambda: records)
    assert records.claimed == {}
    assert storm.snapshot().claimed == {STORM: {"q"}}
