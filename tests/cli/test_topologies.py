"""The commands for a cluster's topologies, with a small Nimbus."""

import json
import signal

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.client import topology_commands, topology_view
from stormkeeper.errors import RpcUnavailableError
from stormkeeper.thrift.nimbus import (
    CommonAggregateStats,
    ComponentAggregateStats,
    SupervisorSummary,
)
from support.small_nimbus import SmallNimbus, serving


@pytest.fixture
def nimbus():
    return SmallNimbus()


@pytest.fixture
def run(environ, nimbus, monkeypatch):
    """Run a command on the cluster of the small Nimbus."""
    monkeypatch.setattr(topology_commands, "PERIOD_SECS", 0.01)
    with serving(nimbus) as seed:

        def invoke(*arguments):
            return CliRunner(env=environ).invoke(
                command, [*arguments, "-c", f"nimbus.seeds=[{seed}]"]
            )

        yield invoke


def test_an_empty_cluster_in_storms_words(run):
    told = run("list")
    assert (told.exit_code, told.stdout) == (0, "No topologies running.\n")
    assert json.loads(run("list", "--json").stdout) == []


def test_topologies_are_listed(run, nimbus):
    nimbus.has("wc")
    nimbus.has("a-first")
    lines = run("list").stdout.splitlines()
    assert lines[0].split()[:2] == ["Topology_name", "Status"]
    assert [line.split()[0] for line in lines[2:]] == ["a-first", "wc"]
    assert [each["name"] for each in json.loads(run("list", "--json").stdout)] == ["a-first", "wc"]


def test_one_whose_queries_have_ended_is_completed(run, nimbus):
    standing = nimbus.has("wc")
    standing.sched_status, standing.workers = "Completed", []
    assert run("list").stdout.splitlines()[2].split()[:2] == ["wc", "COMPLETED"]
    assert json.loads(run("list", "--json").stdout)[0]["status"] == "COMPLETED"
    assert json.loads(run("status", "wc", "--json").stdout)["status"] == "COMPLETED"
    told = run("status", "wc").stdout
    assert told.startswith("wc: COMPLETED, submitted 17 s ago\n")
    assert "all queries have ended. `storm logs wc` shows their output." in told
    standing.status = "KILLED"
    assert run("status", "wc").stdout.startswith("wc: KILLED")


def test_the_status_of_one(run, nimbus):
    standing = nimbus.has("wc")
    standing.components["id_to_spout_agg_stats"] = {
        "lines": ComponentAggregateStats(common_stats=CommonAggregateStats(1, 2, emitted=7))
    }
    told = run("status", "wc")
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("wc: ACTIVE, submitted 17 s ago\n")
    standing.sched_status = None  # as by Storm's own Nimbus
    assert "not planned yet" not in run("status", "wc").stdout
    assert "lines      spout" in told.stdout
    assert "node-1:6700" in told.stdout
    found = json.loads(run("status", "wc", "--json").stdout)
    assert (found["id"], found["workers"][0]["port"]) == (standing.id, 6700)


