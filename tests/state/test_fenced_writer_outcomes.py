"""What a leader is told of its writes, and what became of them, when a connection breaks."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from stormkeeper.errors import NotLeaderError, OutcomeUnknownError, StateUnavailableError
from stormkeeper.state.fenced_writer import BATCH, DELETE_SECS, FencedWriter
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.interposed import Interposed
from support.leaders import fence_of
from support.proxy import Proxy
from support.stores import settings_for
from support.transactions import Transaction
from support.waiting import DEADLINE_SECS, until


class TestInMemory:
    """Done, refused, never sent, and unknown are told apart, and each is true."""

    @pytest.mark.parametrize("applied", [True, False])
    def test_a_lost_answer_is_unknown_to_the_caller(self, ensemble, session, leader, applied):
        other = ensemble.session()
        ensemble.lose_answer(session, applied=applied)
        with pytest.raises(OutcomeUnknownError):
            Transaction(leader.commit).create("/a", b"x").commit()
        assert other.node_exists("/a") is applied
        with pytest.raises(StateUnavailableError) as caught:
            leader.set_data("/a", b"y")
        assert not isinstance(caught.value, OutcomeUnknownError)
        ensemble.resume(session)
        # The lock is there, so nobody else led meanwhile, and it may read again and go on.
        leader.set_data("/a", b"y")
        assert other.get_data("/a") == b"y"

    def test_it_is_not_tried_again(self, ensemble, session, leader, committed):
        session.set_data("/a", b"")
        for write in (
            lambda: leader.set_data("/a", b"x"),
            lambda: leader.mkdirs("/b"),
            lambda: Transaction(leader.commit).delete("/a").commit(),
        ):
            committed.clear()
            ensemble.lose_answer(session, applied=True)
            with pytest.raises(OutcomeUnknownError):
                write()
            assert len(committed) == 1
            ensemble.resume(session)

    def test_write_of_an_ended_session_is_unknown_then_refused(self, ensemble, session, leader):
        ensemble.end_session(session)
        with pytest.raises(OutcomeUnknownError):
            leader.set_data("/a", b"x")
        assert session.connection is ConnectionState.CONNECTED
        with pytest.raises(NotLeaderError):
            leader.set_data("/a", b"x")
        assert not session.node_exists("/a")

    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("lost", range(4))
    def test_a_large_deletion_goes_on_where_an_answer_was_lost(
        self, ensemble, session, leader, applied, lost
    ):
        for number in range(10):
            session.set_data(f"/top/{number}", b"")
        deletions = []

        def commit(operations):
            ensemble.resume(session)
            deletions.append("begun")
            if len(deletions) == lost + 1:
                ensemble.lose_answer(session, applied=applied)
            return session.commit(operations)

        def children_many(wanted):
            # As a real session waits for its connection to be back.
            ensemble.resume(session)
            return session.children_many(wanted)

        fenced = FencedWriter(
            Interposed(session, commit=commit, children_many=children_many), leader.fence, batch=4
        )
        fenced.delete_node("/top")
        assert len(deletions) > lost
        assert not session.node_exists("/top")

    def test_a_deletion_does_not_go_on_once_the_lock_is_gone(self, ensemble, session, leader):
        for number in range(10):
            session.set_data(f"/top/{number}", b"")
        begun = []

        def commit(operations):
            begun.append("begun")
            if len(begun) == 3:
                ensemble.end_session(session)
            return session.commit(operations)

        fenced = FencedWriter(Interposed(session, commit=commit), leader.fence, batch=4)
        with pytest.raises(NotLeaderError):
            fenced.delete_node("/top")
        assert len(session.get_children("/top")) == 6

    def test_a_connection_that_stays_away_leaves_a_deletion_unknown(
        self, ensemble, session, leader
    ):
        session.set_data("/top/a", b"")
        ensemble.lose_answer(session, applied=False)
        with pytest.raises(OutcomeUnknownError):
            leader.delete_node("/top")
        with pytest.raises(StateUnavailableError) as caught:
            leader.delete_node("/top")
        assert not isinstance(caught.value, OutcomeUnknownError)

    def test_deletion_is_unknown_if_the_connection_breaks(self, ensemble, session, leader):
        begun = []

        def commit(operations):
            begun.append("one")
            if len(begun) == 3:
                ensemble.suspend(session)
            return session.commit(operations)

        for number in range(4):
            session.set_data(f"/top/{number}", b"")
        fenced = FencedWriter(Interposed(session, commit=commit), leader.fence, batch=2)
        with pytest.raises(OutcomeUnknownError, match="a part is deleted already"):
            fenced.delete_node("/top")
        ensemble.resume(session)
        assert len(session.get_children("/top")) == 2

    @pytest.mark.parametrize(("pause", "last"), [(DELETE_SECS / 4, 75), (DELETE_SECS / 100, 12)])
    def test_answers_that_are_lost_for_ever_end_a_deletion(self, session, leader, pause, last):
        now = [0.0]

        def lose(_operations):
            now[0] += pause
            raise OutcomeUnknownError(f"lost at {now[0]:.0f}")

        session.set_data("/top/a", b"")
        fenced = FencedWriter(Interposed(session, commit=lose), leader.fence, clock=lambda: now[0])
        with pytest.raises(OutcomeUnknownError, match=f"lost at {last}"):
            fenced.delete_node("/top")


@pytest.mark.zookeeper
class TestNetworkCut:
    """A real server, and a connection that breaks between a request and its answer."""

    @pytest.fixture
    def proxy(self, zookeeper_server):
        with Proxy(zookeeper_server.address) as proxy:
            yield proxy

    @pytest.fixture
    def connect(self, zookeeper_server, zookeeper_root):
        sessions = []

        def connect(address=None, **times):
            settings = settings_for(zookeeper_server, zookeeper_root, **times)
            if address is not None:
                settings = replace(settings, servers=(address,))
            sessions.append(ZooKeeperState(settings))
            return sessions[-1]

        yield connect
        for session in sessions:
            session.close()

    def test_a_write_whose_answer_is_lost_is_done_and_unknown(self, connect, proxy):
        state, other = connect(proxy.address), connect()
        leader = FencedWriter(state, fence_of(state))
        proxy.hold_answers()
        write = attempt(lambda: Transaction(leader.commit).create("/a", b"x").commit())
        until(lambda: other.node_exists("/a"))
        proxy.cut()
        assert isinstance(write.exception(DEADLINE_SECS), OutcomeUnknownError)
        proxy.flow()
        proxy.mend()
        until(lambda: state.connection is ConnectionState.CONNECTED)
        # The session lived on, and the lock with it: it reads again, and leads on.
        assert state.get_data("/a") == b"x"
        leader.set_data("/a", b"y")

    def test_a_write_that_is_lost_on_its_way_is_not_done_and_unknown(self, connect, proxy):
        state, other = connect(proxy.address), connect()
        leader = FencedWriter(state, fence_of(state))
        proxy.stall()
        write = attempt(lambda: Transaction(leader.commit).create("/a", b"x").commit())
        until(lambda: state._connection._client._pending)
        proxy.cut()
        proxy.flow()
        assert isinstance(write.exception(DEADLINE_SECS), OutcomeUnknownError)
        proxy.mend()
        until(lambda: state.connection is ConnectionState.CONNECTED)
        other.sync_path("/")
        assert not other.node_exists("/a")
        leader.set_data("/a", b"y")

    def test_a_write_that_was_never_sent_says_so(self, connect, proxy):
        state = connect(proxy.address, call_timeout_secs=1.5)
        leader = FencedWriter(state, fence_of(state))
        proxy.cut()
        until(lambda: state.connection is ConnectionState.SUSPENDED)
        for write in (lambda: leader.set_data("/a", b"x"), lambda: leader.delete_node("/a")):
            with pytest.raises(StateUnavailableError) as caught:
                write()
            assert not isinstance(caught.value, OutcomeUnknownError)

    def test_a_large_deletion_goes_on_after_a_cut(self, connect, proxy):
        state, other = connect(proxy.address), connect()
        other.mkdirs("/top")
        for first in range(0, 2000, 500):
            transaction = Transaction(other.commit)
            for number in range(first, first + 500):
                transaction.create(f"/top/{number}", b"")
            transaction.commit()
        begun = []

        def commit(operations):
            begun.append("begun")
            if len(begun) == 4:
                proxy.hold_answers()
            return state.commit(operations)

        fence = fence_of(state)
        leader = FencedWriter(Interposed(state, commit=commit), fence)
        deletion = attempt(lambda: leader.delete_node("/top"))
        until(lambda: len(other.get_children("/top")) == 2000 - 3 * BATCH)
        assert not deletion.done()
        proxy.cut()
        proxy.flow()
        proxy.mend()
        assert deletion.exception(DEADLINE_SECS) is None
        assert not other.node_exists("/top")


def attempt(call):
    """Begin a call on a thread of its own."""
    pool = ThreadPoolExecutor(1)
    outcome = pool.submit(call)
    pool.shutdown(wait=False)
    return outcome
