"""`storm local` in a terminal, told to stop more than once: nothing of it is left."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from stormkeeper.conf import load
from stormkeeper.local import reservations
from stormkeeper.local.run_plan import RunRequest
from stormkeeper.local.run_topology import Submission, end_topology
from stormkeeper.supervisor.disk import Directories
from stormkeeper.supervisor.worker_processes import WorkerCommand, WorkerProcesses
from support.processes import all_gone
from support.waiting import DEADLINE_SECS, until

STORM = Path(sys.executable).with_name("storm")
#: A whole cluster on a busy machine.
START_SECS = STOP_SECS = 120.0
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"

#: Keeps its worker from stopping, for some seconds or until it may end. It seems to stream.
SLOW = """
import pathlib, time
folder = pathlib.Path({folder!r})
(folder / "begun").touch()
while not (folder / "may end").exists():
    time.sleep(0.1)
if folder is None:
    rows.writeStream
"""

pytestmark = [pytest.mark.zookeeper]


class Terminal:
    """A `storm local` on a terminal of its own; `text` is all that it has written there."""

    def __init__(self, folder):
        (folder / "tmp").mkdir()
        (folder / "slow.py").write_text(SLOW.format(folder=str(folder)))
        self.folder = folder
        self.text = ""
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [STORM, "local", folder / "slow.py"],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TMPDIR": str(folder / "tmp"), "TERM": "xterm"},
        )
        os.close(theirs)
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        # Nobody has the terminal open any more: EIO.
        with contextlib.suppress(OSError):
            while not self._closing.is_set():
                if select.select([self._ours], [], [], 0.05)[0]:
                    self.text += os.read(self._ours, 65536).decode(errors="replace")
        os.close(self._ours)

    def close(self):
        """Close the window, as it were."""
        self._closing.set()
        self._reader.join(DEADLINE_SECS)

    def until_running(self):
        """Wait until everything runs, and return its processes."""
        until(lambda: self.ended() or (self.folder / "begun").exists(), START_SECS)
        return psutil.Process(self.process.pid).children(recursive=True)

    def ask_to_stop(self):
        self.process.send_signal(signal.SIGINT)
        until(lambda: "stopping" in self.text)

    def ended(self):
        return self.process.poll() is not None

    def end(self):
        (self.folder / "may end").touch()
        code = self.process.wait(STOP_SECS)
        self._reader.join(DEADLINE_SECS)
        return code

    def left(self):
        return list((self.folder / "tmp").iterdir())


@pytest.fixture
def terminal(tmp_path):
    terminal = Terminal(tmp_path)
    yield terminal
    if not terminal.ended():
        terminal.process.kill()
        terminal.end()


@pytest.mark.slow
def test_a_second_signal_within_a_second_counts_as_the_same(terminal):
    processes = terminal.until_running()
    # Not when it says that it stops: on a busy machine that may be a second later.
    terminal.process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    terminal.process.send_signal(signal.SIGINT)
    until(lambda: "stopping" in terminal.text)
    assert terminal.end() == 0, terminal.text
    assert "stopped after" in terminal.text
    assert terminal.text.rfind(SHOW) > terminal.text.rfind(HIDE) >= 0
    assert terminal.left() == []
    all_gone(processes)


@pytest.mark.slow
def test_the_last_picture_is_of_what_has_stopped(terminal):
    terminal.until_running()
    until(lambda: " s ago" in terminal.text or terminal.ended(), START_SECS)
    terminal.ask_to_stop()
    until(lambda: "Stopping: " in terminal.text)
    assert terminal.end() == 0, terminal.text
    last = terminal.text[terminal.text.rindex("stopped after") :]
    # The worker's farewell came after it was asked to stop.
    assert re.search(r" \d+\.\d s ago", last), last
    assert "-0." not in terminal.text
    assert "Everything has stopped" in last
    assert "Ctrl-C" not in last


@pytest.mark.slow
def test_a_later_signal_ends_it_at_once_and_leaves_nothing(terminal):
    processes = terminal.until_running()
    terminal.ask_to_stop()
    time.sleep(1.2)
    terminal.process.send_signal(signal.SIGINT)
    terminal.process.wait(DEADLINE_SECS)
    assert terminal.end() == 128 + signal.SIGINT, terminal.text
    assert "stopped after" not in terminal.text
    assert terminal.text.count("storm: ended at once by one more SIGINT") == 1
    assert terminal.text.rfind(SHOW) > terminal.text.rfind(HIDE) >= 0
    assert terminal.left() == []
    all_gone(processes)


def test_a_terminal_that_is_closed_stops_it(terminal):
    processes = terminal.until_running()
    terminal.close()
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(STOP_SECS) >= 0  # it has come to its end, and not the signal to it
    assert terminal.left() == []
    all_gone(processes)


@pytest.mark.slow
def test_nothing_is_left_of_one_that_is_killed(terminal):
    processes = terminal.until_running()
    terminal.process.kill()
    all_gone(processes)
    until(lambda: terminal.left() == [])


def test_workers_are_ended_without_nimbus_if_it_does_not_answer(tmp_path):
    machine = Directories(tmp_path, tmp_path / "artifacts")
    machine.make()
    command = WorkerCommand(
        argv=[sys.executable, "-c", "import time; time.sleep(600)"],
        folder=tmp_path,
        log=tmp_path / "log",
    )
    WorkerProcesses(str(machine.supervisor)).start("a-worker", command)
    said, stopped = [], []
    conf = load(files=(), overrides=[f"nimbus.seeds=['127.0.0.1:{reservations.reserve()}']"])
    submission = Submission(conf, conf, RunRequest(tmp_path / "job.py"), 1.0, said.append)
    submission.name, submission.storm_id = "wc", "wc-1-1"
    end_topology(submission, [machine], 60.0, lambda: stopped.append(1), said.append)
    assert stopped == [1]
    assert said[0].startswith("the topology is ended without Nimbus: Could not find leader")
    assert WorkerProcesses(str(machine.supervisor)).strays() == set()
