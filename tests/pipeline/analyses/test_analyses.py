"""Each analysis on a few rows: the trouble is found, and the healthy neighbour is not."""

import math
from datetime import UTC, datetime, timedelta
from functools import reduce

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stormkeeper.pipeline.analyses.alerts import ALERTS, merge
from stormkeeper.pipeline.analyses.trends import growing_heartbeats, saturating_components
from stormkeeper.pipeline.analyses.worker_health import (
    flapping_workers,
    late_nodes,
    late_pacemakers,
)
from stormkeeper.pipeline.analyses.workload import skewed_components, unusual_throughput

pytestmark = pytest.mark.spark

_OF_ROLLUPS = (skewed_components, unusual_throughput, saturating_components, growing_heartbeats)

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
ROLLUP = (
    "bucket timestamp, storm_id string, topology string, component string, kind string,"
    " executors bigint, emitted bigint, executed bigint, acked bigint, capacity double,"
    " capacity_mean double, heartbeat_bytes double, largest_share double, executed_cv double"
)
EVENTS = "at timestamp, storm_id string, topology string, node string, port int, event string"
LIVENESS = "updated_at timestamp, node string, server string, status string"
ROLLUP_NAMES = [column.split()[0] for column in ROLLUP.split(",")]


@pytest.fixture(scope="module", autouse=True)
def small_queries(spark):
    """Spend no time on compiling queries that have a few rows."""
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield
    for key, value in before.items():
        spark.conf.set(key, value)


def before_now(*, minutes):
    return NOW - timedelta(minutes=minutes)


def row(topology, minutes, **columns):
    """Return a row of a roll-up whose bucket begins so long before now."""
    named = {
        "bucket": before_now(minutes=minutes),
        "storm_id": f"{topology}-1-17",
        "topology": topology,
        "component": "words",
        "kind": "bolt",
        **columns,
    }
    return tuple(named.get(name) for name in ROLLUP_NAMES)


def by_topology(found):
    rows = found.collect()
    alerts = {one.topology: one for one in rows}
    assert len(alerts) == len(rows), rows
    return alerts


@pytest.mark.slow
def test_an_executor_with_most_of_the_work_is_found(spark):
    def minutes(topology, share, *, executors=8, executed=100_000, cv=0.3, of=20, **more):
        return [
            row(
                topology,
                minute,
                executors=executors,
                executed=executed,
                largest_share=share,
                executed_cv=cv,
                **more,
            )
            for minute in range(1, of + 1)
        ]

    rows = [
        *minutes("hot", 0.6),
        *minutes("held-up", 0.6, capacity=0.97),
        *minutes("idle", 0.08, executors=32, cv=1.4),  # half of its executors have nothing
        *minutes("even", 0.13),
        *minutes("keyed", 0.22, cv=0.4),
        *minutes("quiet", 0.6, executed=80),  # four counts of a sample
        *minutes("alone", 1.0, executors=1, cv=0.0),
        *minutes("two", 0.7, executors=2, cv=0.4),
        *minutes("new", 0.6, of=5),
        *minutes("emits", 0.6, executed=0, emitted=100_000),
        *minutes("nan", math.nan, cv=math.nan),
        # The clock was set back: two rows of a bucket are one.
        *minutes("back", 0.6, of=5) * 2,
    ]
    # A hot executor that is so no more.
    rows += [
        row("was", minute, executors=8, executed=10_000, largest_share=0.6)
        for minute in range(8, 30)
    ]
    found = by_topology(skewed_components(spark.createDataFrame(rows, ROLLUP), NOW))
    assert found.keys() == {"hot", "held-up", "idle", "emits"}
    hot = found["hot"]
    assert (hot.id, hot.severity) == ("skew/hot-1-17/words", "warning")
    assert hot.value == pytest.approx(0.6)
    assert 0.2 < hot.threshold < 0.4
    assert (hot.component, hot.node, hot.until) == ("words", None, None)
    assert hot.evidence.startswith("the busiest of 8 executors had 60.0 % of the work")
    assert found["held-up"].severity == "critical"
    assert found["idle"].value == pytest.approx(1.4)


