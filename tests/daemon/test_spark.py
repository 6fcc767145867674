import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.core import context

from stormkeeper.daemon import spark
from stormkeeper.errors import EngineError


def test_configured_settings_win_and_other_keys_stay_out():
    chosen = spark.settings(
        {
            "spark.master": "spark://host:7077",
            "spark.ui.enabled": True,
            "spark.executor.cores": 2,
            "spark.executor.memory": None,
            "topology.workers": 1,
        },
        "a name",
    )
    assert chosen["spark.master"] == "spark://host:7077"
    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.executor.cores"] == "2"
    assert chosen["spark.app.name"] == "a name"
    assert "topology.workers" not in chosen
    assert "spark.executor.memory" not in chosen


def test_only_a_local_master_is_bound_to_loopback():
    assert spark.settings({}, "x")["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.host" not in spark.settings({"spark.master": "yarn"}, "x")


@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local", 1), ("local[3]", 3), ("local[2, 4]", 2), ("local[64]", 8)],
)
def test_a_local_master_has_as_many_shuffle_partitions_as_cores(master, partitions):
    chosen = spark.settings({"spark.master": master}, "x")
    assert chosen["spark.sql.shuffle.partitions"] == str(partitions)


def test_shuffle_partitions_are_the_cores_of_a_remote_master():
    conf = {"spark.master": "spark://host:7077", "spark.cores.max": 3}
    assert spark.settings(conf, "x")["spark.sql.shuffle.partitions"] == "3"
    own = {**conf, "spark.sql.shuffle.partitions": 7}
    assert spark.settings(own, "x")["spark.sql.shuffle.partitions"] == "7"
    del conf["spark.cores.max"]
    assert "spark.sql.shuffle.partitions" not in spark.settings(conf, "x")