def test_the_status_of_the_cluster(run, nimbus):
    nimbus.has("wc")
    nimbus.has("waits").sched_status = "Not enough slots: 1 slot is missing, and none is free"
    memory = {"memory.mb": 4096.0}
    nimbus.supervisors = [
        SupervisorSummary("node-2", 90, 2, 0, "s2", "0.1", memory, 0.0, refuses="disk\x1b is full"),
        SupervisorSummary("node-1", 7_260, 4, 3, "s1", "0.1", memory, 1024.0),
        SupervisorSummary("node-2", 5, 1, 2, "s3"),
        SupervisorSummary("node-4", 5, 0, 0, "s4", "2.8.8", java_only=True),
    ]
    nimbus.disk_fault = "it is\x1b full"
    host, port = nimbus.leader
    told = run("status")
    assert told.exit_code == 0, told.output
    assert [" ".join(line.split()) for line in told.stdout.splitlines()] == [
        "NIMBUS LEADS RUNS FOR RELEASE",
        f"{host}:{port} yes 1 s 2.8.0",
        f"the Nimbus {host}:{port} takes no uploads: it is\\x1b full",
        "",
        "SUPERVISOR FREE SLOTS FREE MEMORY RUNS FOR RELEASE",
        "node-1 1 of 4 3,072 of 4,096 MB 2 h 1 min 0.1",
        "node-2 (s2) 2 of 2 4,096 of 4,096 MB 1 min 30 s 0.1",
        "node-2 (s3) 0 of 1 - 5 s -",
        "node-4 none - 5 s 2.8.8",
        "node-2 (s2) takes no new work: disk\\x1b is full",
        "node-4 is Storm 2.8.8, runs Java topologies only",
        "",
        "2 topologies; `storm list` lists them",
        "waits: Not enough slots: 1 slot is missing, and none is free",
    ]
    nimbus.release = None
    assert run("status").stdout.splitlines()[3] == (
        f"{host}:{port} is Storm 2.8.0: it leads, and runs Java topologies only"
    )
    found = json.loads(run("status", "--json").stdout)
    assert [each["leader"] for each in found["nimbuses"]] == [True]
    assert [each["disk_fault"] for each in found["nimbuses"]] == ["it is\x1b full"]
    assert found["supervisors"][1] == {
        "id": "s2",
        "host": "node-2",
        "slots": 2,
        "used_slots": 0,
        "memory_mb": 4096.0,
        "used_memory_mb": 0.0,
        "uptime_secs": 90,
        "version": "0.1",
        "refuses": "disk\x1b is full",
        "java_only": False,
    }
    assert [each["name"] for each in found["topologies"]] == ["waits", "wc"]


def test_a_cluster_without_supervisors_says_what_is_missing(run):
    assert "No supervisors: nothing can run. Start `storm supervisor`" in run("status").stdout


@pytest.mark.parametrize("name", ["status", "kill", "activate", "deactivate", "rebalance"])
def test_what_is_not_there_is_said(run, name):
    told = run(name, "wc")
    assert told.exit_code == 1
    assert told.stderr == "storm: there is no topology wc; `storm list` shows all\n"
    assert told.stdout == ""


def test_kill_waits_until_it_is_gone(run, nimbus):
    nimbus.has("wc")
    told = run("kill", "wc", "-w", "3")
    assert told.exit_code == 0, told.output
    assert told.stdout == "Killed topology: wc\n"
    assert told.stderr.splitlines() == [
        "storm: wc: it is KILLED until its wait is over and Nimbus removes it",
        "storm: wc: it is gone",
    ]
    assert nimbus.topologies == {}


def test_kill_and_purge(run, nimbus):
    nimbus.has("wc")
    assert run("kill", "wc", "--purge", "-w", "0").exit_code == 0
    assert nimbus.purged == ["wc"]


@pytest.mark.parametrize(("option", "exit_code"), [([], 1), (["-i"], 0)])
def test_kill_of_several_goes_on_after_an_error(run, nimbus, option, exit_code):
    for _ in range(2):
        nimbus.has("a")
        nimbus.has("c")
        as_json = "--json" in option
        told = run("kill", "a", "b", "c", *option)
        assert told.exit_code == exit_code, told.output
        assert "storm: there is no topology b; `storm list` shows all\n" in told.stderr
        assert nimbus.topologies == {}
        if as_json:
            answers = [(each["name"], each["done"]) for each in json.loads(told.stdout)]
            assert answers == [("a", True), ("b", False), ("c", True)]
        else:
            assert told.stdout == "Killed topology: a\nKilled topology: c\n"
        option = [*option, "--json"]


