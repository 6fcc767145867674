"""Processes, by pid and start time."""

import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.process_table import Process, ProcessId, ProcessWaiter, members
from support.leaks import nothing_left_behind
from support.supervisors import runs
from support.waiting import DEADLINE_SECS, until


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        yield child
        child.kill()


def identity(child):
    return process_table.find(child.pid).id


def test_this_process():
    found = process_table.find(os.getpid())
    assert found.id.pid == os.getpid()
    assert (found.parent, found.session) == (os.getppid(), os.getsid(0))
    assert not found.has_ended
    assert 0 < found.id.started <= process_table.now_ticks()
    assert process_table.snapshot()[os.getpid()] == found
    assert runs(found.id)


def test_when_it_was_started(sleeper):
    own = process_table.find(os.getpid()).id
    assert process_table.started_at(own) <= process_table.started_at(identity(sleeper))
    assert process_table.started_at(identity(sleeper)) <= time.time()


def test_a_process_that_is_not_there():
    assert process_table.find(2**22 + 1) is None
    assert process_table.environment(2**22 + 1) == {}
    assert process_table.memory_bytes(2**22 + 1) == 0
    assert not runs(ProcessId(2**22 + 1, 1))
    assert process_table.descriptor_of(ProcessId(2**22 + 1, 1)) is None


def test_a_name_with_parentheses_and_spaces(tmp_path):
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "600"]) as child:
        try:
            assert process_table.find(child.pid).parent == os.getpid()
        finally:
            child.kill()


def test_one_that_has_ended_and_was_not_waited_for(sleeper):
    process = identity(sleeper)
    sleeper.kill()
    until(lambda: process_table.find(sleeper.pid).has_ended)
    assert not runs(process)
    sleeper.wait()
    assert process_table.find(sleeper.pid) is None


def test_the_same_pid_with_another_start_is_another_process(sleeper):
    process = identity(sleeper)
    former = ProcessId(process.pid, process.started - 1)
    assert not runs(former)
    assert process_table.descriptor_of(former) is None
    assert not process_table.send(former, signal.SIGKILL)
    assert sleeper.poll() is None
    assert process_table.send(process, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL
    assert not process_table.send(process, signal.SIGKILL)


def test_a_descriptor_tells_of_the_end(sleeper):
    with nothing_left_behind():
        descriptor = process_table.descriptor_of(identity(sleeper))
        try:
            assert select.select([descriptor], [], [], 0)[0] == []
            sleeper.kill()
            assert select.select([descriptor], [], [], 60)[0] == [descriptor]
        finally:
            os.close(descriptor)


def test_sending_leaves_no_descriptor(sleeper):
    process = identity(sleeper)
    with nothing_left_behind():
        process_table.send(process, signal.SIGCONT)
        process_table.send(ProcessId(process.pid, 1), signal.SIGCONT)


def test_the_environment_is_that_of_the_start():
    with subprocess.Popen(["sleep", "600"], env={"A": "b=c", "D": ""}) as child:
        try:
            # A program that is just being started has none for a moment.
            until(lambda: process_table.environment(child.pid) == {"A": "b=c", "D": ""})
        finally:
            child.kill()


def test_memory_is_proportional():
    shared = (
        "import os, sys, time\n"
        "x = bytearray(b'1' * 60_000_000)\n"
        "pids = [os.getpid()]\n"
        "for _ in range(3):\n"
        "    pid = os.fork()\n"
        "    if not pid: time.sleep(600); os._exit(0)\n"
        "    pids.append(pid)\n"
        "print(*pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", shared], stdout=subprocess.PIPE) as child:
        pids = [int(pid) for pid in child.stdout.readline().split()]
        try:
            sizes = [process_table.memory_bytes(pid) for pid in pids]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
    assert 60_000_000 < sum(sizes) < 120_000_000
    assert max(sizes) < 60_000_000


def test_one_start_of_the_machine_has_one_name():
    assert process_table.boot_id() == process_table.boot_id() != ""


#: The worker's own process, seen alive at 500 for the last time.
MAIN = ProcessId(100, 50)
SEEN = 500


