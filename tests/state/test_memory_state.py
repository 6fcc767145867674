"""What only the store in memory can be told to do; the rest is in the conformance suite."""

import threading

import pytest

from stormkeeper.errors import OutcomeUnknownError, StateUnavailableError, TransactionError
from stormkeeper.state.storage import Check, ConnectionState, Create, Delete, EventType, SetData
from support.hearing import Hearing
from support.memory_state import MemoryEnsemble
from support.transactions import Transaction

CHANGED = EventType.NODE_DATA_CHANGED


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


def test_watches_end_with_the_connection(ensemble, state):
    other = ensemble.session()
    heard = Hearing(state)
    state.set_data("/changed", b"0")
    state.get_data("/changed", watch=True)
    ensemble.suspend(state)
    ensemble.suspend(state)
    other.set_data("/changed", b"1")
    other.set_data("/changed", b"2")
    ensemble.resume(state)
    ensemble.resume(state)
    assert heard.everything() == [
        ConnectionState.SUSPENDED,
        ConnectionState.CONNECTED,
    ]
    assert heard.missed == 1
    other.set_data("/changed", b"3")
    assert heard.events() == []
    state.get_data("/changed", watch=True)
    other.set_data("/changed", b"4")
    assert heard.events() == [(CHANGED, "/changed")]


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


WRITES = [
    lambda state: state.set_data("/w", b""),
    lambda state: state.set_ephemeral_node("/w", b""),
    lambda state: state.create_sequential("/w", b""),
    lambda state: state.mkdirs("/w"),
    lambda state: state.delete_node("/before"),
    lambda state: Transaction(state.commit).create("/w", b"").commit(),
]
READS = [
    lambda state: state.get_data("/before"),
    lambda state: state.get_stat("/before"),
    lambda state: state.get_children("/before"),
    lambda state: state.read_many(["/before"]),
    lambda state: state.children_many(["/before"]),
    lambda state: state.children_data("/before"),
    lambda state: state.sync_path("/before"),
]


def things(tree):
    return set(tree._nodes)


class TestEndedSessions:
    @pytest.mark.parametrize("write", WRITES)
    def test_the_next_write_is_not_done_and_says_that_nobody_knows(self, ensemble, state, write):
        state.set_data("/before", b"")
        before = things(ensemble.tree)
        ensemble.end_session(state)
        assert state.connection is ConnectionState.CONNECTED
        with pytest.raises(OutcomeUnknownError, match="session 1 has ended"):
            write(state)
        assert things(ensemble.tree) == before
        assert state.session_id == 2
        write(state)
        assert things(ensemble.tree) != before

    @pytest.mark.parametrize("read", READS)
    def test_the_next_read_fails(self, ensemble, state, read):
        state.set_data("/before", b"")
        ensemble.end_session(state)
        with pytest.raises(StateUnavailableError) as caught:
            read(state)
        assert type(caught.value) is StateUnavailableError
        read(state)

    def test_its_nodes_go_at_once_and_it_hears_of_nothing(self, ensemble, state):
        other = ensemble.session()
        heard, told = Hearing(state), []
        state.register(lambda *event: told.append(event))
        state.set_ephemeral_node("/registration", b"")
        lock = state.create_sequential("/lock/e", b"")
        state.get_data("/a", watch=True)
        heard.forget()
        told.clear()
        ensemble.end_session(state)
        assert other.read_many(["/registration", lock]) == [None, None]
        other.set_data("/a", b"")
        with pytest.raises(StateUnavailableError):
            state.get_data("/a")
        assert heard.everything() == [
            ConnectionState.LOST,
            ConnectionState.CONNECTED,
        ]
        assert told[:1] == [(EventType.EVENTS_MISSED, "/")]
        assert heard.missed == 1
        assert other.node_exists("/registration")
        assert not other.node_exists(lock)

    def test_one_that_is_cut_off_learns_it_when_it_is_back(self, ensemble, state):
        heard = Hearing(state)
        ensemble.suspend(state)
        ensemble.end_session(state)
        ensemble.end_session(state)
        with pytest.raises(StateUnavailableError, match="SUSPENDED"):
            state.get_data("/a")
        ensemble.resume(state)
        assert heard.everything() == [
            ConnectionState.SUSPENDED,
            ConnectionState.LOST,
            ConnectionState.CONNECTED,
        ]
        assert heard.missed == 1


