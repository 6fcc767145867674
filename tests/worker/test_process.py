"""The worker as a user meets it: a process, real Pacemakers, signals, and true counts."""

import json
import os
import re
import signal
import sys
import time
import zipfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from stormkeeper.conf import defaults
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import Release, deserialize, serialize
from stormkeeper.worker.job import Job
from stormkeeper.worker.process import TopologyWorker
from support.pacemaker import PacemakerProcess
from support.processes import all_gone, name
from support.waiting import until
from support.worker import START_SECS, WorkerProcess

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper]

EXAMPLES = Path(__file__).parents[2] / "examples"
PACEMAKER_STORE = "org.apache.storm.cluster.PaceMakerStateStorageFactory"
PERIOD_SECS = 0.5


@pytest.fixture
def pacemakers():
    with PacemakerProcess() as one, PacemakerProcess() as other:
        yield one, other


@pytest.fixture
def start(pacemakers, zookeeper_settings, tmp_path):
    """Starts workers that beat to the two Pacemakers."""
    with ExitStack() as stack:

        def worker(script, *options, arguments=(), **conf):
            values = {
                **zookeeper_settings(),
                "storm.cluster.state.store": PACEMAKER_STORE,
                "pacemaker.servers": [p.address for p in pacemakers],
                "task.heartbeat.frequency.secs": PERIOD_SECS,
                "storm.local.dir": str(tmp_path / "local"),
                "spark.master": "local[2]",
                "spark.sql.shuffle.partitions": 2,
                **conf,
            }
            return stack.enter_context(
                WorkerProcess(script, values, tmp_path, options=options, arguments=arguments)
            )

        yield worker


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


class Beats:
    """Reads a worker's newest heartbeat from whichever Pacemaker has it."""

    def __init__(self, pacemakers, path):
        self._pacemakers = pacemakers
        self._path = path

    def newest(self):
        """The heartbeat with the longest uptime; None where there is none."""
        found = []
        for server in self._pacemakers:
            with PacemakerClient(server.address) as client:
                data = client.get_pulse(self._path)
                if data is not None:
                    found.append(deserialize(ClusterWorkerHeartbeat, data))
        return max(found, key=lambda beat: beat.uptime_secs, default=None)

    def counts(self):
        """(emitted, executed) of all time by component."""
        beat = self.newest()
        counts = {}
        for stats in beat.executor_stats.values() if beat else ():
            bolt = stats.specific.bolt
            executed = sum(bolt.executed[":all-time"].values()) if bolt else 0
            counts[stats.component] = (sum(stats.emitted[":all-time"].values()), executed)
        return counts


@pytest.fixture
def text(tmp_path):
    """A folder of text, and what plain Python counts in it: lines, and words."""
    folder = tmp_path / "text"
    folder.mkdir()
    lines, words = 0, Counter()
    for number, source in enumerate(sorted(Path(os.__file__).parent.glob("*.py"))[:60]):
        # Spark's lines end at \n and \r\n; a file's last line break begins no further line.
        content = source.read_text(errors="ignore").replace("\r", "")
        (folder / f"{number:03}.txt").write_text(content)
        split = content.removesuffix("\n").split("\n")
        lines += len(split)
        for line in split:
            words.update(w for w in re.split(r"\W+", line, flags=re.ASCII) if w)
    return folder, lines, words


