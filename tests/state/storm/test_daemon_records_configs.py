"""Credentials and log levels."""

import pytest

from stormkeeper.thrift.records import Credentials, LogConfig, LogLevel, LogLevelAction
from support.memory_state import MemoryEnsemble

ID = "wc-1-1700000000"
CREDENTIALS = Credentials({"user": "ann", "ticket": "é\n"}, "ann")
LEVELS = LogConfig({"a.b": LogLevel(LogLevelAction.UPDATE, "DEBUG", 30)})


@pytest.fixture
def ensemble():
    """Callbacks run in its `deliver`."""
    return MemoryEnsemble(inline=True)


@pytest.fixture(params=["credentials", "log levels"])
def kind(request, storm, leader):
    """How one of them is read and set, and two values."""
    if request.param == "credentials":
        return storm.credentials, leader.set_credentials, CREDENTIALS, Credentials({})
    reads = storm.topology_log_config
    return reads, leader.set_topology_log_config, LEVELS, LogConfig({})


def test_they_are_read_as_they_were_set_and_say_which_leader_did(kind, leader):
    read, write, value, other = kind
    assert read(ID) is None
    for record in (value, other):
        write(ID, record)
        found = read(ID)
        assert record.leader_epoch is None
        assert found.leader_epoch == leader.fence.epoch
        found.leader_epoch = None
        assert found == record
    assert read("other") is None


def test_a_callback_is_told_once(kind, ensemble):
    read, write, value, other = kind
    told = []
    read(ID, lambda: told.append(read(ID)))
    for record in (value, other):
        write(ID, record)
        ensemble.deliver()
    assert len(told) == 1
    assert type(told[0]) is type(value)