def test_a_fall_is_found_and_a_daily_rhythm_is_not(spark):
    def rhythm(minutes):
        return 6000 * math.exp(0.55 * math.cos(2 * math.pi * minutes / 1440))

    def series(topology, done, *, hours=8, kind="spout", column="acked"):
        return [
            row(topology, minute, kind=kind, **{column: int(done(minute))})
            for minute in range(10, hours * 60, 10)
        ]

    def at_night(minute):  # from four hours before now, at the same time each day
        return 0 if minute % 1440 < 40 else 6000

    def earlier_today(minute):
        return 0 if minute < 40 or 1440 <= minute < 1460 else 6000

    rows = [
        *series("fell", lambda minute: 500 if minute < 30 else 6000),
        *series("stopped", lambda minute: 0 if minute < 90 else 6000, column="emitted"),
        *series(
            "rose", lambda minute: 60_000 if minute < 30 else 6000, kind="bolt", column="executed"
        ),
        *series("rhythm", rhythm, hours=30),
        *series("steep", lambda minute: rhythm(minute + 360), hours=30),
        *series("for-a-moment", lambda minute: 0 if minute < 20 else 6000),
        *series("stops-daily", at_night, hours=30),
        *series("stops-earlier", earlier_today, hours=30),
        *series("hourly", lambda minute: 0 if minute % 60 < 30 else 6000),
        *series("quiet", lambda minute: 0 if minute < 30 else 100),
        *series("new", lambda minute: 0 if minute < 30 else 6000, hours=1),
        row("once", 10, kind="spout", acked=5),
    ]
    found = by_topology(unusual_throughput(spark.createDataFrame(rows, ROLLUP), NOW))
    assert {name: one.severity for name, one in found.items()} == {
        "fell": "warning",
        "stopped": "critical",
        "rose": "warning",
    }
    assert found["fell"].value == pytest.approx(500 / 600)
    assert found["fell"].threshold == pytest.approx(3000 / 600)
    assert found["fell"].evidence == (
        "0.8 tuples a second, where 10.0 were usual in the 3.0 hours before"
    )
    assert found["rose"].threshold == pytest.approx(18_000 / 600)