@pytest.mark.slow
def test_word_count_is_exact_over_an_outage_a_stop_and_a_restart(start, pacemakers, text, tmp_path):
    folder, lines, words = text
    output = tmp_path / "totals.json"
    conf = {"input": str(folder), "output": str(output), "files.per.trigger": 1}

    worker = start(EXAMPLES / "word_count.py", **conf)
    worker.wait_for(r"^worker beating topology-1-1 node 6700$")
    beats = Beats(pacemakers, worker.path)
    until(lambda: beats.counts().get("words", (0, 0))[0] > 0, START_SECS)
    before = beats.counts()

    for pacemaker in pacemakers:
        pacemaker.kill()
    done = len(worker.lines)
    time.sleep(20.0)  # the length of the outage is what is tested
    until(lambda: len(worker.lines) > done + 3)  # it goes on without Pacemakers
    for pacemaker in pacemakers:
        pacemaker.start()
    until(beats.newest)
    assert beats.counts()["words"][0] > before["words"][0]

    # Stopped in the middle: the last heartbeat says just what the sink has written.
    worker.send_all(signal.SIGTERM)
    assert worker.ended() == 0, worker.text
    first = beats.counts()
    totals = json.loads(output.read_text())
    assert first["words"][0] == first["counts"][1] == sum(totals.values())
    assert first["words"][0] < words.total()
    log = "\n".join(worker.errors)
    assert log.count("heartbeats cannot be sent") == 1
    assert log.count("heartbeats are sent again") == 1

    # Started again, it goes on where it stopped.
    worker = start(EXAMPLES / "word_count.py", **(conf | {"files.per.trigger": 30}))
    until(lambda: json.loads(output.read_text()) == dict(words), START_SECS)
    family = worker.family()
    assert len(family) > 1
    until(lambda: beats.counts().get("words", (0, 0))[0] == words.total() - first["words"][0], 30)
    assert worker.stop() == 0, worker.text
    all_gone(family)
    second = beats.counts()
    assert first["lines"][0] + second["lines"][0] == lines
    assert first["words"][1] + second["words"][1] == lines
    assert first["words"][0] + second["words"][0] == words.total()
    assert first["counts"][1] + second["counts"][1] == words.total()
    assert first["counts"][0] == first["totals"][1]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"text", "local", "totals.json"}


def test_plain_script_counts_and_kill_leaves_no_process(start, pacemakers, text):
    folder, _, _ = text
    worker = start(EXAMPLES / "plain_streaming.py", **{"spark.imports.input": str(folder)})
    beats = Beats(pacemakers, worker.path)
    until(lambda: beats.counts().get("imports", (0, 0))[0] > 0, START_SECS)
    worker.wait_for(r"^\| *module\|count\|")
    family = worker.family()
    assert any("java" in name(process) for process in family)
    worker.send(signal.SIGKILL)
    worker.ended()
    all_gone(family)


PLAIN = """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 7).getOrCreate()
assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
lines = spark.readStream.option("maxFilesPerTrigger", 20).text({folder!r})
longer = lines.where("length(value) > 40")
named = longer.writeStream.queryName("longer").format("noop").trigger(availableNow=True).start()
lengths = lines.select(F.length("value").alias("length")).groupBy("length").count()
batches = []
def count(batch, number):
    batches.append(batch.count())
lengths.writeStream.outputMode("update").trigger(availableNow=True).foreachBatch(count).start()
named.awaitTermination()
spark.streams.awaitAnyTermination()
for query in spark.streams.active:
    query.awaitTermination()
print("groups", sum(batches))
spark.stop()
"""


@pytest.mark.slow
def test_plain_script_that_ends_by_itself(start, pacemakers, text, script):
    folder, _, _ = text
    worker = start(script(PLAIN.format(folder=str(folder))))
    assert worker.ended(START_SECS) == 0, worker.text
    longer = sum(
        len(line) > 40
        for file in folder.iterdir()
        for line in file.read_text().removesuffix("\n").split("\n")
    )
    beats = Beats(pacemakers, worker.path)
    assert beats.newest().completed
    counts = beats.counts()
    groups = int(worker.wait_for(r"^groups (\d+)$", 1).group(1))
    assert counts == {"longer": (longer, 0), "query-2": (groups, 0)}


WAITING = """
import atexit, pathlib
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
written = []
def save(batch, number):
    written.append(batch.count())
    pathlib.Path({output!r}).write_text(str(sum(written)))
lines = spark.readStream.option("maxFilesPerTrigger", 1).text({folder!r})
query = lines.writeStream.queryName("saved").foreachBatch(save).start()
query.awaitTermination()
atexit.register(print, "the very end")
print("after the query")
"""


