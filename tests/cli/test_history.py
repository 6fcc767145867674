"""``storm history`` on tables as the pipeline writes them."""

import json
import os
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.conf import defaults
from stormkeeper.pipeline import queries, tables
from stormkeeper.pipeline.events import WORKER_EVENTS
from stormkeeper.tables.manifest import Origin
from stormkeeper.tables.store import TableStore
from support.command import HEAVY, imported_by

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
    """Has the tables hold these events; returns the options that name them."""

    def write(*events):
        specs = [*queries.specs(defaults(), tables.LIVENESS)]
        rows = pa.Table.from_pylist(list(events), schema=WORKER_EVENTS)
        with TableStore(tmp_path / tables.LIVENESS, specs, interval_secs=5) as store:
            store.publish(Origin("q", 1), {tables.WORKER_EVENTS: rows})
        return ["-c", f"pipeline.tables.dir={tmp_path}"]

    return write


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
    assert run("other", *options).output == "Nothing happened that the tables know of.\n"


def test_what_happened_as_json(written):
    options = written(event(60, "late"))
    (found,) = json.loads(run("wc", "--json", *options).output)
    assert list(found) == WORKER_EVENTS.names
    assert (found["event"], found["port"], found["server"]) == ("late", 6700, None)
    assert found["at"].endswith("Z")
    assert json.loads(run("other", "--json", *options).output) == []


@pytest.mark.parametrize("given", ["2", "h", "2w", "-2h", "0h", "999999999d", "2h "])
def test_a_time_that_is_none_is_refused(given):
    ran = run("wc", "--since", given)
    assert ran.exit_code == 2
    assert "is no length of time such as 90s, 15m, 2h or 7d" in ran.output


def test_without_tables_it_says_what_to_do(tmp_path):
    ran = run("wc", "-c", f"pipeline.tables.dir={tmp_path}")
    assert ran.exit_code == 1
    assert ran.stderr == f"storm: there are no tables in {tmp_path}; has `storm pipeline` run?\n"


def test_it_loads_little(written):
    loaded = imported_by(["history", "wc", *written(event(60, "late"))], os.environ)
    assert "duckdb" in loaded
    assert not loaded & (HEAVY - {"asyncio"})