def table(*rows):
    """Rows of pid, start, parent, session, and whether it has ended."""
    return {
        pid: Process(ProcessId(pid, started), parent, session, has_ended)
        for pid, started, parent, session, has_ended in rows
    }


INIT = (1, 0, 0, 1, False)
STRANGER = (7, 10, 1, 7, False)


def found(*rows, marked=(), before=(), main=MAIN):
    processes = table(INIT, STRANGER, *rows)
    return [
        one.pid
        for one in members(processes, marked=marked, main=main, main_seen=SEEN, before=before)
    ]


@pytest.mark.parametrize(
    ("row", "known", "belongs"),
    [
        pytest.param((101, 60, 1, 101, False), {"marked": {101}}, True, id="marked"),
        pytest.param((101, 60, 1, 101, True), {"marked": {101}}, False, id="ended"),
        pytest.param((101, 60, 1, 100, False), {}, True, id="of the session"),
        pytest.param((101, 501, 1, 100, False), {}, False, id="of a later session of that number"),
        pytest.param((101, 40, 1, 100, False), {}, False, id="of an earlier one"),
        pytest.param((101, 60, 1, 100, False), {"main": None}, False, id="main not known"),
        pytest.param(
            (101, 60, 1, 101, False), {"before": [ProcessId(101, 60)]}, True, id="seen before"
        ),
        pytest.param(
            (101, 61, 1, 101, False), {"before": [ProcessId(101, 60)]}, False, id="pid of one seen"
        ),
        pytest.param((101, 60, 7, 7, False), {}, False, id="a stranger's"),
    ],
)
def test_one_process(row, known, belongs):
    assert found(row, **known) == ([101] if belongs else [])


def test_all_below_a_member_are_members_and_the_oldest_is_first():
    rows = [
        (300, 90, 200, 300, False),
        (200, 80, 100, 200, False),
        (100, 50, 1, 100, False),
        (400, 95, 300, 400, True),
        (500, 99, 400, 500, False),
    ]
    assert found(*rows) == [100, 200, 300, 500]


def test_whoever_has_the_workers_pid_after_it_is_a_stranger():
    assert found((100, 700, 1, 100, False), (101, 800, 100, 100, False)) == []


@pytest.fixture
def waiting():
    waiting = ProcessWaiter()
    yield waiting
    waiting.close()


def test_it_ends_at_its_time(waiting):
    began = time.monotonic()
    assert waiting.wait(0.05) == set()
    assert time.monotonic() - began >= 0.05
    assert waiting.wait(-1) == set()


def test_another_thread_ends_it(waiting):
    waker = threading.Timer(0.05, waiting.wake)
    waker.start()
    began = time.monotonic()
    assert waiting.wait(DEADLINE_SECS) == set()
    assert time.monotonic() - began < DEADLINE_SECS
    waker.join()


def test_earlier_wake_ends_only_the_next_wait(waiting):
    for _ in range(10_000):
        waiting.wake()
    began = time.monotonic()
    while not waiting.wait(0) and time.monotonic() - began < 0.05:
        pass
    began = time.monotonic()
    waiting.wait(0.05)
    assert time.monotonic() - began >= 0.05


def test_the_end_of_a_process_ends_it_and_is_told_once(waiting):
    with subprocess.Popen(["sleep", "600"]) as child, subprocess.Popen(["sleep", "600"]) as other:
        waiting.follow("one", process_table.find(child.pid).id)
        waiting.follow("other", process_table.find(other.pid).id)
        child.kill()
        assert waiting.wait(DEADLINE_SECS) == {"one"}
        assert waiting.wait(0.02) == set()
        other.kill()
        assert waiting.wait(DEADLINE_SECS) == {"other"}


def test_a_process_that_has_ended_is_not_followed(waiting):
    with subprocess.Popen(["sleep", "600"]) as child:
        process = process_table.find(child.pid).id
        child.kill()
    assert not waiting.follow("one", process)
    waiting.forget("one")


def test_nothing_is_left_open():
    with subprocess.Popen(["sleep", "600"]) as child, nothing_left_behind():
        waiting = ProcessWaiter()
        waiting.follow("one", process_table.find(child.pid).id)
        waiting.follow("one", process_table.find(child.pid).id)
        waiting.close()
        waiting.wake()
        child.kill()
