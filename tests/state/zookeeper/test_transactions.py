"""Transactions in ZooKeeper: what servers and networks can answer to them.

What holds in every store is in ``test_conformance_bulk.py``.
"""

import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from kazoo.security import make_digest_acl

from stormkeeper.errors import (
    AccessDeniedError,
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OutcomeUnknownError,
    StateError,
    StateUnavailableError,
    TransactionError,
)
from stormkeeper.state.storage import Check, ConnectionState, Create, Delete, SetData, digest_id
from stormkeeper.state.zookeeper.ensemble_connection import EnsembleConnection
from stormkeeper.state.zookeeper.ensemble_settings import AccessRules, EnsembleSettings, Security
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.proxy import Proxy
from support.scripted_zookeeper import MULTI, ScriptedPeer, ScriptedZooKeeper
from support.stores import settings_for
from support.transactions import Transaction
from support.waiting import DEADLINE_SECS, until
from support.zookeeper import expire_session

CONNECTED, SUSPENDED, LOST = ConnectionState

STORM = f"digest:{digest_id('storm:secret')}"
AS_STORM = Security(
    digests=(("digest", "storm:secret"),),
    identities=(STORM,),
    rules=AccessRules(authenticated=True),
)


@pytest.fixture
def connect(zookeeper_server, zookeeper_root):
    """Opens sessions with the shared server, or with another at `address`."""
    sessions = []

    def connect(address=None, security=None, **times):
        settings = settings_for(zookeeper_server, zookeeper_root, **times)
        if address is not None:
            settings = replace(settings, servers=(address,))
        if security is not None:
            settings = replace(settings, security=security)
        sessions.append(ZooKeeperState(settings))
        return sessions[-1]

    yield connect
    for session in sessions:
        session.close()


@pytest.fixture
def proxy(zookeeper_server):
    with Proxy(zookeeper_server.address) as proxy:
        yield proxy


