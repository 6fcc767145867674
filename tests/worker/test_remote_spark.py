import socket

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import EngineError
from stormkeeper.worker import remote_spark
from stormkeeper.worker.spark_session import resolver_error


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
