"""On a healthy cluster, analyses find at most what docs/analytics.md states."""

import re
from pathlib import Path

import pytest

from stormkeeper.pipeline.analyses.trends import growing_heartbeats, saturating_components
from stormkeeper.pipeline.analyses.worker_health import (
    flapping_workers,
    late_nodes,
    late_pacemakers,
)
from stormkeeper.pipeline.analyses.workload import skewed_components, unusual_throughput
from support import healthy_cluster

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PAGE = (Path(__file__).parents[3] / "docs" / "analytics.md").read_text()

#: Not the seed of the figures on the page.
SEED = 7


def stated(rule):
    """Return the bound that the page states, per subject and day."""
    (bound,) = re.findall(rf"^\| `{rule}` \|.*\| ([\d.]+) \|$", PAGE, re.MULTILINE)
    return float(bound)


def check(found, subjects, *, days=1.0):
    """Check that so many subjects had no more findings in so many days than are stated."""
    alarms = {(one.rule, one.subject) for one in found.collect()}
    for rule in {rule for rule, _ in alarms}:
        count = sum(1 for other, _ in alarms if other == rule)
        expected = stated(rule) * subjects * days
        # Three standard deviations above what the bound leads to, and one.
        assert count <= expected + 3 * expected**0.5 + 1, alarms


def test_of_components_by_the_minute(spark):
    minutes = healthy_cluster.rollup(spark, SEED, topologies=20, hours=12)
    check(skewed_components(minutes), 20 * 6, days=0.5)


def test_of_topologies_by_ten_minutes(spark):
    rows = healthy_cluster.rollup(spark, SEED, topologies=40, hours=36, minutes=10).cache()
    check(unusual_throughput(rows), 40, days=1.5)
    check(saturating_components(rows), 40 * 5, days=1.5)
    check(growing_heartbeats(rows), 40, days=1.5)
    rows.unpersist()


def test_of_workers_by_their_events(spark):
    check(flapping_workers(healthy_cluster.events(spark, SEED, workers=6648)), 6648)


def test_of_nodes_and_pacemakers(spark):
    cluster = {"nodes": 277, "workers_per_node": 24, "servers": 5, "readings": 60}
    workers = healthy_cluster.liveness(spark, SEED, **cluster)
    days = cluster["readings"] * 15 / 86_400
    check(late_nodes(workers), cluster["nodes"], days=days)
    check(late_pacemakers(workers), cluster["servers"], days=days)