def test_jvm_options_of_the_configuration_replace_a_daemons():
    found = spark.settings({}, "x", java_options=["-XX:+ExitOnOutOfMemoryError"])
    assert found["spark.driver.defaultJavaOptions"].endswith(" -XX:+ExitOnOutOfMemoryError")
    own = {"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}
    assert spark.settings(own, "x", java_options=["-Xint"]) == spark.settings(own, "x")


@pytest.mark.parametrize(
    "key", ["spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions"]
)
def test_the_users_java_options_replace_ours(key):
    assert "SerialGC" in spark.settings({}, "x")["spark.driver.defaultJavaOptions"]
    chosen = spark.settings({key: "-XX:+UseG1GC"}, "x")
    assert not any("SerialGC" in value for value in chosen.values())


def test_missing_temporary_folder_has_a_remedy(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with pytest.raises(EngineError, match=r"No usable temporary directory.*: set TMPDIR to"):
        spark.session({}, "x")


@pytest.mark.spark
def test_fresh_session_keeps_secrets_and_interrupt_handler(tmp_path, tmp_path_factory):
    program = """
        import contextlib, os, signal, tempfile
        import psutil
        from pyspark.sql import SparkSession
        from stormkeeper.daemon.spark import session
        secret = "pa=s:s w#o!r\\d\\n\u00e9\U0001f600."
        came = []
        def handler(number, frame): came.append(number)
        signal.signal(signal.SIGINT, handler)
        begin = SparkSession.__init__
        def interrupted(self, *arguments, **options):
            signal.raise_signal(signal.SIGINT)
            begin(self, *arguments, **options)
        SparkSession.__init__ = interrupted
        spark = session({"spark.master": "local[1]", "spark.hadoop.mine": secret}, "fresh")
        assert signal.getsignal(signal.SIGINT) is handler
        assert came == [signal.SIGINT]
        # The JVM was told at its start, and nobody else was.
        properties = spark.sparkContext._jvm.java.lang.System
        assert properties.getProperty("spark.hadoop.mine") == secret
        assert properties.getProperty("stormkeeper.log") == "text"
        commands = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # what has just ended
                commands.append(" ".join(child.cmdline()))
        assert any("SparkSubmit" in command for command in commands)
        assert not any("spark.hadoop" in command for command in commands)
        assert not [name for name in os.listdir(tempfile.gettempdir()) if "properties" in name]
        assert "PYSPARK_SUBMIT_ARGS" not in os.environ
        print(spark.range(5).count(), spark.sparkContext.appName)
        spark.stop()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("temporary"))},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5", "fresh"]
    noise = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
    assert noise == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_a_setting_that_spark_refuses_is_one_readable_error(tmp_path):
    program = """
        from stormkeeper.daemon.spark import session
        from stormkeeper.errors import EngineError
        try:
            session({"spark.master": "nonsense"}, "broken")
        except EngineError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "spark.master='nonsense'" in done.stdout
    assert "\n" not in done.stdout.strip()


@pytest.mark.slow
@pytest.mark.spark
def test_a_session_whose_jvm_hangs_is_ended_in_time(tmp_path):
    program = """
        import os, signal
        from pyspark import SparkContext
        from stormkeeper.daemon.spark import end, session
        spark = session({"spark.master": "local[1]"}, "frozen")
        process = SparkContext._gateway.proc
        os.kill(process.pid, signal.SIGSTOP)
        end(spark, 1.0)
        print(process.returncode)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["-9"]


def test_the_end_has_one_deadline(monkeypatch):
    """Stopping the session and the gateway take time; what is left of it is the JVM's."""

    def slow():
        time.sleep(0.3)

    left = []
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE) as program:
        wait = program.wait

        def recorded(timeout=None):
            left.append(timeout)
            return wait(timeout)

        monkeypatch.setattr(program, "wait", recorded)
        gateway = SimpleNamespace(proc=program, shutdown=slow)
        monkeypatch.setattr(SparkContext, "_gateway", gateway)
        monkeypatch.setattr(SparkContext, "_jvm", None)
        spark.end(SimpleNamespace(stop=slow), 1.5)
        assert program.returncode == -signal.SIGKILL
    assert left[0] <= 0.9


@pytest.mark.parametrize(
    "moment",
    [
        "psutil.Process().children() != [bystander]",
        pytest.param("SparkContext._gateway is not None", marks=pytest.mark.spark),
    ],
    ids=["its program runs", "it can be called"],
)
def test_cancelled_start_leaves_no_jvm(tmp_path, moment):
    program = f"""
        import logging, subprocess, sys
        import psutil
        from pyspark import SparkContext
        from stormkeeper.daemon.spark import session
        from stormkeeper.errors import EngineError
        logging.basicConfig(level=logging.INFO)
        code = "import time; time.sleep(600)"
        bystander = psutil.Popen([sys.executable, "-c", code])
        try:
            session({{"spark.master": "local[1]"}}, "cancelled", cancelled=lambda: {moment})
        except EngineError:
            print("given up")
        print([child == bystander for child in psutil.Process().children()
               if child.status() != psutil.STATUS_ZOMBIE])
        bystander.kill()
        bystander.wait()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["given up", "[True]"]
    assert "sending command" not in done.stderr
    # The folder of a JVM that was up stays, as of any that is killed.
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("spark-")] == []


def test_reason_is_the_last_traceback_line_or_the_first_line():
    message = (
        "[STREAM_FAILED] Query failed. Return Message: Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "    g()\n"
        "OSError: [Errno 28] No space left on device\n"
        "\n\tat org.apache.spark.A(B.scala:1)\n"
    )
    assert spark.reason(RuntimeError(message)) == "OSError: [Errno 28] No space left on device"
    assert spark.reason(RuntimeError("\n [CODE] what went wrong\n\tat x(Y:1)")) == (
        "[CODE] what went wrong"
    )
    assert spark.reason(RuntimeError()) == "RuntimeError"


def test_the_reason_is_what_java_said_to_python_code():
    message = (
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "    g()\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o114.getResult.\n"
        ": org.apache.spark.SparkException: Task serialization failed: it is so\n"
        "\tat org.apache.spark.A(B.scala:1)\n"
    )
    said = "org.apache.spark.SparkException: Task serialization failed: it is so"
    assert spark.reason(RuntimeError(message)) == said


ARGUMENTS = "PYSPARK_SUBMIT_ARGS"


@pytest.mark.parametrize("before", [None, "--packages a:b:1 pyspark-shell"])
def test_jvm_reads_settings_from_a_private_temporary_file(monkeypatch, tmp_path, before):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv(ARGUMENTS, raising=False)
    if before is not None:
        monkeypatch.setenv(ARGUMENTS, before)
    launched = []

    def launch(conf, popen_kwargs):
        option, file, also, *rest = os.environ[ARGUMENTS].split(" ", 3)
        assert (option, also) == ("--properties-file", "--load-spark-defaults")
        assert stat.S_IMODE(Path(file).stat().st_mode) == 0o600
        launched.append((conf, popen_kwargs, Path(file).read_text(), rest))
        raise RuntimeError("it does not start")

    monkeypatch.setitem(vars(context), "launch_gateway", launch)
    with spark.settings_file(), pytest.raises(RuntimeError, match="not start"):
        context.launch_gateway(SparkConf(loadDefaults=False).set("spark.a", "secret"))
    assert launched == [(None, None, "spark.a=secret\n", [before or "pyspark-shell"])]
    assert list(tmp_path.iterdir()) == []
    assert os.environ.get(ARGUMENTS) == before
    assert context.launch_gateway is launch
