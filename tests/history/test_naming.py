"""What is read of components that their workers have not named."""

import math

import pyarrow as pa
import pytest

from stormkeeper.history import component_stats
from stormkeeper.history.database import HistoryDatabase, named
from stormkeeper.history.parquet import TIME, TableSpec
from stormkeeper.pipeline.table_columns import COMPONENT_STATS
from stormkeeper.pipeline.table_columns import ROLLUP as ROLLUP_COLUMNS
from support.tables import at, origin, store

TEXT, COUNT, NUMBER = pa.string(), pa.int64(), pa.float64()
ID = "wc-1-1700000000"
WHOSE = {"storm_id": TEXT, "topology": TEXT, "component": TEXT, "kind": TEXT}
COUNTS = dict.fromkeys(("workers", "executors", "tasks", "emitted", "executed", "acked"), COUNT)
COUNTS |= dict.fromkeys(("transferred", "failed", "restarts", "readings", "skipped"), COUNT)
AVERAGES = ("complete_ms_avg", "execute_ms_avg", "process_ms_avg", "capacity", "capacity_mean")
NUMBERS = dict.fromkeys((*AVERAGES, "largest_share", "executed_cv", "interval_secs"), NUMBER)
READING = {"read_at": TIME, **WHOSE, "window": TEXT, **COUNTS, **NUMBERS, "partial": pa.bool_()}
ROLLUP = {"bucket": TIME, **WHOSE, **COUNTS, **NUMBERS}
EXECUTOR = {"read_at": TIME, **WHOSE, "task_start": pa.int32(), "emitted": COUNT}
COMPONENT = {"storm_id": TEXT, "component": TEXT, "task_start": pa.int32(), "task_end": pa.int32()}

SPECS = [
    TableSpec("component_stats", pa.schema(READING), "log", time="read_at"),
    TableSpec("rollup_1m", pa.schema(ROLLUP), "log", time="bucket"),
    TableSpec("executor_stats", pa.schema(EXECUTOR), "log", time="read_at"),
]
COMPONENTS = TableSpec("components", pa.schema(COMPONENT), "current")


def rows(columns, *found):
    whose = {"storm_id": ID, "topology": "wc", "kind": "bolt", "read_at": at(0), "bucket": at(0)}
    filled = [{**dict.fromkeys(columns), **whose, "executors": 1, **row} for row in found]
    return pa.Table.from_pylist(filled, schema=pa.schema(columns))


def tasks(start, end, **columns):
    return {"component": f"tasks {start}-{end}", **columns}


@pytest.fixture
def written(tmp_path):
    """Writes tables of statistics, and the names that are known."""

    def write(names=(("split", 1, 4), ("words", 5, 6)), **tables):
        with store(tmp_path / "statistics", *SPECS) as into:
            into.publish(origin(0), tables)
        found = [dict(zip(COMPONENT, (ID, *name), strict=True)) for name in names]
        table = pa.Table.from_pylist(found, schema=COMPONENTS.schema)
        with store(tmp_path / "names", COMPONENTS) as into:
            into.publish(origin(0), {"components": table})
        return tmp_path

    return write


def test_executors_become_their_component_again(written):
    one = {"executed": 3, "emitted": 5, "tasks": 2, "execute_ms_avg": 2.0, "capacity": 0.25}
    other = {"executed": 1, "emitted": 7, "tasks": 2, "execute_ms_avg": 6.0, "capacity": 0.5}
    spout = {"kind": "spout", "acked": 4, "tasks": 2, "workers": 1, "complete_ms_avg": 8.0}
    found = rows(
        READING,
        tasks(1, 2, window="600", workers=1, partial=False, **one),
        tasks(3, 4, window="600", workers=1, partial=True, **other),
        tasks(1, 2, window=":all-time", workers=1, executed=10, execute_ms_avg=1.0),
        tasks(5, 6, window="600", **spout),
        {"component": "named", "window": "600", "workers": 2, "executed": 1},
    )
    with HistoryDatabase(written(component_stats=found)) as past:
        now = {(row["component"], row["window"]): row for row in component_stats.newest(past, "wc")}
        assert component_stats.newest(past, ID, "split", "600") == [now["split", "600"]]
        assert component_stats.newest(past, ID, "tasks 1-2") == []
    assert sorted(now) == [
        ("named", "600"),
        ("split", "600"),
        ("split", ":all-time"),
        ("words", "600"),
    ]
    split = now["split", "600"]
    expected = {"executed": 4, "emitted": 12, "tasks": 4, "executors": 2, "capacity": 0.5}
    assert {name: split[name] for name in expected} == expected
    assert split["execute_ms_avg"] == 3.0
    assert split["partial"]
    assert split["workers"] is None, "two executors may be in one worker"
    assert now["words", "600"]["workers"] == 1
    assert now["words", "600"]["complete_ms_avg"] == 8.0
    assert now["split", ":all-time"]["executed"] == 10
    assert now["named", "600"]["workers"] == 2


