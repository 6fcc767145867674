"""A supervisor whose ZooKeeper is gone for a while."""

import os
import signal

import pytest

from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.state.storage import ConnectionState
from support.supervisors import PORT, is_alive
from support.waiting import until

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

WC = "wc-1-1700000000"


@pytest.fixture
def own_zookeeper(tmp_path):
    (tmp_path / "zookeeper").mkdir()
    with DevZooKeeper(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
def settings(own_zookeeper):
    """In place of the server that all tests share."""
    return {
        "storm.zookeeper.servers": [own_zookeeper.host],
        "storm.zookeeper.port": own_zookeeper.port,
    }


def test_workers_go_on_and_are_started_again_meanwhile(own_zookeeper, leader, supervisor, submit):
    node = supervisor.start()
    submit(WC)
    leader.assign(WC, node, PORT, "out")
    first = supervisor.started(WC)
    own_zookeeper.stop()
    until(lambda: leader.storm.state.connection is not ConnectionState.CONNECTED)
    until(lambda: "suspended" in supervisor.log)
    assert is_alive(first["pid"])
    os.kill(first["pid"], signal.SIGKILL)
    second = supervisor.started(WC, 2)
    own_zookeeper.start()
    until(lambda: leader.storm.state.connection is ConnectionState.CONNECTED)
    [error] = until(lambda: leader.storm.errors(WC, "out"))
    assert "it ended by SIGKILL" in error.error
    assert until(lambda: leader.storm.supervisor_info(node)).used_ports == [PORT]
    assert is_alive(second["pid"])
