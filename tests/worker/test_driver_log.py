import gzip
import logging
import os
import threading
from pathlib import Path

import pytest

from stormkeeper.thrift.records import LogConfig, LogLevel, LogLevelAction
from stormkeeper.worker import driver_log
from stormkeeper.worker.driver_log import (
    ROOT,
    AppliedLevels,
    LogLevels,
    LogRotation,
    PythonLoggers,
    SparkLoggers,
    levels_at,
    rotate,
)
from support.waiting import until

BLOCK = 4096


def lines(first, end):
    return "".join(f"line {number:08}\n" for number in range(first, end)).encode()


def aside(file, number):
    with gzip.open(f"{file}.{number}.gz") as opened:
        return opened.read()


@pytest.fixture(params=["blocks are taken out", "it is emptied"])
def file(request, tmp_path, monkeypatch):
    """A log, on a file system that can take blocks out and on one that cannot."""
    if request.param == "it is emptied":
        monkeypatch.setattr(driver_log, "_take_out", lambda *_: False)
    return tmp_path / "worker.log"


def test_what_is_old_is_put_aside_and_all_is_there_once(file):
    text = lines(0, 3_000)
    file.write_bytes(text)
    file.chmod(0o640)
    with file.open("ab", buffering=0) as writer:
        assert rotate(file, 9)
        writer.write(b"and on\n")
    assert file.stat().st_size <= BLOCK + 7
    assert aside(file, 1) + file.read_bytes() == text + b"and on\n"
    assert sorted(path.name for path in file.parent.iterdir()) == ["worker.log", "worker.log.1.gz"]


def test_older_ones_move_up_and_the_oldest_goes(file):
    for number in range(4):
        file.write_bytes(bytes([number]) * (2 * BLOCK))
        assert rotate(file, 3)
    assert [aside(file, number)[:1] for number in (1, 2, 3)] == [b"\3", b"\2", b"\1"]
    assert not Path(f"{file}.4.gz").exists()


def test_what_is_cancelled_has_not_happened(file):
    text = lines(0, 3_000)
    file.write_bytes(text)
    assert not rotate(file, 9, lambda: True)
    assert file.read_bytes() == text
    assert [path.name for path in file.parent.iterdir()] == ["worker.log"]


def test_who_appends_meanwhile_loses_nothing_and_notices_nothing(tmp_path):
    file = tmp_path / "worker.log"
    over = threading.Event()
    written = []

    def write():
        with file.open("ab", buffering=0) as writer:
            while not over.is_set():
                number = len(written)
                writer.write(lines(number, number + 1))
                written.append(number)

    file.touch()
    if not can_take_out(tmp_path):
        pytest.skip("this file system cannot take blocks out of a file")
    writers = [threading.Thread(target=write)]
    for writer in writers:
        writer.start()
    log = LogRotation(-1)
    log._file, log._most_bytes = file, 20 * BLOCK
    try:
        for count in range(1, 4):
            until(log.rotate_if_large)
            assert Path(f"{file}.{count}.gz").exists()
    finally:
        over.set()
        for writer in writers:
            writer.join()
    whole = b"".join(aside(file, number) for number in (3, 2, 1)) + file.read_bytes()
    assert whole == lines(0, len(written))


def can_take_out(folder):
    probe = folder / "probe"
    probe.write_bytes(bytes(2 * BLOCK))
    with probe.open("rb+") as opened:
        return driver_log._take_out(opened.fileno(), BLOCK)


def test_a_descriptor_that_appends_to_a_file_is_looked_after(tmp_path):
    file = tmp_path / "worker.log"
    with file.open("ab", buffering=0) as writer:
        log = LogRotation(writer.fileno(), most_bytes=BLOCK, kept=1, look_secs=0.01)
        log.start()
        writer.write(bytes(2 * BLOCK))
        until(lambda: Path(f"{file}.1.gz").exists())
        log.close()
        assert not log.is_running


def test_other_descriptors_are_left_alone(tmp_path):
    reader, pipe = os.pipe()
    file = tmp_path / "printed"
    with file.open("wb") as not_appending, os.fdopen(reader), os.fdopen(pipe, "w"):
        for descriptor in (None, pipe, not_appending.fileno(), 10_000):
            log = LogRotation(descriptor, most_bytes=0)
            log.start()
            assert not log.rotate_if_large()
            log.close()


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
    levels.start()
    before = spark_level(NAME)
    levels.update(None)
    levels.update(LogConfig({NAME: level("DEBUG", 101_000)}))
    until(lambda: logging.getLogger(NAME).level == logging.DEBUG)
    sessions.append(spark)  # it starts later than that
    until(lambda: spark_level(NAME) == "DEBUG")
    now[0] = 101.0
    until(lambda: spark_level(NAME) == before)
    assert logging.getLogger(NAME).level == logging.NOTSET
    levels.close(0.0)
    until(lambda: not levels.is_running)