def test_shares_and_spread_are_those_of_the_executors(written):
    executed = [2, 10, 3, 1]
    found = [
        tasks(
            task, task, executed=count, largest_share=1.0, executed_cv=0.0, readings=4, restarts=1
        )
        for task, count in enumerate(executed, 1)
    ]
    with HistoryDatabase(written(rollup_1m=rows(ROLLUP, *found))) as past:
        (row,) = past.query(f"SELECT * FROM {past.table('rollup_1m')}")
        (bucket,) = component_stats.course(past, "wc", at(0), at(60), component="split")
    mean = sum(executed) / 4
    spread = math.sqrt(sum((count - mean) ** 2 for count in executed) / 4)
    assert row["largest_share"] == pytest.approx(10 / 16)
    assert row["executed_cv"] == pytest.approx(spread / mean)
    assert bucket["executed"] == 16
    assert bucket["restarts"] == 1, "they may all be of one worker"


def test_counts_before_and_after_naming_are_joined(written):
    found = [
        tasks(1, 2, executed=1, workers=1),
        tasks(3, 4, executed=2, workers=1),
        {"component": "split", "executed": 4, "workers": 2},
    ]
    with HistoryDatabase(written(rollup_1m=rows(ROLLUP, *found))) as past:
        seen = past.query(f"SELECT component, executed FROM {past.table('rollup_1m')}")
    assert seen == [{"component": "split", "executed": 7}]


@pytest.mark.parametrize("columns", [COMPONENT_STATS, ROLLUP_COLUMNS])
def test_the_pipelines_own_columns_can_be_put_together(columns):
    """Of a column that is new there, it is to be said what becomes of it."""
    assert "GROUP BY" in named("rows", "components", columns.names)
    assert "GROUP BY" not in named("rows", "components", [*columns.names, "new"])


def test_tasks_that_nobody_has_named_stay(written):
    """So do those of a topology that Nimbus does not know, and a name that only looks like them."""
    found = rows(
        READING,
        tasks(7, 8, window="600", executed=1),
        tasks(4, 5, window="600", executed=2),  # Storm has no executor of two components
        tasks(1, 4, window="600", executed=3, storm_id="other-1-1"),
        {"component": "my tasks 1-4", "window": "600", "executed": 4},
        {"component": "tasks 1-99999999999", "window": "600", "executed": 5},
    )
    with HistoryDatabase(written(component_stats=found)) as past:
        seen = past.query(f"SELECT component, executed FROM {past.table('component_stats')}")
    assert {row["executed"]: row["component"] for row in seen} == {
        1: "tasks 7-8",
        2: "tasks 4-5",
        3: "tasks 1-4",
        4: "my tasks 1-4",
        5: "tasks 1-99999999999",
    }


def test_rows_of_executors_are_named_one_by_one(written):
    found = [tasks(task, task, task_start=task, emitted=task) for task in (1, 2, 5)]
    with HistoryDatabase(written(executor_stats=rows(EXECUTOR, *found))) as past:
        seen = past.query(f"SELECT * FROM {past.table('executor_stats')} ORDER BY task_start")
        assert past.query(f"SELECT count(*) AS n FROM {past.table('components')}") == [{"n": 2}]
    assert [(row["component"], row["emitted"]) for row in seen] == [
        ("split", 1),
        ("split", 2),
        ("words", 5),
    ]


def test_unknown_and_oversized_values_of_a_component(written):
    largest = 2**63 - 1
    found = [tasks(task, task, executed=largest, acked=None, executed_cv=0.5) for task in (1, 2)]
    with HistoryDatabase(written(rollup_1m=rows(ROLLUP, *found))) as past:
        (row,) = past.query(f"SELECT * FROM {past.table('rollup_1m')}")
    assert (row["executed"], row["acked"]) == (largest, None)
    assert row["executed_cv"] == pytest.approx(0.5)
