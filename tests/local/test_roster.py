"""The description of a local cluster's processes."""

from pathlib import Path

import pytest

from stormkeeper.conf import Address
from stormkeeper.daemon.lifecycle import DIE_WITH_PARENT
from stormkeeper.daemon.orphans import RUN_MARK
from stormkeeper.local.roster import Request, Site, Stage, WhenEnded, roster

SITE = Site(
    Path("/run"),
    "a mark",
    4711,
    Address("127.0.0.1", 2181),
    (Address("127.0.0.1", 6701), Address("127.0.0.1", 6702)),
)
REQUEST = Request(
    Path("job.py"),
    overrides=["input=/data", "pacemaker.port=1"],
    strict=True,
    arguments=["--day", "1"],
    py_files=[Path("/lib/more.zip")],
)


@pytest.fixture
def rows():
    return {planned.name: planned for planned in roster(REQUEST, SITE, "job-1-1700000000")}


def options(planned):
    """Return what comes behind ``python -P -m``."""
    assert planned.command[1:3] == ("-P", "-m")
    return list(planned.command[3:])


def test_who_is_there_in_which_stage(rows):
    assert {name: planned.stage for name, planned in rows.items()} == {
        "zookeeper": Stage.SERVERS,
        "pacemaker 1": Stage.SERVERS,
        "pacemaker 2": Stage.SERVERS,
        "worker": Stage.WORKERS,
        "pipeline": Stage.ANALYSES,
    }


def test_the_pipeline_can_be_left_out():
    without = roster(Request(Path("job.py"), pipeline=False), SITE, "job-1-1")
    assert [planned.name for planned in without][-1] == "worker"


def test_final_counts_are_kept_until_they_have_been_read(rows):
    order = sorted(rows, key=lambda name: rows[name].stop_order)
    assert order == ["worker", "pipeline", "pacemaker 1", "pacemaker 2", "zookeeper"]


def test_each_server_listens_on_a_port_of_its_own(rows):
    common = ["--config", "/run/cluster.yaml"]
    assert options(rows["zookeeper"]) == ["stormkeeper", "dev-zookeeper", *common]
    for name, port in (("pacemaker 1", 6701), ("pacemaker 2", 6702)):
        own = ["-c", f"pacemaker.port={port}"]
        assert options(rows[name]) == ["stormkeeper", "pacemaker", *common, *own]
        assert rows[name].address == f"127.0.0.1:{port}"


def test_the_worker_gets_what_is_the_topologys(rows):
    assert options(rows["worker"]) == [
        *("stormkeeper.worker", "job.py", "--storm-id", "job-1-1700000000"),
        *("--node", "local", "--port", "6700", "--config", "/run/cluster.yaml"),
        *("--conf=input=/data", "--strict", "--py-files", "/lib/more.zip", "--", "--day", "1"),
    ]


@pytest.mark.parametrize(
    ("name", "line", "note"),
    [
        ("zookeeper", "zookeeper listening on a:1", "zookeeper listens on a:1"),
        ("pacemaker 2", "pacemaker listening on a:1", "pacemaker 2 listens on a:1"),
        ("worker", "worker beating job-1-1 local 6700", "worker job-1-1 beats"),
        ("pipeline", "pipeline writing to /a b", "pipeline writes its tables to /a b"),
    ],
)
def test_what_says_that_it_is_ready(rows, name, line, note):
    planned = rows[name]
    assert planned.ready_note.format(planned.ready.search(line).group(1)) == note


def test_a_killed_server_is_outlived_and_a_failing_job_is_not(rows):
    assert {name for name, p in rows.items() if p.when_ended is WhenEnded.END_RUN} == {
        "worker",
        "pipeline",
    }


def test_all_carry_the_mark_and_end_with_who_starts_them(rows):
    for planned in rows.values():
        assert planned.environment[RUN_MARK] == "a mark"
        assert planned.environment[DIE_WITH_PARENT] == "4711"
        assert planned.environment["TMPDIR"] == "/run/tmp"
