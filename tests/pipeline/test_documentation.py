"""The examples of the pipeline's pages, run as they stand but for addresses and folders."""

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from stormkeeper.conf import defaults
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_store import TableStore
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import process, queries, rows, tables
from stormkeeper.pipeline.table_columns import COLUMNS, WORKER_LIVENESS
from support.heartbeats import bolt, heartbeat, path, spout
from support.waiting import DEADLINE_SECS, until

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("pacemaker-clients", "pipeline-tables", "heartbeat-pipeline")
PAGES = "\n\n".join((DOCS / f"{name}.md").read_text() for name in NAMES)


def examples(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES, re.DOTALL | re.MULTILINE)


def paragraph(beginning):
    """Return the first paragraph or table of the pages that begins so."""
    found, *_ = (one for one in PAGES.split("\n\n") if one.startswith(beginning))
    return found


@pytest.mark.slow
@pytest.mark.spark
def test_the_examples_run(spark, start_pacemaker, tmp_path, capsys, monkeypatch):
    servers = [start_pacemaker(), start_pacemaker()]
    stats = bolt({("lines", "default"): 12}, 3)
    stats.component = "words"
    with PacemakerClient(servers[0].address) as client:
        executors = {(1, 1): spout(12), (2, 2): stats}
        client.send_pulse(path("wc-1-17"), heartbeat("wc-1-17", executors))
    addresses = [server.address for server in servers]
    conf = defaults().with_values(
        {
            "storm.local.dir": str(tmp_path),
            "pipeline.trigger.secs": 1,
            "pipeline.statistics.secs": 0,
            # The one pulse is to be alive however long Spark takes for its first batch.
            "pipeline.late.secs": 300,
            "nimbus.task.timeout.secs": 600,
        }
    )
    # Both servers are to be read, too.
    options = queries.source_options
    patient = {"timeoutSecs": "30"}
    monkeypatch.setattr(queries, "source_options", lambda *given: options(*given) | patient)
    with process._places(conf) as places:
        running = list(queries.start(spark, conf, addresses, places))
        until(lambda: all(query.lastProgress for query in running))
        process._stop_between_batches(running)
    namespace = {"spark": spark}
    for example in examples("python"):
        if "PYSPARK_PYTHON" in example or "pacemaker.client.pool" in example:
            continue  # for sessions elsewhere: test_registering; and without Spark
        code = example.replace("pacemaker-1:6699,pacemaker-2:6699", ",".join(addresses))
        code = code.replace(".load()", '.option("timeoutSecs", 30).load()')
        code = code.replace("/data/heartbeats", str(tmp_path / "tables"))
        exec(compile(code, "the example", "exec"), namespace)
    news = namespace["query"]
    change = ["server", "instance", "revision"]
    pulses = "kind = 'pulse'"
    try:
        until(lambda: spark.table("news").where(pulses).dropDuplicates(change).count() == 1)
    finally:
        news.stop()
    shown = capsys.readouterr().out
    assert path("wc-1-17") in shown
    assert re.search(r"\|\s*words\|\s*12\|", shown)  # executed, from the statistics
    assert re.search(r"\|\s*words\|\s*bolt\|\s*12\|\s*1\.0\|\s*0\.00", shown)  # as in the UI
    assert re.search(r"\|\s*wc\|\s*1\|\s*15\|\s*0\|\s*NULL\|", shown)  # of the topology
    assert re.search(r"\|\s*wc-1-17\|\s*words\|\s*3\|\s*12\|", shown)  # from the table
    assert re.search(rf"\|{servers[1].address}\|true\s+\|NULL\s+\|", shown)
    assert re.search(r"wc\s+node\s+6700\s+alive", shown)  # with pyarrow


def test_reader_without_spark_waits_for_the_first_batch(tmp_path, capsys):
    (example,) = (code for code in examples("python") if "except TableError" in code)
    exec(example.replace("/data/heartbeats", str(tmp_path / "tables")), {})
    assert "there are no tables in" in capsys.readouterr().out


def test_the_reader_without_this_package_sees_the_newest_batch(tmp_path):
    folder = tmp_path / "tables" / "liveness"
    row = {**dict.fromkeys(WORKER_LIVENESS.names), "topology": "wc", "port": 6700}
    with TableStore(
        folder, queries.table_specs(defaults(), tables.LIVENESS), interval_secs=5
    ) as store:
        for number, status in enumerate(("late", "alive")):
            rows = pa.Table.from_pylist([{**row, "status": status}], schema=WORKER_LIVENESS)
            store.publish(Origin("q", number), {tables.WORKER_LIVENESS: rows})
    (example,) = examples("sql")
    with duckdb.connect() as database:
        found = database.execute(example.replace("/data/heartbeats", str(tmp_path / "tables")))
        assert found.fetchall() == [("wc", None, 6700, "alive", None)]


def test_page_of_tables_is_as_the_script_writes_it(tmp_path):
    page = DOCS / "pipeline-tables.md"
    written = tmp_path / page.name
    written.write_text(page.read_text())
    script = [sys.executable, DOCS.parent / "scripts/write-pipeline-tables", written]
    subprocess.run(script, timeout=DEADLINE_SECS, check=True)
    assert written.read_text() == page.read_text(), "run scripts/write-pipeline-tables"
    described = set(re.findall(r"^<!-- (\w+) -->$", page.read_text(), re.MULTILINE))
    assert described - {"all", "end"} == COLUMNS.keys() - {tables.ROLLUP_10M, tables.ROLLUP_60M}
    assert COLUMNS.keys() >= {name for names in tables.NAMES.values() for name in names}


def test_every_column_and_option_of_the_source_is_described():
    described = paragraph("| column | type | meaning |\n|---|---|---|\n| `kind` |")
    for name in rows.SCHEMA.names:
        assert f"\n| `{name}` |" in described, name
    described = paragraph("| option |")
    for name in ("servers", "path", "timeoutSecs", "pageSize", "values"):
        assert f"\n| `{name}`" in described, name
