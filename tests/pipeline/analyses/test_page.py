"""The examples of docs/analytics.md, run as they stand but for folders."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses.alerts import ALERTS
from stormkeeper.pipeline.current import WORKER_LIVENESS
from stormkeeper.pipeline.events import WORKER_EVENTS
from stormkeeper.pipeline.statistics import rollups
from stormkeeper.tables.specs import TIME, TableSpec
from support import healthy_cluster
from support.tables import origin, store

PAGE = (Path(__file__).parents[3] / "docs" / "analytics.md").read_text()


def as_written(df):
    """Return rows with times of UTC, as the pipeline writes them."""
    table = df.toArrow()
    fields = (
        (one.name, TIME if pa.types.is_timestamp(one.type) else one.type) for one in table.schema
    )
    return table.cast(pa.schema(fields))


@pytest.mark.slow
@pytest.mark.spark
def test_the_examples_run(spark, tmp_path, capsys):
    hours = 4
    # The healthy cluster's tables end now, and one component of it has troubles.
    later = datetime.now(UTC) - healthy_cluster.START - timedelta(hours=hours)
    shifted = F.timestamp_micros(F.unix_micros("bucket") + later // timedelta(microseconds=1))
    minute = healthy_cluster.rollup(spark, 1, topologies=1, components=2, hours=hours)
    troubled = F.col("component") == "c1"
    minute = minute.withColumn("bucket", shifted).withColumn("executors", F.lit(8))
    minute = minute.withColumn("executed", F.lit(10_000))
    minute = minute.withColumn("largest_share", F.when(troubled, 0.7).otherwise(0.15))
    minute.write.parquet(str(tmp_path / "rollup_1m"))
    ten = healthy_cluster.rollup(spark, 1, topologies=1, components=2, hours=hours, minutes=10)
    ten = ten.withColumn("bucket", shifted)
    age = (F.lit(datetime.now(UTC).timestamp()) - F.unix_seconds("bucket")) / 3600
    ten = ten.withColumn("capacity_mean", F.when(troubled, 0.9 - 0.1 * age))
    ten.write.parquet(str(tmp_path / "rollup_10m"))
    workers = healthy_cluster.liveness(
        spark, 1, nodes=8, workers_per_node=6, servers=2, readings=1, late=0
    )
    gone = F.when(F.col("node") == "node-3", "dead").otherwise("alive")
    workers = workers.withColumn("status", gone).withColumn("updated_at", F.now())
    liveness = as_written(workers)
    events = as_written(healthy_cluster.events(spark, 1, workers=4))
    specs = (
        TableSpec(tables.WORKER_LIVENESS, liveness.schema, "current"),
        TableSpec(tables.WORKER_EVENTS, events.schema, "log", time="at"),
    )
    with store(tmp_path / "heartbeats/liveness", *specs) as written:
        current = {tables.WORKER_LIVENESS: liveness}
        written.commit(origin(0), current, {tables.WORKER_EVENTS: events})
    namespace = {}
    for example in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        code = example.replace("/data", str(tmp_path))
        exec(compile(code, "docs/analytics.md", "exec"), namespace)
    shown = capsys.readouterr().out
    assert re.search(r"node_late *\|node-3 *\|critical", shown)
    begun = shown[shown.rindex("|id ") :]
    assert set(re.findall(r"^\|(\w+)/", begun, re.MULTILINE)) == {"node_late", "saturation", "skew"}


def test_every_column_of_alerts_is_described():
    _, _, described = PAGE.partition("## Findings become alerts")
    columns = re.findall(r"^\| `(\w+)` \| (\w+) \|", described.split("\n## ")[0], re.MULTILINE)
    assert columns == [(one.name, one.dataType.simpleString()) for one in ALERTS.fields]


def test_the_tables_have_the_columns_that_are_read():
    _, _, described = PAGE.partition("## What each one reads")
    found = re.findall(r"^\| `(\w+)` \| (.+) \|$", described.split("\n## ")[0], re.MULTILINE)
    assert len(found) == 7
    for function, read in found:
        table = {
            "late_nodes": WORKER_LIVENESS.names,
            "late_pacemakers": WORKER_LIVENESS.names,
            "flapping_workers": WORKER_EVENTS.names,
        }.get(function, rollups.COLUMNS)
        assert set(re.findall(r"`(\w+)`", read.split("(")[0])) <= set(table), function
