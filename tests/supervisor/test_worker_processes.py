"""Worker processes: real ones, with children that have gone their own ways."""

import os
import signal
import subprocess
import sys

import pytest

from stormkeeper.errors import SupervisorError
from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.disk import LocalState
from stormkeeper.supervisor.process_table import ProcessId
from stormkeeper.supervisor.slot_model import SlotAssignment, SlotRecord, WorkerRecord
from stormkeeper.supervisor.worker_processes import (
    OWNER_MARK,
    WORKER_MARK,
    EndedWorker,
    WorkerCommand,
    WorkerProcesses,
    end_workers,
)
from support.own_workers import HEEDING, OwnWorkers
from support.supervisors import runs
from support.waiting import DEADLINE_SECS, until

#: What a worker's program begins with: `child` runs a shell line in the background, and `say`
#: writes a number by one system call, so that several processes may.
PRELUDE = """
import os, signal, subprocess, sys, time
def child(line, **how):
    return subprocess.Popen(["sh", "-c", line], **how).pid
def say(number):
    os.write(1, b"%d\\n" % number)
"""


class Bench:
    """The workers of a supervisor whose folder is a test's."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = WorkerProcesses(str(folder))

    @property
    def log(self):
        return self.folder / "worker.log"

    def start(self, code, worker_id="w1", *, ready=True, **how):
        """Start a program as a worker, and wait for what it says first: numbers."""
        command = [sys.executable, "-c", PRELUDE + code]
        process = self.processes.start(
            worker_id, WorkerCommand(argv=command, folder=self.folder, log=self.log, **how)
        )
        if ready:
            until(lambda: self.log.read_text().endswith("\n"))
        return process

    def said(self):
        return [int(word) for word in self.log.read_text().split()]

    def look(self, worker_id="w1"):
        return self.processes.look()[worker_id]

    def pids(self, worker_id="w1"):
        return [one.pid for one in self.look(worker_id).members]


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    for worker_id in bench.processes.look():
        bench.processes.kill(worker_id)
    # A supervisor that knows of none ends them all; this one takes note of its children's ends.
    WorkerProcesses(str(tmp_path)).end_strays(DEADLINE_SECS)
    until(lambda: not any(look.is_alive for look in bench.processes.look().values()))


def test_worker_leads_its_session_and_writes_its_log(bench):
    code = (
        "say(os.getsid(0)); os.system('echo 5 >&2'); say(len(sys.stdin.read()))\n"
        "say(int(os.environ['A']))\n"
        "time.sleep(600)"
    )
    bench.log.write_text("7\n")
    process = bench.start(code, environment={"A": "42"})
    until(lambda: len(bench.said()) == 5)
    assert bench.said() == [7, process.pid, 5, 0, 42]
    environment = process_table.environment(process.pid)
    assert environment[WORKER_MARK] == "w1"
    assert environment[OWNER_MARK] == str(bench.folder)
    look = bench.look()
    assert (look.process, look.is_alive, look.exit_code) == (process, True, None)
    assert look.members == (process,)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("sys.exit(3)", 3), ("", 0), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_the_exit_code_of_a_child_is_known(bench, code, exit_code):
    bench.start(code, ready=False)
    until(lambda: not bench.look().is_alive)
    assert bench.look().exit_code == exit_code
    assert bench.look().members == ()


def test_orphans_in_other_sessions_are_found(bench):
    code = (
        "child('echo $$; exec sleep 600', start_new_session=True)\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    say(os.getpid())\n"
        "time.sleep(600)"
    )
    main = bench.start(code, ready=False)
    until(lambda: bench.log.read_text().count("\n") == 2)
    orphans = bench.said()
    assert {main.pid, *orphans} <= set(bench.pids())
    os.kill(main.pid, signal.SIGKILL)
    until(lambda: not bench.look().is_alive)
    assert set(orphans) <= set(bench.pids()), "not gone while they are there"
    bench.processes.kill("w1")
    until(lambda: bench.pids() == [])


def test_unmarked_child_is_found_by_session(bench):
    main = bench.start("say(child('exec env -i sleep 600'))\ntime.sleep(600)")
    (orphan,) = bench.said()
    until(lambda: process_table.environment(orphan) == {})
    assert set(bench.pids()) == {main.pid, orphan}
    os.kill(main.pid, signal.SIGKILL)
    until(lambda: bench.pids() == [orphan])
    bench.processes.kill("w1")
    until(lambda: bench.pids() == [])


def test_only_the_workers_own_process_is_asked_to_end(bench):
    code = (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "child('trap \"echo 9; exit\" TERM; echo 1; while :; do sleep 0.1; echo 2; done')\n"
        "while True: time.sleep(0.1)"
    )
    bench.start(code)
    bench.processes.terminate("w1")
    until(lambda: not bench.look().is_alive)
    assert bench.look().exit_code == 5
    count = len(bench.said())
    until(lambda: len(bench.said()) > count + 2 or 9 in bench.said())
    assert 9 not in bench.said()


def test_a_suspended_worker_hears_that_it_is_to_end(bench):
    main = bench.start("say(1)\ntime.sleep(600)")
    os.kill(main.pid, signal.SIGSTOP)
    bench.processes.terminate("w1")
    until(lambda: not bench.look().is_alive)
    assert bench.look().exit_code == -signal.SIGTERM


def test_one_that_ignores_the_question_is_ended_by_force(bench):
    main = bench.start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay(1)\ntime.sleep(600)")
    bench.processes.terminate("w1")
    assert bench.look().is_alive
    assert runs(main)
    bench.processes.kill("w1")
    until(lambda: bench.pids() == [])
    assert bench.look().exit_code == -signal.SIGKILL


def test_memory_is_of_all_and_shared_pages_count_once(bench):
    code = (
        "x = bytearray(b'1' * 60_000_000)\n"
        "for _ in range(3):\n"
        "    if not os.fork(): time.sleep(600)\n"
        "other = \"x = bytearray(b'1' * 30_000_000); print(1, flush=True); input()\"\n"
        "subprocess.Popen([sys.executable, '-c', other], stdin=subprocess.PIPE)\n"
        "time.sleep(600)"
    )
    bench.start(code)
    bench.look()
    size = bench.processes.memory_bytes("w1")
    assert 90_000_000 < size < 200_000_000
    assert bench.processes.memory_bytes("w2") == 0


def test_it_can_be_nicer_than_others(bench):
    nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    main = bench.start("time.sleep(600)", ready=False, nice=nice)
    assert os.getpriority(os.PRIO_PROCESS, main.pid) == nice


def test_a_command_that_does_not_exist(bench):
    command = WorkerCommand(argv=[str(bench.folder / "no")], folder=bench.folder, log=bench.log)
    with pytest.raises(SupervisorError, match=r"w1 cannot be started: .*No such file"):
        bench.processes.start("w1", command)
    assert bench.processes.look() == {}


def test_worker_that_proc_does_not_show_is_ended(bench, monkeypatch):
    started = []

    def find(pid):
        started.append(pid)

    monkeypatch.setattr(process_table, "find", find)
    with pytest.raises(SupervisorError, match="mount /proc"):
        bench.start("time.sleep(600)", ready=False)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)
    assert bench.processes.look() == {}


@pytest.mark.parametrize("environment", [{"A=B": "C"}, {"A": "B\0"}])
def test_an_environment_that_no_process_can_have(bench, environment):
    command = WorkerCommand(
        argv=["true"], folder=bench.folder, log=bench.log, environment=environment
    )
    with pytest.raises(SupervisorError, match="w1 cannot be started: "):
        bench.processes.start("w1", command)
    assert bench.processes.look() == {}


class TestAdoption:
    """Another supervisor of the same folder takes over."""

    @pytest.fixture
    def main(self, bench):
        return bench.start("say(child('exec setsid sleep 600'))\ntime.sleep(600)")

    @pytest.fixture
    def successor(self, bench, main):  # noqa: ARG002  (which runs already)
        return WorkerProcesses(str(bench.folder))

    def test_it_finds_what_runs(self, bench, main, successor):
        successor.adopt("w1", main)
        look = successor.look()["w1"]
        assert (look.process, look.is_alive) == (main, True)
        assert [one.pid for one in look.members] == [main.pid, *bench.said()]

    def test_also_where_the_process_was_not_written_down(self, bench, main, successor):
        successor.adopt("w1", None)
        assert successor.look()["w1"].process == main
        successor.terminate("w1")
        until(lambda: not successor.look()["w1"].is_alive)
        assert [one.pid for one in successor.look()["w1"].members] == bench.said()

    def test_an_exit_code_that_only_its_parent_learns_is_unknown(self, main, successor):
        successor.adopt("w1", main)
        successor.kill("w1")
        until(lambda: not successor.look()["w1"].members)
        assert successor.look()["w1"].exit_code is None

    def test_whoever_has_the_pid_now_is_left_alone(self, successor):
        with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
            now = process_table.find(stranger.pid).id
            successor.adopt("w5", ProcessId(now.pid, now.started - 1))
            for _ in range(2):
                look = successor.look()["w5"]
                assert not look.is_alive
                assert look.members == ()
            successor.terminate("w5")
            successor.kill("w5")
            assert runs(now)
            stranger.kill()

    def test_one_of_which_nothing_was_ever_started(self, successor):
        successor.adopt("w5", None)
        look = successor.look()["w5"]
        assert (look.process, look.is_alive, look.members) == (None, False, ())

    def test_strays_are_ended_and_nobody_elses_workers(self, bench, main, successor, tmp_path):
        other = Bench(tmp_path / "other")
        other.folder.mkdir()
        kept = bench.start("time.sleep(600)", "w2", ready=False)
        others = other.start("say(1)\ntime.sleep(600)")
        try:
            successor.adopt("w2", kept)
            assert successor.end_strays(DEADLINE_SECS) == 1
            assert not runs(main)
            assert successor.look().keys() == {"w2"}
            assert runs(kept)
            assert runs(others)
            assert successor.end_strays(DEADLINE_SECS) == 0
        finally:
            WorkerProcesses(str(other.folder)).end_strays(DEADLINE_SECS)
            until(lambda: not other.look().is_alive)


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
    assert not runs(one)
    assert not runs(two)
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
        assert runs(process)
        assert stranger.poll() is None
        stranger.kill()
    [ended] = other.end()
    assert ended.worker_id == "w1"
