"""``storm stats`` on tables as the pipeline writes them."""

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.cli.stats import _count
from support.command import HEAVY, imported_by
from support.counted import write

WC = "wc-1-1700000000"
WINDOWS = ("600", "10800", "86400", ":all-time")


def ago(secs):
    return datetime.now(UTC) - timedelta(seconds=secs)


def component(name, kind, window, at, factor, **columns):
    whose = {"read_at": at, "storm_id": WC, "topology": "wc", "component": name, "kind": kind}
    counts = {"emitted": 10 * factor, "transferred": 20 * factor, "acked": 5 * factor, "failed": 0}
    sizes = {"workers": 1, "executors": 2, "tasks": 4}
    return {**whose, "window": window, **sizes, **counts, **columns}


def reading(at, **words):
    """The rows of one reading, by table; a window's counts are its place in the list of them."""
    counted, whole = [], []
    for factor, window in enumerate(WINDOWS, start=1):
        latency = {"execute_ms_avg": 0.5, "process_ms_avg": 1.25, "capacity": 0.93}
        counted.append(component("words", "spout", window, at, factor, complete_ms_avg=7.5))
        bolt = latency | {"executed": 1_000_000 * factor, **words}
        counted.append(component("split", "bolt", window, at, factor, **bolt))
        row = component(None, None, window, at, factor, complete_ms_avg=7.5, executors=4)
        whole.append({k: v for k, v in row.items() if k not in ("component", "kind")})
    executors = [
        executor(at, task, window, executed=executed)
        for task, executed in ((1, 30), (3, 10))
        for window in ("600", ":all-time")
    ]
    return {"component_stats": counted, "topology_stats": whole, "executor_stats": executors}


def executor(at, task, window, **columns):
    return {
        "read_at": at,
        "storm_id": WC,
        "topology": "wc",
        "node": f"n-{task}",
        "port": 6700,
        "uptime_secs": 100,
        "task_start": task,
        "task_end": task + 1,
        "component": "split",
        "kind": "bolt",
        "window": window,
        "source": "words",
        "stream": "default",
        "execute_ms_avg": 1000.0,
        **columns,
    }


def bucket(secs, name="split", kind="bolt", **columns):
    at = ago(secs).replace(second=0, microsecond=0)
    whose = {"storm_id": WC, "topology": "wc", "component": name, "kind": kind}
    return {"bucket": at, **whose, **columns}


@pytest.fixture
def options(tmp_path):
    return ["-c", f"pipeline.tables.dir={tmp_path}"]


def run(*arguments, **settings):
    return CliRunner().invoke(command, ["stats", *arguments], **settings)


def table(lines, title):
    """Return the rows of a table by their first cell, each by the columns' names."""
    (head,) = (line for line in lines if line.startswith(title))
    names = re.split(r"  +", head)
    found = {}
    for line in lines[lines.index(head) + 1 :]:
        cells = re.split(r"  +", line)
        if len(cells) != len(names):
            break
        found[cells[0]] = dict(zip(names, cells, strict=True))
    return found


def test_a_topology_as_on_storms_page(tmp_path, options):
    write(tmp_path, **reading(ago(20)))
    ran = run("wc", *options)
    assert ran.exit_code == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert re.fullmatch(rf"{WC}, read 2\d s ago, window all time", lines[0])
    assert lines[1] == "1 worker, 4 executors, 4 tasks"
    words = table(lines, "SPOUT")["words"]
    assert words == {
        "SPOUT": "words",
        "EXECUTORS": "2",
        "TASKS": "4",
        "EMITTED": "40",
        "TRANSFERRED": "80",
        "ACKED": "20",
        "FAILED": "0",
        "COMPLETE MS": "7.500",
    }
    split = table(lines, "BOLT")["split"]
    assert (split["EXECUTED"], split["EXECUTE MS"], split["CAPACITY"]) == ("4M", "0.500", "0.930")
    assert "\x1b" not in ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("given", "emitted"), [("10m", "10"), ("600", "10"), ("3h", "20"), ("1d", "30"), ("all", "40")]
)
def test_a_window(tmp_path, options, given, emitted):
    write(tmp_path, **reading(ago(20)))
    ran = run("wc", "--window", given, *options)
    assert table(ran.stdout.splitlines(), "SPOUT")["words"]["EMITTED"] == emitted


