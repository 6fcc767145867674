import dataclasses

import pytest

from stormkeeper import paths
from stormkeeper.state.node_heartbeats import ZOOKEEPER
from stormkeeper.thrift.records import Assignment, NimbusSummary, StormBase, SupervisorInfo
from support.heartbeats import heartbeat, path

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
    assert list(found.heartbeats.by_path) == [path(STORM)]
    assert found.heartbeats.by_path[path(STORM)].value is None
    assert list(found.heartbeats.coverage) == [ZOOKEEPER]
    assert found.unreadable == frozenset()
    assert (empty.bases, empty.heartbeats.by_path) == ({}, {})
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


def test_heartbeats_are_read_last(storm, leader, memory, monkeypatch):
    """Or a worker that was assigned meanwhile would seem never to have beaten."""
    read = memory.children_data

    def then_a_worker_comes(path_, watch=False):
        try:
            return read(path_, watch)
        finally:
            leader.set_assignment(STORM, assignment())
            storm.heartbeats.beat(path(STORM), b"x")

    monkeypatch.setattr(memory, "children_data", then_a_worker_comes)
    found = storm.snapshot()
    assert STORM in found.assignments
    assert path(STORM) in found.heartbeats.by_path
