"""A user's day with a whole cluster: real daemons and workers, of which any may be killed."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from stormkeeper.conf import Address
from stormkeeper.pacemaker.client.pool import PacemakerPool
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize
from support.cluster import RealCluster
from support.two_queries import SOON, TWO_QUERIES, assert_once, grows, written
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

#: How long a session with ZooKeeper lives of which it hears nothing.
SESSION_SECS = 8.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with RealCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def numbers(cluster, tmp_path):
    """The topology of two queries, which runs, and the folder that it writes to."""
    cluster.storm("submit", str(TWO_QUERIES), "-c", f"output={tmp_path}")
    yield tmp_path
    cluster.storm("kill", "two-queries", "-w", "0", check=False)


def workers(cluster, name="two-queries"):
    return cluster.told("status", name)["workers"]


def places(cluster, name="two-queries"):
    return {(one["supervisor_id"], one["port"]) for one in workers(cluster, name)}


def uptimes(cluster):
    """How long each worker has run, in seconds, as it told last, by its slot."""
    return {(one["supervisor_id"], one["port"]): one["uptime_secs"] for one in workers(cluster)}


def pids(storm_id):
    """The processes that are a topology's workers, by the slot that each says it is in."""
    found = {}
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = process.info["cmdline"] or []
        if "stormkeeper.worker" in line and storm_id in line:
            port = int(line[line.index("--port") + 1])
            found[port] = process.info["pid"]
    return found


def test_topology_runs_until_killed_through_every_fault(cluster, numbers):
    assert [each["name"] for each in cluster.told("list")] == ["two-queries"]
    found = cluster.told("status", "two-queries")
    assert found["status"] == "ACTIVE"
    assert len({one["supervisor_id"] for one in found["workers"]}) == 2
    grows(numbers / "even")
    grows(numbers / "odd")

    # A worker that is killed is started again where it was, and goes on.
    before = places(cluster)
    port, pid = next(iter(pids(found["id"]).items()))
    os.kill(pid, signal.SIGKILL)
    until(lambda: pids(found["id"]).get(port) not in (None, pid), SOON)
    grows(numbers / "even")
    grows(numbers / "odd")
    assert places(cluster) == before

    # Its queries rest, and go on.
    cluster.storm("deactivate", "two-queries")
    comes_to_rest(cluster, found["id"], numbers)
    assert cluster.told("status", "two-queries")["status"] == "INACTIVE"
    cluster.storm("activate", "two-queries")
    grows(numbers / "even")
    grows(numbers / "odd")

    # One worker runs both, and two do again.
    cluster.storm("rebalance", "two-queries", "-w", "0", "-n", "1")
    assert len(workers(cluster)) == 1
    grows(numbers / "even")
    cluster.storm("rebalance", "two-queries", "-w", "0", "-n", "2")
    assert len(workers(cluster)) == 2
    grows(numbers / "odd")

    cluster.storm("kill", "two-queries", "-w", "0")
    assert cluster.told("list") == []
    until(lambda: not pids(found["id"]), SOON)
    assert_once(numbers / "even", 0)
    assert_once(numbers / "odd", 1)


def beats(cluster, storm_id):
    """What the workers of a topology told last."""
    with PacemakerPool([Address.parse(each.address, 0) for each in cluster.pacemakers]) as pool:
        found = pool.read(f"/workerbeats/{storm_id}").by_path.values()
    return [deserialize(ClusterWorkerHeartbeat, one.value) for one in found]


def comes_to_rest(cluster, storm_id, folder):
    """Wait until a topology's workers rest; they write nothing for three more pulses of each."""
    until(lambda: all(beat.inactive for beat in beats(cluster, storm_id)), SOON)
    before = written(folder / "even"), written(folder / "odd")
    ages = [beat.uptime_secs for beat in beats(cluster, storm_id)]
    assert len(ages) == 2
    until(lambda: min(beat.uptime_secs for beat in beats(cluster, storm_id)) > max(ages) + 3, SOON)
    assert (written(folder / "even"), written(folder / "odd")) == before


@pytest.mark.usefixtures("numbers")
def test_a_script_runs_beside_a_topology(cluster):
    cluster.storm("submit", str(EXAMPLES / "plain_streaming.py"), "imports")
    assert {each["name"] for each in cluster.told("list")} == {"two-queries", "imports"}
    assert len(places(cluster) | places(cluster, "imports")) == 3
    cluster.storm("kill", "imports", "-w", "0")


def test_workers_outlive_their_supervisors(cluster, numbers):
    storm_id = cluster.told("status", "two-queries")["id"]
    before = pids(storm_id)
    assert len(before) == 2
    for supervisor in cluster.supervisors:
        supervisor.kill()
    grows(numbers / "even")
    for supervisor in cluster.supervisors:
        supervisor.start()
    grows(numbers / "odd")
    assert pids(storm_id) == before


@pytest.mark.usefixtures("numbers")
def test_the_next_leader_keeps_a_kill_and_its_deadline(cluster):
    storm_id = cluster.told("status", "two-queries")["id"]
    before = pids(storm_id)
    cluster.storm("kill", "two-queries", "-w", "20", "--no-wait")
    asked = time.time()
    leader = cluster.nimbuses[cluster.leader()]
    leader.kill()
    try:
        found = cluster.told("status", "two-queries")
        assert found["status"] == "KILLED"
        assert pids(storm_id) == before
        until(lambda: not cluster.told("list"), SOON)
        assert time.time() - asked > 19
    finally:
        leader.start()


def test_the_whole_cluster_is_stopped_and_started(cluster, numbers):
    storm_id = cluster.told("status", "two-queries")["id"]
    for daemon in (*cluster.nimbuses, *cluster.supervisors):
        assert daemon.stop() == 0
    for number in range(len(cluster.supervisors)):
        cluster.kill_workers(number)
    assert not pids(storm_id)
    for daemon in (*cluster.nimbuses, *cluster.supervisors):
        daemon.start()
    grows(numbers / "even")
    grows(numbers / "odd")
    assert cluster.told("status", "two-queries")["id"] == storm_id
    cluster.storm("kill", "two-queries", "-w", "0")
    assert_once(numbers / "even", 0)
    assert_once(numbers / "odd", 1)


def test_workers_run_through_an_outage_of_zookeeper(cluster, numbers):
    storm_id, before = cluster.told("status", "two-queries")["id"], uptimes(cluster)
    own = pids(storm_id)
    assert len(own) == 2
    cluster.zookeeper.stop()
    stopped = time.monotonic()
    try:
        # Longer than a session lives.
        while time.monotonic() < stopped + 1.5 * SESSION_SECS:
            grows(numbers / "even")
            grows(numbers / "odd")
    finally:
        cluster.zookeeper.start()
    until(lambda: cluster.storm("status", "two-queries", check=False).returncode == 0, SOON)
    # They beat, and are the same ones: their time has gone on.
    after = {place: secs + SESSION_SECS for place, secs in before.items()}
    until(lambda: all(uptimes(cluster)[place] > after[place] for place in after), SOON)
    assert uptimes(cluster).keys() == before.keys()

    # What is decided from now on reaches them.
    cluster.storm("deactivate", "two-queries")
    comes_to_rest(cluster, storm_id, numbers)
    cluster.storm("activate", "two-queries")
    grows(numbers / "even")
    grows(numbers / "odd")
    assert pids(storm_id) == own, "nobody was started again"
    cluster.storm("kill", "two-queries", "-w", "0")
    assert_once(numbers / "even", 0)
    assert_once(numbers / "odd", 1)
