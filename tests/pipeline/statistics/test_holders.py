"""Whose an executor is."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.heartbeats.liveness import Limits
from stormkeeper.pipeline import queries, tables
from stormkeeper.pipeline.statistics.holders import HELD, superseded
from support.heartbeats import change_of, heartbeat, path, spout
from support.one_query import Machine


def held(*executors):
    """Rows of (worker, first task, last task, start), which were read when its uptime was 100."""
    rows = [
        {
            "storm_id": worker.partition("/")[0],
            "node": worker.partition("/")[2],
            "port": 6700,
            "task_start": first,
            "task_end": last,
            "at": datetime.fromtimestamp(start + 100, UTC),
            "uptime_secs": 100,
        }
        for worker, first, last, start in executors
    ]
    return pa.Table.from_pylist(rows, HELD)


def gone(*executors):
    return {key.removesuffix("-6700") for key in superseded(held(*executors)).to_pylist()}


@pytest.mark.parametrize(
    ("executors", "superseded_"),
    [
        ([], set()),
        ([("t/a", 1, 3, 0), ("t/a", 4, 4, 0), ("t/b", 5, 6, 50), ("u/c", 1, 9, 60)], set()),
        ([("t/a", 1, 3, 0), ("t/b", 1, 3, 50)], {"t/a"}),
        ([("t/b", 1, 3, 50), ("t/a", 1, 3, 0)], {"t/a"}),
        # A rebalance: other executors of the same tasks.
        ([("t/a", 1, 4, 0), ("t/b", 1, 2, 50), ("t/c", 3, 4, 50)], {"t/a"}),
        ([("t/b", 1, 4, 50), ("t/a", 2, 2, 0), ("t/a", 9, 9, 0)], {"t/a"}),
        # Who has taken what the newer one has taken since.
        ([("t/a", 1, 1, 0), ("t/b", 1, 1, 50), ("t/c", 1, 1, 90)], {"t/a", "t/b"}),
        # Of the tasks of one worker, whatever it says, none is another's.
        ([("t/a", 1, 5, 0), ("t/a", 2, 3, 0)], set()),
        ([("t/a", -(2**31), 2**31 - 1, 0), ("t/b", 7, 7, 50), ("u/c", 1, 1, 0)], {"t/a"}),
        ([("t/a", 9, 1, 0), ("t/b", 5, 5, 50)], set()),
    ],
)
def test_tasks_are_those_of_who_was_started_last(executors, superseded_):
    assert gone(*executors) == superseded_


def test_what_a_worker_had_before_is_not_its_own():
    """It was started anew without the first task, which another has had since before that."""
    before = held(("t/a", 1, 1, 0))
    now = held(("t/b", 1, 1, 50), ("t/a", 2, 2, 90), ("t/b", 2, 2, 50))
    found = superseded(pa.concat_tables([before, now])).to_pylist()
    assert found == ["t/b-6700"]
    assert superseded(pa.concat_tables([before, now.slice(0, 2)])).to_pylist() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from("tu"), st.sampled_from("abcd"), st.integers(1, 9), st.integers(0, 2)
        ),
        max_size=12,
    )
)
def test_no_task_is_left_to_two(drawn):
    starts = {"a": 0, "b": 10, "c": 20, "d": 30}
    executors = {
        (f"{topology}/{node}", first, first + more, starts[node])
        for topology, node, first, more in drawn
    }
    found = gone(*executors)
    tasks = {}
    for worker, first, last, start in executors:
        tasks.setdefault((start, worker), set()).update(range(first, last + 1))
    holders = {}
    for (_, worker), of_worker in sorted(tasks.items(), reverse=True):
        topology = worker.partition("/")[0]
        others = holders.setdefault(topology, set())
        assert (worker in found) == bool(others & of_worker), worker
        if worker not in found:
            others |= of_worker


def test_an_executor_that_was_moved_counts_once():
    machine = Machine(queries.statistics_tables(Limits(9, 30), period_secs=3.0))

    def beat(node, emitted, uptime, revision, tasks=((1, 1), (2, 2))):
        executors = {each: spout(emitted) for each in tasks}
        details = heartbeat("t-1-17", executors, uptime_secs=uptime)
        return change_of(path("t-1-17", node), details, revision, 0.0)

    def counted(made):
        (row,) = [
            row for row in made[tables.TOPOLOGY_STATS].to_pylist() if row["window"] == ":all-time"
        ]
        return row["workers"], row["tasks"], row["emitted"]

    made = machine.batch({"a:1": [beat("n1", 100, 500, 1), beat("n9", 7, 500, 2, [(3, 3)])]})
    assert counted(made) == (2, 3, 207)
    machine.pass_by(60)
    made = machine.batch({"a:1": [beat("n2", 5, 20, 3)]}, revision=3)
    assert counted(made) == (2, 3, 17)
    machine.pass_by(15)
    # The first one was only cut off, and beats on.
    made = machine.batch({"a:1": [beat("n1", 120, 575, 4), beat("n2", 6, 35, 5)]}, revision=5)
    assert counted(made) == (2, 3, 19)
    machine.pass_by(15)
    made = machine.batch({"a:1": [beat("n9", 8, 590, 6, [(3, 3)])]}, revision=6)
    assert counted(made) == (2, 3, 20)
    machine.pass_by(15)
    # It is placed there again.
    made = machine.batch({"a:1": [beat("n1", 1, 5, 7)]}, revision=7)
    assert counted(made) == (2, 3, 10)
