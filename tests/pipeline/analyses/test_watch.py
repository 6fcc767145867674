"""The thread that asks the analyses: what fails is said once, what hangs is given up."""

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from stormkeeper.conf import defaults
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses import questions, watch
from stormkeeper.pipeline.analyses.rounds import specs
from stormkeeper.pipeline.analyses.watch import Watch
from stormkeeper.pipeline.sight import Sight
from stormkeeper.tables.specs import TIME, TableSpec
from stormkeeper.tables.store import TableStore
from support.tables import origin, present, store
from support.waiting import until

LIVENESS = TableSpec(
    tables.WORKER_LIVENESS,
    pa.schema([("updated_at", TIME), *((n, pa.string()) for n in ("node", "server", "status"))]),
    "current",
)


def watch_of(folder, sight, **conf):
    conf = {**defaults(), "pipeline.tables.dir": str(folder), **conf}
    return Watch(conf, TableStore(folder / tables.ALERTS, specs(conf), interval_secs=1), sight)


def test_a_failure_is_said_once_and_counted_each_time(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    sight = Sight()
    sight.watches(["skew"])
    one = watch_of(tmp_path, sight)
    for reason in ("no columns", "no columns", "no rows"):
        one._tell({"skew": RuntimeError(reason)})
    one._tell({"round": OSError("disk full")})
    assert sight.seen.failures == {"skew": 3, "round": 1}
    assert caplog.messages == [
        "the analysis skew failed, and is tried again each time: no columns",
        "the analysis skew failed, and is tried again each time: no rows",
        "a round of the analyses failed, and is tried again each time: disk full",
        "skew has not failed again",
    ]


def test_without_an_interval_nothing_is_asked(tmp_path):
    sight = Sight()
    one = watch_of(tmp_path, sight, **{"pipeline.analyses.secs": 0})
    one.start(None)
    one.stop()
    assert sight.seen.alerts == {}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.spark
def test_an_analysis_that_hangs_is_given_up_and_the_others_go_on(spark, tmp_path, monkeypatch):
    def endless(*_):
        return spark.range(1 << 60).select(F.sum(F.sin("id")).cast("string").alias("id"))

    nodes, *_ = questions.chosen(defaults())
    asked = [*(replace(nodes, rule=rule, ask=endless) for rule in ("x", "y")), nodes]
    monkeypatch.setattr(watch, "chosen", lambda _: asked)
    monkeypatch.setattr(watch, "_JOB_SECS", 3.0)
    sight = Sight()
    one = watch_of(tmp_path, sight, **{"pipeline.analyses.secs": 0.2})
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
            until(lambda: sight.seen.alerts.get(("node_late", "critical")) == 1)
            until(lambda: sight.seen.failures["x"] and sight.seen.failures["y"])
            (alert,) = present(tmp_path / tables.ALERTS, tables.ALERTS)
            assert alert["subject"] == "node-3"
            monkeypatch.setattr(watch, "_JOB_SECS", 600.0)
            time.sleep(0.5)  # most likely it hangs again
        finally:
            one.stop()
        until(lambda: not one._thread.is_alive())
