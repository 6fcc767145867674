"""Processes, by pid and start time."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.process_table import ProcessId
from support.leaks import nothing_left_behind
from support.waiting import until


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
    assert process_table.is_alive(found.id)


def test_when_it_was_started(sleeper):
    own = process_table.find(os.getpid()).id
    assert process_table.started_at(own) <= process_table.started_at(identity(sleeper))
    assert process_table.started_at(identity(sleeper)) <= time.time()


def test_a_process_that_is_not_there():
    assert process_table.find(2**22 + 1) is None
    assert process_table.environment(2**22 + 1) == {}
    assert process_table.memory_bytes(2**22 + 1) == 0
    assert not process_table.is_alive(ProcessId(2**22 + 1, 1))
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
    assert not process_table.is_alive(process)
    sleeper.wait()
    assert process_table.find(sleeper.pid) is None


def test_the_same_pid_with_another_start_is_another_process(sleeper):
    process = identity(sleeper)
    former = ProcessId(process.pid, process.started - 1)
    assert not process_table.is_alive(former)
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