def test_the_newest_of_several_readings(tmp_path, options):
    for number, (secs, executed) in enumerate([(50, 1), (20, 3), (35, 2)]):
        write(tmp_path, number, **reading(ago(secs), executed=executed))
    split = table(run(WC, *options).stdout.splitlines(), "BOLT")["split"]
    assert split["EXECUTED"] == "3"


def test_a_component_and_its_executors(tmp_path, options):
    write(tmp_path, **reading(ago(20)))
    lines = run("wc", "--component", "split", *options).stdout.splitlines()
    assert [*table(lines, "split (bolt)")] == ["10 min", "3 h", "1 day", "all time"]
    found = table(lines, "TASKS")
    assert {tasks: (row["WORKER"], row["SHARE"]) for tasks, row in found.items()} == {
        "1-2": ("n-1:6700", "75%"),
        "3-4": ("n-3:6700", "25%"),
    }
    # 30 tuples of a second each in the 100 s that the worker has been up for
    assert found["1-2"]["CAPACITY"] == "0.300"
    assert not [line for line in lines if line.startswith("words")]


def test_a_busy_bolt_is_coloured_on_a_terminal_alone(tmp_path, options):
    write(tmp_path, **reading(ago(20)))
    assert "\x1b[33m0.930\x1b[0m" in run("wc", *options, color=True).stdout


def test_json_of_a_reading(tmp_path, options):
    write(tmp_path, **reading(ago(20), execute_ms_avg=float("nan")))
    found = json.loads(run("wc", "--component", "split", "--json", *options).stdout)
    assert found["storm_id"] == WC
    assert found["window"] == ":all-time"
    assert 20 <= found["age_secs"] < 600
    assert found["interval_secs"] == 15
    assert found["totals"]["acked"] == 20
    (split,) = found["components"]
    assert (split["component"], split["executed"], split["execute_ms_avg"]) == (
        "split",
        4_000_000,
        None,
    )
    assert [row["executed"] for row in found["executors"]] == [30, 10]
    assert "executors" not in json.loads(run("wc", "--json", *options).stdout)


def test_a_pipeline_that_does_not_run_is_said(tmp_path, options):
    write(tmp_path, clock=lambda: time.time() - 7300, **reading(ago(7300)))
    ran = run("wc", *options)
    assert ran.exit_code == 0
    said = "storm: these tables are 2 h 1 min old, and the pipeline writes them every 15 s: does"
    assert ran.stderr.startswith(said)
    ran = run("wc", "--since", "4h", *options)
    assert ran.stderr.startswith(said)


def test_workers_that_are_all_silent_are_said(tmp_path, options):
    write(tmp_path, **reading(ago(7300)))
    ran = run("wc", *options)
    assert ran.exit_code == 0
    assert ran.stderr.startswith("storm: no heartbeat was read for 2 h 1 min, though `storm pipel")
    assert "all workers are silent" in ran.stderr


def test_a_topology_that_is_read_no_more_is_said(tmp_path, options):
    write(tmp_path, 0, **reading(ago(3600)))
    other = component("words", "spout", "600", ago(5), 1, storm_id="x-1-2", topology="x")
    write(tmp_path, 1, component_stats=[other])
    ran = run("wc", *options)
    assert "read 1 h 0 min ago" in ran.stdout
    assert ran.stderr.startswith(f"storm: {WC} has not been read for 59 min")


def test_what_is_not_there(tmp_path, options):
    rows = reading(ago(20))
    assert "there are no tables in" in run("wc", *options).stderr
    write(tmp_path, 0)
    assert "nothing has been counted yet" in run("wc", *options).stderr
    write(tmp_path, 1, **rows)
    ran = run("wc2", *options)
    assert ran.exit_code == 1
    assert ran.stderr == "storm: nothing is known of a topology 'wc2'; did you mean wc?\n"
    ran = run("other", *options)
    assert ran.stderr == "storm: nothing is known of a topology 'other'; these are there: wc\n"
    assert run("other", "--since", "2h", *options).stderr == ran.stderr
    assert "did you mean wc?" in run("WC", *options).stderr
    assert f"did you mean {WC}?" in run(f"{WC}7", *options).stderr
    ran = run("wc", "--component", "join", *options)
    assert ran.exit_code == 1
    assert ran.stderr == "storm: wc has no component 'join'; these are there: split, words\n"
    ran = run("wc", "--since", "2h", *options)
    assert ran.stdout == "No complete bucket of that time has counts of it.\n"


