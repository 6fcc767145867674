"""A machine that ends with all that runs on it, which is a part of each kind."""

import signal

import pytest

from stormkeeper.conf import Address
from stormkeeper.pacemaker.client.pool import PacemakerPool
from support.cluster import RealCluster
from support.processes import all_gone, family, send, worker_pid
from support.two_queries import SOON, TWO_QUERIES, assert_once, grows
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark]

#: Shorter than by default, so that it can be waited for.
TIMES = {
    "nimbus.task.timeout.secs": 10,
    "nimbus.supervisor.timeout.secs": 10,
    "nimbus.task.launch.secs": 30,
    "nimbus.monitor.freq.secs": 2,
}


@pytest.fixture
def cluster(tmp_path):
    with RealCluster(tmp_path / "cluster", pacemakers=2, conf=TIMES) as cluster:
        yield cluster


def test_machine_lost_with_leader_pacemaker_and_worker(cluster, tmp_path):
    submitted = ("-c", f"output={tmp_path}", "-c", "topology.workers=1")
    cluster.storm("submit", str(TWO_QUERIES), *submitted)
    found = cluster.told("status", "two-queries")
    (worker,) = found["workers"]
    grows(tmp_path / "even")
    with PacemakerPool([Address.parse(each.address, 0) for each in cluster.pacemakers]) as pool:
        (beat,) = pool.read(f"/workerbeats/{found['id']}", values=False).by_path.values()
    pacemaker = next(each for each in cluster.pacemakers if each.address == beat.server)
    number = next(n for n, slots in enumerate(cluster.slots) if worker["port"] in slots)
    leader, lost = cluster.nimbuses[cluster.leader()], cluster.supervisors[number]
    processes = family(worker_pid(found["id"]))

    for daemon in (lost, pacemaker, leader):
        daemon.kill()
    send(processes, signal.SIGKILL)
    all_gone(processes)

    def elsewhere():
        told = cluster.storm("status", "two-queries", "--json", check=False)
        return told.returncode == 0 and worker["supervisor_id"] not in told.stdout

    until(elsewhere, SOON)
    grows(tmp_path / "even")
    grows(tmp_path / "odd")
    cluster.storm("kill", "two-queries", "-w", "0")
    assert_once(tmp_path / "even", 0)
    assert_once(tmp_path / "odd", 1)
