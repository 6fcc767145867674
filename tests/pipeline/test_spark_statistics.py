"""The functions for DataFrames, beside those of Arrow; jobs of Spark take their time, so in few."""

import random

import pyarrow as pa
import pytest

from stormkeeper.pipeline import executor_stats as readings
from stormkeeper.pipeline import summaries
from stormkeeper.pipeline.spark_statistics import (
    assigned,
    component_stats,
    executor_stats,
    named,
    newest,
    topology_stats,
)
from stormkeeper.pipeline.table_columns import COMPONENT_STATS, TOPOLOGY_STATS
from support.heartbeats import bolt, change_of, heartbeat, path, spout
from support.reported_topologies import decoded, heartbeats_of, reported
from support.statistics_examples import example

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PULSES = heartbeats_of([reported(random.Random(n), f"random-{n}-17") for n in range(40)])


def said(table, schema):
    """The rows in any order, as text: NaN is not equal to itself."""
    assert table.schema.names == schema.names
    return sorted(map(repr, table.cast(schema).to_pylist()))


def test_the_rows_are_those_of_arrow(spark):
    executors = readings.executor_stats(PULSES)
    workers = summaries.sum_workers(summaries.tally_rows(executors))
    # In parts, as Spark cuts what is much.
    df = spark.createDataFrame(PULSES).repartition(3).transform(executor_stats).cache()
    found = df.toArrow()
    assert said(found, readings.EXECUTOR_STATS) == said(executors, readings.EXECUTOR_STATS)
    found = df.transform(component_stats).toArrow()
    expected = summaries.component_stats(workers)
    assert said(found, COMPONENT_STATS) == said(expected, COMPONENT_STATS)
    found = df.transform(topology_stats).toArrow()
    expected = summaries.topology_stats(workers)
    assert said(found, TOPOLOGY_STATS) == said(expected, TOPOLOGY_STATS)


def test_only_the_newest_readable_heartbeat_counts(spark):
    beats = [heartbeat("t-1-17", {(1, 1): spout(count)}) for count in (5, 9, 7)]
    where = path("t-1-17")
    changes = [
        *(change_of(where, beat, 1, age) for beat, age in zip(beats, (2.0, 1.0, 3.0), strict=True)),
        change_of(where, b"garbage", 2, 0.0),
        change_of("/workerbeats/elsewhere", beats[0], 3, 0.0),
    ]
    read = spark.createDataFrame(decoded(changes, 1_700_000_000.0))
    found = read.transform(newest).transform(executor_stats).where("window = '600'").collect()
    assert [row.emitted for row in found] == [9]


def test_assigned_executors_are_named_and_others_dropped(spark):
    executors = {(1, 1): spout(5), (2, 2): spout(7), (3, 3): spout(9)}
    changes = [change_of(path("t-1-17", "n", 1), heartbeat("t-1-17", executors), 1, 0.0)]
    read = spark.createDataFrame(decoded(changes, 1_700_000_000.0)).transform(executor_stats)
    known = pa.table(
        {
            "storm_id": ["t-1-17", "t-1-17", "u-1-17"],
            "task_start": pa.array([1, 2, 3], pa.int32()),
            "task_end": pa.array([1, 2, 3], pa.int32()),
            "component": ["lines", "more", "other"],
            "node": ["n", "m", "n"],
            "port": pa.array([1, 1, 1], pa.int32()),
        }
    )
    known = spark.createDataFrame(known)
    found = read.transform(assigned, known).where("window = '600'").collect()
    assert [(row.component, row.emitted) for row in found] == [("lines", 5)]
    found = read.transform(assigned, known.drop("node", "port")).transform(component_stats)
    rows = found.where("window = '600'").select("component", "emitted").collect()
    assert sorted(map(tuple, rows)) == [("lines", 5), ("more", 7)]


SMALL = example("small")
STORM_ID = SMALL.answers["id"]


def test_executors_are_named_and_summed_up_as_storm_does(spark):
    words = bolt({("lines", "default"): 10})
    words.component = "tasks"
    own = {(1, 1): words, (2, 2): spout(1), (-1, -1): spout(1)}
    changes = [
        change_of(path(STORM_ID, beat["node"], beat["port"]), bytes.fromhex(beat["gzip_hex"]), n)
        for n, beat in enumerate(SMALL._input["heartbeats"], 1)
    ]
    changes.append(change_of(path("t-1-17"), heartbeat("t-1-17", own), 9))
    beats = spark.createDataFrame(decoded(changes, 1_700_000_000.0))
    known = [(STORM_ID, component, task, task) for task, component in SMALL.tasks.items()]
    known += [("t-1-17", "wrong", 1, 1), ("other-1-17", "wrong", 1, 99)]
    components = spark.createDataFrame(
        known, "storm_id string, component string, task_start int, task_end int"
    )
    # A component has one range of tasks, as in the table.
    ranges = components.groupBy("storm_id", "component").agg(
        {"task_start": "min", "task_end": "max"}
    )
    ranges = ranges.toDF(
        "storm_id", "component", *(n.split("(")[1][:-1] for n in ranges.columns[2:])
    )
    counted = beats.transform(executor_stats).transform(named, ranges)
    rows = counted.transform(component_stats).where("window = '600'").collect()
    found = {(row.storm_id, row.component): row for row in rows}
    assert {name for storm_id, name in found if storm_id == STORM_ID} == {*SMALL.tasks.values()}
    assert {name for storm_id, name in found if storm_id == "t-1-17"} == {"tasks", "tasks 2-2"}
    (page,) = (
        answer["result"]["id_to_bolt_agg_stats"]["split"]
        for answer in SMALL.answers["topology_page"]
        if answer["window"] == "600" and answer["sys"]
    )
    split = found[STORM_ID, "split"]
    assert split.executed == page["specific_stats"]["bolt"]["executed"]
    assert split.executors == page["common_stats"]["num_executors"]
    assert split.capacity == pytest.approx(page["specific_stats"]["bolt"]["capacity"], rel=1e-9)