@pytest.fixture
def course(tmp_path):
    spout = bucket(300, "words", "spout", emitted=600, acked=120, complete_ms_avg=4.0)
    bolts = [
        bucket(secs, executed=60 * each, execute_ms_avg=0.25, capacity=0.1 * each, restarts=0)
        for each, secs in enumerate((360, 300, 240), start=1)
    ]
    write(tmp_path, rollup_1m=[spout, *bolts])


@pytest.mark.usefixtures("course")
def test_a_course_of_time(options):
    lines = run("wc", "--since", "1h", *options).stdout.splitlines()
    rows = [*table(lines, "TIME").values()]
    assert [row["EXECUTED/S"] for row in rows] == ["1", "2", "3"]
    assert [row["EMITTED/S"] for row in rows] == ["-", "10", "-"]
    assert [row["CAPACITY"] for row in rows] == ["0.100", "0.200", "0.300"]
    assert rows[1]["COMPLETE MS"] == "4.000"
    lines = run("wc", "--component", "words", "--since", "1h", *options).stdout.splitlines()
    assert [row["ACKED/S"] for row in table(lines, "TIME").values()] == ["2"]


def test_a_bucket_after_a_gap_is_marked(tmp_path, options):
    buckets = [
        bucket(secs, executed=60, interval_secs=interval)
        for secs, interval in ((360, 15.2), (300, 135.0), (240, 29.0), (180, 36.0))
    ]
    write(tmp_path, rollup_1m=buckets)
    *lines, last = run("wc", "--since", "1h", *options).stdout.splitlines()
    assert [at.endswith("*") for at in table(lines, "TIME")] == [False, True, False, True]
    said = "also counts of up to 2 min 15 s before, when workers were not read."
    assert last == f"* {said}"
    found = json.loads(run("wc", "--since", "1h", "--json", *options).stdout)
    assert [row["interval_secs"] for row in found["buckets"]] == [15.2, 135.0, 29.0, 36.0]
    assert found["interval_secs"] == 15
    pytest.importorskip("plotext")
    last = run("wc", "--since", "1h", "--plot", *options).stdout.splitlines()[-1]
    marked = [f"{buckets[place]['bucket']:%m-%d %H:%M}" for place in (1, 3)]
    assert last == f"{', '.join(marked)}: {said}"


@pytest.mark.usefixtures("course")
def test_a_pipeline_that_is_young_has_no_long_buckets(options):
    found = json.loads(run("wc", "--since", "7d", "--json", *options).stdout)
    assert (found["bucket_secs"], len(found["buckets"])) == (60, 3)


def test_storms_own_components_are_shown_by_name_alone(tmp_path, options):
    """And what workers do not say the kind of is shown as a bolt is."""
    rows = [
        component(name, kind, ":all-time", ago(9), 1)
        for name, kind in (("__acker", "bolt"), ("tasks 1-2", None))
    ]
    write(tmp_path, component_stats=rows)
    lines = run("wc", *options).stdout.splitlines()
    assert [*table(lines, "COMPONENT")] == ["tasks 1-2"]
    assert not [line for line in lines if line.startswith(("__acker", "BOLT"))]
    lines = run("wc", "--component", "__acker", *options).stdout.splitlines()
    assert [*table(lines, "__acker (bolt)")] == ["all time"]
    ran = run("wc", "--component", "tasks 1-2", *options)
    assert [*table(ran.stdout.splitlines(), "tasks 1-2")] == ["all time"]
    assert "Storm's workers do not name them" in ran.stderr


