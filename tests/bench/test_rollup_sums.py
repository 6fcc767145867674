"""Minutes of a simulated cluster whose workers restart, through the pipeline's own functions."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from pipeline.looks import Looks

from pipeline import agreement, rollups, truth
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.rollups import merge_buckets
from support.read_simulations import Spoiled, Statistics, write_told
from support.simulations import BEGIN, simulation

READING_SECS = 25.0
LOOKS = Looks(trigger_secs=5.0, statistics_secs=READING_SECS, late_secs=9.0, timeout_secs=30.0)
SECS = 150


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A truth, and the tables of a pipeline that has read every 25 s."""
    folder = tmp_path_factory.mktemp("rollups")
    made, told = simulation(nodes=4, topologies=3, round_secs=float(SECS))
    newest = {}
    with Statistics(folder / "tables") as statistics:
        statistics.read([], BEGIN - 1)
        for step in range(SECS):
            now = BEGIN + step
            for beat in made.due(now):
                newest[beat.worker.path] = beat
                made.acknowledged(beat, "a:6699", now)
            if step % READING_SECS == READING_SECS - 1:
                statistics.read(list(newest.values()), now + 0.5)
                newest.clear()
        made.finish(BEGIN + SECS)
        statistics.read(list(newest.values()), BEGIN + SECS + 0.5)
    write_told(folder / "truth.jsonl", told, made)
    return SimpleNamespace(truth=truth.load(folder / "truth.jsonl"), tables=statistics.tables())


def compared(world, folder, **spoiled):
    verdict = agreement.Verdict()
    found = world.tables
    for name, rows in spoiled.items():
        found = Spoiled(found, folder, name, rows)
    rollups.compare(world.truth, found, BEGIN - 1, verdict, LOOKS)
    return verdict


def test_minutes_add_up_to_what_was_read(world, tmp_path):
    verdict = compared(world, tmp_path)
    assert verdict.lines() == []
    assert verdict.tried["minutes add up to something else"] > 10
    assert any(len(lives) > 1 for lives in world.truth.lives.values())
    assert max(verdict.tails) <= READING_SECS


def test_a_longer_bucket_has_what_its_minutes_have(world, tmp_path):
    minutes = world.tables.arrow(tables.ROLLUP_1M)
    long = merge_buckets(minutes, 10)
    verdict = compared(world, tmp_path, rollup_10m=long)
    assert verdict.lines() == []
    assert verdict.tried["a longer bucket has something else"] == long.num_rows > 5
    counts = long["executed"].to_pylist()
    counts[1] += 1
    place = long.column_names.index("executed")
    other = long.set_column(place, "executed", pa.array(counts, pa.int64()))
    for spoiled in (other, long.slice(1), pa.concat_tables([long, long.slice(0, 1)])):
        verdict = compared(world, tmp_path, rollup_10m=spoiled)
        assert [len(about) for about in verdict.broken.values()] == [1]


@pytest.mark.parametrize("column", ["executed", "emitted"])
def test_a_minute_that_has_another_sum_is_found(world, tmp_path, column):
    found = world.tables.arrow(tables.ROLLUP_1M)
    values = found[column].to_pylist()
    ids = found["storm_id"].to_pylist()
    first = next(n for n, id_ in enumerate(ids) if values[n] and id_ not in world.truth.deleted)
    values[first] += 1
    place = found.column_names.index(column)
    spoiled = found.set_column(place, column, pa.array(values, pa.int64()))
    verdict = compared(world, tmp_path, rollup_1m=spoiled)
    assert [len(about) for about in verdict.broken.values()] == [1]


def test_a_reading_that_was_not_made_is_found(world, tmp_path):
    found = world.tables.arrow(tables.EXECUTOR_STATS)
    early = found.filter([at.timestamp() < BEGIN + 60 for at in found["read_at"].to_pylist()])
    verdict = compared(world, tmp_path, executor_stats=early)
    assert "more than one reading's time is lost" in verdict.broken