def test_bolt_that_approaches_saturation_is_found_with_time(spark):
    def series(topology, capacity, *, hours=4, without=()):
        return [
            row(topology, minute, capacity_mean=capacity(minute))
            for minute in range(10, hours * 60 + 1, 10)
            if minute not in without
        ]

    def wobbling(minute):
        return 0.02 * (-1) ** (minute // 10)

    rows = [
        *series("rising", lambda minute: 0.8 - 0.1 * minute / 60 + wobbling(minute)),
        *series("gaps", lambda minute: 0.8 - 0.1 * minute / 60, without=range(50, 200, 40)),
        *series("soon", lambda minute: 0.98 - 0.1 * minute / 60),
        *series("full", lambda minute: 1.1 if minute < 40 else 0.3, hours=1),
        *series("level", lambda minute: 0.9 + wobbling(minute)),
        *series("far", lambda minute: 0.5 - 0.1 * minute / 60),
        *series("over", lambda minute: 0.8 - abs(0.1 * (minute - 80) / 60)),
        *series("step", lambda minute: 0.85 if minute < 100 else 0.4),
        *series("one", lambda _: 0.99, hours=1)[:2],
        row("null", 10),
        row("nan", 10, capacity_mean=math.nan),
    ]
    found = by_topology(saturating_components(spark.createDataFrame(rows, ROLLUP), NOW))
    assert {name: one.severity for name, one in found.items()} == {
        "rising": "warning",
        "gaps": "warning",
        "soon": "critical",
        "full": "critical",
    }
    # The value of a bucket counts for its beginning.
    assert found["gaps"].value == pytest.approx(2 * 3600)
    assert found["rising"].value == pytest.approx(2 * 3600, rel=0.1)
    assert found["full"].value == 0
    assert "has risen by 0.10 an hour: 1.0 in 2.0 hours" in found["gaps"].evidence


def test_heartbeats_that_go_on_growing_are_found(spark):
    def series(topology, size, *, hours=8):
        return [
            row(topology, minute, heartbeat_bytes=float(size(minute)))
            for minute in range(10, hours * 60, 10)
        ]

    rows = [
        *series("grows", lambda minute: 20_000 - 20 * minute),
        *series("too-large", lambda minute: 9e6 - 7000 * minute),
        *series("steady", lambda minute: 20_000 + 200 * (minute % 30)),
        *series("stepped", lambda minute: 20_000 if minute < 180 else 12_000),
        *series(
            "started", lambda minute: 20_000 * (1 + 0.2 * (1 - math.exp(-(480 - minute) / 60)))
        ),
        *series("new", lambda minute: 20_000 - 100 * minute, hours=2),
        row("null", 10),
        row("nan", 10, heartbeat_bytes=math.nan),
    ]
    found = by_topology(growing_heartbeats(spark.createDataFrame(rows, ROLLUP), NOW))
    assert {name: one.severity for name, one in found.items()} == {
        "grows": "warning",
        "too-large": "critical",
    }
    assert found["grows"].value == pytest.approx(19_800 / 12_800, rel=0.01)
    assert found["grows"].evidence == "heartbeats have grown from 12800 to 19800 bytes in 5.8 hours"


def test_workers_that_end_again_and_again_are_found(spark):
    def events(node, *happened):
        return [
            (before_now(minutes=minute), "t-1-17", node, node, 6700, event)
            for minute, event in happened
        ]

    ending = [(minute, event) for minute in (20, 12, 4) for event in ("late", "dead", "restarted")]
    rows = [
        *events("restarts", *ending),
        *events("fades", *((minute, "late") for minute in (25, 20, 15, 10, 5))),
        *events("once", *ending[:3]),
        *events("twice-written", *ending[:3] * 3),
        *events("slowly", *((minute, "dead") for minute in (100, 50, 5))),
        *events("moves", *((minute, "moved") for minute in range(20))),
        *events("tomorrow", *((minute - 1440, "dead") for minute in range(20))),
        (None, "t-1-17", "t", None, None, "dead"),
    ]
    found = by_topology(flapping_workers(spark.createDataFrame(rows, EVENTS), NOW))
    assert {name: one.severity for name, one in found.items()} == {
        "restarts": "critical",
        "fades": "warning",
    }
    assert found["restarts"].subject == "t-1-17/restarts:6700"
    assert (found["restarts"].value, found["restarts"].threshold) == (3, 3)
    expected = "times within 30 minutes: restarted 3, dead 3, late 3"
    assert found["restarts"].evidence == expected
    assert found["restarts"].since == found["restarts"].seen_at - timedelta(minutes=16)


def test_nodes_and_pacemakers_with_many_late_workers_are_found(spark):
    def workers(node, statuses, server):
        return [
            (before_now(minutes=0.1), node, f"{server(n)}:6699", status)
            for n, status in enumerate(statuses)
        ]

    rows = [
        # Late on this node, whichever server they write to.
        *workers("gone", ["dead"] * 5 + ["late"] * 3, lambda n: "ab"[n % 2]),
        *workers("half", ["late"] * 12 + ["alive"] * 12, lambda n: "ab"[n % 2]),
        *workers("one-of-two", ["late", "alive"], lambda n: "ab"[n]),
        *workers("ended", ["completed"] * 8, lambda n: "ab"[n % 2]),
        (None, "never", "a:6699", "late"),
        (before_now(minutes=0.1), None, None, "late"),
    ]
    for node in range(20):
        # A third server's workers are late, one of each of six nodes.
        rows += workers(
            f"n{node}",
            ["alive"] * 5 + (["late"] if node < 6 else []),
            lambda n: "c" if n == 5 else "ab"[n % 2],
        )
    table = spark.createDataFrame(rows, LIVENESS)
    found = late_nodes(table, NOW).unionByName(late_pacemakers(table, NOW)).collect()
    assert {(one.rule, one.subject): one.severity for one in found} == {
        ("node_late", "gone"): "critical",
        ("node_late", "half"): "warning",
        ("pacemaker_late", "c:6699"): "critical",
    }
    (gone,) = (one for one in found if one.subject == "gone")
    assert gone.evidence == "8 of the node's 8 workers are late or dead, and 19 of the other 132"


@pytest.mark.slow
def test_odd_tables_are_no_trouble(spark):
    rollup = [
        tuple(None for _ in ROLLUP_NAMES),
        row("t", 5),
        row("t", 5),
        row("t", -60, executed=5),
    ]
    rollup += [row(None, minute, component=None, executors=0, executed=0) for minute in range(30)]
    rollup += [row("m", n, kind="spout", acked=2**63 - 1, executors=4) for n in (5, 5)]
    tables = (
        (ROLLUP, rollup, [*_OF_ROLLUPS]),
        (EVENTS, [(None,) * 6], [flapping_workers]),
        (LIVENESS, [(None,) * 4], [late_nodes, late_pacemakers]),
    )
    found = []
    for schema, rows, analyses in tables:
        empty, odd = spark.createDataFrame([], schema), spark.createDataFrame(rows, schema)
        for analysis in analyses:
            found += [analysis(empty, NOW), analysis(odd)]
    assert all(one.schema.simpleString() == ALERTS.simpleString() for one in found)
    assert reduce(DataFrame.unionByName, found).collect() == []


@pytest.mark.slow
def test_without_now_every_moment_is_judged(spark):
    rows = [
        row("t", minute, executors=8, executed=10_000, largest_share=0.6) for minute in range(1, 21)
    ]
    found = skewed_components(spark.createDataFrame(rows, ROLLUP))
    seen = found.select(F.unix_seconds("seen_at")).collect()
    assert len(seen) == 13  # from the eighth bucket on
    assert max(seen)[0] == NOW.timestamp()


def test_an_alert_begins_lasts_and_ends(spark):
    def alert(subject, seen, *, since=None, until=None, rule="skew", value=1.0):
        named = {
            "id": f"{rule}/{subject}",
            "rule": rule,
            "subject": subject,
            "value": value,
            "since": before_now(minutes=seen if since is None else since),
            "until": until,
            "seen_at": before_now(minutes=seen),
        }
        return tuple(named.get(field.name) for field in ALERTS.fields)

    previous = [
        alert("goes-on", 1, since=90),
        alert("pauses", 5, since=90),
        alert("ends", 10, since=90),
        alert("slow-rule", 10, since=90, rule="growth"),
        alert("had-ended", 50, until=before_now(minutes=50)),
        alert("ahead", -600),  # before the clock was set back
    ]
    found = [
        alert("goes-on", 0, value=2.0),
        alert("goes-on", 3, value=3.0),  # an older finding of the same
        alert("begins", 0),
        alert("had-ended", 0),
    ]
    alerts = merge(
        spark.createDataFrame(previous, ALERTS), spark.createDataFrame(found, ALERTS), NOW
    )
    rows = {one.subject: one for one in alerts.collect()}
    ages = {
        name: tuple(
            None if at is None else (NOW.timestamp() - at.timestamp()) / 60
            for at in (one.since, one.until, one.seen_at)
        )
        for name, one in rows.items()
    }
    assert ages == {
        "goes-on": (90, None, 0),
        "pauses": (90, None, 5),
        "ends": (90, 10, 10),
        "slow-rule": (90, None, 10),
        "had-ended": (0, None, 0),
        "ahead": (0, None, 0),
        "begins": (0, None, 0),
    }
    assert rows["goes-on"].value == 2.0
    assert alerts.schema.simpleString() == ALERTS.simpleString()
