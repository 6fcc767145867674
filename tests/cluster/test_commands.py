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
    assert storm("status", "word-count").stdout.startswith("word-count: INACTIVE, submitted ")
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


FINITE = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
print("arguments:", sys.argv[1:], flush=True)
if sys.argv[1:]:
    raise ValueError(f"no such day: {sys.argv[1]}")
rows.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
"""


def test_a_script_that_ends_by_itself_and_one_that_crashes(cluster, tmp_path):
    storm, script = cluster.storm, tmp_path / "finite.py"
    script.write_text(FINITE)
    storm("submit", str(script), "ends")
    until(lambda: storm("list").stdout.splitlines()[-1].split()[1] == "COMPLETED", COMMAND_SECS)
    assert storm("status", "ends").stdout.startswith("ends: COMPLETED, ")
    assert "arguments: []" in storm("logs", "ends").stdout

    told = storm("submit", str(script), "crashes", "--json", "--", "29-feb", check=False)
    assert told.returncode == 4, told.stderr
    assert "ValueError: no such day: 29-feb" in told.stderr
    assert "the worker in slot " in told.stderr
    assert " crashed (1 in a row): it ended with exit code 1" in told.stderr
    assert "`storm kill crashes` ends it" in told.stderr
    assert json.loads(told.stdout)["done"] is False
    [crashes] = [each for each in json.loads(storm("list", "--json").stdout) if each["health"]]
    assert (crashes["name"], crashes["health"]["state"]) == ("crashes", "crashing")
    assert "ValueError: no such day: 29-feb" in crashes["health"]["error"]

    found = json.loads(storm("status", "--json").stdout)
    assert [each["leader"] for each in found["nimbuses"]] == [True]
    assert [each["slots"] for each in found["supervisors"]] == [1, 1]
    assert [each["name"] for each in found["topologies"]] == ["crashes", "ends"]
