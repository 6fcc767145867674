"""``tests/support/busy.py``, which loads the machine while something runs, does it and ends it."""

import signal
import subprocess
import sys

import psutil
import pytest

from support import busy
from support.processes import command_line, goes_on
from support.waiting import until


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, busy.__file__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def loads(process):
    """Return what a command line runs, but for the command."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [child for child in below if "--be" in command_line(child).split()]


def processor_secs(process):
    times = process.cpu_times()
    return times.user + times.system


def test_two_jobs_compute_while_one_connects():
    with start("cat") as running:
        family = until(lambda: len(found := loads(running)) == busy.COMPUTING + 1 and found)
        until(lambda: all(processor_secs(process) > 0.05 for process in family))
        gone = psutil.Process(running.pid).children(recursive=True)
        running.stdin.close()
        assert running.wait(30) == 0
        until(lambda: not any(map(goes_on, gone)))
        assert "run 1 of 1 ended with 0 after " in running.stderr.read()


def test_it_connects_again_and_again():
    with busy.busy() as made:
        until(lambda: len(made) >= 2)
    assert sum(made) > 100  # of 2,000, as the machine may have more to do


def test_the_first_run_that_fails_ends_it():
    with start("--times", "3", sys.executable, "-c", "raise SystemExit(7)") as running:
        _, said = running.communicate(timeout=60)
    assert running.returncode == 7
    assert said.count("run 1 of 3 ended with 7") == said.count("busy:") == 1


def test_a_command_is_ended_with_it():
    with start("sleep", "600") as running:
        until(lambda: len(loads(running)) == busy.COMPUTING + 1)
        family = until(lambda: len(found := psutil.Process(running.pid).children()) > 3 and found)
        running.terminate()
        assert running.wait(30) == 128 + signal.SIGTERM
        until(lambda: not any(map(goes_on, family)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_goes_on_after_its_end(number):
    with start("cat") as running:
        family = until(lambda: len(found := loads(running)) == busy.COMPUTING + 1 and found)
        running.send_signal(number)
        running.stdin.close()  # which ends the command
        running.wait(30)
        until(lambda: not any(map(goes_on, family)))


def test_a_load_that_ends_before_the_command_is_told():
    def have_one_end():
        with busy.busy():
            load = until(lambda: loads(psutil.Process()))[0]
            load.kill()
            until(lambda: not goes_on(load))

    with pytest.raises(RuntimeError, match="not busy to the end"):
        have_one_end()
