import hashlib
import itertools
import socket
import subprocess
import sys
import threading
import zipfile

import pytest
from py4j.protocol import Py4JError

from stormkeeper.conf import defaults
from stormkeeper.errors import EngineError
from stormkeeper.topology.package.archive import unpack
from stormkeeper.worker import job, remote_spark
from stormkeeper.worker.remote_spark import ExecutorAbsence, ExecutorWatch, wanted
from stormkeeper.worker.spark_session import resolver_error
from support.packages import of_folder, packed, tree
from support.waiting import until


@pytest.mark.parametrize(
    ("master", "is_remote", "is_standalone"),
    [
        (None, False, False),
        ("local", False, False),
        ("local[2]", False, False),
        ("spark://host:7077", True, True),
        ("yarn", True, False),
        ("k8s://host:443", True, False),
    ],
)
def test_where_tasks_run(master, is_remote, is_standalone):
    assert (remote_spark.is_remote(master), remote_spark.is_standalone(master)) == (
        is_remote,
        is_standalone,
    )


def test_what_a_standalone_master_is_told():
    slots = {"supervisor.slots.ports": [6700, 6701, 6702, 6703]}
    conf = defaults().with_values({**slots, "storm.local.hostname": "machine-7"})
    told = remote_spark.defaults(conf, 16)
    assert told["spark.cores.max"] == "4"
    assert told["spark.driver.host"] == "machine-7"
    assert told["spark.driver.bindAddress"] == "0.0.0.0"
    assert remote_spark.defaults(conf, 2)["spark.cores.max"] == "1"
    half = conf.with_values({"supervisor.cpu.capacity": 800})
    assert remote_spark.defaults(half, 16)["spark.cores.max"] == "2"
    assert remote_spark.defaults(defaults(), 1)["spark.driver.host"] == socket.gethostname()


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed():
    """A port on which nobody can listen meanwhile, and nobody does."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_a_master_that_does_not_answer_is_named(closed):
    master = f"spark://127.0.0.1:{closed}"
    with pytest.raises(EngineError, match=f"spark.master={master} .*Connection refused.*start it"):
        remote_spark.check_master(master)


def test_one_of_several_masters_is_enough(closed, listening):
    remote_spark.check_master(f"spark://127.0.0.1:{closed},127.0.0.1:{listening}")


@pytest.mark.parametrize("master", ["local[2]", "yarn", "spark://[:1", "spark://host:many"])
def test_what_is_no_address_of_a_master_is_left_to_spark(master):
    remote_spark.check_master(master)


STANDALONE = {"spark.master": "spark://m:7077"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            'Lost task 0.3 (host executor 1): java.io.IOException: Cannot run program "/a/python":'
            " error=2, No such file or directory",
            ["/a/python", "spark.pyspark.python"],
        ),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has …", ["spark.pyspark.python"]),
        ("ModuleNotFoundError: No module named 'polars'", ["spark.pyspark.python"]),
        ("Master removed our application: FAILED", ["logs of Spark's workers"]),
        (
            "Spark did not start with spark.master='spark://m:7077':"
            " java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            ["release"],
        ),
    ],
)
def test_what_executors_bring_about_has_a_remedy(text, named):
    what = remote_spark.remedy(f"the query 'out' failed:\n{text}", STANDALONE)
    assert all(part in what for part in ["spark.master=spark://m:7077", *named])
    assert remote_spark.remedy(text, {"spark.master": "local[2]"}) is None


def test_what_a_users_code_brings_about_is_left_as_it_is():
    assert remote_spark.remedy("ZeroDivisionError: division by zero", STANDALONE) is None


def test_why_packages_were_not_fetched():
    said = (
        ":::: ERRORS\n\tServer access error at url https://repo/x.pom (java.net.ConnectException:"
        " Connection refused)\nException in thread: [unresolved dependency: a#b;1: not found]\n\tat"
    )
    why = "unresolved dependency: a#b;1: not found"
    reached = " (https://repo/x.pom: java.net.ConnectException: Connection refused)"
    assert resolver_error(said) == why + reached
    assert resolver_error(said.rpartition("\nE")[2]) == why
    assert resolver_error("Error: Could not find or load main class") is None


def test_absence_counts_from_the_last_executor():
    absence = ExecutorAbsence()
    assert [absence.update(*seen) for seen in [(2, 1.0), (0, 2.0), (0, 32.5)]] == [0.0, 0.0, 30.5]
    assert absence.had_one


def test_one_that_comes_back_ends_the_absence():
    absence = ExecutorAbsence()
    seen = [(1, 0.0), (0, 1.0), (1, 20.0), (0, 40.0), (0, 45.0)]
    assert [absence.update(*each) for each in seen] == [0.0, 0.0, 0.0, 0.0, 5.0]


def test_whoever_never_had_one_is_told_from_who_lost_all():
    absence = ExecutorAbsence()
    assert [absence.update(0, now) for now in (5.0, 3605.0)] == [0.0, 3600.0]
    assert not absence.had_one


def test_a_watch_says_when_there_was_none_for_too_long():
    counts = itertools.chain([0, 2], itertools.repeat(0))
    watch = ExecutorWatch(lambda: next(counts), str, limit_secs=0.02, look_secs=0.005)
    until(lambda: watch.has_lost)
    assert watch.waiting is None


def test_a_watch_says_what_is_waited_for_until_an_executor_comes(caplog):
    count = [0]
    watch = ExecutorWatch(lambda: count[0], lambda: "two cores", wait_secs=0.001, look_secs=0.001)
    until(lambda: watch.waiting == "two cores")
    count[0] = 1
    until(lambda: watch.waiting is None)
    assert not watch.has_lost
    assert caplog.messages == ["two cores"]
    watch.close()


def test_a_driver_that_waits_says_what_it_asks_for():
    conf = {"spark.master": "spark://here:7077", "spark.cores.max": "2"}
    said = wanted(conf.get)
    assert "spark.master=spark://here:7077: others have its cores or memory" in said
    assert "asks for spark.cores.max=2 and spark.executor.memory=1g" in said


def test_a_watch_leaves_a_jvm_that_is_gone_to_others():
    looked = threading.Event()

    def count():
        looked.set()
        raise Py4JError("the JVM is gone")

    watch = ExecutorWatch(count, str, limit_secs=0, look_secs=0.001)
    assert looked.wait(60.0)
    assert not watch.has_lost


FILES = {
    "topology.py": "import parts.one\n",
    "beside.py": "NAME = 'beside'\n",
    "parts/one.py": "NAME = 'one'\n",
    "parts/data.txt": "some data\n",
}


@pytest.fixture
def package(tmp_path):
    file, _ = packed(of_folder(tree(tmp_path / "mine", FILES)))
    unpack(file, tmp_path / "package")
    return job.read_package(tmp_path / "package")


def test_another_python_imports_from_it_also_without_init_files(package, tmp_path):
    archive = remote_spark.write_code(package, tmp_path)
    code = (
        "import pkgutil, sys; sys.path.insert(1, sys.argv[1]); import beside, parts.one;"
        "print(beside.NAME, parts.one.NAME,"
        " beside.__loader__.get_data(sys.argv[1] + '/parts/data.txt').decode())"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(archive)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["beside", "one", "some", "data"]


def test_the_same_package_makes_the_same_bytes(package, tmp_path):
    (tmp_path / "other").mkdir()
    first = remote_spark.write_code(package, tmp_path)
    # As Python leaves it there when the driver has imported a module.
    tree(package.code, {"__pycache__/beside.pyc": "cached"})
    second = remote_spark.write_code(package, tmp_path / "other")
    digests = {hashlib.sha256(file.read_bytes()).hexdigest() for file in (first, second)}
    assert len(digests) == 1
    with zipfile.ZipFile(second) as archive:
        assert archive.namelist() == ["parts/", *sorted(FILES)]
