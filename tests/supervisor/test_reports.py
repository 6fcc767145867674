"""What went wrong, said where a topology's users look."""

import pytest

from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.memory.ensemble import MemoryEnsemble
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.codec import Codec
from stormkeeper.supervisor.records import SlotAssignment
from stormkeeper.supervisor.reports import Reports, last_lines

WORK = SlotAssignment("wc-1-1", {"out": "1-1-0", "totals": "1-1-0"})


@pytest.fixture
def storm():
    storm = StormClusterState(MemoryEnsemble().session(), Codec())
    yield storm
    storm.disconnect()


def test_each_query_of_the_worker_gets_it(storm):
    reports = Reports(storm, "a.example")
    reports.start()
    reports.put(WORK, 6700, "it crashed")
    reports.close()
    for query in WORK.claims:
        [error] = storm.errors("wc-1-1", query)
        assert (error.error, error.host, error.port) == ("it crashed", "a.example", 6700)


def test_what_cannot_be_reported_is_logged_and_the_next_one_is_tried(storm, monkeypatch, caplog):
    whole = storm.report_error
    failures = iter([StateUnavailableError("no server answered")])

    def report(*args, **more):
        for failure in failures:
            raise failure
        return whole(*args, **more)

    monkeypatch.setattr(storm, "report_error", report)
    reports = Reports(storm, "a.example")
    reports.start()
    reports.put(WORK, 6700, "first")
    reports.put(WORK, 6700, "second")
    reports.close()
    assert "an error of wc-1-1 is not reported: no server answered" in caplog.text
    assert [error.error for error in storm.errors("wc-1-1", "out")] == ["second"]


def test_too_many_do_not_wait(storm, caplog):
    reports = Reports(storm, "a.example")
    for number in range(101):
        reports.put(WORK, 6700, str(number))
    assert caplog.text.count("too many wait") == 1


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "worker.log"
    assert last_lines(log) == ""
    log.write_bytes(b"".join(b"line %d \xff\n" % number for number in range(100_000)))
    lines = last_lines(log).splitlines()
    assert len(lines) == 25
    assert lines[-1] == "line 99999 �"
