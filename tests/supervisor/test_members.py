"""Which processes belong to a worker."""

import pytest

from stormkeeper.supervisor.process_table import Process, ProcessId, members

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
