"""Waiting for what comes first."""

import subprocess
import threading
import time

import pytest

from stormkeeper.supervisor import process_table
from stormkeeper.supervisor.process_table import ProcessWaiter
from support.leaks import nothing_left_behind
from support.waiting import DEADLINE_SECS


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
        assert (waiting.follows("one"), waiting.follows("other")) == (False, True)
        assert waiting.wait(0.02) == set()
        other.kill()


def test_a_process_that_has_ended_is_not_followed(waiting):
    with subprocess.Popen(["sleep", "600"]) as child:
        process = process_table.find(child.pid).id
        child.kill()
    waiting.follow("one", process)
    assert not waiting.follows("one")
    waiting.forget("one")


def test_nothing_is_left_open():
    with subprocess.Popen(["sleep", "600"]) as child, nothing_left_behind():
        waiting = ProcessWaiter()
        waiting.follow("one", process_table.find(child.pid).id)
        waiting.follow("one", process_table.find(child.pid).id)
        waiting.close()
        waiting.wake()
        child.kill()