def test_components_without_names_come_by_their_tasks(tmp_path, options):
    tasks = ("tasks 10-11", "tasks 9-9", "tasks 1-8")
    rows = [component(name, "bolt", ":all-time", ago(9), 1) for name in tasks]
    write(tmp_path, component_stats=rows)
    lines = run("wc", *options).stdout.splitlines()
    assert [*table(lines, "BOLT")] == [*reversed(tasks)]


@pytest.mark.usefixtures("course")
def test_json_of_a_course(options):
    found = json.loads(run("wc", "--since", "1h", "--json", *options).stdout)
    assert found["bucket_secs"] == 60
    assert [row["executed"] for row in found["buckets"]] == [60, 120, 180]
    assert datetime.fromisoformat(found["until"]) - datetime.fromisoformat(
        found["since"]
    ) == timedelta(hours=1)


@pytest.mark.usefixtures("course")
@pytest.mark.parametrize(("columns", "width"), [(None, 80), ("120", 120), ("20", 40)])
def test_drawings_fit_where_they_are_shown(options, monkeypatch, columns, width):
    pytest.importorskip("plotext")
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    ran = run("wc", "--plot", *options)
    assert ran.exit_code == 0, ran.stderr
    assert max(map(len, ran.stdout.splitlines())) == width
    assert "\x1b" not in ran.stdout
    assert "executed, tuples/s (last 3)" in ran.stdout
    assert "capacity, busiest executor (last 0.3)" in ran.stdout
    if width >= 80:
        assert "wc: executed, tuples/s (last 3)" in ran.stdout
        assert "wc: capacity, busiest executor (last 0.3)" in ran.stdout
        assert "failed" not in ran.stdout


def test_a_drawing_says_what_it_is_of_however_long_the_name(tmp_path, options, monkeypatch):
    pytest.importorskip("plotext")
    monkeypatch.setenv("COLUMNS", "80")
    name = "a-topology-with-a-name-of-more-than-fifty-characters-and-some"
    rows = [
        bucket(secs, topology=name, storm_id=f"{name}-1-17", executed=60, emitted=60)
        for secs in (70, 80, 90)
    ]
    write(tmp_path, 0, rollup_1m=rows)
    ran = run(name, "--plot", *options)
    assert "a-topology-with-a-name-of-more-than-fifty-chara…: emitted, tuples/s (l" in ran.stdout
    marks = ran.stdout.splitlines()[11].split()
    assert len(marks) == len(set(marks))


def test_topologies_of_the_last_day_are_suggested(tmp_path, options):
    write(tmp_path, 0, **reading(ago(20)), rollup_10m=[bucket(7200, topology="clicks")])
    assert "did you mean clicks?" in run("click", *options).stderr


@pytest.mark.usefixtures("course")
def test_without_what_draws_the_extra_is_named(options, monkeypatch):
    monkeypatch.setattr("stormkeeper.extras._is_installed", lambda module: module != "plotext")
    ran = run("wc", "--plot", *options)
    assert ran.exit_code == 69
    assert "storm stats --plot needs the extra spark" in ran.stderr
    assert "no plotext" in ran.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--window", "2h"], "'2h' is no window: 10m, 3h, 1d or all"),
        (["--since", "2"], "is no length of time"),
        (["--since", "2h", "--window", "10m"], "--window is for the newest counts"),
        (["--plot", "--json"], "--plot and --json exclude each other"),
    ],
)
def test_a_wrong_usage(given, said):
    ran = run("wc", *given)
    assert ran.exit_code == 2
    assert said in ran.stderr


def test_it_loads_little(tmp_path, options):
    write(tmp_path, **reading(ago(20)))
    loaded = imported_by(["stats", "wc", *options], os.environ)
    assert "duckdb" in loaded
    assert not loaded & (HEAVY | {"plotext"}) - {"asyncio"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (99_999, "99,999"),
        (123_456, "123.5k"),
        (7_654_321_000, "7.654G"),
        (999_999_999, "1000M"),
        (0.25, "0.25"),
        (12.345, "12.35"),
        (13_187.4, "13,187"),
        (99_999.9, "100,000"),
        (None, "-"),
    ],
)
def test_counts_are_short(value, text):
    assert _count(value) == text
