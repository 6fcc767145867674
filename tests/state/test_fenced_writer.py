"""A leader's handle: what it writes is written while it leads, or not at all."""

import inspect
import typing

import pytest

from stormkeeper import paths
from stormkeeper.errors import (
    InvalidPathError,
    NotLeaderError,
    StateError,
    TransactionError,
)
from stormkeeper.state import leader_lock
from stormkeeper.state.fenced_writer import BATCH_BYTES, ROUNDS, FencedWriter
from stormkeeper.state.leader_lock import Fence
from stormkeeper.state.storage import (
    DIRECTORY,
    Check,
    ClusterState,
    Create,
    Delete,
    StateReader,
    StateWriter,
)
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState
from stormkeeper.state.storm.record_io import LeaderWriter
from support.interposed import Interposed
from support.leaders import fence_of, obtain_fence
from support.transactions import Transaction

#: What a session writes of its own, and a leader never.
OF_A_SESSION = {"set_ephemeral_node", "create_sequential"}


#: Each changes something when they are done in this order, but for the two of what is as it should.
WRITES = {
    "transaction": lambda leader: Transaction(leader.commit).set_data("/there", b"newer").commit(),
    "set_data of a node that is there": lambda leader: leader.set_data("/there", b"new"),
    "set_data of one that is not": lambda leader: leader.set_data("/absent", b"new"),
    "set_data of one whose parents are not": lambda leader: leader.set_data("/a/b/c", b"new"),
    "mkdirs": lambda leader: leader.mkdirs("/d/e"),
    "mkdirs of what is there": lambda leader: leader.mkdirs("/there"),
    "delete_node": lambda leader: leader.delete_node("/there"),
    "delete_node of a tree": lambda leader: leader.delete_node("/tree"),
    "delete_node of nothing": lambda leader: leader.delete_node("/nothing"),
}


class TestOnEveryStore:
    @pytest.fixture
    def leader(self, state):
        state.set_data("/there", b"old")
        state.set_data("/tree/a/b", b"")
        return FencedWriter(state, fence_of(state))

    def test_it_writes_as_any_state_does(self, leader, state):
        for write in WRITES.values():
            write(leader)
        assert state.read_many(["/there", "/tree", "/tree/a"]) == [None] * 3
        nodes = state.read_many(["/absent", "/a", "/a/b", "/a/b/c", "/d", "/d/e"])
        assert [node.data for node in nodes] == [b"new", b"", DIRECTORY, b"new", b"", DIRECTORY]
        assert not any(node.stat.owner for node in nodes)

    @pytest.mark.parametrize("end", ["given up", "expired", "revoked"])
    def test_without_the_lock_nothing_is_written_whatever_is_tried(self, store, state, leader, end):
        other = store.open()
        if end == "given up":
            other.delete_node(leader.fence.path)
        elif end == "expired":
            store.expire(state)
        else:
            # It deposes the leader without taking the node away from those who wait behind it.
            other.set_data(leader.fence.path, b"not you")
        before = everything_in(other)
        for write in WRITES.values():
            with pytest.raises(NotLeaderError, match=rf"{leader.fence.path}.*epoch.*take another"):
                write(leader)
        assert everything_in(other) == before

    def test_an_operation_counts_as_its_caller_added_it(self, leader):
        transaction = Transaction(leader.commit).check("/there").create("/there", b"")
        with pytest.raises(TransactionError) as caught:
            transaction.commit()
        assert caught.value.index == 1
        results = Transaction(leader.commit).check("/there").set_data("/there", b"").commit()
        assert results == [None, 1]
        assert Transaction(leader.commit).commit() == []

    def test_the_root_is_not_deleted(self, leader):
        with pytest.raises(InvalidPathError):
            leader.delete_node("/")
        leader.mkdirs("/")

    def test_a_parent_that_is_ephemeral_has_no_children(self, state, leader):
        state.set_ephemeral_node("/e", b"")
        for write in (leader.mkdirs, lambda path: leader.set_data(path, b"")):
            with pytest.raises(StateError, match="ephemeral"):
                write("/e/x")

    def test_who_does_not_lead_gets_no_handle(self, store, state, leader):
        other = store.open()
        lock = leader_lock.take(other)
        waiting = Fence(lock.path, lock.created)
        for session, fence in ((other, waiting), (other, leader.fence), (state, waiting)):
            with pytest.raises(NotLeaderError):
                FencedWriter(session, fence)
        with pytest.raises(TypeError):
            FencedWriter(state, lock)

    def test_a_successor_writes_and_the_former_leader_reads_it(self, store, state, leader):
        other = store.open()
        lock = leader_lock.take(other)
        state.delete_node(leader.fence.path)
        successor = FencedWriter(other, obtain_fence(other, lock))
        assert successor.fence.epoch > leader.fence.epoch
        successor.set_data("/there", b"successor's")
        with pytest.raises(NotLeaderError):
            leader.set_data("/there", b"zombie's")
        state.sync_path("/there")
        assert state.get_data("/there") == b"successor's"


