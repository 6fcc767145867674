"""Names for the executors of Storm's own workers, in Spark."""

import pytest

from stormkeeper.pipeline.statistics import component_stats, executor_stats, named
from support.heartbeats import bolt, change_of, heartbeat, path, spout
from support.reported_topologies import decoded
from support.statistics_examples import example

pytestmark = [pytest.mark.spark, pytest.mark.slow]

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
