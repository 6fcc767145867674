"""The leader has checkpoints removed when their time is over, and never those that are in use."""

import pytest

from stormkeeper import paths
from stormkeeper.nimbus.cleanup import EXPIRY_DOUBT_SECS, CheckpointRetention
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import Checkpoints, StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Codec
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


class Clocks:
    """One that is set, in seconds since `SECS`, and one that is not."""

    def __init__(self, passed=60.0):
        self.passed, self.up = passed, 0.0

    def retention(self, continued=tuple, kept_secs=60.0):
        return CheckpointRetention(
            continued,
            kept_secs=kept_secs,
            clock=lambda: SECS + self.passed,
            monotonic=lambda: self.up,
        )


def removed_on(storm):
    found = storm.checkpoints(OLD)
    return "forgotten" if found is None else found.record.remove_on


def look(storm, leader, passed=60.0, continued=()):
    """Look twice, with the whole retention in between."""
    clocks = Clocks(passed)
    one = clocks.retention(lambda: continued)
    for clocks.up in (0.0, 60.0):
        one.remove_expired(leader)
    return removed_on(storm)


def test_they_are_kept_until_their_time_is_over(storm, leader):
    assert look(storm, leader, passed=59.9) is None
    assert look(storm, leader) == ["a"]


def test_a_clock_that_is_far_ahead_for_a_while_costs_none(storm, leader):
    clocks = Clocks(passed=1e9)
    one = clocks.retention()
    one.remove_expired(leader)
    clocks.up = 59.0
    one.remove_expired(leader)
    clocks.passed = 1.0  # it is set right
    clocks.up = 61.0
    one.remove_expired(leader)
    assert removed_on(storm) is None
    # And what was seen of it counts no more.
    clocks.passed = 1e9
    one.remove_expired(leader)
    assert removed_on(storm) is None


def test_of_a_long_retention_the_last_hour_is_seen(storm, leader):
    clocks = Clocks(passed=1e6)
    one = clocks.retention(kept_secs=1e6)
    one.remove_expired(leader)
    clocks.up = EXPIRY_DOUBT_SECS - 1
    one.remove_expired(leader)
    assert removed_on(storm) is None
    clocks.up = EXPIRY_DOUBT_SECS
    one.remove_expired(leader)
    assert removed_on(storm) == ["a"]


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

    clocks = Clocks()
    one = clocks.retention(submitted)
    for clocks.up in (0.0, 60.0):
        one.remove_expired(leader)
    assert storm.checkpoints(OLD).record.remove_on is None


def test_what_is_on_no_disk_is_forgotten(storm, leader, caplog):
    leader.set_checkpoints(record(root="s3a://bucket"))
    assert look(storm, leader) == "forgotten"
    assert "remove them yourself" in caplog.text