def everything_in(state):
    """All nodes below the root but the locks, as bytes and versions."""
    found, level = {}, ["/"]
    while level:
        nodes = zip(level, state.read_many(level), strict=True)
        found |= {path: (node.data, node.stat.version) for path, node in nodes if node}
        listed = zip(level, state.children_many(level), strict=True)
        level = [f"{p.rstrip('/')}/{name}" for p, names in listed for name in names or ()]
    return {p: node for p, node in found.items() if not p.startswith(paths.LEADER_LOCK)}


class TestEveryWriteIsOneFencedTransaction:
    def test_each_begins_with_a_check_of_the_untouched_lock(self, session, leader, committed):
        session.set_data("/there", b"old")
        session.set_data("/tree/a/b", b"")
        committed.clear()
        for write in WRITES.values():
            write(leader)
        assert len(committed) >= 8
        assert all(done[0] == Check(leader.fence.path, 0) for done in committed)

    def test_a_store_whose_direct_writes_all_raise_serves_a_leader(self, session, leader):
        def refuse(*_):
            raise AssertionError("a leader wrote past its lock")

        calls = {name for name, _ in inspect.getmembers(ClusterState, inspect.isfunction)}
        direct = calls - {name for name, _ in inspect.getmembers(StateReader)} - {"commit"}
        assert OF_A_SESSION | {"set_data", "mkdirs", "delete_node"} < direct
        session.set_data("/there", b"old")
        session.set_data("/tree/a/b", b"")
        past = Interposed(session, **dict.fromkeys(direct, refuse))
        fenced = FencedWriter(past, leader.fence)
        for write in WRITES.values():
            write(fenced)
        assert session.get_children("/") == ["a", "absent", "d", "leader-lock"]

    def test_ancestors_come_with_the_node_or_not_at_all(self, leader, committed):
        leader.set_data("/a/b/c", b"x")
        assert committed == [
            [
                Check(leader.fence.path, 0),
                Create("/a", b""),
                Create("/a/b", DIRECTORY),
                Create("/a/b/c", b"x"),
            ]
        ]

    def test_a_tree_goes_in_batches_the_deepest_first(self, session, leader, committed):
        for number in range(5):
            session.set_data(f"/top/{number}/deep", b"")
        committed.clear()
        FencedWriter(session, leader.fence, batch=4).delete_node("/top")
        deleted = [[op.path for op in done[1:]] for done in committed]
        assert [len(batch) for batch in deleted] == [4, 4, 2, 1]
        assert deleted[0] == [f"/top/{number}/deep" for number in range(4)]
        assert deleted[-1] == ["/top"]
        assert all(isinstance(op, Delete) for done in committed for op in done[1:])

    def test_long_paths_go_in_batches_that_a_server_takes(self, session, leader, committed):
        long = "x" * 20_000
        for number in range(40):
            session.set_data(f"/top/{number}{long}", b"")
        committed.clear()
        leader.delete_node("/top")
        sizes = [sum(len(op.path) for op in done[1:]) for done in committed]
        assert max(sizes) <= BATCH_BYTES
        assert len(sizes) == 5
        assert not session.node_exists("/top")


