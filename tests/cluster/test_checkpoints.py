"""A topology is killed and goes on under another name, on machines that share no checkpoint."""

import pytest

from support.cluster import RealCluster
from support.two_queries import SOON, TWO_QUERIES, assert_once, written
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark]

#: Each machine has its own.
UNSHARED = {"topology.checkpoint.dir": None, "topology.checkpoint.shared": False}


@pytest.fixture
def cluster(tmp_path):
    with RealCluster(tmp_path / "cluster", nimbuses=1, slots=1, conf=UNSHARED) as cluster:
        yield cluster


def grow(*folders):
    """Wait until there is more in each file sink's folder than now."""
    before = [len(written(folder)) for folder in folders]
    until(lambda: all(len(written(f)) > n for f, n in zip(folders, before, strict=True)), SOON)


def checkpoints(cluster):
    """Which query has its checkpoint on which machine, and in which folder."""
    return {
        place.name: (place.parent.parent.parent.name, place.parent.name)
        for place in cluster.folder.glob("supervisor-*/checkpoints/*/*")
    }


def test_topology_continues_after_kill_and_purge_leaves_nothing(cluster, tmp_path):
    even, odd = tmp_path / "even", tmp_path / "odd"
    output = ("-c", f"output={tmp_path}")
    cluster.storm("submit", str(TWO_QUERIES), *output)
    old = cluster.told("status", "two-queries")["id"]
    grow(even, odd)
    refused = cluster.storm("submit", str(TWO_QUERIES), "b", *output, "--from", old, check=False)
    assert refused.returncode == 1
    assert f"{old} is ACTIVE" in refused.stderr
    cluster.storm("kill", "two-queries", "-w", "0")
    before = checkpoints(cluster)
    assert {folder for _, folder in before.values()} == {old}
    assert {place for place, _ in before.values()} == {"supervisor-0", "supervisor-1"}

    told = cluster.storm("submit", str(TWO_QUERIES), "again", *output, "--from", "two-queries")
    assert "starts afresh" not in told.stderr
    grow(even, odd)
    assert checkpoints(cluster) == before
    cluster.storm("kill", "again", "-w", "0", "--purge")
    until(lambda: not checkpoints(cluster), SOON)
    assert_once(even, 0)
    assert_once(odd, 1)

    gone = cluster.storm(
        "submit", str(TWO_QUERIES), "third", *output, "--from", "again", check=False
    )
    assert gone.returncode == 1
    assert "there are no checkpoints of again" in gone.stderr
