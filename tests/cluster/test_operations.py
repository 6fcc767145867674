"""What ``docs/cluster.md`` says of operations: a Nimbus is added, and disks are replaced."""

import shutil

import pytest

from support.cluster import RealCluster
from support.two_queries import SOON, TWO_QUERIES, assert_once, grows
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark]

#: Shorter than by default, so that it can be waited for; but on a busy machine, on which Sparks of
#: other tests start, a worker may be silent for ten seconds.
TIMES = {"nimbus.task.timeout.secs": 20, "nimbus.monitor.freq.secs": 2}


@pytest.fixture
def cluster(tmp_path):
    with RealCluster(tmp_path / "cluster", nimbuses=1, conf=TIMES) as cluster:
        yield cluster


def test_a_nimbus_is_added_and_disks_are_replaced(cluster, tmp_path):
    submitted = ("-c", f"output={tmp_path}", "-c", "topology.workers=1")
    cluster.storm("submit", str(TWO_QUERIES), *submitted)
    (worker,) = cluster.told("status", "two-queries")["workers"]

    # It has the code, and leads when it is alone.
    cluster.add_nimbus()
    first, added = cluster.nimbuses
    until(lambda: copies(cluster) == 2, SOON)
    first.kill()
    assert worker_of(cluster) == worker["supervisor_id"]
    assert cluster.leader() == 1

    # An empty disk is filled, from the one that was added.
    shutil.rmtree(cluster.disk_of(first))
    first.start()
    until(lambda: copies(cluster) == 2, SOON)
    added.kill()
    assert worker_of(cluster) == worker["supervisor_id"]
    assert cluster.leader() == 0

    # A supervisor with an empty disk is a new one.
    number = next(n for n, slots in enumerate(cluster.slots) if worker["port"] in slots)
    supervisor = cluster.supervisors[number]
    assert supervisor.stop() == 0
    cluster.kill_workers(number)
    shutil.rmtree(cluster.disk_of(supervisor))
    supervisor.start()
    until(lambda: worker_of(cluster) not in (None, worker["supervisor_id"]), SOON)
    grows(tmp_path / "even")
    grows(tmp_path / "odd")
    cluster.storm("kill", "two-queries", "-w", "0")
    assert_once(tmp_path / "even", 0)
    assert_once(tmp_path / "odd", 1)


def copies(cluster):
    return cluster.told("status", "two-queries")["replication_count"]


def worker_of(cluster):
    """The supervisor of the topology's worker; None while it has none."""
    workers = cluster.told("status", "two-queries")["workers"]
    return workers[0]["supervisor_id"] if workers else None