def test_kill_without_nimbus_says_which_are_not_killed(run, nimbus, monkeypatch):
    nimbus.has("a")

    def ends(*_, **__):
        raise RpcUnavailableError("no route")

    monkeypatch.setattr(topology_commands, "kill", ends)
    told = run("kill", "a", "c", "-w", "0", "-i")
    assert told.exit_code == 1
    assert told.stderr == ("storm: a: no route\nstorm: c is not killed, as Nimbus did not answer\n")


def test_kill_of_several_says_of_each_that_it_is_late(run, nimbus):
    nimbus.looks = 1_000_000
    nimbus.has("a")
    nimbus.has("b")
    told = run("kill", "a", "b", "-w", "0", "--timeout", "0.1")
    assert told.exit_code == 4
    assert "storm: a: after 0 s, it is KILLED" in told.stderr
    assert "storm: b: after 0 s, it is KILLED" in told.stderr


def test_without_waiting_it_ends_at_once(run, nimbus):
    nimbus.has("wc")
    told = run("kill", "wc", "--no-wait")
    assert (told.exit_code, told.stderr) == (0, "")
    assert nimbus.topologies["wc"].status == "KILLED"
    told = run("list", "--json")
    assert json.loads(told.stdout)[0]["status"] == "KILLED"


def test_an_effect_that_does_not_come_is_an_exit_code_of_its_own(run, nimbus):
    nimbus.has("wc")
    nimbus.looks = 1_000_000
    told = run("kill", "wc", "-w", "0", "--timeout", "0.1")
    assert told.exit_code == 4
    assert told.stdout == "Killed topology: wc\n"
    assert "storm: wc: after 0 s, it is KILLED" in told.stderr


def test_ctrl_c_ends_only_the_waiting(run, nimbus, monkeypatch):
    nimbus.has("wc")
    nimbus.looks = 1_000_000

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(topology_view, "find_topology", interrupt)
    told = run("kill", "wc")
    assert told.exit_code == 128 + signal.SIGINT
    assert told.stdout == "Killed topology: wc\n"
    assert told.stderr == "storm: wc: killed; Nimbus goes on to remove it\n"


def test_deactivate_and_activate(run, nimbus):
    standing = nimbus.has("wc")
    assert run("deactivate", "wc").stdout == "Deactivated topology: wc\n"
    assert standing.status == "INACTIVE"
    told = run("activate", "wc", "--json")
    assert json.loads(told.stdout) == {
        "name": "wc",
        "id": standing.id,
        "done": True,
        "text": "it is ACTIVE",
    }


def test_rebalance_with_numbers(run, nimbus):
    nimbus.has("wc")
    told = run("rebalance", "wc", "-w", "0", "-n", "2", "-e", "words=4", "-e", "a=b=1")
    assert told.exit_code == 0, told.output
    assert told.stdout == "Topology wc is rebalancing\n"
    assert told.stderr.splitlines()[-1] == (
        "storm: wc: it runs at node-1:6700; it has one query to run, so one worker is the most"
    )
    assert nimbus.calls == [("rebalance", "wc", 0, 2, {"words": 4, "a=b": 1})]


def test_rebalance_with_other_values_in_the_conf(run, nimbus):
    nimbus.has("wc")
    told = run("rebalance", "wc", "-w", "0", "-c", "topology.message.timeout.secs=9", "-c", "own=x")
    assert told.exit_code == 0, told.output
    assert "unknown" not in told.stderr
    assert nimbus.overrides == [{"topology.message.timeout.secs": 9, "own": "x"}]


def test_a_value_that_no_conf_can_have_is_not_sent(run, nimbus):
    nimbus.has("wc")
    told = run("rebalance", "wc", "-c", "own.password=x")
    assert told.exit_code == 2
    assert "may be a secret" in told.stderr
    assert nimbus.calls == []


@pytest.mark.parametrize("wrong", ["words", "words=", "=3", "words=0", "words=-1", "words=²"])
def test_a_parallelism_that_is_none(run, wrong):
    told = run("rebalance", "wc", "-e", wrong)
    assert told.exit_code == 2
    assert "is no COMPONENT=NUMBER" in told.stderr
