"""A worker as a supervisor runs it: from a package, told of its topology by ZooKeeper."""

import io
import json
import os
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from stormkeeper.conf import defaults
from stormkeeper.state.storm import cluster
from stormkeeper.thrift.records import (
    Credentials,
    LogConfig,
    LogLevel,
    LogLevelAction,
    StormBase,
    TopologyStatus,
)
from stormkeeper.topology import Topology, description
from stormkeeper.topology.package import archive
from stormkeeper.topology.package.archive import unpack
from stormkeeper.topology.package.code import collect
from stormkeeper.worker.__main__ import main
from stormkeeper.worker.shutdown import CLAIMED, INACTIVE, STOPPED
from support.leaders import lead
from support.packages import MADE_WITH, tree
from support.processes import all_gone
from support.waiting import until
from support.worker import START_SECS, WorkerProcess

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper]

STORM = "job-1-1700000000"
SECRET = "hunter2-of-all-tests"


def package(folder, files, topology=None, **more):
    """Lay out a package of these files, of which ``daily.py`` runs; return where."""
    py_files = more.get("py_files", ())
    code = collect(tree(folder / "mine", files) / "daily.py", folder, py_files)
    described = (
        description.of_script(code.script)
        if topology is None
        else description.of_topology(topology, session_first="changing.py" in files)
    )
    file = io.BytesIO()
    archive.write(file, archive.PackageContents(code, described, **more), MADE_WITH)
    unpack(file, folder / "package")
    return folder / "package"


@pytest.fixture
def storm(zookeeper_settings):
    """The cluster's state, of a leader."""
    storm = cluster.connect(defaults().with_values(zookeeper_settings()))
    yield storm
    storm.disconnect()


@pytest.fixture
def leader(storm):
    return lead(storm)


@pytest.fixture
def set_status(leader):
    """Sets the topology's status."""
    return lambda status: leader.activate_storm(STORM, StormBase("job", status, 1))


@pytest.fixture
def start(zookeeper_settings, tmp_path):
    """Starts a worker of the package in the test's folder, as a supervisor does."""
    (tmp_path / "worker").mkdir()
    overrides = tmp_path / "overrides.json"

    def worker(claim, storm_id=STORM, **values):
        overrides.touch(mode=0o600)
        overrides.write_text(json.dumps(values))
        options = ["--root", str(tmp_path / "package"), "--overrides", str(overrides)]
        options += ["--alive", str(tmp_path / "alive"), "--claim", claim]
        conf = {
            **zookeeper_settings(),
            "task.heartbeat.frequency.secs": 0.3,
            "worker.heartbeat.frequency.secs": 0.2,
            "storm.local.dir": str(tmp_path / "local"),
            "spark.sql.shuffle.partitions": 2,
        }
        folder = tmp_path / "worker"
        process = WorkerProcess(
            Path("code/daily.py"), conf, folder, options=options, storm_id=storm_id
        )
        return stack.enter_context(process)

    with ExitStack() as stack:
        yield worker


@pytest.fixture
def folder(tmp_path):
    """A folder with files to read in ``in``, and one to write to: ``out``."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    add(tmp_path, *map(str, range(6)))
    return tmp_path


def add(folder, *lines):
    """Add files of one line each."""
    for line in lines:
        new = folder / f"new-{line}"
        new.write_text(f"{line}\n")
        new.rename(folder / "in" / f"{line}.txt")


def written(folder):
    """All rows that are written, with how often."""
    files = [json.loads(file.read_text()) for file in (folder / "out").glob("*.json")]
    return Counter(row for rows in files for row in rows)


def beat(storm):
    return storm.worker_heartbeat(STORM, "node", 6700)


def next_beats(storm, count=3):
    """Wait until the worker has beaten so many times more."""
    for _ in range(count):
        seen = storm.state.get_version(f"/workerbeats/{STORM}/node-6700")
        until(lambda seen=seen: storm.state.get_version(f"/workerbeats/{STORM}/node-6700") > seen)


def is_alive(folder):
    """Wait for one more sign of life."""
    os.utime(folder / "alive", (1.0, 1.0))
    until(lambda: (folder / "alive").stat().st_mtime > 1.0)


WRITE = """
import json
from pathlib import Path

def writing_to(folder):
    def write(batch, number):
        rows = [row[0] for row in batch.collect()]
        new = Path(folder, f"{number}.new")
        new.write_text(json.dumps(rows))
        new.rename(Path(folder, "out", f"{number}.json"))
    return write

def changed(value):
    if value == "poison":
        raise ValueError(f"cannot be changed: {value}")
    return value + "!"
