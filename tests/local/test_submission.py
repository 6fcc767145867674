"""Topologies put into the cluster state as a leader puts them there."""

import getpass
import os
from pathlib import Path

import pytest

from stormkeeper import paths
from stormkeeper.conf import defaults
from stormkeeper.errors import NotLeaderError
from stormkeeper.local import submission
from stormkeeper.local.submission import submit
from stormkeeper.state import locks
from stormkeeper.state.storm import cluster
from stormkeeper.thrift.records import NodeInfo, TopologyStatus

ID = "my-wc-1-1700000000"

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def conf(zookeeper_settings):
    return {**defaults(), **zookeeper_settings()}


@pytest.fixture
def storm(conf):
    storm = cluster.connect(conf)
    yield storm
    storm.disconnect()


def test_a_topology_is_written_under_a_lock_that_is_given_up(conf, storm):
    submit(conf, ID, node="node", port=6700, script=Path("/code/wc.py"))
    base = storm.storm_base(ID)
    assignment = storm.assignment_info(ID)
    assert (base.name, base.status) == ("my-wc", TopologyStatus.ACTIVE)
    assert list(assignment.worker_resources) == [NodeInfo("node", {6700})]
    assert base.leader_epoch == assignment.leader_epoch > 0
    assert storm.state.get_children(paths.LEADER_LOCK) == []


def test_a_user_without_a_name_has_a_number(conf, storm, monkeypatch):
    def unknown():
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr(getpass, "getuser", unknown)
    submit(conf, ID, node="node", port=6700, script=Path("/code/wc.py"))
    assert storm.storm_base(ID).owner == str(os.getuid())
    assert storm.assignment_info(ID).owner == str(os.getuid())


def test_without_its_lock_nothing_is_written(conf, storm, monkeypatch):
    take = locks.take

    def taken_away(state, holder):
        lock = take(state, holder)
        storm.state.delete_node(lock.path)
        return lock

    monkeypatch.setattr(submission.locks, "take", taken_away)
    with pytest.raises(NotLeaderError):
        submit(conf, ID, node="node", port=6700, script=Path("/code/wc.py"))
    assert storm.active_storms() == storm.assignments() == []
