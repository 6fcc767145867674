"""The records of a cluster in memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper import paths
from stormkeeper.state import leader_lock
from stormkeeper.state.storm.cluster_view import records_below
from stormkeeper.thrift.records import (
    Assignment,
    NodeInfo,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec, deserialize, serialize
from support.leaders import lead
from support.record_strategies import records
from support.waiting import until

BASE = StormBase("wc", TopologyStatus.ACTIVE, 1)


@pytest.fixture
def view(storm):
    return storm.view


def test_empty_cluster_has_no_records(view):
    records = view.caught_up()
    assert (records.bases, records.assignments, records.supervisors, records.nimbuses) == ({},) * 4
    assert (records.ended, records.claimed, records.holders) == ({},) * 3


def decoded(path, data):
    return records_below(path, Codec()).decode("", data)


@given(
    st.one_of(
        records(Assignment).map(lambda record: (paths.ASSIGNMENTS, record)),
        records(StormBase).map(lambda record: (paths.STORMS, record)),
    )
)
def test_record_in_memory_equals_the_written_one(written):
    path, record = written
    kept, data = decoded(path, serialize(record)), serialize(record)
    assert kept == deserialize(type(record), data)
    assert hash(kept) == hash(record)
    assert serialize(kept) == data


def test_two_assignments_share_equal_parts():
    tasks = range(1000, 1100)
    written = Assignment(
        "/code",
        executor_node_port={(task, task): NodeInfo("node-1", {6700}) for task in tasks},
        executor_start_time_secs={(task, task): 1_700_000_000 for task in tasks},
    )
    one, two = (decoded(paths.ASSIGNMENTS, serialize(written)) for _ in range(2))
    executors, times = one.executor_node_port, one.executor_start_time_secs
    assert all(a is b for a, b in zip(executors, two.executor_node_port, strict=True))
    assert executors[1000, 1000].node is two.executor_node_port[1000, 1000].node
    assert executors[1000, 1000] is executors[1099, 1099]
    assert len({id(each) for each in times.values()}) == 1


def test_own_writes_are_seen_at_once(view, storm, leader):
    for number in range(10):
        leader.activate_storm(f"wc-{number}", BASE)
        leader.set_assignment(f"wc-{number}", Assignment("/code"))
        assert f"wc-{number}" in view.caught_up().assignments
    storm.supervisor_heartbeat("sup", SupervisorInfo(1, "host", "sup"))
    assert view.caught_up().supervisors["sup"].hostname == "host"
    leader.remove_storm("wc-3")
    records = view.caught_up()
    assert "wc-3" not in records.bases
    assert list(records.bases) == sorted(records.bases)


def test_record_is_decoded_once_per_version(view, leader):
    for storm_id in ("a", "b", "gone"):
        leader.set_assignment(storm_id, Assignment("/old"))
    before = view.caught_up()
    leader.set_assignment("b", Assignment("/new"))
    leader.remove_storm("gone")
    after = view.caught_up()
    found = {id_: each.master_code_dir for id_, each in after.assignments.items()}
    assert found == {"a": "/old", "b": "/new"}
    assert after.assignments["a"] is before.assignments["a"]
    assert after.supervisors is before.supervisors
    leader.set_assignment("gone", Assignment("/old"))
    assert view.caught_up().assignments["gone"] is not before.assignments["gone"]


def test_unreadable_record_is_named_and_logged_once(view, leader, memory, caplog):
    leader.set_assignment("a", Assignment("/a"))
    memory.set_data(paths.assignment("b"), b"nonsense")
    for number in range(3):
        leader.set_assignment(f"c{number}", Assignment("/a"))
        assert view.caught_up().unreadable == {paths.assignment("b")}
        assert "b" not in view.caught_up().assignments
    assert caplog.text.count("/assignments/b cannot be read: not an Assignment") == 1
    leader.set_assignment("b", Assignment("/a"))
    assert view.caught_up().unreadable == frozenset()


def test_records_cannot_be_replaced(view, leader):
    leader.activate_storm("wc", BASE)
    with pytest.raises(TypeError):
        view.caught_up().bases["wc"] = BASE


def test_locks_stand_with_the_leaders_first(view, storm, open_storm):
    assert view.caught_up().locks == ()
    locks = [
        leader_lock.take(each.state, f"host:{port}:0".encode())
        for port, each in [(1, storm), (2, open_storm())]
    ]
    until(lambda: view.caught_up().locks == tuple(locks))
    leader_lock.give_up(storm.state, locks[0])
    until(lambda: view.caught_up().locks == (locks[1],))


def test_holders_of_blobs_come_and_go(view, storm, open_storm):
    other = open_storm()
    assert view.with_holders().holders == {}
    storm.setup_blob("key", "one:1", 1)
    other.setup_blob("key", "two:1", 1)
    until(lambda: len(view.with_holders().holders["key"]) == 2)
    before = view.with_holders()
    assert before.holders is view.with_holders().holders
    other.disconnect()
    until(lambda: [one.nimbus for one in view.with_holders().holders["key"]] == ["one:1"])
    assert view.caught_up().bases is before.bases
    [blobs] = view._others.values()
    view.close()
    assert not blobs.is_running


def test_counts_of_blobs_are_as_in_the_store(view, storm, leader):
    def counted():
        return {key: (each.number, each.born) for key, each in storm.blobs().items()}

    assert view.blob_counts() == {}
    for number in (1, 2):
        for key in ("a", "b"):
            found = storm.blob_key_sequence(key)
            leader.set_blob_key_sequence(key, number, None if found is None else found.version)
        assert view.blob_counts() == counted()
    leader.remove_blob_key_sequence("a")
    leader.set_blob_key_sequence("a", 2, None)
    leader.remove_blob_key_sequence("b")
    assert view.blob_counts() == counted()
    storm.state.set_data(paths.blob_key_sequence("b"), b"no number")
    assert view.blob_counts()["b"][0] == 0


def test_leader_has_the_view_of_the_session(storm):
    view = lead(storm).view
    assert view is storm.view
    view.caught_up()
    storm.disconnect()
    until(lambda: not view.subscription.is_running)