@pytest.mark.slow
def test_waiting_script_goes_on_after_stop(start, pacemakers, text, script, tmp_path):
    folder, lines, _ = text
    output = tmp_path / "written"
    worker = start(script(WAITING.format(folder=str(folder), output=str(output))))
    until(lambda: output.exists() and int(output.read_text() or 0) > 0, START_SECS)
    assert worker.stop() == 0, worker.text
    assert worker.lines[-2:] == ["after the query", "the very end"]
    written = int(output.read_text())
    assert written < lines
    beats = Beats(pacemakers, worker.path)
    assert beats.counts() == {"saved": (written, 0)}
    assert not beats.newest().completed


def test_it_beats_to_pacemakers_while_there_is_no_zookeeper(start, pacemakers, script):
    closed = {"storm.zookeeper.servers": ["127.0.0.1"], "storm.zookeeper.port": 1}
    worker = start(script("import time\ntime.sleep(600)\n"), **closed)
    worker.wait_for(r"^worker beating topology-1-1 node 6700$")
    assert Beats(pacemakers, worker.path).newest() is not None


ENDLESS = """
from stormkeeper.topology import Topology

topology = Topology("endless")

@topology.spout
def numbers(spark):
    return spark.readStream.format("rate").load()

@topology.bolt(numbers)
def out(numbers):
    return numbers.writeStream.format("noop")
"""

PLAIN_ENDLESS = """
import threading
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
query = spark.readStream.format("rate").load().writeStream.format("noop").queryName("out").start()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(ENDLESS, id="topology"),
        *(
            pytest.param(PLAIN_ENDLESS + rest, id=name)
            for rest, name in (
                ("", "query left running"),
                ("query.awaitTermination()\n", "awaited query"),
                ("threading.Event().wait()\n", "script's own wait"),
            )
        ),
    ],
)
def test_killed_jvm_ends_the_worker_after_a_last_heartbeat(start, pacemakers, script, code):
    worker = start(script(code))
    beats = Beats(pacemakers, worker.path)
    until(lambda: beats.counts().get("out", (0, 0)) > (0, 0), START_SECS)
    (jvm,) = [process for process in worker.family() if name(process) == "java"]
    jvm.kill()
    assert worker.ended() == 1, worker.text
    log = "\n".join(worker.errors)
    assert log.count("Spark's JVM ended with SIGKILL") == 1
    assert "spark.driver.memory" in log
    assert "Traceback" not in log, log
    assert beats.newest().uptime_secs > 0
    assert not beats.newest().completed


@pytest.mark.slow
def test_a_jvm_that_does_not_answer_is_told_and_ended(start, pacemakers, script):
    worker = start(script(ENDLESS), **{"supervisor.worker.timeout.secs": 12})
    beats = Beats(pacemakers, worker.path)
    until(lambda: beats.counts().get("out", (0, 0)) > (0, 0), START_SECS)
    assert beats.newest().jvm_silent_ms is None
    (jvm,) = [process for process in worker.family() if name(process) == "java"]
    jvm.suspend()
    until(lambda: (beats.newest().jvm_silent_ms or 0) >= 4000)
    assert worker.ended() == 1, worker.text
    assert not jvm.is_running()
    log = "\n".join(worker.errors)
    assert log.count("Spark's JVM had not answered for 12 s") == 1
    assert "SIGKILL" not in log
    assert not beats.newest().completed


SLOW = """
import time
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
def hold(batch, number):
    print("in the batch", flush=True)
    time.sleep(600)
rates = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
rates.writeStream.queryName("held").foreachBatch(hold).start().awaitTermination()
"""


@pytest.mark.slow
def test_a_batch_without_end_is_told_and_does_not_hold_up_a_stop(start, pacemakers, script):
    worker = start(script(SLOW))
    worker.wait_for(r"^in the batch$")
    beats = Beats(pacemakers, worker.path)

    def activity():
        beat = beats.newest()
        return beat and beat.queries and beat.queries[0]

    until(lambda: activity() and (activity().running_ms or 0) > 3000)
    assert (activity().query, activity().running_batch, activity().last_batch) == ("held", 0, None)
    assert beats.newest().jvm_silent_ms is None
    began = time.monotonic()
    assert worker.stop() == 0, worker.text
    assert time.monotonic() - began < 28.0  # what starts workers kills them not much later
    assert "\n".join(worker.errors).count("took too long") == 1


FAILING = """
from pyspark.sql import functions as F
from stormkeeper.topology import Topology

