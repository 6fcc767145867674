"""Values that follow what was read."""

import itertools
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper import paths
from stormkeeper.errors import StateClosedError, StateUnavailableError
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.storm.cluster import StormClusterState, StormReads
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from stormkeeper.thrift.records import StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Codec
from support.leaders import lead
from support.memory_state import MemoryEnsemble
from support.stores import settings_for
from support.waiting import until
from support.zookeeper import expire_session

ID = "wc-1-1700000000"
SECS = 30.0


@pytest.fixture
def ensemble():
    """Callbacks run in its `deliver`."""
    return MemoryEnsemble(inline=True)


@pytest.fixture
def other(ensemble):
    return ensemble.session()


def is_unchanged(stream):
    try:
        stream.next(0.01)
    except TimeoutError:
        return True
    return False


def version(storm):
    return lambda again: storm.assignment_version(ID, again)


def test_the_first_value_comes_at_once_and_others_when_there_are(storm, other, ensemble):
    with storm.watch(storm.assignments) as stream:
        assert stream.next(0) == []
        assert is_unchanged(stream)
        other.set_data(paths.assignment("a"), b"")
        ensemble.deliver()
        assert stream.next(0) == ["a"]
        assert is_unchanged(stream)


def test_several_changes_are_one(storm, other, ensemble):
    stream = storm.watch(version(storm))
    assert next(stream) is None
    for number in range(5):
        other.set_data(paths.assignment(ID), bytes([number]))
        ensemble.deliver()
    assert stream.next(0) == 4
    assert is_unchanged(stream)


def test_a_change_while_a_value_is_worked_on_is_not_missed(storm, other, ensemble):
    stream = storm.watch(version(storm))
    seen = []
    for value in itertools.islice(stream, 4):
        seen.append(value)
        other.set_data(paths.assignment(ID), b"more")
        ensemble.deliver()
    assert seen == [None, 0, 1, 2]


def test_a_change_during_the_read_is_not_missed(storm, other, ensemble):
    def read(again):
        value = storm.assignment_version(ID, again)
        if value is None:
            other.set_data(paths.assignment(ID), b"")
            ensemble.deliver()
        return value

    stream = storm.watch(read)
    assert [next(stream), stream.next(0)] == [None, 0]


def test_it_goes_on_through_a_lost_session(storm, memory, other, ensemble):
    stream = storm.watch(storm.assignments)
    assert next(stream) == []
    for name in ("a", "b"):
        ensemble.expire(memory)
        ensemble.deliver()
        assert stream.next(0) is not None
        other.set_data(paths.assignment(name), b"")
        ensemble.deliver()
        assert name in stream.next(0)


def test_what_changed_while_the_session_was_lost_comes(storm, memory, other, ensemble):
    stream = storm.watch(version(storm))
    assert next(stream) is None
    ensemble.suspend(memory)
    other.set_data(paths.assignment(ID), b"")
    ensemble.expire(memory)
    ensemble.deliver()
    assert stream.next(0) == 0


def test_a_read_that_fails_is_made_again_by_the_next_call(storm, memory, other, ensemble):
    stream = storm.watch(version(storm))
    ensemble.suspend(memory)
    for _ in range(2):
        with pytest.raises(StateUnavailableError):
            next(stream)
    with pytest.raises(StateUnavailableError):
        stream.next(SECS)
    ensemble.resume(memory)
    assert next(stream) is None
    other.set_data(paths.assignment(ID), b"")
    ensemble.deliver()
    assert stream.next(0) == 0


def test_a_closed_one_has_ended(storm):
    stream = storm.watch(storm.assignments)
    stream.close()
    assert list(stream) == []
    with pytest.raises(StateClosedError, match="the stream was closed"):
        stream.next(SECS)


def test_absence_is_a_value_and_no_change_is_an_error(storm, other, ensemble):
    stream = storm.watch(lambda again: storm.storm_base(ID, again))
    assert stream.next(0) is None
    with pytest.raises(TimeoutError, match=r"^nothing has changed within 0\.01 s$"):
        stream.next(0.01)
    other.set_data(paths.storm(ID), storm.codec.write(StormBase("a", TopologyStatus.ACTIVE, 1)))
    ensemble.deliver()
    assert stream.next(0).name == "a"
    other.delete_node(paths.storm(ID))
    ensemble.deliver()
    assert stream.next(0) is None
    assert is_unchanged(stream)


