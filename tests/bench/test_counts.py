"""What a simulated cluster counted, through the pipeline's own functions, and what may be wrong."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline import agreement, counts, truth
from stormkeeper.pipeline import tables
from support.read_simulations import Spoiled, Statistics, write_told
from support.simulations import BEGIN, PERIOD_SECS, simulation


@pytest.fixture(scope="module", params=[False, True], ids=["without names", "with names"])
def world(request, tmp_path_factory):
    """A truth, and what the pipeline makes of the same heartbeats."""
    folder = tmp_path_factory.mktemp("counts")
    made, told = simulation(nodes=4, topologies=3, names_components=request.param)
    beats = list(made.due(BEGIN + PERIOD_SECS - 0.001))
    for beat in beats:
        made.acknowledged(beat, "a:6699", BEGIN + PERIOD_SECS)
    made.finish(BEGIN + PERIOD_SECS)
    write_told(folder / "truth.jsonl", told, made, named=request.param)
    with Statistics(folder / "tables") as statistics:
        statistics.read(beats, BEGIN + PERIOD_SECS)
    return SimpleNamespace(truth=truth.load(folder / "truth.jsonl"), tables=statistics.tables())


def compared(world, folder, *, forgotten=0, **spoiled):
    verdict = agreement.Verdict()
    reports = {
        (row["storm_id"], row["node"], row["port"]): row
        for row in world.tables.arrow(tables.WORKER_REPORTS).to_pylist()
    }
    for worker in [*reports][:forgotten]:
        del reports[worker]
    found = world.tables
    for name, rows in spoiled.items():
        found = Spoiled(found, folder, name, rows)
    counts.compare(world.truth, found, reports, verdict)
    return verdict


def test_what_the_pipeline_counts_is_what_workers_said(world, tmp_path):
    verdict = compared(world, tmp_path)
    assert verdict.lines() == []
    assert verdict.tried["an executor has counted something else"] > 100
    assert verdict.tried["component_stats has another sum"] > 20
    assert verdict.tried["topology_stats has another sum"] == 3 * 4


@pytest.mark.parametrize(
    ("table", "column", "rule"),
    [
        (tables.EXECUTOR_STATS, "emitted", "an executor has counted something else"),
        (tables.EXECUTOR_STATS, "execute_ms_avg", "an executor has counted something else"),
        (tables.COMPONENT_STATS, "executed", "component_stats has another sum"),
        (tables.COMPONENT_STATS, "capacity", "component_stats has another sum"),
        (tables.TOPOLOGY_STATS, "complete_ms_avg", "topology_stats has another sum"),
        (tables.TOPOLOGY_STATS, "workers", "topology_stats has another sum"),
    ],
)
def test_a_number_that_is_not_theirs_is_found(world, tmp_path, table, column, rule):
    found = world.tables.arrow(table)
    place = found.column_names.index(column)
    values = found[column].to_pylist()
    first = next(n for n, value in enumerate(values) if value)
    values[first] += 1
    spoiled = found.set_column(place, column, pa.array(values, found[column].type))
    verdict = compared(world, tmp_path, **{table: spoiled})
    assert {rule: len(about) for rule, about in verdict.broken.items()} == {rule: 1}


def test_rows_that_lack_or_are_too_many_are_found(world, tmp_path):
    found = world.tables.arrow(tables.EXECUTOR_STATS)
    is_first = pc.equal(found["node"], found["node"][0])
    verdict = compared(world, tmp_path, executor_stats=found.filter(pc.invert(is_first)))
    assert [*verdict.broken] == ["an executor has counted something else"]
    more = found.slice(0, 1).set_column(
        found.column_names.index("task_start"), "task_start", pa.array([9_999], pa.int32())
    )
    verdict = compared(world, tmp_path, executor_stats=pa.concat_tables([found, more]))
    assert [*verdict.broken] == ["an executor is there that never was"]


def test_the_log_may_have_rows_of_who_is_forgotten(world, tmp_path):
    # Its counts are in the sums, which are made anew once another worker of the topology is read.
    broken = compared(world, tmp_path, forgotten=1).broken
    assert broken
    assert "an executor is there that never was" not in broken
