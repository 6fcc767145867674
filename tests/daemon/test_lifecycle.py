"""Beginning and ending, with real signals and real parents."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from stormkeeper.daemon.lifecycle import StopSignals, announce
from support.processes import all_gone
from support.waiting import DEADLINE_SECS

#: Wait for a signal, and are then slow to stop: that takes them until they are told to go on.
SYNCHRONOUS = """
import sys
from stormkeeper.daemon import lifecycle
from stormkeeper.daemon.lifecycle import StopSignals, announce
if "without end" in sys.argv:
    lifecycle._SAME_SIGNAL = 600.0
with StopSignals() as stop:
    announce("ready")
    if not stop.wait(60.0):
        raise SystemExit(9)
    announce("stopping")
    if "slow" in sys.argv:
        sys.stdin.readline()
"""

ASYNCHRONOUS = """
import asyncio, sys
from stormkeeper.daemon import lifecycle
from stormkeeper.daemon.lifecycle import announce, end_of_signals, stop_requested
if "without end" in sys.argv:
    lifecycle._SAME_SIGNAL = 600.0
async def main():
    stop = stop_requested(asyncio.get_running_loop())
    announce("ready")
    number = await asyncio.wait_for(stop, 60.0)
    announce("stopping")
    if "slow" in sys.argv:
        await asyncio.to_thread(sys.stdin.readline)
    end_of_signals()
    announce("stopped")
asyncio.run(main())
if "late" in sys.argv:
    sys.stdin.readline()
"""


def start(program, *arguments, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("program", [SYNCHRONOUS, ASYNCHRONOUS], ids=["sync", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_ends(program, number):
    with start(program) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(DEADLINE_SECS) == 0
    with start(program, "slow") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        time.sleep(1.2)
        process.send_signal(number)
        assert process.wait(DEADLINE_SECS) == 128 + number
        told = process.stderr.read()
        assert "Traceback" not in told
        if program is ASYNCHRONOUS:
            assert told.count("ended at once") == 1


@pytest.mark.parametrize("program", [SYNCHRONOUS, ASYNCHRONOUS], ids=["sync", "asyncio"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_more_signal_soon_after_the_first_is_the_same(program, number):
    # However long this takes: what counts as soon has no end here.
    with start(program, "slow", "without end") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(number)
        _, told = process.communicate("\n", DEADLINE_SECS)
        assert (process.returncode, told) == (0, "")


def test_in_the_last_moments_signals_disturb_nothing():
    with start(ASYNCHRONOUS, "late") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        assert process.stdout.readline() == "stopped\n"
        for _ in range(10):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                process.send_signal(number)
            time.sleep(0.01)  # while the loop is closed
        out, told = process.communicate("\n", DEADLINE_SECS)
        assert (process.returncode, out, told) == (0, "", "")


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with StopSignals() as stop:
        assert (stop.stopped, stop.asked_by) == (False, "")
        assert not stop.wait(0.0)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert stop.wait(DEADLINE_SECS)
        assert (stop.stopped, stop.asked_by) == (True, "SIGTERM")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_an_announced_line_is_out_at_once(capfd):
    announce("pacemaker listening on 127.0.0.1:6699")
    assert capfd.readouterr().out == "pacemaker listening on 127.0.0.1:6699\n"


def test_an_announced_line_is_whole_beside_a_line_that_is_begun():
    code = "import sys; from stormkeeper.daemon.lifecycle import announce\n"
    code += "sys.stdout.reconfigure(write_through=False)\n"
    code += "sys.stdout.write('ra'); announce('ready'); print('n')"
    ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert ran.stdout == b"ready\nran\n"


CHILD = """
from stormkeeper.daemon.lifecycle import announce, die_with_parent
import time
die_with_parent()
announce("ready")
time.sleep(60.0)
"""

PARENT = f"""
import os, subprocess, sys, time
from stormkeeper.daemon.lifecycle import announce
parent = sys.argv[1] if len(sys.argv) > 1 else str(os.getpid())
child = subprocess.Popen(
    [sys.executable, "-c", {CHILD!r}],
    stdout=subprocess.PIPE,
    env={{**os.environ, "STORMKEEPER_DIE_WITH_PARENT": parent}},
)
child.stdout.readline()
announce(str(child.pid))
time.sleep(60.0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of this")
@pytest.mark.parametrize("arguments", [["1"], []], ids=["flag", "pid"])
def test_a_killed_parent_takes_its_daemons_along(arguments):
    with start(PARENT, *arguments) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    all_gone([child])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of this")
def test_a_parent_that_is_gone_already_is_noticed():
    with start(CHILD, STORMKEEPER_DIE_WITH_PARENT="999999999") as child:
        assert child.wait(DEADLINE_SECS) == -signal.SIGTERM
        assert child.stdout.read() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of this")
def test_what_a_daemon_starts_is_not_taken_for_a_child_of_its_parent():
    daemon = f"""
import subprocess, sys
from stormkeeper.daemon.lifecycle import announce, die_with_parent
die_with_parent()
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
announce(child.stdout.readline() or f"ended with {{child.wait()}}")
child.kill()
"""
    with start(daemon, STORMKEEPER_DIE_WITH_PARENT=str(os.getpid())) as process:
        assert process.stdout.readline() == "ready\n"
        process.wait(DEADLINE_SECS)


def test_without_the_environments_word_it_stays():
    with start(CHILD, STORMKEEPER_DIE_WITH_PARENT="") as child:
        assert child.stdout.readline() == "ready\n"
        child.kill()


def test_the_file_limit_is_raised_to_what_is_allowed():
    program = (
        "import resource as r; from stormkeeper.daemon.lifecycle import raise_file_limit\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, hard)); raise_file_limit()\n"
        "assert r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard)"
    )
    with start(program) as process:
        assert process.wait(DEADLINE_SECS) == 0
