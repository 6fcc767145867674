"""How ``storm pipeline`` stops: whenever it is asked to, and whatever runs then."""

import os
import signal
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import psutil
import pytest
from pyspark.errors import PySparkException

from stormkeeper.conf import defaults
from stormkeeper.errors import EngineError
from stormkeeper.pipeline import process, queries
from stormkeeper.pipeline.status import StatusTracker
from support.pipelines import PipelineProcess
from support.waiting import DEADLINE_SECS, until


def started(tmp_path, server="127.0.0.1:1", prelude=None):
    conf = {"storm.local.dir": str(tmp_path), "spark.master": "local[2]"}
    return PipelineProcess(tmp_path / "tables", [server], conf).start(prelude)


@pytest.mark.spark
def test_a_stop_while_spark_starts_begins_no_query(pacemaker, tmp_path):
    with started(tmp_path, pacemaker.address) as pipeline:
        processes = until(pipeline.descendants)
        pipeline.signal(signal.SIGTERM)
        assert pipeline.first_line() == ""
        assert pipeline.ended() == 0
        assert psutil.wait_procs(processes, DEADLINE_SECS)[1] == []
        assert list(pipeline.folder.glob("*/.checkpoint")) == []
        assert pipeline.errors == []
        asked, stopped = pipeline.stops
        assert asked.endswith("asked by SIGTERM")
        assert stopped == "stopped"


@pytest.mark.slow
@pytest.mark.spark
def test_a_stop_while_sparks_python_hangs_is_heeded(tmp_path):
    python, noted = tmp_path / "python", tmp_path / "python.pid"
    python.write_text("#!/bin/sh\necho $$ > $0.pid\nexec sleep 600\n")
    python.chmod(0o755)
    prelude = f"import os; os.environ['PYSPARK_PYTHON'] = {str(python)!r}"
    with started(tmp_path, prelude=prelude) as pipeline:
        hanging = int(until(lambda: noted.exists() and noted.read_text(), 2 * DEADLINE_SECS))
        pipeline.signal(signal.SIGTERM)
        try:
            assert pipeline.ended() == 0
        finally:
            os.kill(hanging, signal.SIGKILL)
        assert pipeline.stops == ["stopping: no batch was begun; asked by SIGTERM", "stopped"]


#: Has SIGTERM come when the process begins to import what takes most of its start.
STOPPED_AT_ITS_IMPORTS = """
import os, signal, sys

def on_event(event, arguments):
    if event == "import" and arguments[0] == "pyspark" and "pyspark" not in seen:
        seen.append("pyspark")
        os.kill(os.getpid(), signal.SIGTERM)

seen = []
sys.addaudithook(on_event)
"""


def test_stop_during_the_imports_is_like_any_other(tmp_path):
    with started(tmp_path, prelude=STOPPED_AT_ITS_IMPORTS) as pipeline:
        assert pipeline.first_line() == ""
        assert pipeline.ended() == 0
        assert pipeline.errors == []
        assert pipeline.stops == ["stopping: nothing was begun; asked by SIGTERM"]
        assert not pipeline.folder.exists()


@pytest.mark.spark
def test_a_stop_between_the_queries_starts_is_heeded(spark, pacemaker, tmp_path):
    """Though the first one has not made its source yet, which may take a minute."""
    stop = threading.Event()
    running = []
    conf = defaults().with_values({"pipeline.tables.dir": str(tmp_path)})
    with process._places(conf) as places:
        begun = queries.start(spark, conf, [pacemaker.address], places, stopped=stop.is_set)
        try:
            for query in begun:
                running.append(query)
                stop.set()
            assert [query.name for query in running] == ["liveness"]
        finally:
            process._stop_between_batches(running)


@pytest.mark.spark
def test_hanging_batch_does_not_delay_a_stop_for_ever(spark, tmp_path, monkeypatch, caplog):
    key = "spark.sql.streaming.stopTimeout"
    assert process._SPARK_DEFAULTS[key] == "5s"
    monkeypatch.setattr(process, "_STOP_SECS", 0.5)
    hanging, release, ended = threading.Event(), threading.Event(), threading.Event()

    def hang(_batch, _number):
        hanging.set()
        release.wait(2 * DEADLINE_SECS)
        ended.set()

    spark.conf.set(key, "1s")
    query = spark.readStream.format("rate").load().writeStream.foreachBatch(hang)
    query = query.option("checkpointLocation", str(tmp_path)).start()
    try:
        assert hanging.wait(DEADLINE_SECS)
        process._stop_between_batches([query])
        assert not ended.is_set()
        assert "did not end when cut off" in caplog.text
    finally:
        release.set()
        spark.conf.unset(key)
        query.stop()


@pytest.mark.spark
def test_batch_that_fails_during_a_stop_fails_the_pipeline(spark, tmp_path):
    running, release = threading.Event(), threading.Event()

    def fail(_batch, _number):
        running.set()
        assert release.wait(DEADLINE_SECS)
        raise RuntimeError("the disk is full")

    query = spark.readStream.format("rate").load().writeStream.foreachBatch(fail)
    query = query.option("checkpointLocation", str(tmp_path)).start()
    try:
        assert running.wait(DEADLINE_SECS)
        threading.Timer(0.1, release.set).start()
        with pytest.raises(PySparkException, match="the disk is full"):
            process._stop_between_batches([query])
    finally:
        release.set()
        query.stop()


class _FakeQuery:
    """A query that ends with an error, or runs on."""

    status = {"isTriggerActive": False}  # noqa: RUF012

    def __init__(self, name, error, *, has_batch=False):
        self.name, self.error, self.isActive = name, error, error is None
        self.lastProgress = {} if has_batch else None

    def exception(self):
        return self.error

    def stop(self):
        self.isActive = False


class _FakeStop:
    """Asks for a stop when nothing else is left to do."""

    asked_by = "the test"

    def __init__(self, runs_on):
        self._runs_on = runs_on

    @property
    def stopped(self):
        return self._runs_on()

    def wait(self, _secs):
        return self.stopped


SLOW = PySparkException("org.apache.spark.SparkException: Python worker failed to connect back.")


@pytest.mark.parametrize(
    ("errors", "started"),
    [
        ([SLOW, None], 2),
        ([SLOW] * 99, process._STARTS),
        ([PySparkException("the disk is full"), None], 1),
    ],
)
def test_a_query_whose_python_worker_was_slow_starts_again(monkeypatch, tmp_path, errors, started):
    """As workers do: another error is final, and so is the same one again and again."""
    monkeypatch.setattr(process, "_STOP_SECS", 0.0)  # no query here has a batch to wait for
    begun, left = {"liveness": [], "statistics": []}, [*errors]

    def start(_session, _stopped, names):
        for name in names:
            error = left.pop(0) if name == "statistics" else None
            begun[name].append(_FakeQuery(name, error))
            yield begun[name][-1]

    conf = defaults().with_values({"pipeline.tables.dir": str(tmp_path)})
    stop = _FakeStop(lambda: all(each and each[-1].isActive for each in begun.values()))
    watch = SimpleNamespace(start=lambda _: None, ask_to_stop=lambda: None, stop=lambda: None)
    failure = nullcontext() if errors[started - 1] is None else pytest.raises(EngineError)
    with failure:
        process._run(None, conf, start, watch, stop=stop, status=StatusTracker())
    assert [len(each) for each in begun.values()] == [1, started]
