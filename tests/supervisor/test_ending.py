"""All workers of a machine are ended, whoever started them."""

import subprocess

import pytest

from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.local_state import LocalState
from stormkeeper.supervisor.slot_model import SlotAssignment, SlotRecord, WorkerRecord
from stormkeeper.supervisor.worker_processes import EndedWorker, end_workers
from support.own_workers import HEEDING, OwnWorkers

WORK = SlotAssignment("wc-1-1", {"out": "1-1-0"})


#: Ends, and leaves its child behind.
LEAVING = HEEDING.replace("    child.kill()\n", "")


@pytest.fixture
def machine(tmp_path):
    machine = OwnWorkers(tmp_path)
    yield machine
    end_workers(machine.directories, 0.0)


def test_where_nothing_runs_nothing_is_ended(machine):
    assert machine.end() == []


def test_workers_that_are_written_down_and_others_are_ended(machine):
    one, two = machine.start("w1", HEEDING), machine.start("w2", HEEDING)
    with LocalState(machine.directories.local_state) as state:
        state.save({6700: SlotRecord(WORK, WorkerRecord("w1", WORK, one)), 6701: SlotRecord()})
        ended = {each.worker_id: each for each in machine.end()}
    assert ended == {
        "w1": EndedWorker("w1", "wc-1-1", 6700, one.pid, by_force=False),
        "w2": EndedWorker("w2", None, None, two.pid, by_force=False),
    }
    assert not process_table.is_alive(one)
    assert not process_table.is_alive(two)
    assert machine.end() == []


def test_stubborn_worker_is_killed_with_children(machine):
    process = machine.start("w1", LEAVING)
    [ended] = machine.end(grace_secs=0.5)
    assert ended == EndedWorker("w1", None, None, process.pid, by_force=True)
    assert machine.started.look()["w1"].members == ()


def test_another_supervisors_workers_are_left_alone(machine, tmp_path):
    (tmp_path / "other").mkdir()
    other = OwnWorkers(tmp_path / "other")
    process = other.start("w1", HEEDING)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        assert machine.end() == []
        assert process_table.is_alive(process)
        assert stranger.poll() is None
        stranger.kill()
    [ended] = other.end()
    assert ended.worker_id == "w1"
