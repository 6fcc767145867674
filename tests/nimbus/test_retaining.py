"""The leader has checkpoints removed when their time is over, and never those that are in use."""

import pytest

from stormkeeper import paths
from stormkeeper.nimbus.retaining import Retention
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.codec import Codec
from stormkeeper.thrift.records import Checkpoints, StormBase, TopologyStatus
from support.leaders import lead

OLD, NEW = "wc-1-1700000000", "wc-2-1700000100"
SECS = 1_700_000_000.0


@pytest.fixture
def storm(memory):
    storm = StormClusterState(memory.open(), Codec())
    yield storm
    storm.disconnect()


@pytest.fixture
def leader(storm):
    leader = lead(storm)
    leader.set_checkpoints(record())
    return leader


def record(**fields):
    fields = {"nodes": {"q": "a"}, "ended_ms": int(SECS * 1000), "shared": False, **fields}
    return Checkpoints(OLD, OLD, "wc", **fields)


def look(storm, leader, passed=60.0, continued=()):
    one = Retention(storm, lambda: continued, kept_secs=60.0, clock=lambda: SECS + passed)
    one.look(leader)
    found = storm.checkpoints(OLD)
    return "forgotten" if found is None else found.record.remove_on


def test_they_are_kept_until_their_time_is_over(storm, leader):
    assert look(storm, leader, passed=59.9) is None
    assert look(storm, leader) == ["a"]


def test_those_that_are_gone_on_from_stay(storm, leader):
    assert look(storm, leader, continued=[OLD]) is None
    used = StormBase("wc", TopologyStatus.ACTIVE, 1, checkpoints=record())
    leader.activate_storm(NEW, used)
    assert look(storm, leader) is None


def test_nothing_is_removed_while_a_topology_cannot_be_read(storm, leader):
    storm.state.set_data(paths.storm(NEW), b"nobody can read this")
    assert look(storm, leader) is None


def test_nothing_is_removed_that_was_gone_on_from_just_now(storm, leader):
    def submitted():
        found = leader.checkpoints(OLD)
        assert leader.change_checkpoints(record(ended_ms=int(SECS * 1000) + 1), found.version)
        return ()

    Retention(storm, submitted, kept_secs=60.0, clock=lambda: SECS + 60).look(leader)
    assert storm.checkpoints(OLD).record.remove_on is None


def test_what_is_on_no_disk_is_forgotten(storm, leader, caplog):
    leader.set_checkpoints(record(root="s3a://bucket"))
    assert look(storm, leader) == "forgotten"
    assert "remove them yourself" in caplog.text
