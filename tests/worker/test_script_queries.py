import functools

import pytest

from stormkeeper.worker.executor_counts import ALL_TIME, ScriptCounts, WorkerStatistics
from stormkeeper.worker.query_events import BatchRows, QueryRun
from stormkeeper.worker.streaming_queries import ScriptCheckpoints, Sink, checkpoint_name


@pytest.fixture
def statistics():
    return WorkerStatistics()


def count(queries, *runs):
    for run, rows in runs:
        queries.started(run)
        queries.batch(run, BatchRows({"stormkeeper:sink-1": rows, "mine": 99}, frozenset()), 5.0)


def emitted(statistics):
    return {
        (executor.component.id, executor.query, executor.task_start): stats.emitted[ALL_TIME][
            "default"
        ]
        for executor, stats in statistics.snapshot(0.0)
    }


RUNS = (
    (QueryRun("r1", "q1", "named"), 3),
    (QueryRun("r2", "q2", None), 4),
    (QueryRun("r3", "q2", None), 5),
)


def test_each_query_is_a_component(statistics):
    count(ScriptCounts(statistics, clock=lambda: 0.0), *RUNS)
    assert emitted(statistics) == {("named", "named", 1): 3, ("query-2", "query-2", 2): 9}


def test_in_a_cluster_the_script_is_one_component_and_one_query(statistics):
    queries = ScriptCounts(statistics, "daily", lambda: 0.0)
    assert not queries.any
    count(queries, *RUNS)
    assert queries.any
    assert emitted(statistics) == {("daily", "daily", 1): 12}


def test_which_query_failed_is_said_by_its_own_name(statistics, caplog):
    queries = ScriptCounts(statistics, "daily")
    for name, said in (("named", "the query named has"), (None, "the query daily has")):
        queries.ended(QueryRun("r", "q", name, error="ValueError: no"))
        assert f"{said} ended with an error: ValueError: no" in caplog.text


def write(batch, number):
    """A sink of a script."""


@pytest.mark.parametrize(
    ("sink", "name"),
    [
        (Sink(query="totals", format="parquet"), "totals"),
        (Sink(query="a/b"), "a-b-07f4401c"),
        (Sink(format="kafka", target="words"), "kafka-words"),
        (Sink(format="parquet", target="/data/out"), "parquet-data-out-ae89d9e3"),
        (Sink(function=write), "foreach-write"),
        (Sink(function=functools.partial(write, number=1)), "foreach-write"),
        (Sink(format="console"), "console"),
        (Sink(), "sink"),
    ],
)
def test_a_checkpoint_is_named_by_the_query_or_its_sink(sink, name):
    assert checkpoint_name(sink) == name


def test_the_nth_start_has_the_same_checkpoint_in_each_process():
    sinks = Sink(format="console"), Sink("q"), Sink("q"), Sink(format="memory"), Sink("q.2")
    places = ["/c/t/console", "/c/t/q", "/c/t/q.2", None]
    for _ in range(2):
        checkpoints = ScriptCheckpoints(lambda: "/c/t")
        found = [checkpoints.choose(sink) for sink in sinks]
        assert found[:4] == places
        assert found[4].startswith("/c/t/q-2-")
    for _ in range(ScriptCheckpoints.MOST - 2):
        assert checkpoints.choose(Sink("q"))
    assert checkpoints.choose(Sink("q")) is None


class Query:
    def __init__(self, error=None):
        self.error = error

    def exception(self):
        return self.error


def test_failed_query_goes_on_in_its_checkpoint():
    checkpoints, sink = ScriptCheckpoints(lambda: "/c"), Sink("q", "parquet", "/out")
    for query, place in [
        (Query("disk full"), "/c/q"),
        (None, "/c/q"),  # the start fails as well
        (Query("disk full"), "/c/q"),
        (Query(), "/c/q"),  # this one ends well, or still runs
        (Query("disk full"), "/c/q.2"),
    ]:
        assert checkpoints.choose(sink) == place
        checkpoints.started(sink, place, query)
    assert checkpoints.choose(sink._replace(target="/other")) == "/c/q.3"


def test_starts_at_the_same_time_have_a_checkpoint_each():
    checkpoints, sink = ScriptCheckpoints(lambda: "/c"), Sink("q")
    places = [checkpoints.choose(sink) for _ in range(2)]
    for place in places:
        checkpoints.started(sink, place, Query())
    assert places == ["/c/q", "/c/q.2"]
    assert checkpoints.choose(sink) == "/c/q.3"
