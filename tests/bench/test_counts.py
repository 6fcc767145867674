"""What a simulated cluster counted, through the pipeline's own functions, and what may be wrong."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline import agreement, counts, truth
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.following import Position
from stormkeeper.heartbeats.liveness import Limits
from stormkeeper.pipeline import rows, tables
from stormkeeper.pipeline.counted import next_counted
from stormkeeper.pipeline.decode import decode_batch
from stormkeeper.pipeline.reports import next_reports
from stormkeeper.pipeline.statistics.readings import executor_stats
from support.heartbeats import change_of, page_of
from support.simulations import BEGIN, PERIOD_SECS, simulation, write_truth

LOGS = (tables.EXECUTOR_STATS, tables.COMPONENT_STATS, tables.TOPOLOGY_STATS)


@pytest.fixture(scope="module", params=[False, True], ids=["without names", "with names"])
def world(request, tmp_path_factory):
    """A truth, and what the pipeline makes of the same heartbeats."""
    named = request.param
    made, told = simulation(nodes=4, topologies=3, names_components=named)
    beats = list(made.due(BEGIN + PERIOD_SECS - 0.001))
    for beat in beats:
        made.acknowledged(beat, "a:6699", BEGIN + PERIOD_SECS)
    made.finish(BEGIN + PERIOD_SECS)
    folder = tmp_path_factory.mktemp("told")
    run = {"event": "run", "tells_counters": True, "names_components": named}
    topologies = [
        {"event": "topology", "storm_id": one.storm_id, "components": []}
        for one in made.cluster.topologies
    ]
    file = folder / "truth.jsonl"
    write_truth(file, [run, *topologies, *told])
    readings = [change_of(b.path, b.details, n, 0.0) for n, b in enumerate(beats, start=1)]
    now = BEGIN + PERIOD_SECS
    health = Coverage(now, None, Position("x", len(beats)), 1e6, 1e6, 1)
    page = page_of("x", readings, now)
    return SimpleNamespace(truth=truth.load(file), found=_counted(page, health))


def _counted(page, health):
    servers = [rows.of_page("a:6699", page), rows.of_server("a:6699", health)]
    batch = pa.Table.from_batches([decode_batch(one) for one in servers])
    limits = Limits(late_secs=9, timeout_secs=30)
    reports, newest = next_reports(None, batch, limits, PERIOD_SECS)
    found = next_counted(None, newest, [executor_stats(newest)], reports)
    return {tables.WORKER_REPORTS: reports, **found}


class Written:
    """Tables of which only the files are asked for."""

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
    reports = {
        (row["storm_id"], row["node"], row["port"]): row
        for row in world.found[tables.WORKER_REPORTS].to_pylist()
    }
    counts.compare(world.truth, Written(folder, world.found | spoiled), reports, verdict)
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
    found = world.found[table]
    place = found.column_names.index(column)
    values = found[column].to_pylist()
    first = next(n for n, value in enumerate(values) if value)
    values[first] += 1
    spoiled = found.set_column(place, column, pa.array(values, found[column].type))
    verdict = compared(world, tmp_path, **{table: spoiled})
    assert {rule: len(about) for rule, about in verdict.broken.items()} == {rule: 1}


def test_rows_that_lack_or_are_too_many_are_found(world, tmp_path):
    found = world.found[tables.EXECUTOR_STATS]
    is_first = pc.equal(found["node"], found["node"][0])
    verdict = compared(world, tmp_path, executor_stats=found.filter(pc.invert(is_first)))
    assert [*verdict.broken] == ["an executor has counted something else"]
    more = found.slice(0, 1).set_column(
        found.column_names.index("task_start"), "task_start", pa.array([9_999], pa.int32())
    )
    verdict = compared(world, tmp_path, executor_stats=pa.concat_tables([found, more]))
    assert [*verdict.broken] == ["an executor is there that never was"]
