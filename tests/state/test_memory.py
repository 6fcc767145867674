"""What only the store in memory can be told to do; the rest is in the conformance suite."""

import threading

import pytest

from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.memory import MemoryEnsemble
from stormkeeper.state.storage import ConnectionState, EventType
from support.hearing import Hearing

CHANGED = EventType.NODE_DATA_CHANGED


@pytest.fixture
def ensemble():
    ensemble = MemoryEnsemble()
    yield ensemble
    for session in list(ensemble._sessions):
        session.close()


@pytest.fixture
def state(ensemble):
    return ensemble.session()


def test_calls_fail_while_a_session_is_cut_off(ensemble, state):
    ensemble.suspend(state)
    assert state.connection is ConnectionState.SUSPENDED
    with pytest.raises(StateUnavailableError, match="SUSPENDED"):
        state.get_data("/a")
    with pytest.raises(StateUnavailableError):
        state.set_data("/a", b"")
    ensemble.resume(state)
    assert state.get_data("/a") is None


def test_a_session_that_was_cut_off_keeps_its_ephemeral_nodes(ensemble, state):
    other = ensemble.session()
    state.set_ephemeral_node("/s", b"")
    ensemble.suspend(state)
    assert other.node_exists("/s")
    ensemble.resume(state)
    assert other.get_version("/s") == 0
    former = state.session_id
    ensemble.expire(state)
    assert state.session_id != former


def test_what_was_missed_while_cut_off_is_told(ensemble, state):
    other = ensemble.session()
    heard = Hearing(state)
    for path in ("/changed", "/unchanged"):
        state.set_data(path, b"0")
        state.get_data(path, watch=True)
    ensemble.suspend(state)
    ensemble.suspend(state)
    other.set_data("/changed", b"1")
    other.set_data("/changed", b"2")
    ensemble.resume(state)
    ensemble.resume(state)
    assert heard.everything() == [
        ConnectionState.SUSPENDED,
        ConnectionState.CONNECTED,
        (CHANGED, "/changed"),
    ]
    other.set_data("/changed", b"3")
    other.set_data("/unchanged", b"1")
    assert heard.events() == [(CHANGED, "/changed"), (CHANGED, "/unchanged")]


def test_a_session_can_expire_while_it_is_cut_off(ensemble, state):
    heard = Hearing(state)
    state.set_ephemeral_node("/s", b"")
    ensemble.suspend(state)
    ensemble.expire(state)
    assert state.get_version("/s") == 0
    assert heard.everything() == [
        ConnectionState.SUSPENDED,
        ConnectionState.LOST,
        ConnectionState.CONNECTED,
    ]


def test_many_threads_lose_no_write(ensemble):
    sessions = [ensemble.session() for _ in range(4)]

    def write(session):
        for _ in range(250):
            session.set_data("/counted", b"")
            session.create_sequential("/made/e", b"")

    threads = [threading.Thread(target=write, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sessions[0].get_version("/counted") == 999
    assert len(sessions[0].get_children("/made")) == 1000


def test_a_closed_session_leaves_no_thread_and_no_trace(ensemble):
    session = ensemble.session()
    before = threading.active_count()
    session.close()
    assert threading.active_count() == before - 1
    assert session not in ensemble._sessions
