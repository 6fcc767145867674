"""Topologies in a cluster of real processes, by the commands that a user types."""

import json
from pathlib import Path

import pytest

from support.cluster import COMMAND_SECS, RealCluster
from support.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.zookeeper,
    pytest.mark.timeout(900),
]


@pytest.fixture
def cluster(tmp_path):
    with RealCluster(tmp_path, nimbuses=1, slots=1) as cluster:
        yield cluster


def confs_of_workers(cluster):
    """What the workers that are there were started with, of their topologies' confs."""
    files = cluster.folder.glob("supervisor-*/workers/*/topology.json")
    return [json.loads(file.read_bytes()) for file in files]


def test_from_submit_to_kill(cluster):
    storm = cluster.storm
    assert storm("list").stdout == "No topologies running.\n"

    submitted = storm("submit", str(EXAMPLES / "word_count.py"))
    assert submitted.stdout == "Finished submitting topology: word-count\n"
    assert ": it runs at 127.0.0.1:" in submitted.stderr.splitlines()[-1]
    storm("jar", str(EXAMPLES / "plain_streaming.py"), "a-plain-one")

    names = [each["name"] for each in json.loads(storm("list", "--json").stdout)]
    assert names == ["a-plain-one", "word-count"]
    found = [json.loads(storm("status", name, "--json").stdout) for name in names]
    assert {worker["port"] for each in found for worker in each["workers"]} == {
        port for slots in cluster.slots for port in slots
    }

    def words():
        status = json.loads(storm("status", "word-count", "--json").stdout)
        return {each["id"]: each for each in status["components"]}["words"]

    assert words()["tasks"] == 1
    until(lambda: words()["emitted"], COMMAND_SECS)

    assert storm("deactivate", "word-count").stdout == "Deactivated topology: word-count\n"
    assert storm("status", "word-count").stdout.startswith("word-count: INACTIVE, for ")
    storm("activate", "word-count")
    changes = ("-e", "words=3", "-c", "own.key=changed")
    rebalanced = storm("rebalance", "word-count", "-w", "0", *changes)
    assert rebalanced.stdout == "Topology word-count is rebalancing\n"
    assert words()["tasks"] == 3
    assert "changed" in {conf.get("own.key") for conf in confs_of_workers(cluster)}
    until(lambda: words()["emitted"], COMMAND_SECS)

    killed = storm("kill", *names, "-w", "0").stdout
    assert killed == "".join(f"Killed topology: {name}\n" for name in names)
    assert storm("list").stdout == "No topologies running.\n"
