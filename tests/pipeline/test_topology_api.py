"""The pipeline as a topology, in a cluster of real processes."""

import os
import signal
from pathlib import Path

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError, TableError
from stormkeeper.history import manifest
from stormkeeper.history.manifest import sole_writer
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import process, queries, tables, topology_api
from support.cluster import COMMAND_SECS, RealCluster
from support.heartbeats import heartbeat, path
from support.processes import worker_pid
from support.tables import origin, present, state, store
from support.waiting import until

EXAMPLE = Path(__file__).parents[2] / "examples" / "heartbeat_tables.py"


@pytest.mark.parametrize("published", [7, 8])
def test_a_first_batch_that_follows_the_tables_is_taken(tmp_path, published):
    with store(tmp_path) as tables_of_query:
        tables_of_query.publish(origin(published), {"state": state(1)})
    tables.check_first_batch(origin(8), tmp_path)
    tables.check_first_batch(origin(0, "another"), tmp_path)


@pytest.mark.parametrize("published", [None, origin(6), origin(9), origin(7, "another")])
def test_a_first_batch_that_does_not_is_refused_with_the_remedy(tmp_path, published):
    if published is not None:
        with store(tmp_path) as tables_of_query:
            tables_of_query.publish(published, {"state": state(1)})
    with pytest.raises(TableError, match=r"must be a folder that they share, too\. If the tab"):
        tables.check_first_batch(origin(8), tmp_path)


def test_without_a_pacemaker_there_is_nothing_to_read():
    with pytest.raises(ConfigError, match=r"no Pacemaker to read: set pacemaker\.servers in the"):
        topology_api.ages(None, defaults())


@pytest.mark.parametrize("query", queries.NAMES)
def test_nobody_else_writes_what_a_pipeline_keeps(tmp_path, query):
    conf = defaults().with_values({"pipeline.tables.dir": str(tmp_path)})
    with (
        process._places(conf),
        pytest.raises(TableError, match="another pipeline writes to"),
        sole_writer(tmp_path / query),
    ):
        pass
    with (
        sole_writer(tmp_path / query),
        pytest.raises(TableError, match="another pipeline writes to"),
        process._places(conf),
    ):
        pass


@pytest.mark.slow
@pytest.mark.spark
def test_query_restarts_in_its_process_but_not_without_tables(spark, pacemaker, tmp_path):
    conf = defaults().with_values(
        {
            "pacemaker.servers": [pacemaker.address],
            "pipeline.tables.dir": str(tmp_path / "tables"),
            "pipeline.trigger.secs": 0.1,
            "pipeline.analyses.secs": 0,
        }
    )
    place = tmp_path / "tables" / tables.LIVENESS

    def start():
        writer = topology_api.liveness(topology_api.ages(spark, conf), conf)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def newest():
        found = manifest.load(place)
        return -1 if found is None else found.origin.batch

    def run(batch):
        """Run the query until it has published a later batch; return which one."""
        query = start()
        try:
            until(lambda: newest() > batch or not query.isActive)
            assert query.isActive, query.exception()
        finally:
            query.stop()
        return manifest.load(place).origin

    first = run(-1)
    second = run(first.batch)  # as where a topology is activated again
    assert second.query == first.query
    (place / "manifest.json").unlink()
    query = start()
    try:
        until(lambda: not query.isActive)
        assert "must be a folder that they share" in str(query.exception())
    finally:
        query.stop()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.zookeeper
def test_topology_keeps_the_tables_and_resumes_after_a_kill(tmp_path):
    place = tmp_path / "tables"

    def newest():
        found = {name: manifest.load(place / name) for name in queries.NAMES}
        return {name: each.origin for name, each in found.items() if each is not None}

    def workers():
        rows = present(place / tables.LIVENESS, tables.WORKER_LIVENESS)
        return {row["storm_id"] for row in rows}

    def go_on(before):
        """Wait until both queries have published more batches, and return the newest."""
        until(
            lambda: all(newest()[name].batch > before[name].batch + 1 for name in before),
            COMMAND_SECS,
        )
        return newest()

    conf = {
        "pipeline.tables.dir": str(place),
        "pipeline.trigger.secs": 1,
        "pipeline.statistics.secs": 2,
        "pipeline.analyses.secs": 1,
    }
    with RealCluster(tmp_path, nimbuses=1, supervisors=1, slots=1, conf=conf) as cluster:
        with PacemakerClient(cluster.pacemakers[0].address) as client:
            client.send_pulse(path("silent"), heartbeat("silent"))
        cluster.storm("submit", str(EXAMPLE))
        until(lambda: len(newest()) == 2, COMMAND_SECS)
        first = go_on(newest())

        # It reports to the Pacemakers itself that it reads.
        until(lambda: {"silent"} < workers(), COMMAND_SECS)
        with (
            pytest.raises(TableError, match="another pipeline writes to"),
            process._places(defaults().with_values(conf)),
        ):
            pass

        os.kill(worker_pid(cluster.told("status", "heartbeat-tables")["id"]), signal.SIGKILL)
        second = go_on(first)
        assert {name: each.query for name, each in second.items()} == {
            name: each.query for name, each in first.items()
        }
        rounds = manifest.load(place / tables.ALERTS).version
        until(lambda: manifest.load(place / tables.ALERTS).version > rounds)
