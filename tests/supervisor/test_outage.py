"""A supervisor whose ZooKeeper is gone for a while."""

import os
import signal

import pytest

from stormkeeper.local.dev_zookeeper import DevZooKeeper
from stormkeeper.state.storage import ConnectionState
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from support.supervisors import PORT, is_alive
from support.waiting import until

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

WC = "wc-1-1700000000"
#: Whose script ends by itself.
JOB = "job-1-1700000000"


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


def test_adopted_worker_that_completed_has_not_crashed(own_zookeeper, leader, supervisor, submit):
    node = supervisor.start()
    order = submit(JOB)
    leader.assign(JOB, node, PORT, "out")
    worker = supervisor.started(JOB)
    until(lambda: leader.storm.supervisor_info(node).used_ports == [PORT])
    assert supervisor.stop() == 0
    assert supervisor.start() == node
    beat = ClusterWorkerHeartbeat(JOB, {}, 1_700_000_000, 9)
    leader.storm.set_query_ended(JOB, "out", beat)
    own_zookeeper.stop()
    until(lambda: leader.storm.state.connection is not ConnectionState.CONNECTED)
    until(lambda: "suspended" in supervisor.log)
    order.write_text("0 unsaid")
    until(lambda: not is_alive(worker["pid"]))
    until(lambda: "cannot be read yet" in supervisor.log)
    own_zookeeper.start()
    until(lambda: leader.storm.state.connection is ConnectionState.CONNECTED)
    until(lambda: leader.storm.supervisor_info(node).used_ports == [])
    assert leader.storm.last_error(JOB, "out") is None
    assert len(supervisor.starts(JOB)) == 1
