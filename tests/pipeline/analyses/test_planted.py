"""Troubles that a simulation plants for hours, found in the tables of its heartbeats.

The hours are the simulation's own, and pass in a minute: its heartbeats are decoded, counted and
kept by the pipeline's functions, as fast as these go.
"""

import pytest

from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses.trends import growing_heartbeats, saturating_components
from stormkeeper.pipeline.analyses.workload import skewed_components, unusual_throughput
from support.read_simulations import Statistics
from support.simulations import BEGIN, simulation

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PERIOD_SECS = 60.0
HOURS = 6.5
#: So long a round takes, of which the first part is simulated: what lasts lasts for hours.
ROUND_HOURS = 12

#: What each kind of trouble is found by.
RULES = {
    "executor_skewed": "skew",
    "throughput_dropped": "throughput",
    "bolt_saturating": "saturation",
    "heartbeats_growing": "growth",
}


def test_each_trouble_is_found_and_nothing_else(spark, tmp_path):
    made, told = simulation(
        nodes=6,
        workers_per_node=4,
        topologies=8,
        seed=3,
        count_every=1,
        names_components=True,
        round_secs=3600.0 * ROUND_HOURS,
        period_secs=PERIOD_SECS,
    )
    with Statistics(tmp_path, PERIOD_SECS) as statistics:
        for step in range(round(3600 * HOURS / PERIOD_SECS)):
            now = BEGIN + PERIOD_SECS * (step + 1)
            beats = list(made.due(now))
            for beat in beats:
                made.acknowledged(beat, "a:6699", now)
            statistics.read(beats, now + 0.5)
    kept = statistics.tables()
    minutes = kept.spark(spark, tables.ROLLUP_1M)
    ten = kept.spark(spark, tables.ROLLUP_10M).localCheckpoint()
    findings = [
        finding
        for found in (
            skewed_components(minutes),
            unusual_throughput(ten),
            saturating_components(ten),
            growing_heartbeats(ten),
        )
        for finding in found.collect()
    ]
    troubles = [event for event in told if event["event"] == "trouble"]
    lasting = {one["kind"]: one for one in troubles if one["kind"] in RULES}
    assert lasting.keys() == RULES.keys()
    subjects = {(one.rule, one.storm_id, one.component) for one in findings}
    assert subjects == {
        (RULES[kind], trouble["storm_id"], trouble.get("component"))
        for kind, trouble in lasting.items()
    }
    for trouble in lasting.values():
        times = [one.seen_at for one in findings if one.rule == RULES[trouble["kind"]]]
        assert min(times).timestamp() > trouble["since"]
