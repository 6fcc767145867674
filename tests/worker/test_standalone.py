"""Topologies whose tasks run elsewhere: on executors of a real standalone Spark cluster."""

import json
import os
import signal
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from stormkeeper.conf import defaults
from stormkeeper.state.storm import cluster
from stormkeeper.thrift.records import StormBase, TopologyStatus
from stormkeeper.topology import Topology, description
from stormkeeper.topology.package import archive
from stormkeeper.topology.package.archive import unpack
from stormkeeper.topology.package.code import collect
from stormkeeper.worker.shutdown import STOPPED
from support.leaders import lead
from support.packages import MADE_WITH, tree
from support.processes import all_gone
from support.spark_cluster import SparkCluster
from support.waiting import until
from support.worker import START_SECS, WorkerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.zookeeper,
]

CODE = {
    "job.py": """
from parts import where
from pyspark.sql import functions as F
from stormkeeper.topology import Topology

topology = Topology("job", conf={"folder": None})
told = F.udf(lambda value: where.told(value))

@topology.spout
def lines(spark, conf):
    print("asks for", spark.conf.get("spark.cores.max"))
    return spark.readStream.option("maxFilesPerTrigger", 2).text(conf["folder"] + "/in")

@topology.bolt(lines)
def out(lines, conf):
    often = lines.select(told("value")).writeStream.trigger(processingTime="100 milliseconds")
    return often.foreachBatch(where.writing_to(conf["folder"]))
""",
    "parts/where.py": """
import json
import os
from pathlib import Path

def told(value):
    here = {"file": __file__, "folder": os.getcwd(), "python": os.environ.get("OF_EXECUTORS")}
    return json.dumps({"value": value, "jars": list(map(str, Path().glob("*.jar"))), **here})

def writing_to(folder):
    def write(batch, number):
        rows = [json.loads(row[0]) for row in batch.collect()]
        new = Path(folder, f"{number}.new")
        new.write_text(json.dumps(rows))
        new.rename(Path(folder, "out", f"{number}.json"))
    return write
""",
}


@pytest.fixture
def spark_cluster(tmp_path):
    """A cluster that has enough for two workers' shares, and no more."""
    (tmp_path / "cluster").mkdir()
    with SparkCluster(tmp_path / "cluster", cores=2) as running:
        yield running


@pytest.fixture
def package(tmp_path):
    code = collect(tree(tmp_path / "mine", CODE) / "job.py", tmp_path)
    topology = Topology("job")
    lines = topology.spout(lambda spark: spark, name="lines")
    topology.bolt(lines, name="out")(lambda lines: lines)
    jar = tmp_path / "empty.jar"
    jar.write_bytes(b"PK\x05\x06" + bytes(18))
    with (tmp_path / "package.zip").open("w+b") as file:
        contents = archive.PackageContents(code, description.of_topology(topology), jars=(jar,))
        archive.write(file, contents, MADE_WITH)
        unpack(file, tmp_path / "package")
    return tmp_path / "package"


class Running:
    """A topology with a folder of its own, and the workers that were started for it."""

    def __init__(self, folder, launch):
        self.folder = folder
        self.storm_id = f"{folder.name}-1-1700000000"
        self._launch = launch
        self._launches = 0
        self.worker = None
        for name in ("in", "out"):
            (folder / name).mkdir(parents=True)

    def add(self, *lines):
        """Add files of one line each."""
        for line in lines:
            new = self.folder / f"new-{line}"
            new.write_text(f"{line}\n")
            new.rename(self.folder / "in" / f"{line}.txt")

    def start(self, **conf):
        self._launches += 1
        claim = f"out=1-1-{self._launches}"
        self.worker = self._launch(self.folder, self.storm_id, claim, conf)
        return self.worker

    @property
    def rows(self):
        files = [json.loads(file.read_text()) for file in (self.folder / "out").glob("*.json")]
        return [row for rows in files for row in rows]

    def wait_written(self, *lines):
        """Wait until just these lines are written, each once."""
        until(lambda: len(self.rows) >= len(lines), START_SECS)
        assert Counter(row["value"] for row in self.rows) == Counter(lines)


@pytest.fixture
def storm(zookeeper_settings):
    """The cluster's state, of a leader."""
    storm = cluster.connect(defaults().with_values(zookeeper_settings()))
    yield storm
    storm.disconnect()


@pytest.fixture
def topology(spark_cluster, package, storm, zookeeper_settings, tmp_path):
    """Makes topologies that run on the cluster, by their names."""
    leader = lead(storm)
    with ExitStack() as stack:

        def launch(folder, storm_id, claim, conf):
            values = {
                **zookeeper_settings(),
                "storm.local.dir": str(folder / "local"),
                "topology.checkpoint.shared": True,
                # One core for each slot, whatever machine this is.
                "supervisor.slots.ports": [
                    *range(6700, 6700 + len(os.sched_getaffinity(0))),
                ],
                "spark.master": spark_cluster.master,
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
                "folder": str(folder),
                **conf,
            }
            options = ["--root", str(package), "--claim", claim]
            script = Path("code/job.py")
            worker = WorkerProcess(script, values, folder, options=options, storm_id=storm_id)
            return stack.enter_context(worker)

        def make(name):
            running = Running(tmp_path / name, launch)
            base = StormBase(name, TopologyStatus.ACTIVE, 1)
            leader.activate_storm(running.storm_id, base)
            return running

        yield make


def test_two_topologies_share_a_bare_spark_cluster(topology, spark_cluster, storm, tmp_path):
    python = tmp_path / "python-of-executors"
    python.write_text(f'#!/bin/sh\nOF_EXECUTORS=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    first, second = topology("first"), topology("second")
    for each in (first, second):
        each.add(*"abcde")

    # A Python that is not there is named, with what to do about it.
    first.start()
    second.start(**{"spark.pyspark.python": "/nowhere/python"})
    assert second.worker.ended(START_SECS) == 1, second.worker.text
    said = "\n".join(second.worker.errors)
    assert "executors of spark.master=spark://" in said
    assert "have no Python at /nowhere/python: name with spark.pyspark.python" in said

    # The first one never ends, and leaves the second one its share.
    second.start(**{"spark.pyspark.python": str(python)})
    for each in (first, second):
        each.worker.wait_for("^asks for 1$")
        each.wait_written(*"abcde")
    for row in first.rows + second.rows:
        assert Path(row["folder"]).is_relative_to(spark_cluster.work)
        assert ".zip/parts/where.py" in row["file"]
        assert row["jars"] == ["empty.jar"]
    assert {row["python"] for row in first.rows} == {None}
    assert {row["python"] for row in second.rows} == {"1"}

    # They go on side by side.
    for each in (first, second):
        each.add(*"fg")
        each.wait_written(*"abcdefg")
    family = first.worker.family() + second.worker.family()
    second.worker.send(signal.SIGTERM)
    assert second.worker.ended() == STOPPED, second.worker.text

    # Without any executor a driver would wait for ever.
    spark_cluster.lose_worker()
    assert first.worker.ended() == 1, first.worker.text
    said = "\n".join(first.worker.errors)
    assert f"Spark has lost all executors at spark.master={spark_cluster.master}" in said
    assert storm.ended_queries(first.storm_id) == frozenset()
    all_gone(family)
    assert not [*tmp_path.glob("*/code-*")]