def test_nothing_waits_for_a_closed_one(storm, other, ensemble):
    with storm.watch(storm.assignments) as stream, storm.watch(storm.assignments) as another:
        assert (next(stream), next(another)) == ([], [])
        stream.close()
        other.set_data(paths.assignment("a"), b"")
        ensemble.deliver()
        assert another.next(0) == ["a"]
    closing = storm.watch(lambda again: (storm.assignments(again), closing.close()))
    next(closing)
    assert storm._callbacks._waiting == {}


def test_two_streams_of_the_same_are_both_told(storm, other, ensemble):
    streams = [storm.watch(storm.assignments) for _ in range(2)]
    assert [next(stream) for stream in streams] == [[], []]
    other.set_data(paths.assignment("a"), b"")
    ensemble.deliver()
    assert [stream.next(0) for stream in streams] == [["a"], ["a"]]


@pytest.mark.parametrize("ending", ["close", "disconnect"])
def test_a_thread_that_waits_is_told_of_the_end(ending):
    storm = StormClusterState(MemoryEnsemble().session(), Codec())
    stream = storm.watch(storm.assignments)
    first = threading.Event()
    seen = []

    def follow():
        for value in stream:
            seen.append(value)
            first.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert first.wait(SECS)
    if ending == "close":
        stream.close()
    else:
        storm.disconnect()
    thread.join(SECS)
    assert not thread.is_alive()
    assert seen == [[]]
    storm.disconnect()


def test_one_that_is_made_after_the_end_fails(storm):
    storm.disconnect()
    with pytest.raises(StateClosedError):
        next(storm.watch(storm.assignments))


@pytest.mark.parametrize("kind", ["streams", "handles"])
def test_stream_made_during_disconnect_is_closed(storm, kind):
    looked_at = threading.Event()

    class Watched(weakref.WeakSet):
        def __iter__(self):
            for each in super().__iter__():
                looked_at.set()
                time.sleep(0.1)  # for the other thread, which adds
                yield each

    kept = [storm.watch(storm.assignments), lead(storm)]
    dependents = storm.handles if kind == "handles" else storm._streams
    dependents._held = Watched(dependents._held)

    def add():
        assert looked_at.wait(SECS)
        if kind == "streams":
            kept.append(storm.watch(storm.assignments))
        else:
            kept.append(StormReads(storm.state, storm.codec, heartbeats=storm.heartbeats))
            storm.handles.add(kept[-1])

    with ThreadPoolExecutor(1) as pool:
        added = pool.submit(add)
        storm.disconnect()
        added.result(SECS)
    assert storm.state.connection is ConnectionState.LOST


def test_a_leaders_end_with_the_session(storm):
    leader = lead(storm)
    stream = leader.watch(leader.assignments)
    assert next(stream) == []
    storm.disconnect()
    assert list(stream) == []
    with pytest.raises(StateClosedError):
        next(leader.watch(leader.assignments))


def test_one_that_a_former_leader_makes_fails(leader):
    """The session lives on, and reads go on; what changes is told nobody any more."""
    leader.disconnect()
    with pytest.raises(StateClosedError, match="/assignments: this was disconnected"):
        next(leader.watch(leader.assignments))
    with pytest.raises(StateClosedError):
        leader.storm_base(ID, lambda: None)
    assert leader.assignments() == []


@pytest.mark.zookeeper
def test_it_goes_on_through_a_lost_session_of_zookeeper(zookeeper_server, zookeeper_root):
    settings = settings_for(zookeeper_server, zookeeper_root)
    storm = StormClusterState(ZooKeeperState(settings), Codec())
    other = ZooKeeperState(settings)
    try:
        stream = storm.watch(storm.assignments)
        assert stream.next(SECS) == []
        other.set_data(paths.assignment("a"), b"")
        until(lambda: stream.next(SECS) == ["a"])
        expire_session(storm.state)
        # Told that it may have missed something, though it did not.
        assert stream.next(SECS) == ["a"]
        other.set_data(paths.assignment("b"), b"")
        until(lambda: stream.next(SECS) == ["a", "b"])
    finally:
        storm.disconnect()
        other.close()
