"""The commands of a machine that has a supervisor."""

import json

import pytest

from stormkeeper.supervisor.disk import LocalState
from stormkeeper.supervisor.slot_model import SlotAssignment, SlotRecord, WorkerRecord
from support.command import HEAVY, imported_by
from support.own_workers import HEEDING, OwnWorkers
from support.packages import tree
from support.supervisors import runs

WORK = SlotAssignment("wc-1-1", {"out": "1-1-0"})


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "local").mkdir()
    machine = OwnWorkers(tmp_path / "local")
    yield machine
    machine.end(0.0)


@pytest.fixture
def here(tmp_path):
    """The options that say where the supervisor is."""
    return ["-c", f"storm.local.dir={tmp_path / 'local'}"]


def test_the_workers_of_this_machine_are_ended(storm, machine, here):
    first, second = (machine.start(name, HEEDING) for name in ("w1", "w2"))
    with LocalState(machine.directories.local_state) as state:
        state.save({6700: SlotRecord(WORK, WorkerRecord("w1", WORK, first))})
    told = storm("kill_workers", *here)
    assert told.returncode == 0
    assert sorted(told.stdout.splitlines()) == [
        "ended the worker w1 of wc-1-1 in slot 6700",
        "ended the worker w2 of unknown origin",
    ]
    assert told.stderr == ""
    assert not any(map(runs, (first, second)))
    assert storm("kill_workers", *here).stdout == "no worker runs here\n"


def test_a_supervisor_that_runs_is_mentioned(storm, machine, here):
    process = machine.start("w1", HEEDING)
    with LocalState(machine.directories.local_state):
        told = storm("kill_workers", "--json", *here)
    assert told.stderr == "storm: a supervisor runs here, and will start its workers again\n"
    assert json.loads(told.stdout) == [
        {"worker_id": "w1", "topology": None, "port": None, "pid": process.pid, "by_force": False}
    ]
    assert json.loads(storm("kill_workers", "--json", *here).stdout) == []


def test_a_healthy_machine(storm, tmp_path):
    assert storm("node-health-check").stdout == "healthy\n"
    tree(tmp_path, {"checks/disk.sh": "#!/bin/sh\necho fine\n"})
    (tmp_path / "checks" / "disk.sh").chmod(0o700)
    told = storm("node-health-check", "--json", "-c", "storm.health.check.dir=checks")
    assert (told.returncode, json.loads(told.stdout)) == (0, {"healthy": True, "failed": []})


def test_an_unhealthy_machine(storm, tmp_path):
    tree(tmp_path, {"healthchecks/disk.sh": "#!/bin/sh\necho / is full\nexit 1\n"})
    (tmp_path / "healthchecks" / "disk.sh").chmod(0o700)
    reason = "it ended with exit code 1: / is full"
    told = storm("node-health-check")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == f"storm: the health check disk.sh failed: {reason}\n"
    told = storm("node-health-check", "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout) == {
        "healthy": False,
        "failed": [{"name": "disk.sh", "reason": reason}],
    }


def test_they_import_nothing_heavy(environ, here):
    for command in (["kill_workers", *here], ["node-health-check"]):
        assert not imported_by(command, environ) & HEAVY


def test_wrong_configuration_is_said_before_anything_begins(storm):
    told = storm("supervisor", "-c", "supervisor.slots.ports=[0]")
    assert told.returncode == 2
    assert told.stderr.startswith("storm: -c: supervisor.slots.ports: expected a list of distinct")


def test_a_folder_that_another_supervisor_has(storm, machine, here):
    with LocalState(machine.directories.local_state):
        told = storm("supervisor", *here)
    assert told.returncode == 1
    assert "another supervisor has" in told.stderr
    assert told.stdout == ""
