from collections import Counter

import pytest

from stormkeeper.conf import defaults
from stormkeeper.daemon.spark import session
from stormkeeper.topology.plan import plan
from stormkeeper.worker.checkpoint_claims import Checkpoint, Claims
from stormkeeper.worker.executor_counts import ALL_TIME, STREAM, TopologyCounts, WorkerStatistics
from stormkeeper.worker.query_events import QueryEvents
from stormkeeper.worker.streaming_queries import TopologyRun, build
from support.waiting import until


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One Spark session for all tests that need no worker process."""
    folder = tmp_path_factory.mktemp("spark")
    return session(
        {
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder),
        },
        "tests",
    )


@pytest.fixture
def numbers(tmp_path):
    """A folder of six text files with the numbers from 1 to 60, and these numbers."""
    folder = tmp_path / "numbers"
    folder.mkdir()
    for file in range(6):
        lines = [str(n) for n in range(1 + 10 * file, 11 + 10 * file)]
        (folder / f"{file}.txt").write_text("\n".join(lines) + "\n")
    return folder, range(1, 61)


@pytest.fixture
def run_topology(spark, tmp_path):
    """Runs a topology to its end and returns what was counted, by component and query."""

    def run(topology, **conf):
        the_plan = plan(topology)
        statistics = WorkerStatistics()
        events = QueryEvents(TopologyCounts(the_plan, statistics))
        events.attach(spark)
        values = defaults().with_values(conf)
        with events.readings.installed():
            built = build(
                the_plan,
                topology.components,
                spark,
                values,
                lambda query: str(tmp_path / "checkpoints" / query),
            )
        TopologyRun(built, events, lambda: False, Claims({}, Checkpoint)).run()
        until(lambda: not events.running())
        spark.streams.removeListener(events)
        return Counts(statistics.snapshot(0.0))

    return run


class Counts:
    """What was counted, in a form that is short to compare."""

    def __init__(self, snapshot):
        self.emitted = Counter()
        self.transferred = Counter()
        self.executed = {}
        self.partial = {}
        for executor, stats in snapshot:
            key = executor.component.id, executor.query
            self.emitted[key] = stats.emitted[ALL_TIME].get(STREAM, 0)
            self.transferred[key] = stats.transferred[ALL_TIME].get(STREAM, 0)
            bolt = stats.specific.bolt
            by_source = {} if bolt is None else bolt.executed[ALL_TIME]
            self.executed[key] = {source.componentId: rows for source, rows in by_source.items()}
            self.partial[key] = (stats.partial_batches or {}).get(ALL_TIME, 0)