topology = Topology("failing", conf={{"spark.app.name": "mine", "input": {folder!r}}})
SQUARED = F.udf(lambda value: invert(value))

@topology.spout
def lines(spark, conf):
    print("app", spark.sparkContext.appName)
    return spark.readStream.text(conf["input"])

def invert(value):
    return 1 / (int(value) - 15)

@topology.bolt(lines)
def inverted(lines):
    return lines.select(SQUARED("value"))

@topology.bolt(inverted)
def out(inverted):
    return inverted.writeStream.format("noop")
"""


@pytest.mark.slow
def test_failing_bolt_ends_the_worker_with_its_message(start, pacemakers, numbers, script):
    worker = start(script(FAILING.format(folder=str(numbers[0]))))
    assert worker.ended(START_SECS) == 1, worker.text
    assert "app mine" in worker.lines
    log = "\n".join(worker.errors)
    assert "the query 'out' failed:" in log
    assert "    return 1 / (int(value) - 15)\n" in log
    assert "ZeroDivisionError: division by zero" in log
    assert "\tat org.apache" not in log
    assert len(worker.errors) < 20, log
    assert set(Beats(pacemakers, worker.path).counts()) == {"lines", "inverted", "out"}


BRINGING = """
import sys
import single
from packed import parts
from pyspark.sql import functions as F
from stormkeeper.topology import Topology

topology = Topology("bringing")
folder, only = sys.argv[1:]

@topology.spout
def lines(spark):
    return spark.readStream.text(folder)

@F.udf
def changed(value):
    return single.doubled(value) + parts.END

@topology.bolt(lines)
def out(lines):
    kept = lines.where(F.col("value") == only).select(changed("value"))
    return kept.writeStream.trigger(availableNow=True).foreachBatch(show)

def show(batch, number):
    print("rows", [row[0] for row in batch.collect()])
"""


@pytest.mark.slow
def test_script_gets_arguments_and_ships_modules(start, numbers, script, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "single.py").write_text("def doubled(value):\n    return value * 2\n")
    with zipfile.ZipFile(elsewhere / "more.zip", "w") as archive:
        archive.writestr("packed/__init__.py", "")
        archive.writestr("packed/parts.py", "END = '!'\n")
    brought = [elsewhere / "single.py", elsewhere / "more.zip"]
    options = [option for file in brought for option in ("--py-files", str(file))]
    worker = start(script(BRINGING), *options, arguments=[str(numbers[0]), "17"])
    assert worker.ended(START_SECS) == 0, worker.text
    assert "rows ['1717!']" in worker.lines


def test_source_fault_ends_the_worker_before_it_beats(start, script):
    worker = start(script("import os\nx = (\n"))
    assert worker.ended() == 1
    assert worker.lines == []
    assert "script.py, line 2: '(' was never closed" in "\n".join(worker.errors)


def test_a_stop_while_spark_starts_leaves_no_script_behind(start, script):
    code = "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate()\nprint('on')\n"
    worker = start(script(code))
    started = until(lambda: worker.family()[1:])
    assert worker.stop() == 0, worker.text
    all_gone(started)
    assert "on" not in worker.lines
    assert "leaving it" not in worker.text


def test_wrong_configuration_ends_the_worker_before_it_beats(start, script):
    worker = start(script("print('ran')\n"), **{"task.heartbeat.frequency.secs": -1})
    assert worker.ended() == 2
    assert worker.lines == []
    (line,) = worker.errors
    assert "task.heartbeat.frequency.secs" in line


def test_strict_ends_the_worker_at_an_unknown_key(start, script):
    code = "from stormkeeper.topology import Topology\nTopology('t', conf={'input': 1})\n"
    worker = start(script(code), "--strict", inptu=1)
    assert worker.ended() == 2
    assert "unknown key inptu; is input meant?" in worker.errors[-1]


def test_invalid_id_ends_the_worker_before_it_beats(start, script):
    worker = start(script("print('ran')\n"), "--storm-id", "a/b")
    assert worker.ended() == 2
    assert worker.lines == []
    assert worker.errors == ["'a/b' cannot be a name below /workerbeats: it has a / in it"]


def test_worker_leaves_script_with_closed_stdout(script, monkeypatch):
    job = Job(script=script(""), storm_id="t-1-1", node="node", port=6700)
    worker = TopologyWorker(
        defaults(), job, resolve_conf=lambda _: defaults(), signalled=lambda: True
    )
    reader, writer = os.pipe()
    os.close(reader)
    printed, left = os.fdopen(writer, "w"), []
    printed.write("rows 5")
    monkeypatch.setattr(sys, "stdout", printed)
    monkeypatch.setattr(os, "_exit", left.append)
    worker._leave(3)
    assert left == [3]
    with pytest.raises(BrokenPipeError):
        printed.close()


def test_script_that_is_not_there(start, tmp_path):
    worker = start(tmp_path / "none.py")
    assert worker.ended() == 1
    assert worker.lines == []
    assert "there is no script" in worker.errors[-1], worker.text


def test_script_without_anything_to_run(start, script):
    worker = start(script("print('ran')\n"))
    assert worker.ended(START_SECS) == 1
    assert "ran" in worker.lines
    assert "there is nothing to run" in "\n".join(worker.errors)
    assert not psutil.pid_exists(worker._process.pid)


TWO_QUERIES = """
from stormkeeper.topology import Topology

