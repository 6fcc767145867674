"""The workers of a local cluster, by the files that their supervisors keep."""

import os
import subprocess
import sys

import pytest

from stormkeeper.local.run_topology import KEPT_LINES, LocalWorkers
from stormkeeper.supervisor.disk import Directories

ID = "wc-1-1"


@pytest.fixture
def machines(tmp_path):
    return [Directories(tmp_path / name, tmp_path / name / "artifacts") for name in ("1", "2")]


@pytest.fixture
def workers(machines, tmp_path):
    return LocalWorkers(machines, tmp_path / "home")


@pytest.fixture
def write(machines):
    """Write what a worker of a machine writes, as the process of this pid."""

    def write(number, text, pid=None):
        folder = machines[number].artifacts(ID, 6700 + number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "worker.pid").write_text(f"{pid or os.getpid()}\n")
        with (folder / "worker.log").open("a") as log:
            log.write(text)

    return write


def test_nothing_is_known_before_anything_is_there(workers):
    assert workers.look(ID) == []
    assert (workers.output, workers.beat, workers.have_failed) == (([], 0), False, False)
    assert workers.processes() == {}


def test_output_of_several_workers_names_the_worker(workers, write):
    write(0, "one\ntw")
    workers.look(ID)
    assert workers.output == (["one"], 1)
    write(0, "o\n")
    write(1, "three\n")
    workers.look(ID)
    assert workers.output == (["one", "6700: two", "6701: three"], 3)
    write(0, "more\n" * KEPT_LINES)
    workers.look(ID)
    assert workers.output == (["6700: more"] * KEPT_LINES, KEPT_LINES + 3)


def test_a_log_that_has_become_shorter_is_read_on(workers, write, machines):
    write(0, "old\n" * 10)
    workers.look(ID)
    (machines[0].artifacts(ID, 6700) / "worker.log").write_text("new\n")
    workers.look(ID)
    assert workers.output == (["old"] * 10 + ["new"], 11)


def test_each_process_is_said_to_beat_once(workers, write):
    write(0, f"worker beating {ID} node 6700\n")
    assert workers.look(ID) == [f"worker {ID} beats (process {os.getpid()})"]
    assert workers.look(ID) == []
    assert workers.beat
    assert workers.processes() == {os.getpid(): "running"}
    with subprocess.Popen([sys.executable, "-c", ""]) as next_one:
        pass
    write(0, "", next_one.pid)
    assert workers.look(ID) == []
    assert workers.processes() == {next_one.pid: "ended"}
    write(0, f"worker beating {ID} node 6700\n", next_one.pid)
    assert workers.look(ID) == [f"worker {ID} beats (process {next_one.pid})"]


def test_a_traceback_names_the_file_that_the_user_has(workers, write, machines, tmp_path):
    packed = machines[0].packages / "0af3" / "code" / "job.py"
    write(
        0,
        "2026-03-01T12:00:04.123Z ERROR stormkeeper.worker.process the query 'out' failed:\n"
        f'    File "{packed}", line 12, in invert\n',
    )
    assert workers.look(ID) == [
        "worker: the query 'out' failed:",
        f'    File "{tmp_path}/home/job.py", line 12, in invert',
    ]
    assert workers.have_failed
