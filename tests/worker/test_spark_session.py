"""Settings of Spark, here and on a cluster, and the errors of executors."""

import socket

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import EngineError
from stormkeeper.worker.spark_session import (
    check_master,
    is_remote,
    remedy,
    resolver_error,
    slot_share,
    spark_values,
    standalone_defaults,
    warn_of_own_checkpoints,
)


@pytest.mark.parametrize(
    ("master", "elsewhere"),
    [
        (None, False),
        ("local", False),
        ("local[2]", False),
        ("spark://host:7077", True),
        ("yarn", True),
        ("k8s://host:443", True),
    ],
)
def test_where_tasks_run(master, elsewhere):
    assert is_remote(master) == elsewhere


def test_defaults_for_a_standalone_master():
    slots = {"supervisor.slots.ports": [6700, 6701, 6702, 6703]}
    conf = defaults().with_values({**slots, "storm.local.hostname": "machine-7"})
    told = standalone_defaults(conf, 16)
    assert told["spark.cores.max"] == "4"
    assert told["spark.driver.host"] == "machine-7"
    assert told["spark.driver.bindAddress"] == "0.0.0.0"
    assert standalone_defaults(conf, 2)["spark.cores.max"] == "1"
    half = conf.with_values({"supervisor.cpu.capacity": 800})
    assert standalone_defaults(half, 16)["spark.cores.max"] == "2"
    assert standalone_defaults(defaults(), 1)["spark.driver.host"] == socket.gethostname()


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


def test_silent_master_is_named(closed):
    master = f"spark://127.0.0.1:{closed}"
    with pytest.raises(EngineError, match=f"spark.master={master} .*Connection refused.*start it"):
        check_master(master)


def test_one_of_several_masters_is_enough(closed, listening):
    check_master(f"spark://127.0.0.1:{closed},127.0.0.1:{listening}")


@pytest.mark.parametrize("master", ["local[2]", "yarn", "spark://[:1", "spark://host:many"])
def test_other_masters_are_left_to_spark(master):
    check_master(master)


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
def test_errors_of_executors_have_a_remedy(text, named):
    what = remedy(f"the query 'out' failed:\n{text}", STANDALONE)
    assert all(part in what for part in ["spark.master=spark://m:7077", *named])
    assert remedy(text, {"spark.master": "local[2]"}) is None


def test_errors_of_user_code_have_no_remedy():
    assert remedy("ZeroDivisionError: division by zero", STANDALONE) is None


def test_reason_of_unfetched_packages():
    said = (
        ":::: ERRORS\n\tServer access error at url https://repo/x.pom (java.net.ConnectException:"
        " Connection refused)\nException in thread: [unresolved dependency: a#b;1: not found]\n\tat"
    )
    why = "unresolved dependency: a#b;1: not found"
    reached = " (https://repo/x.pom: java.net.ConnectException: Connection refused)"
    assert resolver_error(said) == why + reached
    assert resolver_error(said.rpartition("\nE")[2]) == why
    assert resolver_error("Error: Could not find or load main class") is None


PATHS = {"topology.checkpoint.dir": None, "storm.local.dir": "/local"}


def test_settings_of_a_session():
    conf = {"spark.master": "local[3]", "topology.workers": 1, **PATHS}
    asked = spark_values(conf, {"spark.master": "local[1]", "spark.app.name": "mine"})
    assert asked["spark.master"] == "local[3]"
    assert asked["spark.app.name"] == "mine"
    assert "topology.workers" not in asked
    assert asked["spark.sql.streaming.stopTimeout"] == "20s"


def test_slot_share_is_the_lowest_layer():
    share = {"spark.master": "local[2]", "spark.driver.memory": "1024m", "spark.cores": "2"}
    conf = {"spark.master": "local[3]", **PATHS}
    asked = spark_values(conf, {"spark.driver.memory": "3g"}, share)
    assert asked["spark.master"] == "local[3]"
    assert asked["spark.driver.memory"] == "3g"
    assert asked["spark.cores"] == "2"


@pytest.mark.parametrize(
    ("place", "local"),
    [
        (None, True),
        ("checkpoints", True),
        ("/a/b", True),
        ("file:/a/b", True),
        ("file:///a/b", True),
        ("hdfs://host/a", False),
        ("s3a://bucket/a", False),
    ],
)
def test_checkpoints_on_a_local_disk_are_written_by_system_calls(place, local):
    asked = spark_values({**PATHS, "topology.checkpoint.dir": place}, {})
    assert ("spark.sql.streaming.checkpointFileManagerClass" in asked) == local


def test_unshared_checkpoints_are_warned_of(caplog):
    for shared in (
        {"topology.checkpoint.dir": "/a", "topology.checkpoint.shared": True},
        {"topology.checkpoint.dir": "hdfs://host/a"},
    ):
        warn_of_own_checkpoints(defaults().with_values(shared))
    assert caplog.records == []
    warn_of_own_checkpoints(defaults().with_values({"topology.checkpoint.dir": "/a/b"}))
    assert "/a/b" in caplog.text
    assert "topology.checkpoint.shared" in caplog.text


@pytest.mark.parametrize(
    ("cores", "slots", "master"),
    [(16, 4, "local[4]"), (7, 2, "local[3]"), (2, 4, "local[1]"), (5, 0, "local[5]")],
)
def test_a_slot_has_its_share_of_the_cores(cores, slots, master):
    conf = defaults().with_values({"supervisor.slots.ports": [*range(6700, 6700 + slots)]})
    assert slot_share(conf, cores)["spark.master"] == master


@pytest.mark.parametrize(
    ("memory", "master"), [(1024, "local[1]"), (2048, "local[6]"), (4096, "local[16]")]
)
def test_slots_memory_limits_its_cores(memory, master):
    conf = defaults().with_values({"topology.worker.memory.mb": memory})
    assert slot_share(conf, 128)["spark.master"] == master


@pytest.mark.parametrize(("memory", "heap"), [(8192, "4096m"), (2049, "1024m"), (600, "512m")])
def test_the_heap_is_half_of_the_memory_and_enough_for_spark(memory, heap):
    conf = defaults().with_values({"topology.worker.memory.mb": memory})
    assert slot_share(conf, 2)["spark.driver.memory"] == heap


def test_by_default_the_heap_is_that_of_spark():
    assert slot_share(defaults(), 2)["spark.driver.memory"] == "1024m"
