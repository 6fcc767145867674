"""The thread that asks the analyses: what fails is said once, what hangs is given up."""

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from stormkeeper.conf import defaults
from stormkeeper.errors import RpcUnavailableError
from stormkeeper.history.parquet import TIME, TableSpec
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses import questions, runner
from stormkeeper.pipeline.analyses.alerts import alert_tables
from stormkeeper.pipeline.analyses.runner import AnalysisRunner, Listed
from stormkeeper.pipeline.status import StatusTracker
from support.tables import origin, present, store
from support.waiting import until

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
LIVENESS = TableSpec(
    tables.WORKER_LIVENESS,
    pa.schema(
        [
            *((name, TIME) for name in ("updated_at", "last_seen")),
            *((name, pa.string()) for name in ("storm_id", "node", "server", "status")),
        ]
    ),
    "current",
)


def watch_of(folder, tracker, listed=lambda: Listed((), {}), **conf):
    conf = {**defaults(), "pipeline.tables.dir": str(folder), **conf}
    alerts = TableStore(folder / tables.ALERTS, alert_tables(conf), interval_secs=1)
    return AnalysisRunner(conf, alerts, tracker, listed)


def test_a_failure_is_said_once_and_counted_each_time(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    tracker = StatusTracker()
    tracker.record_rules(["skew"])
    one = watch_of(tmp_path, tracker)
    for reason in ("no columns", "no columns", "no rows"):
        one._tell({"skew": RuntimeError(reason)})
    one._tell({"round": OSError("disk full")})
    assert tracker.current.failures == {"skew": 3, "round": 1}
    assert caplog.messages == [
        "the analysis skew failed and is repeated in the next round: no columns",
        "the analysis skew failed and is repeated in the next round: no rows",
        "a round of the analyses failed and is repeated in the next round: disk full",
        "skew works again",
    ]


def test_which_topologies_were_killed_is_asked_of_nimbus(tmp_path):
    """It is asked once of a topology that beats, and again when it is silent."""
    asked, there = [], {"wc-1-1"}

    def listed():
        asked.append(there)
        if there is None:
            raise RpcUnavailableError("nothing listens there")
        return Listed(there, {"s-1": "m1"})

    one = watch_of(tmp_path, StatusTracker(), listed)
    pulse = {"storm_id": "wc-1-1", "node": "s-1", "last_seen": NOW, "status": "alive"}
    with store(tmp_path / tables.LIVENESS, LIVENESS) as written:
        for number, status in enumerate(["alive", "alive", "late", "dead", "dead"]):
            there = None if number == 2 else {"wc-1-1"} if number < 2 else set()
            rows = pa.Table.from_pylist([{**pulse, "status": status}], schema=LIVENESS.schema)
            written.publish(origin(number), {tables.WORKER_LIVENESS: rows})
            known, supervisors = one._known(NOW)
            found = {tables.KILLED_TOPOLOGIES: known, tables.SUPERVISORS: supervisors}
            one._store.publish(origin(number), found)
            assert supervisors["host"].to_pylist() == ["m1"]
            assert known["killed_at"].to_pylist() == [NOW if number > 2 else None]
    assert asked == [{"wc-1-1"}, None, set()]


def test_without_an_interval_nothing_is_asked(tmp_path):
    tracker = StatusTracker()
    one = watch_of(tmp_path, tracker, **{"pipeline.analyses.secs": 0})
    one.start(None)
    one.stop()
    assert tracker.current.alerts == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.spark
def test_an_analysis_that_hangs_is_given_up_and_the_others_go_on(spark, tmp_path, monkeypatch):
    def endless(*_):
        return spark.range(1 << 60).select(F.sum(F.sin("id")).cast("string").alias("id"))

    nodes, *_ = questions.chosen_questions(defaults())
    asked = [*(replace(nodes, rule=rule, ask=endless) for rule in ("x", "y")), nodes]
    monkeypatch.setattr(runner, "chosen_questions", lambda _: asked)
    monkeypatch.setattr(runner, "_JOB_SECS", 3.0)
    tracker = StatusTracker()
    one = watch_of(tmp_path, tracker, **{"pipeline.analyses.secs": 0.2})
    with store(tmp_path / tables.LIVENESS, LIVENESS) as written:
        rows = [
            {
                "updated_at": datetime.now(UTC),
                "node": f"node-{number // 6}",
                "server": "pacemaker",
                "status": "late" if number // 6 == 3 else "alive",
            }
            for number in range(48)
        ]
        table = pa.Table.from_pylist(rows, schema=LIVENESS.schema)
        written.publish(origin(1), {tables.WORKER_LIVENESS: table})
        one.start(spark)
        try:
            until(lambda: tracker.current.alerts.get(("node_late", "critical")) == 1)
            until(lambda: tracker.current.failures["x"] and tracker.current.failures["y"])
            (alert,) = present(tmp_path / tables.ALERTS, tables.ALERTS)
            assert alert["subject"] == "node-3"
            monkeypatch.setattr(runner, "_JOB_SECS", 600.0)
            time.sleep(0.5)  # most likely it hangs again
        finally:
            one.stop()
        until(lambda: not one._thread.is_running)
