"""Assignments are followed by watches, and stay as they were where they cannot be read."""

import pytest

from stormkeeper import paths
from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.record_io import Codec
from stormkeeper.supervisor import assignments
from stormkeeper.supervisor.assignments import Assignments
from stormkeeper.thrift.records import Assignment
from support.leaders import lead
from support.memory_state import MemoryEnsemble
from support.waiting import until


class World:
    """A leader, a follower, and what it was told."""

    def __init__(self):
        ensemble = MemoryEnsemble()
        self.leading = StormClusterState(ensemble.session(), Codec())
        self.storm = StormClusterState(ensemble.session(), Codec())
        self.leader = lead(self.leading)
        self.told = []
        self.following = Assignments(self.storm, self.told.append)

    def assign(self, storm_id, text):
        self.leader.set_assignment(storm_id, Assignment(text))

    def now(self):
        return {k: v.master_code_dir for k, v in self.told[-1].items()} if self.told else None

    def close(self):
        self.following.close()
        self.storm.disconnect()
        self.leading.disconnect()


@pytest.fixture
def world():
    world = World()
    yield world
    world.close()


def test_all_are_told_at_first_even_if_there_is_none(world):
    world.following.start()
    until(lambda: world.now() == {})


def test_each_change_is_told(world):
    world.assign("a-1-1", "one")
    world.following.start()
    until(lambda: world.now() == {"a-1-1": "one"})
    world.assign("b-2-1", "two")
    until(lambda: world.now() == {"a-1-1": "one", "b-2-1": "two"})
    for number in range(5):
        world.assign("a-1-1", str(number))
        until(lambda number=number: world.now() == {"a-1-1": str(number), "b-2-1": "two"})
    world.leader.remove_storm("a-1-1")
    until(lambda: world.now() == {"b-2-1": "two"})


def test_what_cannot_be_read_stays_as_it_was(world, caplog):
    world.assign("a-1-1", "one")
    world.following.start()
    until(lambda: world.now() == {"a-1-1": "one"})
    world.leading.state.set_data(paths.assignment("a-1-1"), b"garbage")
    until(lambda: "the assignment of a-1-1 stays as it was" in caplog.text)
    world.assign("b-2-1", "two")
    until(lambda: world.now() == {"a-1-1": "one", "b-2-1": "two"})


def test_what_could_never_be_read_is_not_taken_for_absent(world):
    world.assign("a-1-1", "one")
    world.leading.state.set_data(paths.assignment("a-1-1"), b"garbage")
    world.following.start()
    until(lambda: world.told)
    assert world.told == [{"a-1-1": None}]
    world.assign("a-1-1", "two")
    until(lambda: world.told[1:])
    assert world.now() == {"a-1-1": "two"}


def test_what_was_read_before_a_failure_is_told_after_it(world, monkeypatch, caplog):
    caplog.set_level("INFO")
    world.assign("a-1-1", "one")
    world.assign("b-2-1", "one")
    world.following.start()
    until(lambda: world.now() == {"a-1-1": "one", "b-2-1": "one"})
    whole = world.storm.assignment_info
    failures = ["once", "twice"]

    def read(storm_id, callback):
        if storm_id == "b-2-1" and failures:
            raise StateUnavailableError(f"no server answered {failures.pop()}")
        return whole(storm_id, callback)

    monkeypatch.setattr(world.storm, "assignment_info", read)
    with world.following._lock:  # so that both are read at once
        world.assign("a-1-1", "two")
        world.assign("b-2-1", "two")
    until(lambda: world.now() == {"a-1-1": "two", "b-2-1": "two"})
    told = [record.getMessage() for record in caplog.records if "assignments" in record.name]
    assert told == [
        "the assignments cannot be read, and stay as they are; next attempt in 1 s: no server"
        " answered twice",
        "the assignments cannot be read, and stay as they are; next attempt in 1 s: no server"
        " answered once",
        "the assignments are read again",
    ]


def test_what_no_watch_has_told_of_is_found(world, monkeypatch):
    monkeypatch.setattr(assignments, "_PERIOD_SECS", 0.05)
    whole = world.storm.assignment_info
    monkeypatch.setattr(world.storm, "assignment_info", lambda storm_id, _: whole(storm_id))
    world.assign("a-1-1", "one")
    world.following.start()
    until(lambda: world.now() == {"a-1-1": "one"})
    world.assign("a-1-1", "two")
    until(lambda: world.now() == {"a-1-1": "two"})


def test_nobody_is_told_after_the_end(world):
    world.following.start()
    until(lambda: world.now() == {})
    world.following.close()
    count = len(world.told)
    world.assign("a-1-1", "one")
    assert len(world.told) == count