@pytest.fixture
def attempt():
    """Runs a call beside the test."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


@pytest.mark.zookeeper
class TestRefusals:
    @pytest.mark.parametrize("index", range(4))
    @pytest.mark.parametrize(
        ("operation", "reason", "doing"),
        [
            (Check("/absent"), NoNodeError, "check"),
            (Check("/parent", 7), BadVersionError, "check"),
            (Create("/parent", b""), NodeExistsError, "create"),
            (SetData("/absent", b""), NoNodeError, "write"),
            (Delete("/parent", 7), BadVersionError, "delete"),
            (Delete("/parent"), NotEmptyError, "delete"),
        ],
    )
    def test_which_and_why(self, connect, zookeeper_root, index, operation, reason, doing):
        state = connect()
        state.set_data("/parent/child", b"x")
        operations = [
            Check("/parent/child", 0),
            SetData("/parent/child", b"y"),
            Create("/new", b""),
        ]
        operations.insert(index, operation)
        transaction = Transaction(state.commit)
        for one in operations:
            transaction.add(one)
        with pytest.raises(TransactionError) as refused:
            transaction.commit()
        assert refused.value.index == index
        assert type(refused.value.reason) is reason
        assert f"cannot {doing} {zookeeper_root}{operation.path}: " in str(refused.value)
        assert state.get_data("/parent/child") == b"x"
        assert not state.node_exists("/new")

    def test_an_acl_and_who_we_are(self, connect):
        state = connect(security=AS_STORM)
        state.mkdirs("/theirs")
        theirs = [make_digest_acl("u", "p", all=True)]
        state._connection._client.set_acls(state._node("/theirs"), theirs)
        with pytest.raises(TransactionError) as refused:
            Transaction(state.commit).check("/").create("/theirs/a", b"").commit()
        assert refused.value.index == 1
        assert isinstance(refused.value.reason, AccessDeniedError)
        assert f"({STORM})" in str(refused.value)

    def test_nodes_have_the_acl_of_their_paths(self, connect):
        state = connect(security=AS_STORM)
        state.mkdirs("/storms")
        transaction = Transaction(state.commit).create(
            "/storms/wc-1", b"x", workers_digest="wc:digest"
        )
        made = transaction.create("/other", b"").commit()
        assert made == ["/storms/wc-1", "/other"]
        client = state._connection._client

        def granted(path):
            acl, _ = client.get_acls(state._node(path))
            return {(f"{one.id.scheme}:{one.id.id}", one.perms) for one in acl}

        assert granted("/storms/wc-1") == {(STORM, 31), ("digest:wc:digest", 1)}
        assert granted("/other") == granted("/storms") == granted("/") == {(STORM, 31)}

    def test_one_above_the_servers_limit_says_how_large_it_is(self, connect):
        state = connect(retry_times=2)
        transaction = Transaction(state.commit)
        for number in range(4):
            transaction.create(f"/{number}", bytes(500_000))
        with pytest.raises(OutcomeUnknownError, match=r"20000\d\d bytes.*jute\.maxbuffer"):
            transaction.commit()
        until(lambda: state.connection is CONNECTED)
        assert not state.node_exists("/0")


@pytest.mark.zookeeper
class TestOutcomes:
    def test_a_lost_answer_is_unknown_and_nothing_is_repeated(self, connect, proxy, attempt):
        state, other = connect(proxy.address), connect()
        proxy.hold_answers()
        outcome = attempt(
            lambda: Transaction(state.commit).create("/n-", b"", sequential=True).commit()
        )
        until(lambda: other.get_children("/"))
        proxy.cut()
        with pytest.raises(OutcomeUnknownError, match="may have been done or not"):
            outcome.result(DEADLINE_SECS)
        proxy.flow()
        proxy.mend()
        until(lambda: state.connection is CONNECTED)
        state.sync_path("/")
        assert state.get_children("/") == ["n-0000000000"]

    def test_no_answer_in_time_is_unknown(self, connect, proxy):
        state, other = connect(proxy.address, call_timeout_secs=1.5), connect()
        proxy.hold_answers()
        with pytest.raises(OutcomeUnknownError, match="did not answer in time"):
            Transaction(state.commit).create("/a", b"").commit()
        until(lambda: other.node_exists("/a"))
        proxy.flow()

    def test_one_that_was_never_sent_was_not_done(self, connect, proxy):
        state, other = connect(proxy.address, call_timeout_secs=1.5), connect()
        proxy.cut()
        until(lambda: state.connection is SUSPENDED)
        with pytest.raises(StateUnavailableError, match="SUSPENDED") as failure:
            Transaction(state.commit).create("/a", b"").commit()
        assert not isinstance(failure.value, OutcomeUnknownError)
        proxy.mend()
        until(lambda: state.connection is CONNECTED)
        assert not other.node_exists("/a")


@pytest.mark.zookeeper
class TestRegistrations:
    def test_one_whose_deletion_is_refused_is_kept(self, connect):
        state = connect()
        state.set_ephemeral_node("/s", b"mine")
        with pytest.raises(TransactionError):
            Transaction(state.commit).delete("/s").check("/absent").commit()
        expire_session(state)
        assert state.get_data("/s") == b"mine"

    def test_commit_waits_for_a_registration_until_the_deadline(self, connect):
        state = connect(call_timeout_secs=1.5)
        state.set_ephemeral_node("/s", b"mine")
        with (
            state._registrations.held(state._connection.deadline()),
            pytest.raises(StateUnavailableError, match="being made again"),
        ):
            Transaction(state.commit).delete("/s").commit()
        assert state.get_data("/s") == b"mine"
        assert Transaction(state.commit).delete("/s").commit() == [None]

    def test_deletions_of_other_nodes_do_not_wait(self, connect):
        state = connect()
        state.mkdirs("/a")
        done = threading.Event()
        with state._registrations.held(state._connection.deadline()):
            Transaction(state.commit).delete("/a").commit()
            done.set()
        assert done.is_set()


class TestAnswersThatServersSeldomGive:
    def attempt(self, answer):
        """Commit with a server that gives `answer` to every transaction."""

        def script(peer):
            peer.greet()
            asked = peer.next()
            assert asked.type == MULTI
            peer.send(answer(peer, asked))
            # That it is closing.
            peer.next()

        with ScriptedZooKeeper(script, ScriptedPeer.serve) as server:
            connection = EnsembleConnection(
                EnsembleSettings(servers=(server.address,), call_timeout_secs=10.0),
                lambda _state: None,
            )
            try:
                connection.start()
                operations = [Check("/lock", 0), Delete("/a"), SetData("/b", b"")]
                return connection.commit(operations, lambda _node: None, connection.deadline())
            finally:
                connection.close()

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            (-118, OutcomeUnknownError),
            (-101, NoNodeError),
            (-103, BadVersionError),
            (-5, StateError),
        ],
    )
    def test_a_refusal_of_the_whole_names_no_operation(self, code, error):
        """Such as one of a session that has moved: it must not look like a lost lock's."""
        with pytest.raises(StateError) as failure:
            self.attempt(lambda peer, asked: peer.answer(asked, error=code))
        assert isinstance(failure.value, error)
        assert not isinstance(failure.value, TransactionError)

    @pytest.mark.parametrize(("codes", "index"), [((-103, -2, -2), 0), ((0, 0, -102), 2)])
    def test_the_one_that_was_refused_is_told_from_those_around_it(self, codes, index):
        with pytest.raises(TransactionError) as failure:
            self.attempt(lambda peer, asked: peer.results(asked, *codes))
        assert failure.value.index == index

    def test_a_refusal_without_a_reason(self):
        with pytest.raises(StateError, match="does not say why") as failure:
            self.attempt(lambda peer, asked: peer.results(asked, 0, -2, -2))
        assert not isinstance(failure.value, TransactionError)

    @pytest.mark.parametrize("body", [b"", b"\xff" * 5, struct.pack("!iBi", 99, 0, 0)])
    def test_an_answer_that_cannot_be_read_leaves_it_unknown(self, body):
        with pytest.raises(OutcomeUnknownError):
            self.attempt(lambda peer, asked: peer.answer(asked, body))
