"""A real pipeline beside Storm: its workers' own bytes, whose components only Nimbus knows.

The bytes are those that Storm 2.8 and 3.0 wrote. The Nimbus is ours, and has the topologies as
Storm's would have left them.
"""

from types import SimpleNamespace

import pytest

from stormkeeper.errors import TableError
from stormkeeper.history import component_stats
from stormkeeper.history.database import HistoryDatabase
from stormkeeper.local import reservations
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import tables
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import Assignment
from stormkeeper.thrift.serialization import Codec, deserialize
from support import vectors
from support.daemon import DaemonProcess
from support.heartbeats import path
from support.memory_state import MemoryEnsemble
from support.nimbus_service import nimbuses
from support.statistics_examples import example
from support.storm_topologies import leave
from support.tables import present
from support.waiting import until

SMALL = example("small")
NODE, PORT = "sup-aaaa-10.0.0.1", 6700

#: Within which Spark has started and a batch is written, on a busy machine.
SPARK_SECS = 120.0

#: The components of the topologies that the heartbeats of 2.8 and 3.0 are of: kind, and tasks.
COMPONENTS = {"a-lines": ("spout", 1), "b-words": ("bolt", 2), "c-count": ("bolt", 1)}
NAMED = {1: "a-lines", 2: "b-words", 3: "b-words", 4: "c-count"}


def znode(suffix):
    """What Storm 3.0 wrote to a znode."""
    (found,) = (v["hex"] for v in vectors.load("znodes-zstd") if v["path"].endswith(suffix))
    return bytes.fromhex(found)


def of_28():
    (found,) = (v["hex"] for v in vectors.load("storm-2.8") if "gzip.ClusterWorker" in v["name"])
    return bytes.fromhex(found)


def topology(storm_id):
    """A topology as `leave` takes it, whose executors are those of an assignment of Storm's."""
    declared = {
        id_: {"type": kind, "parallelism_hint": 1, "json_conf": f'{{"topology.tasks": {tasks}}}'}
        for id_, (kind, tasks) in COMPONENTS.items()
    }
    return SimpleNamespace(
        answers={"id": storm_id, "name": storm_id.split("-")[0]},
        assignment=deserialize(Assignment, znode("/assignments/wc-1-1700000000")),
        _input={"system_topology_components": declared},
    )


@pytest.fixture
def nimbus(tmp_path):
    """Starts a Nimbus that knows the topologies, at a port."""
    running = []

    def start(port):
        storm = StormClusterState(MemoryEnsemble().session(), Codec())
        running.append(nimbuses(tmp_path / "nimbus", storm, port=port))
        (leading,) = running[0].__enter__()
        leave(leading, SMALL, **{"topology.worker.timeout.secs": 600})
        for storm_id in ("old-1-1700000000", "wc-1-1700000000"):
            leave(leading, topology(storm_id))

    yield start
    for each in running:
        each.__exit__(None, None, None)


def components(folder, storm_id):
    """What is read of a topology's components in the last ten minutes, as executors each."""
    try:
        with HistoryDatabase(folder) as past:
            rows = component_stats.newest(past, storm_id, window="600")
    except TableError:  # nothing was written yet
        return {}
    return {row["component"]: row for row in rows}


def status_of(folder, name):
    workers = present(folder / tables.LIVENESS, tables.WORKER_LIVENESS)
    return {row["status"] for row in workers if row["topology"] == name}


@pytest.mark.slow
@pytest.mark.spark
def test_storms_workers_have_the_names_that_nimbus_gives_them(pacemaker, nimbus, tmp_path):
    with PacemakerClient(pacemaker.address) as client:
        for beat in SMALL._input["heartbeats"]:
            where = path(SMALL.answers["id"], beat["node"], beat["port"])
            client.send_pulse(where, bytes.fromhex(beat["gzip_hex"]))
        beat = znode(f"/workerbeats/wc-1-1700000000/{NODE}-{PORT}")
        client.send_pulse(path("wc-1-1700000000", NODE, PORT), beat)
        client.send_pulse(path("old-1-1700000000", NODE, PORT), of_28())
    port = reservations.reserve()
    folder = tmp_path / "tables"
    settings = {
        "storm.local.dir": str(tmp_path),
        "pacemaker.servers": [pacemaker.address],
        "pipeline.trigger.secs": 1,
        "pipeline.statistics.secs": 2,
        "pipeline.late.secs": 1,
        "nimbus.task.timeout.secs": 2,
        "nimbus.seeds": ["127.0.0.1"],
        "nimbus.thrift.port": port,
        "spark.master": "local[2]",
    }
    ready = "pipeline writing to "
    with DaemonProcess("pipeline", ready, settings, ready_secs=SPARK_SECS) as pipeline:
        until(lambda: "Nimbus does not name the components" in pipeline.log)
        unnamed = until(lambda: components(folder, "small"))
        assert {name.split()[0] for name in unnamed} == {"tasks"}
        nimbus(port)
        until(lambda: set(components(folder, "small")) == {*SMALL.tasks.values()})
        # Of 2.8 there are two executors only.
        until(lambda: set(components(folder, "old")) == {NAMED[1], NAMED[2]})
        until(lambda: set(components(folder, "wc")) == {*NAMED.values()})
        split = components(folder, "small")["split"]
        assert "Nimbus names the components of executors again" in pipeline.log
        # What was read before Nimbus was there is all there is: the workers have not beaten since.
        assert split["read_at"] == unnamed["tasks 4-5"]["read_at"]
        # Its own timeout counts for the one that has one, though nobody knew it at first.
        until(lambda: status_of(folder, "small") == {"late"})
        assert status_of(folder, "wc") == {"dead"}
        assert pipeline.stop() == 0
    (page,) = (
        answer["result"]["id_to_bolt_agg_stats"]["split"]
        for answer in SMALL.answers["topology_page"]
        if answer["window"] == "600" and answer["sys"]
    )
    bolt, common = page["specific_stats"]["bolt"], page["common_stats"]
    assert split["executed"] == bolt["executed"]
    assert (split["executors"], split["tasks"]) == (common["num_executors"], common["num_tasks"])
    assert split["capacity"] == pytest.approx(bolt["capacity"], rel=1e-9)
    (latency,) = (
        answer["result"]["window_to_stats"]["600"]["specific_stats"]["bolt"]["execute_latency_ms"]
        for answer in SMALL.answers["component_page"]
        if (answer["component"], answer["window"], answer["sys"]) == ("split", "600", True)
    )
    assert split["execute_ms_avg"] == pytest.approx(latency, rel=1e-9)