class TestOthersInTheWay:
    def test_nodes_that_others_add_to_a_tree_are_deleted_too(self, session, leader):
        session.set_data("/top/a", b"")
        busy = [session.set_data] * 3

        def children_many(wanted):
            listed = session.children_many(wanted)
            if busy:
                busy.pop()(f"/top/{len(busy)}/late", b"")
            return listed

        fenced = FencedWriter(Interposed(session, children_many=children_many), leader.fence)
        fenced.delete_node("/top")
        assert not busy
        assert not session.node_exists("/top")

    def test_nodes_that_others_delete_meanwhile_are_fine(self, session, leader):
        for name in "abc":
            session.set_data(f"/top/{name}/x", b"")
        gone = ["/top/b", "/top/a/x"]

        def children_many(wanted):
            listed = session.children_many(wanted)
            if "/top" not in wanted and gone:
                session.delete_node(gone.pop())
            return listed

        fenced = FencedWriter(Interposed(session, children_many=children_many), leader.fence)
        fenced.delete_node("/top")
        assert not gone
        assert not session.node_exists("/top")

    def test_who_never_stops_adding_ends_the_deletion(self, session, leader):
        session.set_data("/top/a", b"")
        numbers = iter(range(1000))

        def children_many(wanted):
            listed = session.children_many(wanted)
            session.set_data(f"/top/{next(numbers)}", b"")
            return listed

        fenced = FencedWriter(Interposed(session, children_many=children_many), leader.fence)
        with pytest.raises(StateError, match=f"delete /top.*{ROUNDS} times"):
            fenced.delete_node("/top")
        assert next(numbers) >= ROUNDS

    def test_a_node_that_comes_and_goes_is_written_in_the_end(self, session, leader):
        """Whenever a set finds nothing, another makes the node; whenever a create does, it goes."""
        turns = []

        def commit(operations):
            if len(turns) < 6:
                turns.append(type(operations[1]))
                if isinstance(operations[1], Create):
                    session.set_data("/a", b"another's")
                else:
                    session.delete_node("/a")
            return session.commit(operations)

        fenced = FencedWriter(Interposed(session, commit=commit), leader.fence)
        fenced.set_data("/a", b"mine")
        assert len(turns) == 6
        assert session.get_data("/a") == b"mine"

    @pytest.mark.parametrize(
        ("write", "value"),
        [
            (lambda leader: leader.set_data("/a/b/c", b"mine"), b"mine"),
            (lambda leader: leader.mkdirs("/a/b/c"), DIRECTORY),
        ],
        ids=["set_data", "mkdirs"],
    )
    def test_ancestors_that_another_makes_meanwhile_stay_as_they_are(
        self, session, leader, write, value
    ):
        others = [lambda: session.set_data("/a/b", b"another's")]

        def commit(operations):
            if len(operations) > 3 and others:
                others.pop()()
            return session.commit(operations)

        fenced = FencedWriter(Interposed(session, commit=commit), leader.fence)
        write(fenced)
        assert not others
        assert session.get_data("/a/b") == b"another's"
        assert session.get_data("/a/b/c") == value


class TestTheTypeSaysSo:
    def test_fenced_writer_has_every_call_of_a_writer(self):
        for name, method in inspect.getmembers(StateWriter, inspect.isfunction):
            if not name.startswith("_"):
                found = inspect.signature(getattr(FencedWriter, name))
                assert found == inspect.signature(method), name

    def test_it_has_no_other(self):
        writes = {name for name in dir(StateWriter) if not name.startswith("_")}
        assert {name for name in dir(FencedWriter) if not name.startswith("_")} == writes
        assert not OF_A_SESSION & writes

    def test_leaders_take_nothing_else(self, session):
        assert typing.get_type_hints(LeaderClusterState.__init__)["writer"] is FencedWriter
        with pytest.raises(TypeError, match="MemoryState"):
            LeaderClusterState(session, None)

    def test_no_operation_of_leaders_is_anybody_s(self):
        leaders = {
            name
            for base in inspect.getmro(LeaderClusterState)
            if issubclass(base, LeaderWriter) and base is not LeaderClusterState
            for name in vars(base)
            if not name.startswith("_")
        }
        assert {"set_assignment", "activate_storm", "remove_storm", "set_task"} <= leaders
        assert not leaders & set(dir(StormClusterState))
