"""Callbacks of one shot, through the reads that leave watches for them."""

import logging

import pytest

from stormkeeper import paths
from stormkeeper.errors import StateError, StateUnavailableError
from stormkeeper.state.watches import WaitingCallbacks, WatchKind
from stormkeeper.thrift.records import Assignment
from support.leaders import lead
from support.memory_state import MemoryEnsemble

ID = "wc-1-1700000000"


@pytest.fixture
def ensemble():
    """Callbacks run in its `deliver`."""
    return MemoryEnsemble(inline=True)


@pytest.fixture
def told():
    return []


@pytest.fixture
def other(ensemble):
    """Somebody else's session."""
    return ensemble.session()


@pytest.fixture
def tell(told):
    """Makes callbacks that say their names."""

    def make(name):
        return lambda: told.append(name)

    return make


def test_a_callback_is_told_of_the_next_change_and_of_no_other(storm, leader, ensemble, tell, told):
    assert storm.assignment_info(ID, tell("changed")) is None
    ensemble.deliver()
    assert told == []
    for code_dir in ("/a", "/b"):
        leader.set_assignment(ID, Assignment(code_dir))
        ensemble.deliver()
    assert told == ["changed"]
    assert storm.assignment_info(ID, tell("again")) == Assignment(
        "/b", leader_epoch=leader.fence.epoch
    )
    leader.set_assignment(ID, Assignment("/c"))
    ensemble.deliver()
    assert told == ["changed", "again"]


def test_all_who_wait_are_told_in_the_order_in_which_they_came(storm, other, ensemble, tell, told):
    for name in ("first", "second"):
        storm.assignment_version(ID, tell(name))
    other.set_data(paths.assignment(ID), b"")
    ensemble.deliver()
    assert told == ["first", "second"]


def test_the_same_callback_waits_once_however_often_it_was_given(
    storm, other, ensemble, tell, told
):
    callback = tell("one")
    for _ in range(3):
        storm.assignment_version(ID, callback)
    other.set_data(paths.assignment(ID), b"")
    ensemble.deliver()
    assert told == ["one"]


def test_a_node_and_its_children_are_watched_apart(ensemble, other, tell, told):
    other.set_data("/storms/a", b"")
    session = ensemble.session()
    dispatch = WaitingCallbacks(session)
    with dispatch.once(WatchKind.NODE, "/storms", tell("node")) as watch:
        session.get_data("/storms", watch)
    with dispatch.once(WatchKind.CHILDREN, "/storms", tell("children")) as watch:
        session.get_children("/storms", watch)
    other.set_data("/storms/b", b"")
    ensemble.deliver()
    assert told == ["children"]
    other.set_data("/storms", b"new")
    ensemble.deliver()
    assert told == ["children", "node"]


def test_deletion_of_a_node_fires_watches_of_its_children(storm, other, ensemble, tell, told):
    other.mkdirs("/storms")
    assert storm.active_storms(tell("gone")) == []
    other.delete_node("/storms")
    ensemble.deliver()
    assert told == ["gone"]


def test_the_children_of_an_absent_node_are_waited_for(storm, other, ensemble, tell, told):
    assert storm.active_storms(tell("made")) == []
    other.mkdirs("/storms")
    other.set_data("/storms/a", b"")
    other.delete_node("/storms")
    ensemble.deliver()
    assert told == ["made"]


def test_a_node_that_is_made_while_it_is_looked_for_is_told_once(
    storm, memory, other, ensemble, tell, told, monkeypatch
):
    exists = memory.node_exists

    def made_meanwhile(path, watch=False):
        other.mkdirs(path)
        return exists(path, watch)

    monkeypatch.setattr(memory, "node_exists", made_meanwhile)
    assert storm.active_storms(tell("changed")) == []
    other.set_data("/storms/a", b"")
    other.delete_node("/storms")
    ensemble.deliver()
    assert told == ["changed"]


def test_a_node_that_comes_and_goes_is_not_read_for_ever(storm, memory, other, monkeypatch):
    def there_and_gone(path, *_):
        other.mkdirs(path)
        other.delete_node(path)
        return True

    monkeypatch.setattr(memory, "node_exists", there_and_gone)
    with pytest.raises(StateError, match="/storms came and went 20 times"):
        storm.active_storms(lambda: None)


def test_a_read_without_a_callback_leaves_no_watch(storm, memory):
    storm.active_storms()
    storm.storm_base(ID)
    storm.assignment_info_with_version(ID)
    assert memory._armed == set()


def test_a_read_that_fails_has_nobody_told(storm, memory, other, ensemble, tell, told):
    ensemble.suspend(memory)
    with pytest.raises(StateUnavailableError):
        storm.assignment_version(ID, tell("failed"))
    with pytest.raises(StateUnavailableError):
        storm.active_storms(tell("failed"))
    ensemble.resume(memory)
    storm.assignment_version(ID, tell("read"))
    other.set_data(paths.assignment(ID), b"")
    ensemble.expire(memory)
    ensemble.deliver()
    assert told == ["read"]


