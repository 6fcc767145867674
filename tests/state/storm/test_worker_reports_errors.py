import pytest

from stormkeeper import paths
from stormkeeper.errors import OutcomeUnknownError
from stormkeeper.state.storage import DIRECTORY
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.worker_reports import ErrorLimits
from stormkeeper.thrift.records import ErrorInfo
from stormkeeper.thrift.serialization import Codec
from support.interposed import Interposed

STORM = "wc-1-1700000000"


MANY = ErrorLimits(interval_secs=10, per_interval=1000)


@pytest.fixture
def worker(open_storm):
    """A worker's handle, which may report as much as it likes."""
    return open_storm(limits=MANY)


@pytest.fixture
def memory(worker):
    return worker.state


def test_an_error_is_among_the_newest_and_is_the_last(worker, memory):
    assert worker.errors(STORM, "split bolt/é") == []
    assert worker.last_error(STORM, "split bolt/é") is None
    assert worker.report_error(STORM, "split bolt/é", "boom ☃\n  at …", host="h1", port=6700)
    expected = ErrorInfo("boom ☃\n  at …", 1_700_000_000, "h1", 6700)
    assert worker.errors(STORM, "split bolt/é") == [expected]
    assert worker.last_error(STORM, "split bolt/é") == expected
    assert worker.error_topologies() == [STORM]
    top = paths.component_errors(STORM, "split bolt/é")
    assert memory.get_data(top) == DIRECTORY
    assert memory.get_children(top) == ["e0000000000"]


def test_where_it_happened_need_not_be_known(worker):
    worker.report_error(STORM, "split", "boom")
    assert worker.last_error(STORM, "split") == ErrorInfo("boom", 1_700_000_000)


def test_the_newest_ten_are_kept_newest_first_and_the_last_apart(worker, clock):
    for number in range(25):
        clock.secs += number % 2  # two in each second
        worker.report_error(STORM, "split", f"error {number}")
    kept = [error.error for error in worker.errors(STORM, "split")]
    assert kept == [f"error {number}" for number in range(24, 14, -1)]
    assert worker.last_error(STORM, "split").error == "error 24"


def test_errors_of_workers_are_ordered_by_their_times(worker, clock):
    for secs in (1_700_000_200, 1_700_000_100, 1_700_000_300):
        clock.secs = secs
        worker.report_error(STORM, "split", str(secs))
    times = [error.error_time_secs for error in worker.errors(STORM, "split")]
    assert times == [1_700_000_300, 1_700_000_200, 1_700_000_100]


def test_errors_of_other_workers_are_pruned_with_ones_own(worker, open_storm):
    other = open_storm(limits=MANY)
    for number in range(8):
        other.report_error(STORM, "split", f"theirs {number}")
    for number in range(8):
        worker.report_error(STORM, "split", f"ours {number}")
    kept = [error.error for error in worker.errors(STORM, "split")]
    assert kept == [f"ours {n}" for n in range(7, -1, -1)] + ["theirs 7", "theirs 6"]


def test_the_newest_go_with_the_session_and_the_last_stays(worker, storm):
    worker.report_error(STORM, "split", "boom")
    worker.disconnect()
    assert storm.errors(STORM, "split") == []
    assert storm.last_error(STORM, "split").error == "boom"


def test_what_is_throttled_is_dropped_before_anything_is_written(open_storm, clock):
    worker = open_storm(limits=ErrorLimits(10, 2))
    reported = [worker.report_error(STORM, "split", str(number)) for number in range(4)]
    assert reported == [True, True, False, False]
    assert [error.error for error in worker.errors(STORM, "split")] == ["1", "0"]
    assert worker.report_error(STORM, "count", "another component")
    assert worker.report_task_error(STORM, 1, "a task")
    clock.secs += 10.1
    assert worker.report_error(STORM, "split", "later")


def test_errors_of_tasks_are_kept_by_task(worker, memory, clock):
    for number in range(12):
        clock.secs += 1
        worker.report_task_error(STORM, 3, f"error {number}", host="h1", port=6700)
    errors = worker.task_errors(STORM, 3)
    assert [error.error for error in errors] == [f"error {n}" for n in range(11, 1, -1)]
    assert errors[0] == ErrorInfo("error 11", 1_700_000_012, "h1", 6700)
    assert worker.task_errors(STORM, 4) == []
    assert not memory.node_exists(f"{paths.task_errors(STORM, 3)}-last-error")


