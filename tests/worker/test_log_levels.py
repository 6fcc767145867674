"""Log levels of a worker that runs: what counts when, and what is given back."""

import logging

import pytest

from stormkeeper.thrift.records import LogConfig, LogLevel, LogLevelAction
from stormkeeper.worker.driver_log import (
    ROOT,
    AppliedLevels,
    LogLevels,
    PythonLoggers,
    SparkLoggers,
    levels_at,
)
from support.waiting import until

NAME = "orders.of.this.test"


def level(name, ends_ms=None, reset=None):
    return LogLevel(
        LogLevelAction.UPDATE, name, reset_log_level_timeout_epoch=ends_ms, reset_log_level=reset
    )


def test_a_level_counts_until_its_time_is_over(caplog):
    config = LogConfig(
        {
            ROOT: level("DEBUG", 5_000),
            "a": level("WARN", 5_000, reset="ERROR"),
            "b": level("OFF"),
            "c": level("loud"),
            "d": level(None),
        }
    )
    assert levels_at(config, 4.9) == {ROOT: "DEBUG", "a": "WARN", "b": "OFF"}
    assert levels_at(config, 5.0) == {"a": "ERROR", "b": "OFF"}
    assert "'loud' is no log level, and c stays as it is" in caplog.text
    assert levels_at(None, 0) == levels_at(LogConfig(), 0) == {}


@pytest.fixture
def spark_level(spark):
    jvm = spark.sparkContext._jvm
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)

    def effective(name):
        return context.getLogger(name).getLevel().name()

    return effective


@pytest.mark.parametrize("first", ["DEBUG", "OFF"])
def test_the_loggers_of_spark_get_their_levels_back(spark, spark_level, first):
    before = spark_level(NAME)
    configured = "org.apache.spark.scheduler.DAGScheduler"  # in our log4j2.properties
    known = spark_level(configured)
    applied = AppliedLevels(SparkLoggers(spark))
    applied.apply({NAME: first, configured: "TRACE"})
    assert (spark_level(NAME), spark_level(configured)) == (first, "TRACE")
    assert spark_level(f"{NAME}.below") == first
    applied.apply({NAME: "FATAL"})
    assert (spark_level(NAME), spark_level(configured)) == ("FATAL", known)
    applied.apply({})
    assert spark_level(NAME) == before
    root = spark_level("")
    applied.apply({ROOT: "ERROR"})
    assert spark_level("") == "ERROR"
    applied.apply({})
    assert spark_level("") == root


def test_the_loggers_of_python_get_their_levels_back():
    logger = logging.getLogger(NAME)
    applied = AppliedLevels(PythonLoggers())
    root = logging.getLogger().level
    applied.apply({NAME: "TRACE", ROOT: "WARN"})
    assert (logger.level, logging.getLogger().level) == (5, logging.WARNING)
    applied.apply({NAME: "OFF"})
    assert not logger.isEnabledFor(logging.CRITICAL)
    assert logging.getLogger().level == root
    applied.apply({})
    assert logger.level == logging.NOTSET


def test_levels_are_set_and_reset_while_the_worker_runs(spark, spark_level):
    now, sessions = [100.0], []
    levels = LogLevels(lambda: sessions[-1] if sessions else None, lambda: now[0])
    before = spark_level(NAME)
    levels.update(None)
    levels.update(LogConfig({NAME: level("DEBUG", 101_000)}))
    until(lambda: logging.getLogger(NAME).level == logging.DEBUG)
    sessions.append(spark)  # it starts later than that
    until(lambda: spark_level(NAME) == "DEBUG")
    now[0] = 101.0
    until(lambda: spark_level(NAME) == before)
    assert logging.getLogger(NAME).level == logging.NOTSET
    levels.close()
    until(lambda: not levels._thread.is_alive())