def test_a_read_that_fails_takes_nothing_from_one_before_it(
    storm, memory, other, ensemble, tell, told
):
    callback = tell("told")
    storm.assignment_version(ID, callback)
    ensemble.suspend(memory)
    with pytest.raises(StateUnavailableError):
        storm.assignment_version(ID, callback)
    other.set_data(paths.assignment(ID), b"")
    ensemble.resume(memory)
    ensemble.deliver()
    assert told == ["told"]


@pytest.mark.parametrize("fails_last", [True, False])
def test_failed_read_leaves_a_concurrent_read_alone(
    memory, other, ensemble, tell, told, fails_last
):
    """Two threads may read the same with the same callback."""
    dispatch, callback = WaitingCallbacks(memory), tell("told")
    first = dispatch.once(WatchKind.NODE, "/storms/a", callback)
    second = dispatch.once(WatchKind.NODE, "/storms/a", callback)
    assert first.__enter__()
    assert second.__enter__()
    fails, reads = (first, second) if fails_last else (second, first)
    memory.get_data("/storms/a", watch=True)
    if fails_last:
        reads.__exit__(None, None, None)
    error = StateUnavailableError("not now")
    assert not fails.__exit__(type(error), error, None)
    if not fails_last:
        reads.__exit__(None, None, None)
    other.set_data("/storms/a", b"")
    ensemble.deliver()
    assert told == ["told"]
    dispatch.close()


def test_what_was_missed_while_cut_off_is_told(storm, memory, other, ensemble, tell, told):
    storm.assignment_version(ID, tell("missed"))
    ensemble.suspend(memory)
    other.set_data(paths.assignment(ID), b"")
    ensemble.deliver()
    assert told == []
    ensemble.resume(memory)
    ensemble.deliver()
    assert told == ["missed"]


def test_all_are_told_once_when_a_session_was_lost(storm, memory, other, ensemble, tell, told):
    storm.assignment_version(ID, tell("version"))
    storm.assignments(tell("list"))
    both = tell("both")
    storm.storm_base(ID, both)
    storm.credentials(ID, both)
    other.set_data(paths.assignment(ID), b"")
    ensemble.expire(memory)
    other.set_data(paths.assignment(ID), b"more")
    ensemble.deliver()
    assert sorted(told) == ["both", "list", "version"]


def test_one_that_raises_ends_nothing(storm, other, ensemble, tell, told, caplog):
    def broken():
        raise RuntimeError("no")

    storm.assignment_version(ID, broken)
    storm.assignment_version(ID, tell("next"))
    other.set_data(paths.assignment(ID), b"")
    ensemble.deliver()
    assert told == ["next"]
    assert f"a callback failed on /assignments/{ID} created" in caplog.text


def test_callback_that_raises_system_exit_blocks_no_other(storm, other, ensemble, tell, told):
    def broken():
        raise SystemExit(3)

    storm.assignment_version(ID, broken)
    storm.assignment_version(ID, tell("next"))
    other.set_data(paths.assignment(ID), b"")
    with pytest.raises(SystemExit):
        ensemble.deliver()
    assert told == ["next"]


def test_a_callback_may_read_and_wait_again(storm, other, ensemble, told):
    def look():
        told.append(storm.assignment_version(ID, look))

    look()
    for value in (b"1", b"2", b"3"):
        other.set_data(paths.assignment(ID), value)
        ensemble.deliver()
    assert told == [None, 0, 1, 2]


def test_event_of_an_unknown_subtree_is_logged_and_counted(
    storm, memory, other, ensemble, tell, told, caplog
):
    assert not memory.node_exists("/strange/node", watch=True)
    storm.assignment_version(ID, tell("known"))
    other.set_data("/strange/node", b"")
    other.set_data(paths.assignment(ID), b"")
    with caplog.at_level(logging.WARNING):
        ensemble.deliver()
    assert storm.unknown_events == 1
    assert "/strange/node created: no part of Storm's layout" in caplog.text
    assert told == ["known"]


@pytest.mark.parametrize("top", sorted(paths.FIRST_LEVEL))
def test_no_subtree_of_storms_is_unknown(storm, memory, other, ensemble, top):
    for path in (top, f"{top}/below"):
        assert not memory.node_exists(path, watch=True)
        other.set_data(path, b"")
    ensemble.deliver()
    assert storm.unknown_events == 0


def test_after_the_end_nobody_is_told(storm, other, ensemble, tell, told):
    storm.assignment_version(ID, tell("late"))
    storm.disconnect()
    other.set_data(paths.assignment(ID), b"")
    ensemble.deliver()
    assert told == []


def test_two_who_share_a_session_do_not_share_their_callbacks(
    open_storm, other, ensemble, tell, told
):
    process = open_storm()
    leader = lead(process)
    process.assignment_version(ID, tell("process"))
    leader.assignment_version(ID, tell("leader"))
    leader.disconnect()
    assert not process.state.node_exists("/strange", watch=True)
    other.set_data(paths.assignment(ID), b"")
    other.set_data("/strange", b"")
    ensemble.deliver()
    assert told == ["process"]
    assert (process.unknown_events, leader.unknown_events) == (1, 0)
