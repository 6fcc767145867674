"""What is left out of a question changes nothing of its answer, out of tables as they are."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest

from stormkeeper.conf import defaults
from stormkeeper.history.parquet import TableSpec
from stormkeeper.history.table_reader import Tables
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses import questions
from stormkeeper.pipeline.table_columns import ROLLUP, WORKER_EVENTS, WORKER_LIVENESS
from support.tables import origin, store

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
MINUTES = TableSpec(tables.ROLLUP_1M, ROLLUP, "log", time="bucket")
TEN = TableSpec(tables.ROLLUP_10M, ROLLUP, "log", time="bucket")
LIVENESS = TableSpec(tables.WORKER_LIVENESS, WORKER_LIVENESS, "current")
EVENTS = TableSpec(tables.WORKER_EVENTS, WORKER_EVENTS, "log", time="at")

TOPOLOGIES = ("even", "troubled", "silent", "unknown")


def rollup(minutes, hours):
    """Return buckets of four topologies; in one of them, each of four bolts has a trouble.

    Of another, what is measured is null, and one has counted nothing at all.
    """
    draw = random.Random(minutes)
    rows = []
    for bucket in range(1, hours * 60 // minutes):
        for topology in TOPOLOGIES:
            for place, component in enumerate(("words", "split", "count", "join")):
                is_troubled = topology == "troubled"
                work = draw.randint(900, 1100) * 20 * minutes
                if topology == "silent" or (is_troubled and bucket * minutes <= 40):
                    work = 0 if topology == "silent" else work // 10
                busy = 0.95 - bucket * minutes / 600 if place == 2 and is_troubled else 0.3
                grown = max(1.0, 2.0 - bucket * minutes / 400) if is_troubled else 1.0
                known = topology != "unknown"
                rows.append(
                    {
                        "bucket": NOW - timedelta(minutes=bucket * minutes),
                        "storm_id": f"{topology}-1-17",
                        "topology": topology,
                        "component": component,
                        "kind": "spout" if place == 0 else "bolt",
                        "executors": 8,
                        "emitted": work,
                        "executed": work if place else None,
                        "acked": work,
                        "capacity": busy,
                        "capacity_mean": max(busy, 0.0) if known and place else None,
                        "heartbeat_bytes": 9000.0 * grown if known else None,
                        "largest_share": (0.7 if is_troubled and place == 1 else 0.14)
                        if known
                        else None,
                        "executed_cv": (1.5 if is_troubled and place == 3 else 0.2)
                        if known
                        else None,
                    }
                )
    return rows


def liveness():
    return [
        {
            "updated_at": NOW,
            "node": f"node-{number // 6}",
            "server": f"pacemaker-{int(number // 6 < 3)}",
            "status": "late" if number // 6 in (1, 2) else "alive",
        }
        for number in range(60)
    ]


def events():
    return [
        {
            "at": NOW - timedelta(seconds=60 * number),
            "storm_id": "t-1-17",
            "topology": "t",
            "node": f"node-{number % 3}",
            "event": ("late", "restarted", "back")[number % 3],
            "port": 6700,
        }
        for number in range(1, 30)
    ]


def table(spec, rows):
    return pa.Table.from_pylist(rows, schema=spec.schema)


def written(folder, files):
    """Write the tables, each log to so many files."""
    clock = {"clock": NOW.timestamp}
    with (
        store(folder / tables.STATISTICS, MINUTES, TEN, **clock) as statistics,
        store(folder / tables.LIVENESS, LIVENESS, EVENTS, **clock) as of_workers,
    ):
        for number in range(files):
            some = slice(number, None, files)
            minutes, ten = (
                table(spec, rows[some])
                for spec, rows in ((MINUTES, rollup(1, 1)), (TEN, rollup(10, 29)))
            )
            statistics.publish(origin(number), {MINUTES.name: minutes, TEN.name: ten})
            present = {LIVENESS.name: table(LIVENESS, liveness())}
            news = {EVENTS.name: table(EVENTS, events()[some])}
            of_workers.publish(origin(number), present | news)


def together(pieces):
    return pa.concat_tables(pieces())


@pytest.mark.parametrize(
    "question", questions.chosen_questions(defaults()), ids=lambda one: one.rule
)
def test_question_reads_the_same_rows_from_any_files(question, tmp_path):
    found = []
    for files in (1, 3):
        written(tmp_path / str(files), files)
        rows = question.rows(Tables(tmp_path / str(files) / question.query), NOW)
        found.append(sorted(rows.to_pylist(), key=repr))
    assert found[0]
    assert found[0] == found[1]


def courses(count, draw):
    """Return ten hours of topologies whose counters count now and then, and rise and fall."""
    rows = []
    for number in range(count):
        topology = {"topology": f"t{number}", "storm_id": f"t{number}-1-17"}
        acks, emits = draw.choice([(1, 1), (1, 1), (0, 1), (0, 0), (0.95, 1), (0, 0.95)])
        turn, factor = draw.randint(1, 6), draw.choice([1, 1, 1, 0.05, 0.3, 0.45, 3.5, 8])
        gaps, level = draw.choice([0, 0, 0.05]), draw.choice([100, 10_000])
        for bucket in range(1, 60):
            if draw.random() < gaps:
                continue
            work = draw.randint(9 * level, 11 * level) * (factor if bucket <= turn else 1)
            at = topology | {"bucket": NOW - timedelta(minutes=10 * bucket)}
            acked = int(work * (draw.random() < acks))
            emitted = int(work * (draw.random() < emits))
            spout = {"acked": acked or None, "emitted": emitted} if emits else {"acked": 0}
            if draw.random() >= gaps:
                rows.append(at | {"kind": "spout"} | spout)
            rows.append(at | {"kind": "bolt", "executed": int(work * 3)})
    return rows


def sizes(count, draw):
    """Return seven hours of topologies whose heartbeats stay, grow, or become larger by a step."""
    rows = []
    for number in range(count):
        topology = {"topology": f"t{number}", "storm_id": f"t{number}-1-17"}
        growth = draw.choice([0, 0, 0, 0.01, 0.02, 0.05, 0.2, 0.3, 0.6])
        noise, gaps = draw.choice([0, 0.005, 0.01, 0.1]), draw.choice([0, 0, 0.3])
        step = draw.choice([0, 0, 0, 5, 15])
        for bucket in range(1, 45):
            if draw.random() >= gaps:
                size = 1 + growth * (45 - bucket) / 36 + 0.3 * (bucket < step)
                size *= 10_000 * (1 + draw.uniform(-noise, noise))
                at = {"bucket": NOW - timedelta(minutes=10 * bucket)}
                rows.append(topology | at | {"heartbeat_bytes": size})
    return rows


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(("rule", "rows"), [("throughput", courses), ("growth", sizes)])
def test_topologies_that_are_left_out_are_not_found(spark, tmp_path, monkeypatch, rule, rows):
    with store(tmp_path, TEN, clock=NOW.timestamp) as written:
        written.publish(origin(0), {TEN.name: table(TEN, rows(400, random.Random(5)))})
    (question,) = (one for one in questions.chosen_questions(defaults()) if one.rule == rule)
    found, whole = Tables(tmp_path), replace(question, narrowed=together)
    asked = question.rows(found, NOW)
    monkeypatch.setattr(
        questions, "_ROWS_AT_ONCE", asked.num_rows // 3
    )  # some topologies at a time
    answer = questions.ask(spark, question, found, NOW).sort_by("id")
    monkeypatch.setattr(questions, "_ROWS_AT_ONCE", 10**6)
    assert answer.equals(questions.ask(spark, whole, found, NOW).sort_by("id"))
    assert 40 < answer.num_rows < len(asked["storm_id"].unique()) < 380


@pytest.mark.slow
@pytest.mark.spark
def test_what_is_left_out_changes_no_answer(spark, tmp_path):
    session = spark.newSession()
    for key, value in {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
    }.items():
        session.conf.set(key, value)
    written(tmp_path, files=1)
    asked = questions.chosen_questions(defaults())
    assert len(asked) == 7
    for question in asked:
        found = Tables(tmp_path / question.query)
        # All of its rows, and also those that are older than it reads.
        past = None if question.past_secs is None else 2 * question.past_secs
        whole = replace(question, narrowed=together, past_secs=past)
        answer = questions.ask(session, question, found, NOW).sort_by("id")
        assert answer.num_rows, question.rule
        assert answer.equals(questions.ask(session, whole, found, NOW).sort_by("id")), question.rule
        assert question.rows(found, NOW).num_rows < whole.rows(found, NOW).num_rows


def test_a_healthy_cluster_asks_nothing_of_spark_each_minute():
    even = [row for row in rollup(1, 1) if row["topology"] == "even"]
    well = [{**row, "status": "alive"} for row in liveness()]
    now_and_then = [row for row in events() if row["event"] == "restarted"][:2]
    rows = {MINUTES: even, LIVENESS: well, EVENTS: now_and_then}
    asked = questions.chosen_questions(defaults())
    for spec, healthy in rows.items():
        pieces = partial(iter, [table(spec, healthy)])
        found = [one.narrowed(pieces).num_rows for one in asked if one.table == spec.name]
        assert found
        assert not any(found), spec.name


def test_scattered_late_workers_need_no_spark():
    of_workers = [
        one for one in questions.chosen_questions(defaults()) if one.table == LIVENESS.name
    ]
    for late, are_asked in ((2, False), (3, True)):  # of each node's six, on all servers
        rows = [
            {**row, "status": "dead" if number % 6 < late else "alive"}
            for number, row in enumerate(liveness())
        ]
        pieces = partial(iter, [table(LIVENESS, rows)])
        assert [bool(one.narrowed(pieces).num_rows) for one in of_workers] == [are_asked] * 2
