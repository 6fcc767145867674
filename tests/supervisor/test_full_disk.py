"""A supervisor on a disk that is full for a while."""

import os
import resource
import signal
from contextlib import contextmanager

import pytest

from support.supervisors import OTHER_PORT, PORT, is_alive
from support.waiting import until

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

WC, JOB = "wc-1-1700000000", "job-2-1700000000"


@contextmanager
def no_room(pid):
    """Have no file of a process take a byte more."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_workers_are_ended_and_none_is_started(leader, supervisor, submit):
    node = supervisor.start()
    submit(WC)
    submit(JOB)
    leader.assign(WC, node, PORT, "out")
    leader.assign(JOB, node, OTHER_PORT, "out")
    start, other = supervisor.started(WC), supervisor.started(JOB, port=OTHER_PORT)
    until(lambda: leader.storm.supervisor_info(node).used_ports == [PORT, OTHER_PORT])
    with no_room(supervisor.pid):
        leader.release(WC)
        until(lambda: PORT in (leader.storm.supervisor_info(node).stopped_workers or {}))
        assert not is_alive(start["pid"])
        os.kill(other["pid"], signal.SIGKILL)
        until(
            lambda: any("cannot be written" in one.error for one in leader.storm.errors(JOB, "out"))
        )
        assert leader.storm.supervisor_info(node).used_ports == []
    again = supervisor.started(JOB, 2, OTHER_PORT)
    until(lambda: "the slots' records are saved again" in supervisor.log)
    assert supervisor.stop() == 0
    assert supervisor.start() == node
    until(lambda: leader.storm.supervisor_info(node).used_ports == [OTHER_PORT])
    assert is_alive(again["pid"])
