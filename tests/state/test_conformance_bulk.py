"""What `ClusterState` promises of transactions and of many nodes at once, asked of every store."""

import itertools
import threading
import time

import pytest

from stormkeeper.errors import (
    BadVersionError,
    InvalidPathError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    StateClosedError,
    StateError,
    TransactionError,
)
from stormkeeper.state.storage import (
    Check,
    ConnectionState,
    Create,
    Delete,
    EventType,
    SetData,
    VersionedData,
)
from support.events import CHANGED, CHILDREN, CREATED, DELETED
from support.hearing import Hearing
from support.transactions import Transaction
from support.waiting import until


class TestTransactions:
    def test_operations_happen_in_order_and_see_earlier_ones(self, state):
        state.set_data("/old", b"0")
        results = (
            Transaction(state.commit)
            .check("/old", 0)
            .create("/new", b"")
            .create("/new/child", b"1")
            .set_data("/new/child", b"2", version=0)
            .set_data("/old", b"1")
            .check("/old", 1)
            .delete("/old")
            .commit()
        )
        assert results == [None, "/new", "/new/child", 1, 1, None, None]
        assert state.get_data_with_version("/new/child") == VersionedData(b"2", 1)
        assert not state.node_exists("/old")

    @pytest.mark.parametrize(
        ("add", "reason"),
        [
            (lambda t: t.check("/absent"), NoNodeError),
            (lambda t: t.check("/there", 1), BadVersionError),
            (lambda t: t.create("/there", b""), NodeExistsError),
            (lambda t: t.create("/absent/child", b""), NoNodeError),
            (lambda t: t.create("/ephemeral/child", b""), StateError),
            (lambda t: t.create("/absent/e", b"", sequential=True), NoNodeError),
            (lambda t: t.set_data("/absent", b""), NoNodeError),
            (lambda t: t.set_data("/there", b"", 7), BadVersionError),
            (lambda t: t.delete("/absent"), NoNodeError),
            (lambda t: t.delete("/there", 7), BadVersionError),
            (lambda t: t.delete("/parent"), NotEmptyError),
        ],
    )
    def test_one_that_is_refused_is_named_and_nothing_happens(self, state, add, reason):
        state.set_data("/there", b"0")
        state.set_data("/parent/child", b"")
        state.set_ephemeral_node("/ephemeral", b"")
        for before in ([], ["/made-0", "/made-1"]):
            transaction = Transaction(state.commit)
            for path in before:
                transaction.create(path, b"")
            add(transaction)
            transaction.set_data("/there", b"never")
            with pytest.raises(TransactionError) as caught:
                transaction.commit()
            assert caught.value.index == len(before)
            assert type(caught.value.reason) is reason
        assert state.get_data_with_version("/there") == VersionedData(b"0", 0)
        assert state.read_many(["/made-0", "/made-1"]) == [None, None]
        assert state.get_children("/parent") == ["child"]

    def test_no_ancestors_are_made(self, state):
        with pytest.raises(TransactionError):
            Transaction(state.commit).create("/a/b", b"").commit()
        assert not state.node_exists("/a")

    def test_refused_sequential_node_uses_no_number(self, state):
        state.mkdirs("/q")
        made = (
            Transaction(state.commit)
            .create("/q/e", b"0", sequential=True)
            .create("/q/e", b"1", sequential=True)
            .commit()
        )
        assert made == ["/q/e0000000000", "/q/e0000000001"]
        with pytest.raises(TransactionError):
            Transaction(state.commit).create("/q/e", b"", sequential=True).check("/absent").commit()
        assert state.create_sequential("/q/e", b"") == "/q/e0000000002"

    def test_ephemeral_nodes_of_a_transaction_end_with_the_session(self, store, state):
        Transaction(state.commit).create("/e", b"", ephemeral=True).create("/p", b"").commit()
        other = store.open()
        assert other.get_stat("/e").owner != 0
        assert other.get_stat("/p").owner == 0
        store.expire(state)
        until(lambda: not other.node_exists("/e"))
        state.sync_path("/e")
        assert not state.node_exists("/e")
        assert state.node_exists("/p")

    def test_a_registration_that_it_deletes_is_given_up(self, store, state):
        state.set_ephemeral_node("/given-up", b"")
        state.set_ephemeral_node("/kept", b"")
        with pytest.raises(TransactionError):
            Transaction(state.commit).delete("/kept").check("/absent").commit()
        Transaction(state.commit).delete("/given-up").commit()
        store.expire(state)
        until(lambda: state.node_exists("/kept"))
        assert not state.node_exists("/given-up")

    def test_watches_fire_for_applied_operations_only(self, state):
        heard = Hearing(state)
        state.set_data("/there", b"0")
        state.mkdirs("/top")
        for path in ("/there", "/new", "/top/child"):
            state.get_data(path, watch=True)
        state.get_children("/top", watch=True)
        with pytest.raises(TransactionError):
            Transaction(state.commit).set_data("/there", b"1").create("/top", b"").commit()
        assert heard.events() == []
        (
            Transaction(state.commit)
            .create("/top/child", b"")
            .set_data("/there", b"1")
            .create("/new", b"")
            .commit()
        )
        assert heard.events() == [
            (CREATED, "/top/child"),
            (CHILDREN, "/top"),
            (CHANGED, "/there"),
            (CREATED, "/new"),
        ]

    def test_all_of_it_is_one_change(self, state):
        Transaction(state.commit).create("/a", b"").create("/b", b"").set_data("/b", b"1").commit()
        state.set_data("/c", b"")
        first, second, third = (state.get_stat(path) for path in ("/a", "/b", "/c"))
        assert first.created == second.created == second.modified
        assert third.created > first.created

    def test_of_two_that_expect_the_same_version_one_happens(self, store):
        sessions = [store.open() for _ in range(4)]
        sessions[0].set_data("/counted", b"0")
        refused = []

        def count(session):
            for _ in range(10):
                while True:
                    found = session.get_data_with_version("/counted")
                    following = str(int(found.data) + 1).encode()
                    try:
                        Transaction(session.commit).set_data(
                            "/counted", following, found.version
                        ).commit()
                    except TransactionError as error:
                        refused.append(error.reason)
                    else:
                        break

        threads = [threading.Thread(target=count, args=(session,)) for session in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sessions[0].get_data_with_version("/counted") == VersionedData(b"40", 40)
        assert {type(reason) for reason in refused} <= {BadVersionError}

    def test_many_operations(self, state):
        state.mkdirs("/many")
        paths = [f"/many/{number:03}" for number in range(250)]
        making = Transaction(state.commit)
        for path in paths:
            making.create(path, b"x" * 100)
        assert making.commit() == paths
        deleting = Transaction(state.commit)
        for path in paths:
            deleting.delete(path)
        deleting.delete("/many").commit()
        assert not state.node_exists("/many")

    def test_what_is_no_path_is_refused_before_it_is_sent(self, state):
        for operation in (
            Check("a"),
            Create("/a/", b""),
            SetData("", b""),
            Delete("//"),
            Delete("/"),
        ):
            with pytest.raises(InvalidPathError):
                Transaction(state.commit).create("/made", b"").add(operation).commit()
        assert not state.node_exists("/made")

    def test_a_closed_session_commits_nothing(self, store, state):
        transaction = Transaction(state.commit).create("/a", b"")
        state.close()
        with pytest.raises(StateClosedError):
            transaction.commit()
        assert not store.open().node_exists("/a")


class TestReadingMany:
    def test_answers_are_in_the_order_of_the_paths(self, state):
        state.set_data("/a", b"1")
        state.set_data("/b", b"2")
        state.set_data("/b", b"3")
        found = state.read_many(["/b", "/absent", "/a", "/b", "/absent/deeper"])
        assert [node and (node.data, node.stat.version) for node in found] == [
            (b"3", 1),
            None,
            (b"1", 0),
            (b"3", 1),
            None,
        ]
        assert state.read_many([]) == []

    def test_what_is_told_of_a_node_is_its_stat(self, state):
        state.set_data("/a/child", b"")
        assert state.read_many(["/a"])[0].stat == state.get_stat("/a")

    def test_more_than_are_under_way_at_once(self, state):
        transaction = Transaction(state.commit).create("/many", b"")
        for number in range(1200):
            transaction.create(f"/many/{number:04}", str(number).encode())
        transaction.commit()
        paths = [f"/many/{number:04}" for number in range(1300)]
        found = state.read_many(paths)
        assert [node and node.data for node in found] == [
            *(str(number).encode() for number in range(1200)),
            *[None] * 100,
        ]

    def test_watches_of_what_there_is_and_of_what_there_is_not(self, state):
        heard = Hearing(state)
        for path in ("/changed", "/deleted", "/untouched"):
            state.set_data(path, b"0")
        state.read_many(["/changed", "/absent", "/deleted", "/untouched"], watch=True)
        state.set_data("/changed", b"1")
        state.set_data("/absent", b"")
        state.delete_node("/deleted")
        state.set_data("/changed", b"2")
        assert heard.events() == [
            (CHANGED, "/changed"),
            (CREATED, "/absent"),
            (DELETED, "/deleted"),
        ]

    def test_without_a_watch_nothing_is_told(self, state):
        heard = Hearing(state)
        state.set_data("/a", b"0")
        state.read_many(["/a", "/b"])
        state.children_many(["/a", "/b"])
        state.children_data("/a")
        state.get_stat("/a")
        state.set_data("/a", b"1")
        state.set_data("/a/c", b"1")
        state.set_data("/b", b"1")
        assert heard.events() == []

    def test_what_is_no_path(self, state):
        for call in (state.read_many, state.children_many):
            with pytest.raises(InvalidPathError):
                call(["/a", "b"])


class TestChildren:
    def test_of_many_nodes(self, state):
        for path in ("/a/z", "/a/y", "/b"):
            state.set_data(path, b"")
        assert state.children_many(["/b", "/absent", "/a"]) == [[], None, ["y", "z"]]
        assert "a" in state.children_many(["/"])[0]
        assert state.children_many([]) == []

    def test_with_their_values(self, state):
        state.set_data("/a/z", b"1")
        state.set_data("/a/z", b"2")
        state.set_data("/a/y/below", b"")
        found = state.children_data("/a")
        assert list(found) == ["y", "z"]
        assert found["z"].data == b"2"
        assert found["z"].stat == state.get_stat("/a/z")
        assert found["y"].stat.children == 1
        assert state.children_data("/a/z") == {}
        assert "a" in state.children_data("/")

    def test_of_an_absent_node_are_an_error(self, state):
        with pytest.raises(NoNodeError, match="/absent"):
            state.children_data("/absent")
        with pytest.raises(NoNodeError):
            state.children_data("/absent", watch=True)

    def test_the_watch_is_that_of_the_names(self, state):
        heard = Hearing(state)
        state.set_data("/a/b", b"0")
        state.children_data("/a", watch=True)
        state.set_data("/a/b", b"1")
        state.set_data("/a", b"1")
        assert heard.events() == []
        state.set_data("/a/c", b"")
        state.set_data("/a/d", b"")
        assert heard.events() == [(CHILDREN, "/a")]

    def test_those_deleted_meanwhile_are_left_out(self, store, state):
        other = store.open()
        state.set_data("/busy/kept", b"x")
        stop = threading.Event()

        def churn():
            for number in itertools.count():
                other.set_data(f"/busy/{number % 10}", b"x")
                other.delete_node(f"/busy/{number % 10}")
                if stop.wait(0.001):
                    break

        churner = threading.Thread(target=churn)
        churner.start()
        try:
            deadline = time.monotonic() + 0.3
            while time.monotonic() < deadline:
                found = state.children_data("/busy")
                assert found["kept"].data == b"x"
                assert {node.data for node in found.values()} == {b"x"}
        finally:
            stop.set()
            churner.join()


class TestStat:
    def test_it_counts_versions_and_children(self, state):
        state.set_data("/a/b", b"0")
        state.set_data("/a/c", b"0")
        state.set_data("/a", b"1")
        stat = state.get_stat("/a")
        assert (stat.version, stat.children, stat.owner) == (1, 2, 0)
        assert state.get_stat("/absent") is None

    def test_it_says_when_what_changed(self, state):
        state.set_data("/a", b"")
        made = state.get_stat("/a")
        assert made.created == made.modified == made.children_modified > 0
        state.set_data("/a", b"1")
        changed = state.get_stat("/a")
        assert changed.modified > made.modified
        assert (changed.created, changed.children_modified) == (made.created, made.created)
        state.set_data("/a/b", b"")
        child = state.get_stat("/a/b")
        assert state.get_stat("/a").children_modified == child.created > changed.modified
        assert state.get_stat("/a").modified == changed.modified
        state.delete_node("/a/b")
        assert state.get_stat("/a").children_modified > child.created

    def test_what_is_made_later_has_a_greater_count_whoever_makes_it(self, store, state):
        other = store.open()
        made = []
        for session in (state, other, state, other):
            path = session.create_sequential("/locks/e", b"")
            made.append(session.get_stat(path).created)
        assert made == sorted(set(made))

    def test_ephemeral_nodes_have_an_owner(self, store, state):
        state.set_ephemeral_node("/mine", b"")
        store.open().set_ephemeral_node("/others", b"")
        mine, others = state.get_stat("/mine").owner, state.get_stat("/others").owner
        assert 0 not in (mine, others)
        assert mine != others
        store.expire(state)
        assert state.get_stat("/mine").owner not in (0, mine)

    def test_its_watch_is_that_of_the_value(self, state):
        heard = Hearing(state)
        state.get_stat("/a", watch=True)
        state.set_data("/a", b"")
        state.get_stat("/a", watch=True)
        state.set_data("/a/child", b"")
        state.set_data("/a", b"1")
        assert heard.events() == [(CREATED, "/a"), (CHANGED, "/a")]


class TestMissedEvents:
    def test_new_session_reports_missed_events(self, store, state):
        first, second = Hearing(state), Hearing(state)
        assert first.missed == 0
        store.expire(state)
        before = first.missed
        assert before == second.missed >= 1
        store.expire(state)
        assert first.missed == second.missed > before

    def test_missed_events_come_after_connection_and_registrations(self, store, state):
        state.set_ephemeral_node("/registration", b"")
        told = []
        state.add_listener(told.append)

        def note(event, path):
            told.append((event, path))
            if event is EventType.EVENTS_MISSED:
                told.append(state.node_exists("/registration"))

        state.register(note)
        store.expire(state)
        until(lambda: told[-1:] == [True])
        assert told[-4:] == [
            ConnectionState.LOST,
            ConnectionState.CONNECTED,
            (EventType.EVENTS_MISSED, "/"),
            True,
        ]
