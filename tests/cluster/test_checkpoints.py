"""A topology is killed and goes on under another name, on machines that share no checkpoint."""

import json
from pathlib import Path

import pytest

from support.cluster import RealCluster
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

TWO_QUERIES = str(Path(__file__).resolve().parents[2] / "examples" / "two_queries.py")

#: Spark's drivers start one after another, on a machine that has other things to do.
SOON = 180.0

#: Each machine has its own.
UNSHARED = {"topology.checkpoint.dir": None, "topology.checkpoint.shared": False}


@pytest.fixture
def cluster(tmp_path):
    with RealCluster(tmp_path / "cluster", nimbuses=1, slots=1, conf=UNSHARED) as cluster:
        yield cluster


def written(folder):
    """The numbers in a file sink's folder, as its log has them: what a reader gets."""
    entries = [file for file in folder.glob("_spark_metadata/*") if file.name[0] != "."]
    lines = {line for entry in entries for line in entry.read_text().splitlines()[1:]}
    files = {Path(json.loads(line)["path"].removeprefix("file://")) for line in lines}
    return sorted(json.loads(line)["value"] for file in files for line in file.open())


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


def test_a_topology_goes_on_after_a_kill_and_leaves_nothing_after_a_purge(cluster, tmp_path):
    even, odd = tmp_path / "even", tmp_path / "odd"
    output = ("-c", f"output={tmp_path}")
    cluster.storm("submit", TWO_QUERIES, *output)
    old = cluster.told("status", "two-queries")["id"]
    grow(even, odd)
    refused = cluster.storm("submit", TWO_QUERIES, "b", *output, "--from", old, check=False)
    assert refused.returncode == 1
    assert f"{old} is ACTIVE" in refused.stderr
    cluster.storm("kill", "two-queries", "-w", "0")
    before = checkpoints(cluster)
    assert {folder for _, folder in before.values()} == {old}
    assert {place for place, _ in before.values()} == {"supervisor-0", "supervisor-1"}

    told = cluster.storm("submit", TWO_QUERIES, "again", *output, "--from", "two-queries")
    assert "begins anew" not in told.stderr
    grow(even, odd)
    assert checkpoints(cluster) == before
    cluster.storm("kill", "again", "-w", "0", "--purge")
    until(lambda: not checkpoints(cluster), SOON)
    for folder, first in ((even, 0), (odd, 1)):
        values = written(folder)
        assert values == list(range(first, values[-1] + 1, 2))

    gone = cluster.storm("submit", TWO_QUERIES, "third", *output, "--from", "again", check=False)
    assert gone.returncode == 1
    assert "there are no checkpoints of again" in gone.stderr
