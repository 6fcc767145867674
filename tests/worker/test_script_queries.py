import pytest

from stormkeeper.worker.batch_readings import Seen
from stormkeeper.worker.query_events import Run
from stormkeeper.worker.script_queries import ScriptQueries
from stormkeeper.worker.statistics import ALL_TIME, WorkerStatistics


@pytest.fixture
def statistics():
    return WorkerStatistics()


def count(queries, *runs):
    for run, rows in runs:
        queries.started(run)
        queries.batch(run, Seen({"stormkeeper:sink-1": rows, "mine": 99}, frozenset()), 5.0)


def emitted(statistics):
    return {
        (executor.component.id, executor.query, executor.task_start): figures.emitted[ALL_TIME]
        for executor, figures in statistics.snapshot(0.0)
    }


RUNS = (Run("r1", "q1", "named"), 3), (Run("r2", "q2", None), 4), (Run("r3", "q2", None), 5)


def test_each_query_is_a_component(statistics):
    count(ScriptQueries(statistics, clock=lambda: 0.0), *RUNS)
    assert emitted(statistics) == {("named", "named", 1): 3, ("query-2", "query-2", 2): 9}


def test_in_a_cluster_the_script_is_one_component_and_one_query(statistics):
    queries = ScriptQueries(statistics, "daily", lambda: 0.0)
    assert not queries.any
    count(queries, *RUNS)
    assert queries.any
    assert emitted(statistics) == {("daily", "daily", 1): 12}


def test_which_query_failed_is_said_by_its_own_name(statistics, caplog):
    queries = ScriptQueries(statistics, "daily")
    for name, said in (("named", "the query named has"), (None, "the query daily has")):
        queries.ended(Run("r", "q", name, error="ValueError: no"))
        assert f"{said} ended with an error: ValueError: no" in caplog.text