"""

#: Imported above the topology, it needs a session that is there before the script begins.
CHANGE = """
import single
import writing
from pyspark.sql import functions as F

@F.udf("string")
def changed(value):
    return writing.changed(single.same(value))
"""

TOPOLOGY = """
import sys
import writing
from changing import changed
from stormkeeper.topology import Topology

topology = Topology("mine", conf={"mark": "the script's", "folder": None})

@topology.spout
def lines(spark, conf):
    print("runs on", spark.sparkContext.master, conf["mark"], sys.argv[1:])
    print("knows", conf["token"][:7], spark.conf.get("spark.hadoop.mine.token")[:7])
    print("jars", spark.conf.get("spark.jars").rpartition("/")[2])
    return spark.readStream.option("maxFilesPerTrigger", 1).text(conf["folder"] + "/in")

@topology.bolt(lines)
def out(lines, conf):
    often = lines.select(changed("value")).writeStream.trigger(processingTime="100 milliseconds")
    return often.foreachBatch(writing.writing_to(conf["folder"]))

@topology.bolt(lines)
def other(lines):
    raise RuntimeError("this is another worker's")
"""


def described():
    topology = Topology("mine")
    lines = topology.spout(lambda spark: spark, name="lines")
    for name in ("out", "other"):
        topology.bolt(lines, name=name)(lambda lines: lines)
    return topology


@pytest.mark.slow
def test_topology_pauses_resumes_and_reports_error(start, storm, leader, set_status, folder):
    brought = tree(folder / "brought", {"single.py": "def same(value):\n    return value\n"})
    with (brought / "empty.jar").open("wb") as jar:
        jar.write(b"PK\x05\x06" + bytes(18))
    package(
        folder,
        {"daily.py": TOPOLOGY, "writing.py": WRITE, "changing.py": CHANGE},
        described(),
        arguments=("--day", "1"),
        py_files=(brought / "single.py",),
        jars=(brought / "empty.jar",),
    )
    set_status(TopologyStatus.ACTIVE)
    tokens = Credentials({"token": SECRET, "spark.hadoop.mine.token": SECRET})
    leader.set_credentials(STORM, tokens)
    saved = {"mark": "saved", "folder": str(folder), "spark.hadoop.mine.password": SECRET}
    worker = start("out=7-1-0", **saved)
    worker.wait_for(r"^runs on local\[\d+\] saved \['--day', '1'\]$")
    worker.wait_for(r"^knows hunter2 hunter2$")
    worker.wait_for(r"^jars empty\.jar$")
    until(lambda: written(folder), START_SECS)
    info = LogLevel(LogLevelAction.UPDATE, "INFO")
    leader.set_topology_log_config(STORM, LogConfig({"org.apache.spark.sql": info}))
    until(lambda: " INFO org.apache.spark.sql." in worker.text, START_SECS)
    leader.set_topology_log_config(STORM, LogConfig({}))
    until(lambda: "log levels set for the topology: none any more" in worker.text)
    family, commands = worker.family(), worker.command_lines()
    assert any("SparkSubmit" in command for command in commands)
    assert not [command for command in commands if SECRET in command]
    assert [*folder.glob("local/checkpoints/*/out/claims/7-1-0")]
    is_alive(folder)

    set_status(TopologyStatus.INACTIVE)
    until(lambda: beat(storm).inactive, START_SECS)
    before = written(folder)
    add(folder, "6", "7")
    next_beats(storm)
    is_alive(folder)
    assert written(folder) == before
    components = {stats.component for stats in beat(storm).executor_stats.values()}
    assert components == {"lines", "out"}

    set_status(TopologyStatus.ACTIVE)
    rows = Counter(f"{number}!" for number in range(8))
    until(lambda: written(folder) == rows, START_SECS)
    until(lambda: not beat(storm).inactive)

    add(folder, "poison")
    assert worker.ended() == 1, worker.text
    error = storm.last_error(STORM, "out")
    assert error.port == 6700
    assert error.error.startswith("the query 'out' failed:\nTraceback")
    assert "writing.py" in error.error
    assert error.error.endswith("ValueError: cannot be changed: poison")
    assert "\tat org.apache" not in error.error
    all_gone(family)


SCRIPT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from writing import writing_to

folder = sys.argv[1]
spark = SparkSession.builder.getOrCreate()
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(folder + "/in")
writer = lines.writeStream.trigger(processingTime="300 milliseconds")
if Path(folder, "once").exists():
    writer = writer.trigger(availableNow=True)
writer.foreachBatch(writing_to(folder)).start().awaitTermination()
print("after the query")
"""


