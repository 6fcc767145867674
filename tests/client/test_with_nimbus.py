"""The commands with the real service of two Nimbuses, of which one leads; nothing is scheduled."""

import json
import os

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.client import topology_view
from stormkeeper.client.nimbus_connection import connect
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.serialization import Codec
from support.memory_state import MemoryEnsemble
from support.nimbus_service import nimbuses
from support.packages import tree

TOPOLOGY = """
from stormkeeper.topology import Topology

topology = Topology("word-count", conf={"topology.workers": 2, "limits": [1, 2.5]})

@topology.spout(parallelism=2)
def lines(spark):
    return spark.readStream.format("rate").load()

@topology.bolt(lines, lines)
def totals(lines, again):
    return lines.writeStream.format("noop")
"""


@pytest.fixture
def both(tmp_path):
    """The Nimbus that leads, and the other one."""
    ensemble = MemoryEnsemble()
    sessions = [StormClusterState(ensemble.session(), Codec()) for _ in range(2)]
    with nimbuses(tmp_path / "nimbuses", *sessions) as running:
        yield running


@pytest.fixture
def run(both, tmp_path):
    """Run a command that knows of the other Nimbus alone."""
    (tmp_path / "home").mkdir()
    env = {**os.environ, "HOME": str(tmp_path / "home")}
    env.pop("STORM_CONF_DIR", None)

    def invoke(*arguments):
        seed = f"nimbus.seeds=[127.0.0.1:{both[1].port}]"
        return CliRunner(env=env).invoke(command, [*map(str, arguments), "-c", seed])

    return invoke


@pytest.fixture
def submitted(run, tmp_path):
    """A topology whose package is longer than a message may be."""
    files = {"topology.py": TOPOLOGY, "table.bin": os.urandom(2_000_000)}
    told = run("submit", tree(tmp_path / "code", files), "-c", "day=3", "--no-wait")
    assert told.exit_code == 0, told.output
    assert told.stdout == "Finished submitting topology: word-count\n"
    return json.loads(run("list", "--json").stdout)[0]


def test_what_was_submitted_is_what_nimbus_has(both, submitted):
    leader = both[0]
    assert submitted["name"] == "word-count"
    assert submitted["replication_count"] == 2
    conf = json.loads(leader.handler.getTopologyConf(submitted["id"]))
    assert (conf["topology.workers"], conf["limits"], conf["day"]) == (2, [1, 2.5], 3)
    structure = leader.handler.getUserTopology(submitted["id"])
    assert structure.spouts.keys() == {"lines"}
    assert structure.bolts["totals"].common.parallelism_hint == 1


def test_the_status_of_one_that_is_not_scheduled(run, submitted):
    found = json.loads(run("status", "word-count", "--json").stdout)
    assert (found["id"], found["status"], found["workers"]) == (submitted["id"], "ACTIVE", [])
    assert [(each["id"], each["tasks"]) for each in found["components"]] == [
        ("lines", 2),
        ("totals", 1),
    ]
    assert "No workers." in run("status", "word-count").stdout


def test_a_name_that_is_taken(run, submitted, tmp_path):
    told = run("submit", tmp_path / "code")
    assert told.exit_code == 1
    assert f"there is a topology {submitted['name']} already" in told.stderr


@pytest.mark.usefixtures("submitted")
def test_its_life(run):
    assert run("deactivate", "word-count").stdout == "Deactivated topology: word-count\n"
    assert run("status", "word-count").stdout.startswith("word-count: INACTIVE")
    assert run("activate", "word-count").exit_code == 0
    assert run("rebalance", "word-count", "-w", "60", "-n", "1", "--no-wait").exit_code == 0
    told = run("activate", "word-count")
    assert told.exit_code == 1
    assert "is REBALANCING, and cannot activate: try again when" in told.stderr
    assert run("kill", "word-count", "-w", "60", "--no-wait").exit_code == 0
    told = run("kill", "word-count", "-w", "60", "--timeout", "0.1")
    assert told.exit_code == 4
    assert "it is KILLED until its wait is over" in told.stderr


@pytest.mark.usefixtures("submitted")
def test_a_component_that_is_not_there_is_said_in_storms_words(run):
    told = run("rebalance", "word-count", "-e", "nothing=2")
    assert told.exit_code == 1
    assert told.stderr == (
        "storm: Invalid component nothing for topology word-count, valid values are lines,totals\n"
    )


def test_a_leader_that_was_deposed_is_left(both, submitted):
    former, next_one = both
    settings = former.conf.with_values(
        {"nimbus.seeds": [f"127.0.0.1:{each.port}" for each in both]}
    )
    with connect(settings) as connected:
        assert topology_view.find_topology(connected, "word-count").id == submitted["id"]
        former.elector.remove_from_leader_lock_queue()
        next_one.lead()
        connected.nimbus.deactivate("word-count")
        assert topology_view.find_topology(connected, "word-count").status == "INACTIVE"