topology = Topology("two")

@topology.spout
def rows(spark):
    return spark.readStream.text({folder!r})

@topology.bolt(rows)
def counted(rows):
    return rows.writeStream.trigger(availableNow=True).format("noop")

@topology.bolt(rows)
def left_out(rows):
    raise RuntimeError("another worker's")
"""


@pytest.mark.slow
def test_it_runs_some_of_the_queries_and_beats_for_no_others(start, script, pacemakers, numbers):
    folder, values = numbers
    worker = start(script(TWO_QUERIES.format(folder=str(folder))), "--query", "counted")
    assert worker.ended(START_SECS) == 0, worker.text
    beat = Beats(pacemakers, worker.path).newest()
    # Of the whole topology counted is task 1, left_out 2, rows 3 in the one and 4 in the other.
    tasks = {info.task_start: stats.component for info, stats in beat.executor_stats.items()}
    assert tasks == {1: "counted", 3: "rows"}
    assert Beats(pacemakers, worker.path).counts()["counted"] == (0, len(values))


def test_unused_pacemakers_are_warned_of(start, script):
    store = "org.apache.storm.cluster.ZKStateStorageFactory"
    worker = start(script(""), **{"storm.cluster.state.store": store})
    assert worker.ended(START_SECS) == 1
    [line] = [line for line in worker.errors if "pacemaker.servers" in line]
    assert f"storm.cluster.state.store={PACEMAKER_STORE}" in line


@pytest.mark.parametrize(("configured", "release"), [(None, 2), (3, 3)])
def test_a_heartbeat_is_for_the_storm_that_is_configured(script, configured, release):
    conf = {**defaults(), "storm.meta.serialization.release": configured}
    job = Job(script=script(""), storm_id="wc-1-1", node="node", port=6700)
    worker = TopologyWorker(conf, job, resolve_conf=lambda _topology: conf, signalled=lambda: False)
    data = worker._heartbeats.encoded()
    beat = deserialize(ClusterWorkerHeartbeat, data)
    assert data == serialize(beat, release=Release(release))
    assert data != serialize(beat, release=Release(5 - release))


@pytest.mark.slow
def test_a_second_run_into_a_file_sinks_folder_is_refused(start, numbers, script):
    worker = start(
        script(f"""
from pyspark.sql import SparkSession

rows = SparkSession.builder.getOrCreate().readStream.text({str(numbers[0])!r})
for run in ("first", "second"):
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", run).start("out").awaitTermination()
""")
    )
    assert worker.ended(START_SECS) == 1
    (line,) = [line for line in worker.errors if "belongs to another run" in line]
    assert "script.py, line 7: the folder out belongs" in line
