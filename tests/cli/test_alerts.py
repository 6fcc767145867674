"""``storm alerts`` on tables as the pipeline writes them."""

import json
import os
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.conf import defaults
from stormkeeper.history.manifest import Origin
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses.alerts import alert_tables
from stormkeeper.pipeline.table_columns import ALERT_HISTORY, ALERT_ROWS
from support.command import HEAVY, Running, imported_by
from support.tables import store


def alert(subject, severity="warning", *, rule="node_late", ago=75, ended_ago=None, evidence="so"):
    now = datetime.now(UTC)
    return {
        **dict.fromkeys(ALERT_ROWS.names),
        "id": f"{rule}/{subject}",
        "rule": rule,
        "severity": severity,
        "subject_kind": "node",
        "subject": subject,
        "value": 1.0,
        "evidence": evidence,
        "since": now - timedelta(seconds=ago),
        "until": None if ended_ago is None else now - timedelta(seconds=ended_ago),
        "seen_at": now,
    }


@pytest.fixture
def written(tmp_path):
    """Has the tables hold these alerts, and these changes besides; returns what names them."""
    numbers = iter(range(100))

    def write(*alerts, changes=(), clock=time.time):
        place = tmp_path / tables.ALERTS
        current = pa.Table.from_pylist(list(alerts), schema=ALERT_ROWS)
        news = [{"at": datetime.now(UTC), "change": how, **row} for how, row in changes]
        log = pa.Table.from_pylist(news, schema=ALERT_HISTORY)
        with TableStore(place, alert_tables(defaults()), interval_secs=60, clock=clock) as tables_:
            tables_.publish(
                Origin("q", next(numbers)), {tables.ALERTS: current, tables.ALERT_HISTORY: log}
            )
        return ["-c", f"pipeline.tables.dir={tmp_path}"]

    return write


def run(*arguments):
    return CliRunner().invoke(command, ["alerts", *arguments])


def test_a_table_of_eighty_columns(written):
    long = "24 of the node's 24 workers are late or dead, and 3 of the other 6624, which is a lot"
    options = written(
        alert("t-1-17/split", rule="skew", ago=4000),
        alert("node-7\x1b", "critical", ago=3630, evidence=long),
        alert("node-8", "critical", ago=7230, ended_ago=3630),
    )
    ran = run(*options)
    assert ran.exit_code == 0, ran.output
    assert ran.output.splitlines() == [
        "SEVERITY  RULE       SINCE          SUBJECT",
        "critical  node_late  1 h 0 min ago  node-7\\x1b",
        "  24 of the node's 24 workers are late or dead, and 3 of the other 6624, which",
        "  is a lot",
        "warning   skew       1 h 6 min ago  t-1-17/split",
        "  so",
    ]
    assert (
        "critical  node_late  2 h 0 min ago, found last 1 h 0 min ago  node-8"
        in run("--ended", *options).output
    )
    assert "skew" not in run("--severity", "critical", *options).output
    assert run(*written()).output == "No alerts.\n"


def test_alerts_as_json(written):
    options = written(alert("node-7", "critical"))
    (found,) = json.loads(run("--json", *options).output)
    assert list(found) == ALERT_ROWS.names
    assert (found["subject"], found["until"]) == ("node-7", None)
    assert found["since"].endswith("Z")
    assert json.loads(run("--json", "--severity", "warning", *options).output) == []


def test_old_alerts_are_said_to_be_old(written):
    options = written(alert("node-7"), clock=lambda: time.time() - 7300)
    ran = run(*options)
    assert "storm: these tables are 2 h 1 min old, and the pipeline writes" in ran.stderr
    assert run(*written()).stderr == ""


def test_without_tables_it_says_what_to_do(tmp_path):
    ran = run("-c", f"pipeline.tables.dir={tmp_path}")
    assert ran.exit_code == 1
    said = f"there are no tables in {tmp_path} (pipeline.tables.dir); has `storm pipeline` run?"
    assert ran.stderr == f"storm: {said}\n"


def test_before_the_first_round_it_says_when_that_is(tmp_path):
    with store(tmp_path / tables.LIVENESS) as others:
        others.publish(Origin("q", 1), {})
    ran = run("-c", f"pipeline.tables.dir={tmp_path}")
    assert ran.exit_code == 1
    assert f"no alerts in {tmp_path} yet: the first round" in ran.stderr


def test_it_waits_for_the_first_round(written, tmp_path):
    with store(tmp_path / tables.LIVENESS) as others:
        others.publish(Origin("q", 1), {})
    arguments = ["alerts", "-f", "-c", f"pipeline.tables.dir={tmp_path}"]
    with Running(arguments, os.environ) as running:
        assert f"no alerts in {tmp_path} yet: the first round" in running.remark()
        found = alert("node-7")
        written(found, changes=[("began", found)])
        assert "began  warning  node_late  node-7" in running.line()
        assert running.interrupt() == 0


@pytest.mark.parametrize("as_json", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_follows_what_begins_and_ends(written, tmp_path, as_json):
    first, second = alert("node-7", "critical"), alert("node-8", evidence="also\x1b late")
    options = written(first)
    arguments = ["alerts", "-f", *(["--json"] if as_json else []), *options]
    with Running(arguments, os.environ) as running:
        before = [running.line() for _ in range(1 if as_json else 3)]
        assert "node-7" in before[0 if as_json else 1]
        written(first, second, changes=[("began", second)])
        line = running.line()
        if as_json:
            assert (json.loads(line)["change"], json.loads(line)["subject"]) == ("began", "node-8")
        else:
            assert line.endswith("Z  began  warning  node_late  node-8: also\\x1b late")
        manifest = tmp_path / tables.ALERTS / "manifest.json"
        manifest.rename(tmp_path / "aside")
        assert "the alerts cannot be read: " in running.remark()
        (tmp_path / "aside").rename(manifest)
        assert running.remark().endswith("the alerts are read again")
        written(second, changes=[("ended", first)])
        line = running.line()
        assert "ended" in line
        assert "node-7" in line
        assert running.interrupt() == 0


def test_who_follows_is_told_when_nothing_is_written_any_more(written):
    """Once, and when there is something again; an interval is 60 s."""
    options = written(alert("node-7"), clock=lambda: time.time() - 235)
    with Running(["alerts", "-f", *options], os.environ) as running:
        said = running.remark()
        assert "these tables are 4 min" in said
        assert "does `storm pipeline` run?" in said
        written(alert("node-7"))
        assert running.remark().endswith("these tables are written again")
        assert running.interrupt() == 0


def test_it_loads_little(written):
    loaded = imported_by(["alerts", *written(alert("node-7"))], os.environ)
    assert "duckdb" in loaded
    assert not loaded & (HEAVY - {"asyncio"})


def test_a_node_is_called_by_its_host(written):
    node = "aaaaaaaa-0000-4000-8000-000000000000-node-7"
    where = written({**alert(node, evidence=f"6 of 6 workers of {node} are late"), "node": node})
    told = run(*where).stdout
    assert "node-7\n  6 of 6 workers of node-7 are late" in told
    assert node in run(*where, "--json").stdout
