import logging
import sys
from pathlib import Path

import pyspark
import pytest

from stormkeeper.daemon.logs import _LineFormatter
from stormkeeper.worker.failure import (
    first_lines,
    log_failure,
    readable,
    readable_text,
    without_folder,
)

FROM_A_PYTHON_WORKER = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost \
task 0.0 in stage 1.0 (TID 1) (host executor driver): org.apache.spark.api.python.PythonException: \
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 5, in main
    process()
  File "/home/me/topology.py", line 7, in parse
    return int(value) // (int(value) - 15)
           ~~~~~~~~~~~^^~~~~~~~~~~~~~~~~~~
ZeroDivisionError: integer division or modulo by zero
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(x.scala:1)
\tat org.apache.spark.sql.execution.python.PythonArrowOutput$$anon$1.read(PythonArrowOutput.scala:1)

Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
Identifier: out [id = 1, runId = 2]
"""  # noqa: E501

FROM_THE_JVM = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nothing` cannot be resolved. SQLSTATE: 42703;
'Project ['nothing]
+- StreamingRelation FileSource[/in], [value#0]
"""  # noqa: E501


def test_the_users_frames_and_no_others():
    assert readable_text(FROM_A_PYTHON_WORKER) == (
        "Traceback (most recent call last):\n"
        '  File "/home/me/topology.py", line 7, in parse\n'
        "    return int(value) // (int(value) - 15)\n"
        "           ~~~~~~~~~~~^^~~~~~~~~~~~~~~~~~~\n"
        "ZeroDivisionError: integer division or modulo by zero"
    )


def test_the_innermost_traceback_counts():
    outer = FROM_A_PYTHON_WORKER.replace("ZeroDivisionError", "ValueError")
    assert readable_text(outer + FROM_A_PYTHON_WORKER).endswith("modulo by zero")
    assert "ValueError" not in readable_text(outer + FROM_A_PYTHON_WORKER)


def test_a_message_of_several_lines_is_kept():
    text = FROM_A_PYTHON_WORKER.replace("modulo by zero", "modulo\nby zero")
    assert readable_text(text).endswith("integer division or modulo\nby zero")


