"""What of PySpark's own is used and replaced, and what it must therefore look like.

If one of these fails, PySpark has changed: read its new source before the cap is moved.
"""

import inspect
import signal
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from py4j.clientserver import ClientServerConnection
from py4j.java_gateway import CallbackConnection
from pyspark import SparkContext, java_gateway, util
from pyspark.core import context
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.utils import get_active_spark_context

from stormkeeper.conf.keys import spark_keys


def names_in(function):
    return set(inspect.unwrap(function).__code__.co_names)


def parameters_of(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (java_gateway.launch_gateway, ["conf", "popen_kwargs"]),
        (SparkSession.Builder.getOrCreate, ["self"]),
        (SparkSession.stop, ["self"]),
        (DataStreamWriter.foreachBatch, ["self", "func"]),
        (DataStreamWriter.option, ["self", "key", "value"]),
        (DataStreamWriter.options, ["self", "options"]),
        (DataStreamWriter.queryName, ["self", "queryName"]),
        (util.handle_worker_exception, ["e", "outfile", "hide_traceback"]),
        (ClientServerConnection._call_proxy, ["self", "obj_id", "input"]),
        (CallbackConnection._call_proxy, ["self", "obj_id", "input"]),
        (StreamingQuery.awaitTermination, ["self", "timeout"]),
        (StreamingQueryManager.awaitAnyTermination, ["self", "timeout"]),
    ],
)
def test_what_is_replaced(function, parameters):
    assert parameters_of(function) == parameters


def test_what_starts_a_query():
    assert {"path", "queryName", "options"} <= set(parameters_of(DataStreamWriter.start))
    assert {"tableName", "queryName", "options"} <= set(parameters_of(DataStreamWriter.toTable))
    assert isinstance(inspect.getattr_static(DataFrame, "writeStream"), property)


def test_the_active_session_is_asked_of_the_class():
    assert isinstance(vars(SparkSession)["getActiveSession"], classmethod)


def test_a_builder_has_its_options():
    builder = SparkSession.Builder().config("spark.some.key", "1")
    assert builder._options == {"spark.some.key": "1"}


def test_the_context_keeps_the_gateway_and_its_process():
    assert {"_gateway", "_jvm"} <= vars(SparkContext).keys()
    assert {"_gateway", "_jvm"} <= names_in(SparkContext._ensure_initialized)
    assert "proc" in names_in(java_gateway.launch_gateway)
    assert "launch_gateway" in names_in(SparkContext._ensure_initialized)
    assert context.launch_gateway is java_gateway.launch_gateway


def test_a_context_that_is_stopped_has_none_of_the_jvms():
    assert "self._jsc = None" in inspect.getsource(SparkContext.stop)


def test_a_session_has_its_twin_in_the_jvm():
    assert {"_jsparkSession", "_jvm", "_sc", "_jsc"} <= names_in(SparkSession.__init__)


def test_missing_session_is_found_by_the_active_context():
    assert "_active_spark_context" in names_in(get_active_spark_context)
    assert "_active_spark_context" in vars(SparkContext)
    # All sessions that a script may ask for without it begin with one of these two.
    assert "SparkContext" in names_in(SparkSession.Builder.getOrCreate)
    assert parameters_of(SparkContext.__init__)[0] == "self"


def test_an_interrupt_is_set_by_the_module_that_is_replaced():
    assert context.signal is signal
    assert "signal" in names_in(SparkContext._do_init)
    assert "signal.signal(signal.SIGINT" in inspect.getsource(SparkContext._do_init)


def test_installed_version_is_known():
    """The cap, and this test, are moved together with a look at the new source."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert "pyspark>=4.3,<4.4" in project["optional-dependencies"]["spark"]
    assert metadata.version("pyspark").startswith("4.3.")


@pytest.mark.spark
def test_all_settings_of_this_spark_are_known_ones(spark):
    """Else run ``scripts/spark-keys``."""
    names = {row.key for row in spark.sql("SET -v").collect()}
    names |= {key for key, _ in spark.sparkContext.getConf().getAll()}
    free = ("spark.sql.catalog.", "spark.app.")
    assert len(names) > 300
    assert {name for name in names if not name.startswith(free)} - spark_keys() == set()
