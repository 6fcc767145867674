"""``storm history`` on tables as the pipeline writes them."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.conf import defaults
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import queries, tables
from stormkeeper.pipeline.analyses import alerts
from stormkeeper.pipeline.table_columns import WORKER_EVENTS, WORKER_LIVENESS
from support.command import AS_ANY_USER, HEAVY, imported_by, needs_any_user

WC = "wc-1-1700000000"


def event(ago, what, node="n-1", evidence="as told"):
    return {
        **dict.fromkeys(WORKER_EVENTS.names),
        "at": datetime.now(UTC) - timedelta(seconds=ago),
        "storm_id": WC,
        "topology": "wc",
        "node": node,
        "port": 6700,
        "event": what,
        "evidence": evidence,
    }


@pytest.fixture
def written(tmp_path):
    """Has the tables hold these events and workers; returns the options that name them."""
    numbers = iter(range(100))

    def write(*events, liveness=(), clock=time.time):
        specs = [*queries.table_specs(defaults(), tables.LIVENESS)]
        rows = pa.Table.from_pylist(list(events), schema=WORKER_EVENTS)
        workers = pa.Table.from_pylist(list(liveness), schema=WORKER_LIVENESS)
        place = tmp_path / tables.LIVENESS
        with TableStore(place, specs, interval_secs=5, clock=clock) as store:
            new = {tables.WORKER_EVENTS: rows, tables.WORKER_LIVENESS: workers}
            store.publish(Origin("q", next(numbers)), new)
        return ["-c", f"pipeline.tables.dir={tmp_path}"]

    return write


def said_by_nimbus(tmp_path, name, schema, **row):
    """Have a table of what Nimbus says hold one row."""
    (spec,) = (one for one in alerts.alert_tables(defaults()) if one.name == name)
    with TableStore(tmp_path / tables.ALERTS, [spec], interval_secs=60) as store:
        store.publish(Origin("q", 1), {name: pa.Table.from_pylist([row], schema=schema)})


def run(*arguments):
    return CliRunner().invoke(command, ["history", *arguments])


def test_what_happened_line_by_line(written):
    options = written(event(5000, "started"), event(60, "late", "n-2", "no pulse\x1b for 12 s"))
    ran = run("wc", *options)
    assert ran.exit_code == 0, ran.output
    first, second = ran.output.splitlines()
    assert first.endswith(f"Z  {WC}  n-1:6700  started: as told")
    assert second.endswith(f"Z  {WC}  n-2:6700  late: no pulse\\x1b for 12 s")
    assert run("n-2", *options).output.splitlines() == [second]
    assert run(WC, "--since", "2m", *options).output.splitlines() == [second]
    assert run("wc", "-n", "1", *options).output.splitlines() == [second]
    assert (
        run("wc", "--since", "1s", *options).output
        == "The tables contain no events of that time.\n"
    )


def test_what_happened_as_json(written):
    options = written(event(60, "late"))
    (found,) = json.loads(run("wc", "--json", *options).output)
    assert list(found) == WORKER_EVENTS.names
    assert (found["event"], found["port"], found["server"]) == ("late", 6700, None)
    assert found["at"].endswith("Z")
    assert json.loads(run("wc", "--since", "1s", "--json", *options).output) == []


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_what_nobody_knows_is_an_error(written, how):
    options = written(event(60, "late", "c137-10.0.0.6"))
    ran = run("10.0.0.6", *how, *options)
    assert ran.exit_code == 1
    assert ran.stdout == ""
    assert ran.stderr == ("storm: nothing is known of '10.0.0.6'; did you mean c137-10.0.0.6?\n")
    assert "these are there: c137-10.0.0.6, wc\n" in run("node-99", *options).stderr


def test_before_the_first_worker_nobody_is_known(written):
    ran = run("wc", *written())
    assert ran.exit_code == 1
    assert "no worker is known yet: does `storm pipeline` run" in ran.stderr


def test_a_worker_of_which_there_is_no_event_is_known(written):
    calm = {**dict.fromkeys(WORKER_LIVENESS.names), "storm_id": WC, "topology": "wc", "node": "n-9"}
    options = written(liveness=[calm])
    for name in ("n-9", "wc", WC):
        ran = run(name, *options)
        assert (ran.exit_code, ran.stdout) == (0, "The tables contain no events of that time.\n")


def test_a_pipeline_that_does_not_run_is_said(written):
    options = written(event(7300, "late"), clock=lambda: time.time() - 7300)
    ran = run("wc", *options)
    assert ran.exit_code == 0
    assert "storm: these tables are 2 h 1 min old, and the pipeline writes them" in ran.stderr


@pytest.mark.parametrize("given", ["2", "h", "2w", "-2h", "0h", "999999999d", "2h "])
def test_a_time_that_is_none_is_refused(given):
    ran = run("wc", "--since", given)
    assert ran.exit_code == 2
    assert "is no length of time such as 90s, 15m, 2h or 7d" in ran.output


def test_without_tables_it_says_what_to_do(tmp_path):
    ran = run("wc", "-c", f"pipeline.tables.dir={tmp_path}")
    assert ran.exit_code == 1
    said = f"there are no tables in {tmp_path} (pipeline.tables.dir); has `storm pipeline` run?"
    assert ran.stderr == f"storm: {said}\n"


def test_it_loads_little(written):
    loaded = imported_by(["history", "wc", *written(event(60, "late"))], os.environ)
    assert "duckdb" in loaded
    assert not loaded & (HEAVY - {"asyncio"})


@needs_any_user
@pytest.mark.parametrize("forbidden", ["", "liveness", "liveness/worker_events"])
def test_tables_that_may_not_be_read_are_said_to_be_in_one_line(written, tmp_path, forbidden):
    options = written(event(60, "late"))
    (tmp_path / forbidden).chmod(0)
    asked = [*AS_ANY_USER, sys.executable, "-m", "stormkeeper", "history", "wc", *options]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    finally:
        (tmp_path / forbidden).chmod(0o700)
    assert (told.returncode, told.stdout) == (1, "")
    (line,) = told.stderr.splitlines()
    place = tmp_path / (forbidden or "liveness")
    assert line == (
        f"storm: the tables in {place} cannot be read: Permission denied; run as the user of the "
        "pipeline that writes them, or as one of its group"
    )


def test_workers_of_a_killed_topology_are_killed_and_not_dead(written, tmp_path):
    where = written(
        event(900, "late"),
        event(890, "back"),
        event(290, "late"),
        event(270, "dead"),
        event(10, "gone"),
        event(280, "late", node="n-2"),
    )
    at = datetime.now(UTC) - timedelta(seconds=300)
    row = {"storm_id": WC, "listed_at": at, "killed_at": at}
    said_by_nimbus(tmp_path, tables.KILLED_TOPOLOGIES, alerts.KILLED_TOPOLOGIES, **row)
    told = run("wc", *where)
    assert [line.split("  ")[2:] for line in told.stdout.splitlines()] == [
        ["n-1:6700", "late: as told"],
        ["n-1:6700", "back: as told"],
        ["n-1:6700", "killed: its topology was killed"],
        ["n-2:6700", "killed: its topology was killed"],
    ]


def test_nodes_are_called_by_their_hosts(written, tmp_path):
    ids = [f"{digit * 8}-0000-4000-8000-000000000000-n-7" for digit in "ab"]
    where = written(event(60, "late", node=ids[0]))
    assert "  n-7:6700  late" in run("n-7", *where).stdout
    assert "did you mean n-7" in run("n-8", *where).stderr
    where = written(*(event(60, "late", node=node) for node in ids))
    told = run("n-7", *where).stdout
    assert "  n-7 (aaaaaaaa):6700  late" in told
    assert "  n-7 (bbbbbbbb):6700  late" in told
    assert run(ids[1], *where).stdout.count("\n") == 1
    row = {"node": ids[0], "host": "m7", "listed_at": datetime.now(UTC)}
    said_by_nimbus(tmp_path, tables.SUPERVISORS, alerts.SUPERVISORS, **row)
    assert "  m7:6700  late" in run("m7", *where).stdout
    assert "did you mean m7" in run("m77", *where).stderr