class TestLostAnswers:
    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("write", WRITES)
    def test_nobody_knows_whether_the_write_was_done(self, ensemble, state, write, applied):
        state.set_data("/before", b"")
        before = things(ensemble.tree)
        ensemble.lose_answer(state, applied=applied)
        state.get_data("/before")
        with pytest.raises(OutcomeUnknownError, match="may have been done or not"):
            write(state)
        assert (things(ensemble.tree) != before) == applied
        assert state.connection is ConnectionState.SUSPENDED
        ensemble.resume(state)
        state.set_data("/after", b"")
        assert state.node_exists("/after")

    def test_a_refusal_is_lost_as_well(self, ensemble, state):
        ensemble.lose_answer(state, applied=True)
        with pytest.raises(OutcomeUnknownError):
            Transaction(state.commit).check("/absent").commit()
        ensemble.resume(state)
        with pytest.raises(TransactionError):
            Transaction(state.commit).check("/absent").commit()

    def test_missed_events_are_reported_when_the_connection_is_back(self, ensemble, state):
        heard = Hearing(state)
        state.get_data("/a", watch=True)
        ensemble.lose_answer(state, applied=True)
        with pytest.raises(OutcomeUnknownError):
            state.set_data("/a", b"")
        ensemble.resume(state)
        assert heard.everything() == [
            ConnectionState.SUSPENDED,
            ConnectionState.CONNECTED,
        ]
        assert heard.missed == 1


class TestInline:
    @pytest.fixture
    def ensemble(self):
        ensemble = MemoryEnsemble(inline=True)
        yield ensemble
        for session in list(ensemble._sessions):
            session.close()

    def test_it_has_no_threads(self, ensemble):
        before = threading.active_count()
        ensemble.session()
        assert threading.active_count() == before

    def test_callbacks_and_their_effects_run_when_delivered(self, ensemble):
        told = []
        first, second = ensemble.session(), ensemble.session()

        def answer(_event, path):
            told.append(("first", path))
            first.set_data("/answer", b"")

        first.register(answer)
        second.register(lambda _event, path: told.append(("second", path)))
        first.get_data("/question", watch=True)
        second.get_data("/answer", watch=True)
        second.set_data("/question", b"")
        assert told == []
        ensemble.deliver()
        assert told == [("first", "/question"), ("second", "/answer")]

    def test_one_session_may_be_served_alone(self, ensemble):
        told = []
        sessions = [ensemble.session() for _ in range(2)]
        for number, session in enumerate(sessions):
            session.register(lambda _event, _path, number=number: told.append(number))
            session.get_data("/a", watch=True)
        sessions[0].set_data("/a", b"")
        ensemble.deliver(sessions[1])
        assert told == [1]
        ensemble.deliver()
        assert told == [1, 0]

    def test_new_session_works_before_the_loss_is_heard(self, ensemble):
        state, told = ensemble.session(), []
        state.add_listener(told.append)
        ensemble.end_session(state)
        with pytest.raises(OutcomeUnknownError):
            state.set_data("/a", b"")
        state.set_data("/b", b"")
        assert told == []
        ensemble.deliver()
        assert told == [ConnectionState.LOST, ConnectionState.CONNECTED]


class TestCommits:
    @pytest.fixture
    def commits(self):
        return []

    @pytest.fixture
    def ensemble(self, commits):
        ensemble = MemoryEnsemble(on_commit=lambda *commit: commits.append(commit))
        yield ensemble
        for session in list(ensemble._sessions):
            session.close()

    def test_listener_gets_every_write_that_changed_something(self, ensemble, state, commits):
        state.mkdirs("/q")
        state.mkdirs("/q")
        state.set_data("/a", b"1")
        state.set_ephemeral_node("/e", b"2")
        state.create_sequential("/q/e", b"3")
        state.delete_node("/q")
        state.delete_node("/q")
        with pytest.raises(TransactionError):
            Transaction(state.commit).delete("/a").check("/a", 7).commit()
        Transaction(state.commit).check("/a", 0).set_data("/a", b"4", 0).commit()
        assert [(owner, list(operations)) for _change, owner, operations in commits] == [
            (1, [Create("/q", b"\x07")]),
            (1, [SetData("/a", b"1")]),
            (1, [Create("/e", b"2", ephemeral=True)]),
            (1, [Create("/q/e", b"3", ephemeral=True, sequential=True)]),
            (1, [Delete("/q")]),
            (1, [Check("/a", 0), SetData("/a", b"4", 0)]),
        ]
        changes = [change for change, *_ in commits]
        assert changes == sorted(set(changes))
        assert changes[-1] == state.get_stat("/a").modified == ensemble.tree.changes

    def test_one_whose_answer_was_lost_is_told_if_it_was_done(self, ensemble, state, commits):
        for applied in (False, True):
            ensemble.lose_answer(state, applied=applied)
            with pytest.raises(OutcomeUnknownError):
                state.set_data("/a", b"")
            ensemble.resume(state)
            assert len(commits) == applied

    def test_listener_gets_returned_registrations_only(self, ensemble, state, commits):
        state.set_ephemeral_node("/e", b"")
        ensemble.expire(state)
        state.close()
        assert [(owner, list(operations)) for _change, owner, operations in commits] == [
            (1, [Create("/e", b"", ephemeral=True)]),
            (2, [Create("/e", b"", ephemeral=True)]),
        ]