def test_a_message_of_sparks_without_its_plan():
    assert first_lines(FROM_THE_JVM) == (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nothing` cannot be resolved"
    )
    assert readable_text(FROM_THE_JVM) == first_lines(FROM_THE_JVM)


def test_a_long_message_is_cut():
    assert first_lines("\n".join("abcdefghij")).splitlines() == list("abcdef")


def test_an_exception_raised_here():
    def fault():
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing") as caught:
        fault()
    text = readable(caught.value)
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in fault" in text
    assert text.endswith("ValueError: no such thing")


def test_an_exception_without_a_message():
    assert readable(KeyboardInterrupt()) == "KeyboardInterrupt()"


def test_a_syntax_error_shows_the_line():
    with pytest.raises(SyntaxError) as caught:
        compile("a = (\nb", "script.py", "exec")
    assert readable(caught.value).startswith('  File "script.py", line 1\n')


def test_the_log_has_one_line_and_the_rest_below_it(caplog):
    log_failure(logging.getLogger("test"), "the bolt 'b' failed:\nTraceback\n  line")
    (record,) = caplog.records
    assert record.getMessage() == "the bolt 'b' failed:"
    lines = _LineFormatter("%(levelname)s %(message)s").format(record).splitlines()
    assert lines == ["ERROR the bolt 'b' failed:", "  Traceback", "    line"]


def test_a_module_that_is_not_there_comes_with_its_remedy():
    remedy = (
        "ModuleNotFoundError: No module named 'no_such.part': name the package that has it in "
        "the requirements.txt beside the code, and install that file in the Python that runs the "
        "storm command (python -m pip install -r requirements.txt), or bring the module with "
        "--py-files"
    )
    here = ModuleNotFoundError("No module named 'no_such.part'")
    assert readable(here) == remedy
    there = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "/x/job.py", line 3, in f\n    import no_such.part\n'
        "ModuleNotFoundError: No module named 'no_such.part'\n\n\tat org.apache.spark.X\n"
    )
    for text in (readable(RuntimeError(there)), readable_text(there)):
        assert text.endswith("    import no_such.part\n" + remedy)
    assert readable(ValueError("No module named 'x'")) == "ValueError: No module named 'x'"


def test_a_full_disk_deep_in_a_chain_is_the_first_thing_said():
    text = (
        "org.apache.spark.SparkException: Job aborted due to stage failure\n"
        "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)\n"
        "Caused by: java.io.IOException: No space left on device\n"
    )
    cause = "No space left on device: a disk of the worker's machine takes no more files"
    first, *rest = readable_text(text).splitlines()
    assert first.startswith(cause)
    assert rest == ["org.apache.spark.SparkException: Job aborted due to stage failure"]
    error = RuntimeError("the batch was not written")
    error.__cause__ = OSError(28, "No space left on device", "/data/x")
    with pytest.raises(RuntimeError) as failed:
        raise error
    said = readable(failed.value).splitlines()
    assert said[0].startswith("Traceback ")
    assert said[-1].startswith(cause)
    assert "/data/x" in said[-1]


KAFKA = (
    "[KAFKA_DATA_SOURCE_NOT_ENABLED] Failed to find data source: kafka. Please deploy the"
    " application as per the deployment section of Structured Streaming + Kafka Guide. SQLSTATE: 1"
)
DELTA = (
    "An error occurred while calling o59.load.\n: org.apache.spark.SparkClassNotFoundException:"
    " [DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure the provider name is"
    " correct and the package is properly registered. SQLSTATE: 42K02\n\tat org.apache.spark.Some\n"
)


def test_a_data_source_that_is_missing_gets_its_remedy():
    spark, scala = pyspark.__version__, "2.13"
    said = readable_text(KAFKA)
    assert "Failed to find data source: kafka: bring the data source 'kafka'" in said
    package = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}"
    assert f"`storm submit --packages {package}`, or `storm local -c spark.jars" in said
    said = readable(RuntimeError(DELTA))
    assert said.startswith("org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND]")
    assert f"io.delta:delta-spark_{scala}:VERSION`, with the VERSION that is made for Spark" in said
    said = readable_text(DELTA.partition(": ")[2].replace("delta", "org.mine.Lake"))
    assert "GROUP:NAME:VERSION`, the package with 'org.mine.Lake' for Spark" in said


def test_an_error_without_text_or_too_long_is_reported():
    class BadError(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    assert readable(BadError()) == (
        "BadError: <its text cannot be had: KeyboardInterrupt in __str__>"
    )
    assert readable(ValueError("half \udcff")) == "ValueError: half \\udcff"
    long = readable(ValueError("x" * 100_000))
    assert len(long) < 4100
    assert "... 96000 characters ..." in long


def test_paths_of_a_laid_out_package_are_the_users():
    package = Path("/var/storm/packages/wc-1-1")
    text = f'{package}/code/daily.py failed:\n  File "{package}/py-files/single.py", line 2'
    shown = 'daily.py failed:\n  File "py-files/single.py", line 2'
    assert without_folder(text, package) == shown
    assert without_folder(text, None) == text


def test_a_java_exception_in_a_batch_function_has_its_class():
    text = (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call"
        ' last):\n  File "/home/me/topology.py", line 7, in write\n    batch.count()\n'
        "py4j.protocol.Py4JJavaError: An error occurred while calling o79.count.\n"
        ": org.apache.spark.SparkException: Job aborted\n\tat org.apache.spark.Some.call(x.scala)\n"
    )
    assert readable_text(text).endswith("count()\norg.apache.spark.SparkException: Job aborted")


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("Failed to read log file file:/c/t/out/offsets/2. Incomplete log file\n", "/c/t/out"),
        ("Checksum error: file:/c/t/out/commits/12 at 0 exp: 1 got: 2\n", "/c/t/out"),
        ("Unexpected end-of-input in field name\n at x\nCurrent Available Offsets: {}\n", "NAME"),
    ],
)
def test_an_error_of_a_broken_checkpoint_names_what_mends_it(said, name):
    assert f"`storm checkpoint check {name}` says which" in readable_text(said)
    assert "storm checkpoint" not in readable_text("Unexpected end-of-input in a row")


@pytest.mark.parametrize("code", [None, 3])
def test_an_exit_has_a_remedy(code):
    with pytest.raises(SystemExit) as caught:
        sys.exit(code)
    assert readable(caught.value).endswith(
        " (code of the topology ends the process: return, or raise an exception instead)"
    )
