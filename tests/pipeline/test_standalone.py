"""The pipeline on executors of a real standalone Spark cluster, and in one's own application."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from stormkeeper.history import manifest
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import tables
from support.heartbeats import bolt, heartbeat, path, spout
from support.pipelines import START_SECS, PipelineProcess
from support.processes import all_gone, family, send
from support.spark_cluster import SparkCluster
from support.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "heartbeat_tables_on_spark.py"

TOPOLOGIES = [f"t-{number}-17" for number in range(7)]

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def beat(servers, counted):
    """Have two workers of each topology say what they have counted."""
    for number, storm_id in enumerate(TOPOLOGIES):
        with PacemakerClient(servers[number % len(servers)].address) as client:
            for node, first in (("a", 1), ("b", 3)):
                executors = {
                    (first, first): spout(counted + number),
                    (first + 1, first + 1): bolt({("lines", "default"): counted + number}),
                }
                executors[first + 1, first + 1].component = "words"
                client.send_pulse(path(storm_id, node), heartbeat(storm_id, executors))


@contextmanager
def application(master, servers, folder, tmp_path):
    """Run the example by ``spark-submit``, with executors of the same Python."""
    spark = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    addresses = ", ".join(server.address for server in servers)
    given = [
        f"pacemaker.servers=[{addresses}]",
        f"pipeline.tables.dir={folder}",
        "pipeline.trigger.secs=1",
        "pipeline.statistics.secs=2",
        "pipeline.statistics.parts=3",
    ]
    options = ["--master", master, "--conf", "spark.executor.memory=512m"]
    options += ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"]
    with (tmp_path / "application.log").open("ab") as log:
        process = subprocess.Popen(
            [str(spark), *options, str(EXAMPLE), *given],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            started = family(process.pid)
            send(started, signal.SIGKILL)
            process.wait()
            all_gone(started)


def test_tables_are_right_wherever_pulses_are_decoded(start_pacemaker, tmp_path):
    servers = [start_pacemaker(), start_pacemaker()]
    (tmp_path / "cluster").mkdir()
    place = tmp_path / "tables"
    with SparkCluster(tmp_path / "cluster", cores=2) as cluster:
        pipeline = PipelineProcess(
            place,
            [server.address for server in servers],
            {
                "storm.local.dir": str(tmp_path / "local"),
                "pipeline.trigger.secs": 1,
                "pipeline.statistics.secs": 2,
                "pipeline.statistics.parts": 3,
                "spark.master": cluster.master,
                "spark.driver.host": "127.0.0.1",
                "spark.executor.memory": "512m",
            },
        )

        def executed():
            rows = pipeline.rows(tables.STATISTICS, tables.COMPONENT_STATS)
            rows.sort(key=lambda row: row["read_at"])
            return {
                row["storm_id"]: row["executed"]
                for row in rows
                if row["window"] == ":all-time" and row["kind"] == "bolt"
            }

        def assert_right(counted):
            expected = {name: 2 * (counted + n) for n, name in enumerate(TOPOLOGIES)}
            until(lambda: executed() == expected, START_SECS)
            rows = pipeline.rows(tables.LIVENESS, tables.WORKER_LIVENESS)
            assert {row["storm_id"] for row in rows} == set(TOPOLOGIES)
            assert len(rows) == 2 * len(TOPOLOGIES)
            found = pipeline.rows(tables.LIVENESS, tables.SERVERS)
            assert [row["reachable"] for row in found] == [True, True]

        with pipeline:
            beat(servers, 100)
            pipeline.start().wait_published()
            assert any(cluster.work.glob("app-*")), "nothing ran on executors"
            assert_right(100)
        first = manifest.load(place / tables.STATISTICS).origin
        beat(servers, 200)
        with application(cluster.master, servers, place, tmp_path):
            assert_right(200)
        assert manifest.load(place / tables.STATISTICS).origin.query == first.query
        assert len([*cluster.work.glob("app-*")]) == 2
