"""The reaper of a run that is killed, and of one that ends in order."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stormkeeper.daemon.children import RUN_MARK, end_marked, marked
from stormkeeper.local.reservations import IGNORED
from support.processes import command_line
from support.waiting import until

MARK = "of-a-reaper-s-test"

#: Has a reaper, and a child that heeds no signal and is nobody's once the run is killed.
RUN = f"""
import os, signal, subprocess, sys
from stormkeeper.local.reservations import Reaper, make_run_folder
with make_run_folder() as folder, Reaper(folder, {MARK!r}):
    os.mkdir(folder + "/data")
    subprocess.Popen(
        [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN);"
         "print('up', flush=True); time.sleep(600)"],
        env=dict(os.environ, {RUN_MARK}={MARK!r}),
    )
    sys.stdin.readline()
print("over", flush=True)
"""


@pytest.fixture
def run(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        env={"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "up\n"
    with process:
        yield process
        process.kill()
    end_marked(MARK, settle_secs=0)


def test_nothing_is_left_of_a_run_that_is_killed(run, tmp_path):
    assert marked(MARK)
    assert list(tmp_path.iterdir())
    run.kill()
    until(lambda: not marked(MARK) and not list(tmp_path.iterdir()))


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system what is ignored")
def test_reaper_survives_a_signal_to_all_processes(run, tmp_path):
    (reaper,) = (
        child
        for child in psutil.Process(run.pid).children()
        if "stormkeeper.local.reservations" in command_line(child)
    )
    for number in IGNORED:
        until(lambda number=number: ignores(reaper.pid, number))
        reaper.send_signal(number)
    run.kill()
    until(lambda: not marked(MARK) and not list(tmp_path.iterdir()))


def ignores(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return int(mask, 16) >> (number - 1) & 1


def test_it_does_nothing_to_a_run_that_ends_in_order(run, tmp_path):
    run.stdin.write("\n")
    run.stdin.flush()
    assert run.stdout.readline() == "over\n"
    assert run.wait(60) == 0
    assert marked(MARK)
    assert list(tmp_path.iterdir()) == []
