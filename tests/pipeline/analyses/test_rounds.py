"""A round of the analyses: which are asked, what becomes of alerts, and what fails alone."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from stormkeeper.conf import defaults
from stormkeeper.history.parquet import TIME, TableSpec
from stormkeeper.history.table_reader import Tables
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses import questions
from stormkeeper.pipeline.analyses.alerts import (
    alert_changes,
    clear_times,
    next_alerts,
    without_killed,
)
from stormkeeper.pipeline.analyses.questions import Asked, Rounds, due
from stormkeeper.pipeline.analyses.runner import Silence, has_to_ask, next_killed, next_supervisors
from stormkeeper.pipeline.table_columns import ALERT_ROWS, KILLED_TOPOLOGIES, SUPERVISORS
from support.tables import origin, store

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
LIVENESS = TableSpec(
    tables.WORKER_LIVENESS,
    pa.schema(
        [
            ("updated_at", TIME),
            *((name, pa.string()) for name in ("node", "server", "status")),
        ]
    ),
    "current",
)
EVENTS = TableSpec(
    tables.WORKER_EVENTS,
    pa.schema(
        [
            ("at", TIME),
            *((name, pa.string()) for name in ("storm_id", "topology", "node", "event")),
            ("port", pa.int32()),
        ]
    ),
    "log",
    time="at",
)


def later(secs):
    return NOW + timedelta(seconds=secs)


def question(rule):
    (found,) = (one for one in questions.chosen_questions(defaults()) if one.rule == rule)
    return found


def table(spec, rows):
    return pa.Table.from_pylist(rows, schema=spec.schema)


def liveness(now, *, late_nodes=()):
    return table(
        LIVENESS,
        [
            {
                "updated_at": now,
                "node": f"node-{number // 6}",
                "server": f"pacemaker-{number % 2}",
                "status": "late" if number // 6 in late_nodes else "alive",
            }
            for number in range(48)
        ],
    )


def alert(subject, severity="warning", *, rule="node_late", since=0.0, until=None, seen=0.0):
    return {
        "id": f"{rule}/{subject}",
        "rule": rule,
        "severity": severity,
        "subject": subject,
        "since": later(since),
        "until": None if until is None else later(until),
        "seen_at": later(seen),
    }


def alerts(*rows):
    return pa.Table.from_pylist(
        [{**dict.fromkeys(ALERT_ROWS.names), **row} for row in rows], ALERT_ROWS
    )


def test_all_rules_are_asked_unless_some_are_chosen():
    conf = {**defaults()}
    assert [one.rule for one in questions.chosen_questions(conf)] == conf["pipeline.analyses"]
    chosen = questions.chosen_questions({**conf, "pipeline.analyses": ["growth", "flapping"]})
    assert {one.rule for one in chosen} == {"growth", "flapping"}


def test_alerts_end_after_some_rounds_and_triggers():
    conf = {**defaults()}
    assert clear_times(conf)["node_late"] == 90  # a round that misses it is not its end
    quick = {**conf, "pipeline.analyses.secs": 2, "pipeline.trigger.secs": 1}
    assert clear_times(quick)["node_late"] == 12
    assert clear_times({**conf, "pipeline.analyses.secs": 600})["skew"] == 900
    assert clear_times(conf)["growth"] == 7200


def test_what_is_asked_is_what_may_have_another_answer(tmp_path):
    nodes, flapping = question("node_late"), question("flapping")
    ten = replace(flapping, every_secs=600.0)
    assert due(nodes, None, None, NOW) is None
    clock = [NOW.timestamp()]
    with store(tmp_path, LIVENESS, EVENTS, clock=lambda: clock[0]) as written:
        event = {"at": NOW, "storm_id": "t", "topology": "t", "node": "n", "event": "late"}
        news = {tables.WORKER_EVENTS: table(EVENTS, [event])}
        written.publish(origin(1), {tables.WORKER_LIVENESS: liveness(NOW)} | news)
        found = Tables(tmp_path)
        assert due(replace(nodes, table="other"), found, None, NOW) is None
        assert due(nodes, found, None, later(75)) is not None  # five intervals
        assert due(nodes, found, None, later(76)) is None  # who writes it is not there
        asked = due(ten, found, None, NOW)
        assert asked == Asked(NOW, NOW)
        assert due(ten, found, asked, later(599)) is None
        assert due(ten, found, asked, later(600)) is not None
        assert due(ten, found, asked, later(-1)) is not None  # the clock was set back
        assert due(flapping, found, asked, later(1)) is not None
        newer = table(EVENTS, [{**event, "at": later(1)}])
        written.publish(origin(2), {tables.WORKER_EVENTS: newer})
        assert due(ten, Tables(tmp_path), asked, later(2)) == Asked(later(2), later(1))


def test_without_alerts_and_findings_nothing_is_merged():
    """Alerts that have ended stay for a day, and those of rules that were not asked stay open."""
    previous = alerts(
        alert("a", until=-1, seen=-1),
        alert("b", until=-90_000, seen=-90_000),
        alert("c", rule="growth"),
    )
    after = next_alerts(
        previous,
        ALERT_ROWS.empty_table(),
        known=["node_late", "growth"],
        asked=["node_late"],
        now=NOW,
        clear_secs={},
    )
    assert after["subject"].to_pylist() == ["c", "a"] or after["subject"].to_pylist() == ["a", "c"]


def test_the_history_has_what_began_changed_and_ended():
    before = alerts(
        alert("stays"),
        alert("worse"),
        alert("ends"),
        alert("ended", until=-5),
        alert("again", until=-60, since=-100),
    )
    after = alerts(
        alert("stays", seen=60),
        alert("worse", "critical", seen=60),
        alert("ends", until=0),
        alert("ended", until=-5),
        alert("again", until=-60, since=-100),
        alert("again", since=50),
        alert("new", since=55),
    )
    found = alert_changes(before, after, later(60)).to_pylist()
    assert [(row["subject"], row["change"], row["at"]) for row in found] == [
        ("worse", "severity", later(60)),
        ("ends", "ended", later(60)),
        ("again", "began", later(60)),
        ("new", "began", later(60)),
    ]
    assert found[0]["severity"] == "critical"
    assert alert_changes(after, after, later(61)).num_rows == 0


@pytest.fixture
def small_queries(spark):
    """Spend no time on compiling queries that have a few rows."""
    session = spark.newSession()
    for key, value in {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }.items():
        session.conf.set(key, value)
    return session


@pytest.mark.slow
@pytest.mark.spark
def test_failing_analysis_keeps_all_alerts(small_queries, tmp_path):
    def fail(*_):
        raise RuntimeError("no more")

    def whole(pieces):
        return pa.concat_tables(pieces())

    fails = replace(question("pacemaker_late"), ask=fail, narrowed=whole)
    asked = [question("node_late"), fails]
    clock = [NOW.timestamp()]
    look = {tables.LIVENESS: lambda: Tables(tmp_path)}

    def rounds_():
        return Rounds(small_queries, asked, {"node_late": 90}, lambda query: look[query]())

    with store(tmp_path, LIVENESS, EVENTS, clock=lambda: clock[0]) as written:

        def publish(number, secs, **how):
            clock[0] = later(secs).timestamp()
            found = liveness(later(secs), **how)
            written.publish(origin(number), {tables.WORKER_LIVENESS: found})

        publish(1, 0, late_nodes=[3])
        before = alerts(alert("p", rule="pacemaker_late"), alert("x", rule="no_more", seen=-9999))
        asking = rounds_()
        first = asking.next(before, later(5), {})
        assert {rule: str(why) for rule, why in asking.failures.items()} == {
            "pacemaker_late": "no more"
        }
        by_subject = {row["subject"]: row for row in first.to_pylist()}
        assert by_subject.keys() == {"node-3", "p", "x"}
        assert by_subject["node-3"]["severity"] == "critical"
        assert by_subject["node-3"]["since"] == NOW
        assert by_subject["p"]["until"] is None
        assert by_subject["x"]["until"] == later(-9999)  # of a rule that nobody knows

        # Another process goes on with the table; an alert ends when it was not found for a while.
        publish(2, 60)
        second = rounds_().next(first, later(65), {})
        (node,) = (row for row in second.to_pylist() if row["subject"] == "node-3")
        assert (node["since"], node["until"]) == (NOW, None)
        publish(3, 120)
        third = rounds_().next(second, later(125), {})
        (node,) = (row for row in third.to_pylist() if row["subject"] == "node-3")
        assert (node["since"], node["until"]) == (NOW, NOW)
        assert {row["subject"] for row in alert_changes(second, third, later(125)).to_pylist()} == {
            "node-3"
        }


def silence(*beating, silent=()):
    return Silence(dict.fromkeys([*beating, *silent], NOW), beating, ["s-1"])


def test_a_topology_is_killed_when_it_is_silent_and_not_listed():
    none = KILLED_TOPOLOGIES.empty_table()
    first = next_killed(none, silence("a", "b", "c"), {"a", "b"}, NOW, 3600)
    assert first["killed_at"].to_pylist() == [None] * 3
    nodes = next_supervisors(SUPERVISORS.empty_table(), {"s-1": "m1"}, NOW, 3600)
    assert not has_to_ask(first, nodes, silence("a", "b", "c"))
    assert has_to_ask(first, nodes, silence("a", silent="bc"))
    assert has_to_ask(first, nodes, silence("a", "b", "c", "d"))
    assert has_to_ask(first, nodes, replace(silence("a", "b", "c"), nodes=["s-2"]))
    second = next_killed(first, silence("a", silent="bc"), {"a", "b"}, later(60), 3600)
    assert second["killed_at"].to_pylist() == [None, None, NOW]
    assert not has_to_ask(second, nodes, silence("a", "b"))
    third = next_killed(second, silence("a"), {"a"}, later(7200), 3600)
    # Nothing is known of when its last pulse came, but for when it was listed.
    assert third["storm_id"].to_pylist() == ["a"]


def test_a_nimbus_that_lists_none_of_them_proves_nothing():
    none = KILLED_TOPOLOGIES.empty_table()
    assert next_killed(none, silence(silent="ab"), {"x"}, NOW, 3600).num_rows == 0


def test_a_killed_topologys_alerts_end_with_it():
    row = dict.fromkeys(ALERT_ROWS.names) | {"rule": "skew", "since": NOW, "seen_at": NOW}
    rows = [
        {**row, "id": "a", "storm_id": "a"},
        {**row, "id": "b", "storm_id": "b"},
        {**row, "id": "c", "storm_id": "b", "until": later(10)},
        {**row, "id": "node"},
    ]
    left, ended = without_killed(pa.Table.from_pylist(rows, schema=ALERT_ROWS), {"b": later(60)})
    assert left["id"].to_pylist() == ["a", "c", "node"]
    assert [(one["id"], one["until"]) for one in ended.to_pylist()] == [("b", later(60))]


def test_a_supervisor_is_known_for_a_while_after_it_was_listed():
    first = next_supervisors(SUPERVISORS.empty_table(), {"s-1": "m1"}, NOW, 3600)
    second = next_supervisors(first, {"s-2": "m2"}, later(60), 3600)
    assert second.select(["node", "host"]).to_pylist() == [
        {"node": "s-1", "host": "m1"},
        {"node": "s-2", "host": "m2"},
    ]
    assert next_supervisors(second, {}, later(3630), 3600)["node"].to_pylist() == ["s-2"]
