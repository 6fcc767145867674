"""Every call of the JVM into this process is answered, whatever the called code does."""

import re
import subprocess
import sys
import threading

import pytest
from py4j import protocol
from py4j.protocol import unescape_new_line
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryListener

from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.spark_callbacks import sendable, without_separators
from stormkeeper.worker.failure import readable
from support.waiting import DEADLINE_SECS, until


class WithoutTextError(Exception):
    def __str__(self):
        sys.exit("no text")
        return ""

    __repr__ = __str__


class OwnError(BaseException):
    """Of no class that code commonly catches."""


#: What user code may raise, and what its user reads of it.
RAISED = {
    "exit": (
        SystemExit(3),
        r"SystemExit: 3 \(code of the topology ends the process: return, or .*\)",
    ),
    "interrupt": (KeyboardInterrupt(), r"KeyboardInterrupt"),
    "generator": (GeneratorExit("gone"), r"GeneratorExit: gone"),
    "own": (OwnError("mine"), r".*OwnError: mine"),
    "surrogate": (ValueError("half \udcff"), r"ValueError: half \\udcff"),
    "megabytes": (ValueError("x" * 3_000_000), r"ValueError: x+ \.\.\. \d+ characters \.\.\. x+"),
    "many lines": (ValueError("x\n" * 300_000), r"ValueError: [x\n]+ \.\.\. \d+ c[\s\S]*"),
    "no text": (WithoutTextError(), r".*WithoutTextError: <exception str\(\) failed>"),
}


def sink(error):
    def each(_, __):
        raise error

    return each


@pytest.mark.spark
def test_errors_of_batch_functions_are_answered_and_named(spark, tmp_path):
    rates = spark.readStream.format("rate").option("rowsPerSecond", 100).load()
    with spark_callbacks.answered():
        queries = {
            name: rates.writeStream.foreachBatch(sink(error))
            .option("checkpointLocation", str(tmp_path / name))
            .start()
            for name, (error, _) in RAISED.items()
        }
        for name, query in queries.items():
            with pytest.raises(StreamingQueryException) as failed:
                assert query.awaitTermination(DEADLINE_SECS), f"{name}: no answer"
            text = readable(failed.value)
            assert re.search(rf'File "{__file__}", line \d+, in each\n', text), text[:1000]
            assert re.fullmatch(RAISED[name][1], text[text.rindex("raise error\n") + 12 :]), name
            assert len(text) < 6000
            text.encode()


#: The setting counts for the first session of a process alone, so this runs in its own.
UDF = """
from pyspark.sql import functions as F
from stormkeeper.daemon.spark import session
from stormkeeper.daemon import spark_callbacks

conf = {"spark.master": "local[1]", "spark.python.daemon.module": spark_callbacks.__name__}
with session(conf, "udf") as spark:

    @F.udf("long")
    def raising(_):
        raise ValueError("half \\udcff")

    try:
        spark.range(1).select(raising("id")).collect()
    except Exception as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.spark
def test_what_a_python_worker_raises_is_named_too(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(UDF)
    ran = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True, timeout=300
    )
    assert "ValueError: half \\udcff" in ran.stdout


@pytest.mark.spark
def test_a_listener_that_exits_holds_up_no_other_one(spark, tmp_path):
    heard = []

    class Exits(StreamingQueryListener):
        def onQueryStarted(self, _):  # noqa: N802
            sys.exit(0)

        onQueryProgress = onQueryIdle = onQueryTerminated = onQueryStarted  # noqa: N815

    class Hears(Exits):
        def onQueryTerminated(self, event):  # noqa: N802
            heard.append(event)

    listeners = [Exits(), Hears()]
    with spark_callbacks.answered():
        for listener in listeners:
            spark.streams.addListener(listener)
        rates = spark.readStream.format("rate").load().writeStream.format("noop")
        query = rates.option("checkpointLocation", str(tmp_path / "c")).start()
        until(lambda: query.lastProgress)
        query.stop()
        until(lambda: heard)
        for listener in listeners:
            spark.streams.removeListener(listener)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("text", "is_failure"),
    [(": java.lang.InterruptedException\n", False), (": java.lang.OutOfMemoryError\n", True)],
)
def test_a_long_error_of_a_stopped_query(spark, text, is_failure):
    began, stopped = threading.Event(), threading.Event()
    text = f"py4j.protocol.Py4JJavaError: An error occurred while calling o1.a.\n{text}"

    def each(_, __):
        began.set()
        stopped.wait(DEADLINE_SECS)
        raise ValueError(text + "\tat a.B.c\n" * 1_000)

    rates = spark.readStream.format("rate").load()
    with spark_callbacks.answered():
        query = rates.writeStream.foreachBatch(each).start()
        assert began.wait(DEADLINE_SECS)
        stop = threading.Thread(target=query.stop)
        stop.start()
        # Spark marks the query as stopped before it interrupts the batch.
        until(lambda: not query.isActive)
        stopped.set()
        stop.join(DEADLINE_SECS)
    # With a StackOverflowError, Spark would forget the failure, too.
    failure = query.exception()
    assert (failure is not None) == is_failure
    if failure is not None:
        assert text in without_separators(str(failure))


def test_no_answer_is_cut_within_an_escape():
    for length in range(40):
        text = "a" * length + "\\\n\r" * 20_000
        message = protocol.RETURN_MESSAGE + protocol.ERROR + protocol.get_command_part(text, None)
        sent = sendable(message)
        assert len(sent) < 25_000
        assert sent.endswith("\n")
        unescaped = unescape_new_line(sent[3:-1])
        assert text.startswith(unescaped.partition(" ...")[0].rstrip("\n")[:-1])
    assert sendable(message[:200]) == message[:200]