@pytest.mark.slow
def test_plain_script_pauses_completes_and_is_claimed(start, storm, set_status, folder):
    package(folder, {"daily.py": SCRIPT, "writing.py": WRITE}, arguments=(str(folder),))
    set_status(TopologyStatus.ACTIVE)
    worker = start("daily=7-0-9")
    until(lambda: written(folder), START_SECS)
    family = worker.family()
    worker.send(signal.SIGKILL)
    worker.ended()
    all_gone(family)
    before = written(folder)

    # The script names no checkpoint, and goes on all the same.
    worker = start("daily=7-1-0")
    until(lambda: written(folder) > before, START_SECS)
    [checkpoint] = folder.glob(f"local/checkpoints/{STORM}/daily/*")
    assert checkpoint.name.startswith("foreach-writing_to-write-")
    assert [path.name for path in checkpoint.glob("claims/7*")] == ["7-1-0"]
    set_status(TopologyStatus.INACTIVE)
    assert worker.ended() == INACTIVE, worker.text
    assert (folder / "ended").read_text() == str(INACTIVE)
    assert worker.lines[-1] == "after the query"
    assert not beat(storm).completed
    assert storm.ended_queries(STORM) == frozenset()

    # Started again it waits, without a JVM; then it does the rest.
    (folder / "once").touch()
    worker = start("daily=7-1-1")
    until(lambda: beat(storm).inactive, START_SECS)
    assert not [command for command in worker.command_lines() if "SparkSubmit" in command]
    set_status(TopologyStatus.ACTIVE)
    assert worker.ended(START_SECS) == 0, worker.text
    assert (folder / "ended").read_text() == "0"
    assert written(folder) == Counter(map(str, range(6)))
    assert storm.ended_queries(STORM) == {"daily"}
    last = beat(storm)
    assert last.completed
    [stats] = last.executor_stats.values()
    assert stats.component == "daily"

    # An earlier launch that comes late leaves it alone.
    worker = start("daily=7-1-0")
    assert worker.ended(START_SECS) == CLAIMED, worker.text
    assert "the worker's start 7-1-1 has claimed it" in worker.text


@pytest.mark.slow
def test_of_two_scripts_on_one_checkpoint_the_older_one_waits(
    start, storm, leader, set_status, folder
):
    script = SCRIPT.replace(
        "lines.writeStream", 'lines.writeStream.option("checkpointLocation", folder + "/mine")'
    )
    package(folder, {"daily.py": script, "writing.py": WRITE}, arguments=(str(folder),))
    other = "other-2-1700000000"
    set_status(TopologyStatus.ACTIVE)
    leader.activate_storm(other, StormBase("other", TopologyStatus.ACTIVE, 1))
    older = start("daily=7-1-0")
    until(lambda: written(folder), START_SECS)
    newer = start("daily=7-2-0", storm_id=other)
    until(lambda: f"/mine is taken from the topology {STORM} at " in newer.text, START_SECS)
    assert older.ended(START_SECS) == INACTIVE, older.text

    older = start("daily=7-1-1")
    until(lambda: beat(storm).waiting, START_SECS)
    assert f"{folder}/mine belongs to the topology {other} at" in beat(storm).waiting
    error = until(lambda: storm.last_error(STORM, "daily"), START_SECS)
    assert f"belongs to the topology {other}" in error.error
    newer.send(signal.SIGTERM)
    assert newer.ended() == STOPPED, newer.text
    leader.remove_storm(other)
    add(folder, "6", "7")
    until(lambda: written(folder) == Counter(map(str, range(8))), START_SECS)
    until(lambda: not beat(storm).waiting)


def test_worker_of_inactive_topology_waits_and_beats(start, storm, set_status, folder):
    package(folder, {"daily.py": "print('it runs')\n"})
    set_status(TopologyStatus.INACTIVE)
    worker = start("daily=7-1-0")
    until(lambda: beat(storm) is not None and beat(storm).inactive, START_SECS)
    until((folder / "alive").exists)
    is_alive(folder)
    worker.send(signal.SIGTERM)
    assert worker.ended() == STOPPED, worker.text
    assert "it runs" not in worker.lines


@pytest.mark.parametrize(
    ("option", "code", "said"),
    [("--root", 1, "there is no topology's package in"), ("--overrides", 2, "cannot be read")],
)
def test_what_a_supervisor_gives_must_be_there(option, code, said, capsys, tmp_path):
    whose = ["--storm-id", STORM, "--node", "n", "--port", "1"]
    assert main(["code/daily.py", *whose, option, str(tmp_path / "none")]) == code
    assert said in capsys.readouterr().err
