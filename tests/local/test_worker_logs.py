"""What is shown of a worker's log."""

import logging

import pytest

from stormkeeper.daemon import logs
from stormkeeper.local.run_topology import WorkerLog

LINES = """\
2026-03-01T12:00:00.123Z INFO stormkeeper.worker.streaming_queries the query out runs
2026-03-01T12:00:01.123Z WARNING org.apache.hadoop.util.NativeCodeLoader unable to load
2026-03-01T12:00:02.123Z WARNING stormkeeper.worker.heartbeat heartbeats cannot be sent
2026-03-01T12:00:03.123Z ERROR py4j.clientserver not ours
  belongs to it
2026-03-01T12:00:04.123Z ERROR stormkeeper.worker.process the query 'out' failed:
  Traceback (most recent call last):
    File "job.py", line 12, in invert
      return 1 / value
  ZeroDivisionError: division by zero
  A message may have a second line.
2026-03-01T12:00:05.123Z ERROR org.apache.spark.executor.Executor Exception in task
  \tat org.apache.spark
2026-03-01T12:00:06.123Z INFO stormkeeper.worker.process stopping
""".splitlines()

SHOWN = [
    "worker: heartbeats cannot be sent",
    "worker: the query 'out' failed:",
    "  Traceback (most recent call last):",
    '    File "job.py", line 12, in invert',
    "      return 1 / value",
    "  ZeroDivisionError: division by zero",
    "  A message may have a second line.",
]


def said(lines, log=None):
    return (log or WorkerLog("worker")).read(lines).notes


def test_warnings_and_errors_of_ours_with_what_belongs_to_them():
    assert said(LINES) == SHOWN


def test_a_record_may_come_in_pieces():
    log = WorkerLog("worker")
    assert [line for one in LINES for line in said([one], log)] == SHOWN


def test_whether_it_has_told_of_an_error():
    log = WorkerLog("worker")
    log.read(LINES[:5])
    assert not log.has_failed
    log.read(LINES[5:])
    assert log.has_failed


def test_spark_s_own_records_belong_to_nothing():
    lines = [
        "2026-03-01T12:00:02.123Z WARNING stormkeeper.worker.heartbeat heartbeats cannot be sent",
        "2026-03-01T12:00:03.391Z ERROR org.apache.spark.broadcast.TorrentBroadcast it fails",
        "  java.io.IOException: no space left",
        "  \tat org.apache.spark",
    ]
    read = WorkerLog("worker").read(lines)
    assert (read.notes, read.output) == (["worker: heartbeats cannot be sent"], [])


def test_the_user_s_own_loggers_are_heard_and_pyspark_s_are_not():
    log = WorkerLog("worker")
    lines = [
        "2026-03-01T12:00:00.123Z INFO my.job batch 1",
        "2026-03-01T12:00:01.123Z WARNING my.job 3 rows are late",
        "2026-03-01T12:00:02.123Z ERROR my-job.sink no answer",
        "  Traceback (most recent call last):",
        "  TimeoutError: 5 s",
        "2026-03-01T12:00:03.123Z CRITICAL root out of disk",
        "2026-03-01T12:00:04.123Z ERROR py4j.clientserver not theirs",
        "2026-03-01T12:00:05.123Z WARNING pyspark.ml.util not theirs",
        "2026-03-01T12:00:06.123Z ERROR SQLQueryContextLogger not theirs",
        "  what belongs to it",
        "2026-03-01T12:00:07.123Z WARNING org.apache.spark not theirs",
        "2026-03-01T12:00:08.123Z WARNING com.example.Sink of a jar of theirs",
        "2026-03-01T12:00:09.123Z WARNING pysparkling only begins so",
    ]
    assert said(lines, log) == [
        "worker: my.job: 3 rows are late",
        "worker: my-job.sink: no answer",
        "  Traceback (most recent call last):",
        "  TimeoutError: 5 s",
        "worker: root: out of disk",
        "worker: com.example.Sink: of a jar of theirs",
        "worker: pysparkling: only begins so",
    ]
    # What a job says itself does not tell why its worker has ended.
    assert not log.has_failed


@pytest.mark.parametrize(
    "others",
    [
        ["what the script prints"],
        ["+-----+", "  5 |", ""],
        ["#", "# A fatal error has been detected by the Java Runtime Environment:", "  SIGSEGV"],
        ["Traceback (most recent call last):", '  File "job.py", line 1', "ValueError: caught"],
        ["\tat org.apache.spark", "", "  at the end"],
    ],
)
def test_all_else_is_the_topologys_own_output(others):
    lines = ["2026-03-01T12:00:02.123Z WARNING my.job 3 rows are late", "  by 5 s", *others]
    read = WorkerLog("worker").read(lines)
    assert read.notes == ["worker: my.job: 3 rows are late", "  by 5 s"]
    assert read.output == others


def test_output_may_be_indented_where_all_is_well():
    lines = ["2026-03-01T12:00:02.123Z INFO my.job a table follows", "  a  b", "", "  1  2"]
    assert WorkerLog("worker").read(lines).output == lines[1:]


def test_startup_messages_of_jvm_and_worker_are_no_output():
    lines = [
        "WARNING: Using incubator modules: jdk.incubator.vector",
        "worker beating wc-1-1 n 6700",
    ]
    read = WorkerLog("worker").read([*lines, "WARNING: mine"])
    assert (read.notes, read.output, read.beats) == ([], ["WARNING: mine"], True)


def test_further_lines_of_a_record_are_recognised():
    error = TimeoutError("5 s\n2026-03-01T12:00:02.123Z ERROR my.job forged")
    record = logging.makeLogRecord(
        {
            "name": "my.job",
            "levelname": "ERROR",
            "msg": "no answer",
            "exc_info": (TimeoutError, error, None),
        }
    )
    text = logs._LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s").format(record)
    assert said([*text.split("\n"), "else"]) == [
        "worker: my.job: no answer",
        "  TimeoutError: 5 s",
        "  2026-03-01T12:00:02.123Z ERROR my.job forged",
    ]
