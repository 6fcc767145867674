"""A supervisor that is killed and started again, under a worker that goes on."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.worker_processes import WorkerProcesses
from support import small_supervisor
from support.supervisors import runs
from support.waiting import DEADLINE_SECS, until

#: A worker that does not heed SIGTERM, with a child in a session of its own.
STUBBORN = (
    "import signal, subprocess, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print(subprocess.Popen(['setsid', 'sleep', '600']).pid, flush=True)\n"
    "time.sleep(600)"
)


class Site:
    """A supervisor's folder, and the supervisors that had it one after the other."""

    def __init__(self, folder):
        self.folder = folder
        self.supervisors = []

    def start(self, program=STUBBORN):
        number = len(self.supervisors)
        self.output = self.folder.with_name(f"output-{number}")
        with self.output.open("wb") as output:
            supervisor = subprocess.Popen(
                [sys.executable, "-P", small_supervisor.__file__, self.folder, program],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.supervisors.append(supervisor)

    def lines(self):
        """Return what was written, as far as lines are whole."""
        return self.output.read_text().split("\n")[:-1]

    def said(self, pattern, index=0):
        """Wait for the newest supervisor's line of this number; return what it names."""
        until(lambda: len(self.lines()) > index or self.supervisors[-1].poll() is not None)
        found = re.fullmatch(pattern, self.lines()[index])
        assert found, self.lines()
        return found.groups()

    def kill(self):
        """Kill the newest supervisor; its workers go on."""
        self.supervisors[-1].kill()
        self.supervisors[-1].wait()

    def stop(self):
        self.supervisors[-1].terminate()
        assert self.supervisors[-1].wait(DEADLINE_SECS) == 0, self.lines()

    @property
    def state_file(self):
        return self.folder / "supervisor" / "localstate" / "slots.json"

    def recorded(self):
        return json.loads(self.state_file.read_bytes())["slots"]["6700"]

    def workers_left(self):
        table = process_table.snapshot()
        marked = WorkerProcesses(str(self.folder))._marked(table)
        return {worker_id: sorted(pids) for worker_id, pids in marked.items()}


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path / "local")
    yield site
    for supervisor in site.supervisors:
        supervisor.kill()
        supervisor.wait()
    WorkerProcesses(str(site.folder)).end_strays(DEADLINE_SECS)


STARTED = r"started (\w+) as (\d+)"


def started(site):
    """Start a supervisor and its worker; return the worker's id and pid once it is written down."""
    site.start()
    worker_id, pid = site.said(STARTED)
    until(lambda: site.recorded()["worker"]["process"])
    until(lambda: len(site.workers_left().get(worker_id, ())) == 2)
    return worker_id, int(pid)


def test_the_worker_goes_on_and_is_adopted_and_ended(site):
    worker_id, pid = started(site)
    site.kill()
    before = site.workers_left()
    site.start()
    assert site.said(r"adopted (\w+)") == (worker_id,)
    assert site.workers_left() == before
    site.stop()
    assert site.lines()[1:] == [f"gone {worker_id}"]
    assert site.workers_left() == {}
    assert pid in before[worker_id]


def test_dead_adopted_worker_restarts_when_all_is_gone(site):
    worker_id, pid = started(site)
    site.kill()
    site.start()
    site.said(r"adopted (\w+)")
    os.kill(pid, signal.SIGKILL)
    site.said(r"gone (\w+)", 1)
    assert site.said(r"crash 1 of (\w+): it ended, and its exit code is not known.*", 2)
    again, _ = site.said(STARTED, 3)
    assert again != worker_id
    assert worker_id not in site.workers_left()


def test_a_worker_that_died_with_its_supervisor_is_started_again(site):
    worker_id, _ = started(site)
    site.kill()
    for left in site.workers_left()[worker_id]:
        os.kill(left, signal.SIGKILL)
    until(lambda: not site.workers_left())
    site.start()
    assert site.said(r"adopted (\w+)") == (worker_id,)
    assert site.said(r"gone (\w+)", 1) == (worker_id,)
    site.said(STARTED, 3)


def test_whoever_has_the_pid_of_a_former_worker_is_left_alone(site):
    worker_id, _ = started(site)
    site.kill()
    for left in site.workers_left()[worker_id]:
        os.kill(left, signal.SIGKILL)
    until(lambda: not site.workers_left())
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        now = process_table.find(stranger.pid).id
        saved = json.loads(site.state_file.read_bytes())
        saved["slots"]["6700"]["worker"]["process"] = {"pid": now.pid, "started": now.started - 1}
        site.state_file.write_text(json.dumps(saved))
        site.start()
        assert site.said(r"gone (\w+)", 1) == (worker_id,)
        site.said(STARTED, 3)
        site.stop()
        assert runs(now)
        stranger.kill()


def test_worker_without_recorded_process_is_adopted(site):
    worker_id, _ = started(site)
    site.kill()
    saved = json.loads(site.state_file.read_bytes())
    saved["slots"]["6700"]["worker"]["process"] = None
    site.state_file.write_text(json.dumps(saved))
    before = site.workers_left()
    site.start()
    assert site.said(r"adopted (\w+)") == (worker_id,)
    site.stop()
    assert site.lines()[1:] == [f"gone {worker_id}"]
    assert before[worker_id]


def test_supervisor_without_state_ends_old_workers(site):
    worker_id, _ = started(site)
    site.kill()
    site.state_file.write_bytes(site.state_file.read_bytes()[:-30])
    site.start()
    until(lambda: any(line.startswith("started") for line in site.lines()))
    warning, ended, next_one = site.lines()[:3]
    assert "cannot be read, and is kept as slots.json.unreadable" in warning
    assert ended == "ended 1 strays"
    again, _ = re.fullmatch(STARTED, next_one).groups()
    assert again != worker_id
    assert worker_id not in site.workers_left()
