"""Minutes of a simulated cluster whose workers restart, through the pipeline's own functions."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline.looks import Looks

from pipeline import agreement, rollups, truth
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.following import Position
from stormkeeper.heartbeats.liveness import Limits
from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.decode import decode_batch
from stormkeeper.pipeline.reports import next_reports
from stormkeeper.pipeline.statistics.buckets import next_rollups
from stormkeeper.pipeline.statistics.readings import executor_stats
from support.heartbeats import change_of, page_of
from support.simulations import BEGIN, PERIOD_SECS, simulation, write_truth

READING_SECS = 15.0
LOOKS = Looks(trigger_secs=5.0, statistics_secs=READING_SECS, late_secs=9.0, timeout_secs=30.0)
LOGS = (tables.EXECUTOR_STATS, tables.ROLLUP_1M)
SECS = 200


class Pipeline:
    """The statistics query without Spark: present tables, and what was added to logs."""

    def __init__(self):
        self._now = {}
        self.logs = {name: [] for name in LOGS}

    def read(self, beats, now):
        readings = [
            change_of(beat.path, beat.details, number, now - beat.sent_at)
            for number, beat in enumerate(beats, start=round(now) * 1000)
        ]
        health = Coverage(now, None, Position("x", round(now) * 1000 + len(beats)), 1e6, 1e6, 1)
        servers = [
            rows.of_page("a:6699", page_of("x", readings, now)),
            rows.of_server("a:6699", health),
        ]
        batch = pa.Table.from_batches([decode_batch(one) for one in servers])
        reports, newest = next_reports(
            self._now.get(tables.WORKER_REPORTS), batch, Limits(9, 30), PERIOD_SECS, (now, now)
        )
        executors = executor_stats(newest)
        found = next_rollups(self._now.get, [executors], reports, (now, now))
        self._now |= {tables.WORKER_REPORTS: reports, **found}
        self.logs[tables.EXECUTOR_STATS].append(executors)
        if tables.ROLLUP_1M in found:
            self.logs[tables.ROLLUP_1M].append(found[tables.ROLLUP_1M])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A truth, and the logs of a pipeline that has read every 15 s."""
    made, told = simulation(nodes=4, topologies=3, round_secs=float(SECS))
    pipeline = Pipeline()
    newest = {}
    pipeline.read([], BEGIN - 1)
    for step in range(SECS):
        now = BEGIN + step
        for beat in made.due(now):
            newest[beat.path] = beat
            made.acknowledged(beat, "a:6699", now)
        if step % READING_SECS == READING_SECS - 1:
            pipeline.read(list(newest.values()), now + 0.5)
            newest.clear()
    made.finish(BEGIN + SECS)
    pipeline.read(list(newest.values()), BEGIN + SECS + 0.5)
    run = {"event": "run", "tells_counters": True, "names_components": False}
    topologies = [
        {"event": "topology", "storm_id": one.storm_id, "components": []}
        for one in made.cluster.topologies
    ]
    folder = tmp_path_factory.mktemp("rollups")
    file = folder / "truth.jsonl"
    write_truth(file, [run, *topologies, *told])
    found = {name: pa.concat_tables(parts) for name, parts in pipeline.logs.items()}
    return SimpleNamespace(truth=truth.load(file), found=found)


class Written:
    def __init__(self, folder, found):
        self._folder = folder
        for name in LOGS:
            pq.write_table(found[name], self._path(name))

    def files(self, name):
        return [self._path(name)]

    def _path(self, name):
        return str(self._folder / f"{name}.parquet")


def compared(world, folder, **spoiled):
    verdict = agreement.Verdict()
    written = Written(folder, world.found | spoiled)
    rollups.compare(world.truth, written, BEGIN - 1, verdict, LOOKS)
    return verdict


def test_minutes_add_up_to_what_was_read(world, tmp_path):
    verdict = compared(world, tmp_path)
    assert verdict.lines() == []
    assert verdict.tried["minutes add up to something else"] > 10
    assert any(len(lives) > 1 for lives in world.truth.lives.values())
    assert max(verdict.tails) <= READING_SECS


@pytest.mark.parametrize("column", ["executed", "emitted"])
def test_a_minute_that_has_another_sum_is_found(world, tmp_path, column):
    found = world.found[tables.ROLLUP_1M]
    values = found[column].to_pylist()
    ids = found["storm_id"].to_pylist()
    first = next(n for n, id_ in enumerate(ids) if values[n] and id_ not in world.truth.deleted)
    values[first] += 1
    place = found.column_names.index(column)
    spoiled = found.set_column(place, column, pa.array(values, pa.int64()))
    verdict = compared(world, tmp_path, rollup_1m=spoiled)
    assert [len(about) for about in verdict.broken.values()] == [1]


def test_a_reading_that_was_not_made_is_found(world, tmp_path):
    found = world.found[tables.EXECUTOR_STATS]
    early = found.filter([at.timestamp() < BEGIN + 60 for at in found["read_at"].to_pylist()])
    verdict = compared(world, tmp_path, executor_stats=early)
    assert "more than one reading's time is lost" in verdict.broken