def test_too_long_error_keeps_its_beginning_and_end(worker):
    worker.report_error(STORM, "split", "a" * 40_000 + "\N{SNOWMAN}" * 2_000_000 + "z" * 40_000)
    kept = worker.last_error(STORM, "split").error
    assert kept.startswith("a" * 32_768)
    assert kept.endswith("z" * 32_768)
    assert "\n… 2,014,464 characters left out …\n" in kept
    assert len(kept) < 66_000


def test_one_of_the_greatest_length_is_kept_whole(worker):
    worker.report_error(STORM, "split", "x" * 65_536)
    assert worker.last_error(STORM, "split").error == "x" * 65_536


def test_text_that_utf_8_cannot_hold_is_reported_all_the_same(worker):
    assert worker.report_error(STORM, "split", "no such file: \udcff.py")
    assert worker.last_error(STORM, "split").error == "no such file: ?.py"


def test_unreadable_errors_and_other_names_are_skipped(worker, memory):
    worker.report_error(STORM, "split", "boom")
    top = paths.component_errors(STORM, "split")
    memory.set_data(f"{top}/e0000000001", b"no error")
    memory.set_data(f"{top}/notes", Codec().write(ErrorInfo("not numbered", 1)))
    assert [error.error for error in worker.errors(STORM, "split")] == ["boom"]
    assert worker.unreadable == 1
    for number in range(10):
        worker.report_error(STORM, "split", str(number))
    assert "notes" in memory.get_children(top)


def test_leader_makes_and_deletes_the_errors_directory(storm, leader, memory):
    leader.setup_errors(STORM)
    assert memory.get_data(paths.errors(STORM)) == DIRECTORY
    assert storm.error_topologies() == [STORM]
    storm.report_error(STORM, "split", "boom")
    storm.report_task_error(STORM, 1, "boom")
    leader.teardown_errors(STORM)
    leader.teardown_errors(STORM)
    assert storm.error_topologies() == []
    assert not memory.node_exists(paths.taskerrors(STORM))


def test_errors_that_are_half_gone_are_still_listed(storm, leader, monkeypatch):
    leader.setup_errors(STORM)
    storm.report_task_error(STORM, 1, "boom")
    delete_node = leader._writer.delete_node
    deleted = []

    def listed_meanwhile(path):
        assert storm.error_topologies() == [STORM]
        delete_node(path)
        deleted.append(path)

    monkeypatch.setattr(leader._writer, "delete_node", listed_meanwhile)
    leader.teardown_errors(STORM)
    assert deleted == [paths.taskerrors(STORM), paths.errors(STORM)]


def test_error_reported_during_teardown_ends_nothing(worker, memory, leader):
    def set_data(path, data):
        memory.set_data(path, data)
        leader.teardown_errors(STORM)

    torn = StormClusterState(Interposed(memory, set_data=set_data), Codec())
    assert torn.report_error(STORM, "split", "boom")
    assert worker.errors(STORM, "split") == []


def test_an_error_whose_answer_was_lost_is_said_to_be_so(ensemble, memory, worker):
    ensemble.lose_answer(memory, applied=True)
    with pytest.raises(OutcomeUnknownError):
        worker.report_error(STORM, "split", "boom")


def test_all_errors_of_a_topology_are_read_in_one_go(worker, storm, memory, clock):
    assert storm.topology_errors(STORM) == {}
    for number in range(3):
        clock.secs += number
        worker.report_error(STORM, "split bolt/é", f"error {number}", host="h", port=1)
    worker.report_error(STORM, "count-last-error", "other")
    memory.set_data(f"{paths.component_errors(STORM, 'count-last-error')}/e7", b"no error")
    found = storm.topology_errors(STORM)
    assert found.keys() == {"split bolt/é", "count-last-error"}
    assert found["split bolt/é"] == worker.errors(STORM, "split bolt/é")
    assert [error.error for error in found["count-last-error"]] == ["other"]


def test_the_last_error_of_a_worker_that_is_gone_is_among_them(worker, storm, memory):
    worker.report_error(STORM, "split", "boom")
    top = paths.component_errors(STORM, "split")
    [name] = memory.get_children(top)
    memory.delete_node(f"{top}/{name}")  # as with its worker's session
    assert storm.errors(STORM, "split") == []
    assert storm.topology_errors(STORM) == {"split": [worker.last_error(STORM, "split")]}
