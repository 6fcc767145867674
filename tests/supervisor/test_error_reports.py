"""What went wrong, said where a topology's users look."""

import time

import pytest

from stormkeeper.daemon.children import last_lines
from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.registration import ErrorReports
from stormkeeper.supervisor.slot_model import SlotAssignment
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.faults import crash, crash_with_cause
from support.memory_state import MemoryEnsemble

WORK = SlotAssignment("wc-1-1", {"out": "1-1-0", "totals": "1-1-0"})


@pytest.fixture
def storm():
    storm = StormClusterState(MemoryEnsemble().session(), Codec())
    yield storm
    storm.disconnect()


def test_each_query_of_the_worker_gets_it(storm):
    reports = ErrorReports(storm, "a.example")
    reports.start()
    reports.put(WORK, 6700, "it crashed")
    reports.close()
    for query in WORK.claims:
        [error] = storm.errors("wc-1-1", query)
        assert (error.error, error.host, error.port) == ("it crashed", "a.example", 6700)


CRASH = crash(6700, 1, "it ended with exit code 1")


def crashed(storm, **more):
    """Report a crash of the worker; return what is the newest error of each component then."""
    reports = ErrorReports(storm, "a.example")
    reports.start()
    reports.put(WORK, 6700, CRASH, log_end="the end", **more)
    reports.close()
    return {
        name: storm.last_error("wc-1-1", name).error for name in storm.topology_errors("wc-1-1")
    }


@pytest.mark.parametrize("component", ["out", "split"])
def test_crash_repeats_the_workers_own_error(storm, component):
    began = time.time() - 60
    storm.report_error("wc-1-1", component, "first", host="a.example", port=6700)
    storm.report_error("wc-1-1", component, "no day", host="a.example", port=6700)
    said = f"no day\n{CRASH}"
    assert crashed(storm, began=began) == {component: said}
    # Its own report is not the worker's.
    assert crashed(storm, began=began) == {component: said}


def test_a_worker_may_fail_in_the_second_of_its_start(storm):
    storm.report_error("wc-1-1", "out", "no day", host="a.example", port=6700)
    [error] = storm.errors("wc-1-1", "out")
    told = crashed(storm, began=error.error_time_secs + 0.9)
    assert told == {"out": f"no day\n{CRASH}"}


def test_the_exception_stands_first(storm):
    cause = "/a/long/path.py failed:\nTraceback (most recent call last):\n  …\nValueError: no day"
    storm.report_error("wc-1-1", "out", cause, host="a.example", port=6700)
    assert crashed(storm, began=1.0) == {"out": f"ValueError: no day\n{CRASH}:\n{cause}"}
    lines = "the query 'out' failed:\njava.lang.OutOfMemoryError: Java heap space"
    assert crash_with_cause(CRASH, lines).startswith(lines.replace("\n", " ") + f"\n{CRASH}:\n")
    # The next crash in this second has the worker's error for its cause, not this report.
    assert crashed(storm, began=1.0) == {"out": f"ValueError: no day\n{CRASH}:\n{cause}"}


@pytest.mark.parametrize(
    ("host", "port", "later"),
    [("b.example", 6700, 0), ("a.example", 6701, 0), ("a.example", 6700, 60)],
    ids=["another machine", "another slot", "an earlier worker"],
)
def test_the_error_of_another_worker_is_no_cause(storm, host, port, later):
    storm.report_error("wc-1-1", "split", "no day", host=host, port=port)
    said = f"{CRASH}\nIts log ends with:\nthe end"
    told = crashed(storm, began=time.time() - 30 + later)
    assert told == {"split": "no day", "out": said, "totals": said}


def test_a_worker_that_was_not_started_has_reported_nothing(storm):
    storm.report_error("wc-1-1", "split", "no day", host="a.example", port=6700)
    assert crashed(storm, began=None)["split"] == "no day"


def test_failed_report_is_logged_and_next_is_tried(storm, monkeypatch, caplog):
    whole = storm.report_error
    failures = iter([StateUnavailableError("no server answered")])

    def report(*args, **more):
        for failure in failures:
            raise failure
        return whole(*args, **more)

    monkeypatch.setattr(storm, "report_error", report)
    reports = ErrorReports(storm, "a.example")
    reports.start()
    reports.put(WORK, 6700, "first")
    reports.put(WORK, 6700, "second")
    reports.close()
    assert "an error of wc-1-1 is not reported: no server answered" in caplog.text
    assert [error.error for error in storm.errors("wc-1-1", "out")] == ["second"]


def test_too_many_do_not_wait(storm, caplog):
    reports = ErrorReports(storm, "a.example")
    for number in range(101):
        reports.put(WORK, 6700, str(number))
    assert caplog.text.count("too many reports wait") == 1


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "worker.log"
    assert last_lines(log) == ""
    log.write_bytes(b"".join(b"line %d \xff\n" % number for number in range(100_000)))
    lines = last_lines(log).splitlines()
    assert len(lines) == 25
    assert lines[-1] == "line 99999 �"
