"""The log's lines, as another process reads them."""

import json
import logging
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyspark
import pytest

from stormkeeper.daemon import logs
from stormkeeper.daemon.logs import LineBudget
from stormkeeper.daemon.spark_environment import find_java

PROGRAM = """
import json
import logging
from stormkeeper.daemon.logs import configure_logging
configure_logging()
configure_logging()
log = logging.getLogger("stormkeeper.test")
log.debug("not shown")
log.warning("value %r and %s", "/a", "two\\nlines\\r")
log.warning("from a caller: %s", "\\x1b[2J\\x00\\u202e")
try:
    raise ValueError("red: \\x1b[31m")
except ValueError:
    log.exception("failed")
configure_logging("DEBUG")
log.debug("shown now")
"""


def test_one_line_a_record_on_stderr():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == ""
    first, called, failed, *traceback, last = run.stderr.splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(stamp + r" WARNING stormkeeper\.test value '/a' and two\\nlines\\r", first)
    assert re.fullmatch(stamp + r" ERROR stormkeeper\.test failed", failed)
    assert traceback[0].startswith("  Traceback")
    assert called.endswith(r"from a caller: \x1b[2J\x00\u202e")
    assert traceback[-1] == r"  ValueError: red: \x1b[31m"
    assert last.endswith("DEBUG stormkeeper.test shown now")


def test_a_library_may_log_without_it():
    assert logging.getLogger("stormkeeper").handlers == []


JSON_PROGRAM = """
import logging, threading
from stormkeeper.daemon.logs import configure_logging
configure_logging(as_json=True)
configure_logging()  # as a daemon does, whose command has chosen the form already
log = logging.getLogger("stormkeeper.test")
log.debug("not shown")
text = "two\\nlines\\r\\x85\\u2028\\ud800"
log.warning("value %r and %s", "/a", text, extra={"peer": "h:1", "n": 3})
log.info("odd fields", extra={"level": "mine", "time": 0, "thing": object})
secret = "hunter2"
try:
    raise ValueError("failed\\nbadly")
except ValueError:
    log.exception("closing")
log.info("bad arguments %d", 1)
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
raise RuntimeError("the end")
"""


def test_json_is_one_object_a_line_with_fields():
    run = subprocess.run(
        [sys.executable, "-c", JSON_PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert run.stdout == ""
    lines = run.stderr.split("\n")
    assert lines.pop() == ""
    records = [json.loads(line) for line in lines]
    assert all(line.isascii() for line in lines)
    assert all(list(record)[:4] == ["time", "level", "logger", "message"] for record in records)
    warning, odd, closing, info, thread, end = records
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", warning.pop("time"))
    assert warning == {
        "level": "WARNING",
        "logger": "stormkeeper.test",
        "message": "value '/a' and two\nlines\r\x85\u2028\ud800",
        "peer": "h:1",
        "n": 3,
    }
    assert (odd["level"], odd["thing"]) == ("INFO", "<class 'object'>")
    assert odd["time"] != 0
    assert (closing["level"], closing["message"]) == ("ERROR", "closing")
    assert closing["exception"].startswith("Traceback")
    assert closing["exception"].endswith("ValueError: failed\nbadly")
    assert info["message"] == "bad arguments 1"
    assert (thread["level"], thread["message"]) == (
        "CRITICAL",
        "thread worker ends: ZeroDivisionError",
    )
    assert end["message"] == "the process ends: RuntimeError"
    assert end["exception"].endswith("RuntimeError: the end")
    assert "hunter2" not in run.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_sparks_own_log_has_the_same_form(form):
    jars = Path(pyspark.__file__).parent / "jars"
    configuration = Path(logs.__file__).with_name("log4j2.properties").as_uri()
    options = [f"-Dlog4j2.configurationFile={configuration}", f"-Dstormkeeper.log={form}"]
    # What any program on Spark's class path says when it fails, over two lines.
    program = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    began = datetime.now(UTC)
    run = subprocess.run(
        [
            find_java(),
            *options,
            "-Dzookeeper.jmx.log4j.disable=true",
            "-cp",
            f"{jars}/*",
            program,
            "no\nport",
            "folder",
        ],
        env={**os.environ, "TZ": "Asia/Tokyo"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line for line in run.stderr.splitlines() if not line.startswith("Usage")]
    if form == "text":
        # What belongs to a record is indented, as in the daemons' own logs.
        records = [line for line in lines if not line.startswith(logs.CONTINUED)]
        times, said = zip(*(line.split(" ", 1) for line in records), strict=True)
        assert said[0].startswith(f"WARNING {program} Either no config")
        assert said[1] == f"ERROR {main} Invalid arguments, exiting abnormally"
        assert lines[2].endswith('NumberFormatException: For input string: "no')
        assert lines[3].startswith(f'{logs.CONTINUED}port"')
    else:
        warning, error, *others = found = [json.loads(line) for line in lines]
        times = [each["time"] for each in found]
        assert (warning["level"], warning["logger"]) == ("WARNING", program)
        assert (error["level"], error["logger"]) == ("ERROR", main)
        assert error["message"] == "Invalid arguments, exiting abnormally"
        assert 'NumberFormatException: For input string: "no\nport"\n\tat ' in error["exception"]
        assert "exception" not in others[0]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time) for time in times)
    assert all(
        began - timedelta(milliseconds=1) <= datetime.fromisoformat(time) <= datetime.now(UTC)
        for time in times
    )


def test_numbers_are_written_as_one_says_them():
    told = [logs.counted(number, "connection") for number in (0, 1, 2)]
    assert told == ["0 connections", "1 connection", "2 connections"]


def set_up_in_a_test():
    logs.configure_logging("DEBUG")
    assert logging.getLogger().level == logging.DEBUG


def the_next_test():
    assert logging.getLogger().level == logging.WARNING
    assert not any(type(h) is logs._StderrHandler for h in logging.getLogger().handlers)


@pytest.mark.parametrize("test", [set_up_in_a_test, the_next_test])
def test_the_log_that_one_test_sets_up_is_not_that_of_the_next(test):
    test()


def test_so_many_pass_and_the_next_says_how_many_did_not():
    budget = LineBudget(2, 10.0)
    assert [budget.spend("a", now) for now in (0.0, 1.0, 2.0, 9.9)] == [0, 0, None, None]
    assert [budget.spend("a", now) for now in (10.0, 11.0, 12.0)] == [2, 0, None]
    assert budget.spend("a", 1_000.0) == 1


def test_matters_do_not_share_a_budget():
    budget = LineBudget(1, 10.0)
    assert [budget.spend(matter, 0.0) for matter in "aabb"] == [0, None, 0, None]


def test_memory_is_bounded():
    budget = LineBudget(1, 10.0)
    for n in range(100_000):
        budget.spend(n, n / 1_000)
    assert len(budget._spans) <= 1_024
