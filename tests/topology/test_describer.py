"""Scripts that are described by a process of their own, which may do anything."""

import psutil
import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.description import describe, describing
from support.packages import STREAMING
from support.processes import has_ended, name
from support.waiting import until

TOPOLOGY = """
from stormkeeper.topology import Topology

topology = Topology("t", conf={{"arguments": __import__("sys").argv[1:]}})
{before}
@topology.spout
def rows(spark):
    return spark.readStream.format("rate").load()

@topology.bolt(rows)
def out(rows):
    return rows.writeStream.format("noop")
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "job.py"
        path.write_text(text)
        return path

    return write


def test_a_script_without_a_topology_is_not_run(script, tmp_path):
    path = script(f"open({str(tmp_path / 'ran')!r}, 'w')\n{STREAMING}")
    described = describe(path)
    assert (described.kind, described.name) == ("script", "job")
    assert not (tmp_path / "ran").exists()


def test_a_script_that_starts_nothing_is_refused(script):
    with pytest.raises(TopologyError, match=r"job\.py .* starts no streaming query"):
        describe(script("def start(frame):\n    frame.show()\n"))


def test_source_fault_is_reported_before_the_run(script):
    with pytest.raises(TopologyError, match=r"job.py, line 1: invalid syntax"):
        describe(script("def f(:"))


def test_output_and_children_are_no_part_of_a_description(script, capfd):
    before = (
        "import subprocess, sys, threading, time\n"
        "print('{}' * 100_000)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "topology.conf['arguments'].append(str(child.pid))\n"
    )
    described = describe(script(TOPOLOGY.format(before=before)), arguments=["--day", "1"])
    *arguments, pid = described.conf["arguments"]
    assert arguments == ["--day", "1"]
    assert [executor.component for executor in described.executors] == ["out", "rows"]
    assert capfd.readouterr().out == ""
    until(lambda: has_ended(int(pid)))


def test_a_fault_of_the_script_is_its_own_words(script):
    with pytest.raises(TopologyError) as caught:
        describe(script(TOPOLOGY.format(before="raise ValueError('no day')")))
    path = script("").resolve()
    assert str(caught.value) == (
        f"{path} failed:\nTraceback (most recent call last):\n"
        f'  File "{path}", line 5, in <module>\n'
        "    raise ValueError('no day')\nValueError: no day"
    )


def test_script_that_closes_its_output_is_described(script):
    described = describe(script(TOPOLOGY.format(before="import sys; sys.stdout.close()")))
    assert described.name == "t"


def test_missing_py_file_is_refused(script, tmp_path):
    gone = tmp_path / "gone.py"
    with pytest.raises(TopologyError, match=r"there is no file .*/gone\.py, which .*job\.py is to"):
        describe(script("import gone"), py_files=[gone])


def test_script_that_waits_is_ended(script):
    with pytest.raises(TopologyError, match=r"job.py was not over after 2 s\. .* what takes long"):
        describe(script(TOPOLOGY.format(before="import time; time.sleep(600)")), plain_secs=2.0)


def test_script_ends_with_the_block(script, tmp_path):
    pid = tmp_path / "pid"
    waits = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with describing(script(TOPOLOGY.format(before=waits))):
        runs = int(until(lambda: pid.exists() and pid.read_text()))
        assert not has_ended(runs)
    assert has_ended(runs)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("import os, sys; print('bye', file=sys.stderr); os._exit(20)", "ended with exit code 20"),
        ("import os; print('bye', flush=True); os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    ],
)
def test_script_that_ends_the_process_is_reported(script, before, said):
    with pytest.raises(TopologyError, match=rf"(?s){said} before it was over.*\nbye$"):
        describe(script(TOPOLOGY.format(before=before)))


@pytest.mark.spark
def test_script_that_needs_a_session_gets_one(script, tmp_path):
    # What starts the session imports Python's own.
    (tmp_path / "http.py").write_text("")
    before = (
        "from pyspark.sql import SparkSession, functions as F\n"
        "big = F.col('value') > 1\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "assert spark.range(3).count() == 3\n"
        "topology.conf['arguments'].append(spark.sparkContext.master)\n"
        "topology.conf['arguments'].append(spark.conf.get('spark.a.setting'))\n"
    )
    others = virtual_machines()
    described = describe(
        script(TOPOLOGY.format(before=before)),
        overrides=["spark.a.setting=given", "spark.master=yarn"],
    )
    assert described.needs_session
    assert described.conf["arguments"] == ["local[1]", "given"]
    assert virtual_machines() <= others


@pytest.mark.spark
@pytest.mark.slow
def test_script_that_needs_a_session_early_gets_one_first(script, tmp_path):
    (tmp_path / "texts.py").write_text(
        "from pyspark.sql import functions as F\n"
        "@F.udf('string')\n"
        "def upper(text):\n    return text.upper()\n"
    )
    described = describe(script("from texts import upper\n" + TOPOLOGY.format(before="")))
    assert (described.name, described.needs_session, described.session_first) == ("t", True, True)


def virtual_machines():
    """The JVMs that this process has started, by whatever way."""
    return {p for p in psutil.Process().children(recursive=True) if name(p) == "java"}


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_is_no_leave_to_start_queries(script):
    before = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "def begin(): spark.readStream.format('rate').load().writeStream.format('noop').start()\n"
        "begin()\n"
    )
    with pytest.raises(TopologyError, match="defines the topology 't' and starts a query itself"):
        describe(script(TOPOLOGY.format(before=before)))
