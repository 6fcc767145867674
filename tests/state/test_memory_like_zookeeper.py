"""Random operations on memory and on a real ZooKeeper, side by side: they never differ."""

import itertools

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from stormkeeper.errors import StateError, TransactionError
from stormkeeper.state.storage import Check, Create, Delete, NodeData, NodeStat, SetData
from stormkeeper.state.zookeeper import recovery
from support.hearing import Hearing
from support.stores import MemoryStore, ZooKeeperStore
from support.transactions import Transaction

pytestmark = pytest.mark.zookeeper

#: Few, so that operations meet.
PATHS = ("/t", "/t/a", "/t/b", "/t/a/x", "/t/a/y", "/t/b/x", "/u")

some_path = st.sampled_from(PATHS)
some_data = st.sampled_from([b"", b"\x07", b"value"])
either_session = st.integers(0, 1)
whether_watched = st.booleans()

some_paths = st.lists(some_path, max_size=4)
some_version = st.sampled_from([-1, -1, 0, 1])
some_operation = st.one_of(
    st.builds(Check, some_path, some_version),
    st.builds(Create, some_path, some_data, st.booleans(), st.booleans()),
    st.builds(SetData, some_path, some_data, some_version),
    st.builds(Delete, some_path, some_version),
)

READS = ("get_data", "get_data_with_version", "get_version", "node_exists", "get_children")


class SideBySide(RuleBasedStateMachine):
    """Two sessions with each store do the same, see the same, and are told the same."""

    def __init__(self, server, root):
        super().__init__()
        self.stores = (MemoryStore(), ZooKeeperStore(server, root))
        self.sessions = [[store.open() for _ in range(2)] for store in self.stores]
        self.heard = [[Hearing(session) for session in pair] for pair in self.sessions]
        self.expired = False

    def teardown(self):
        for store in self.stores:
            store.close()

    @rule(
        session=either_session,
        read=st.sampled_from(READS),
        path=some_path,
        watch=whether_watched,
    )
    def read(self, session, read, path, watch):
        self.compare(session, lambda state: getattr(state, read)(path, watch))

    @rule(session=either_session, path=some_path, data=some_data)
    def set_data(self, session, path, data):
        self.compare(session, lambda state: state.set_data(path, data))

    @rule(session=either_session, path=some_path, data=some_data)
    def set_ephemeral_node(self, session, path, data):
        self.compare(session, lambda state: state.set_ephemeral_node(path, data))

    @rule(session=either_session, path=some_path)
    def create_sequential(self, session, path):
        self.compare(session, lambda state: state.create_sequential(f"{path}/e", b""))

    @rule(session=either_session, path=some_path)
    def mkdirs(self, session, path):
        self.compare(session, lambda state: state.mkdirs(path))

    @rule(session=either_session, path=some_path)
    def delete_node(self, session, path):
        self.compare(session, lambda state: state.delete_node(path))

    @rule(session=either_session, operations=st.lists(some_operation, min_size=1, max_size=4))
    def transaction(self, session, operations):
        self.compare(session, lambda state: commit(state, operations))
        # Of one that was refused nothing must be left.
        self.compare(session, lambda state: described(state.read_many(PATHS)))
        self.compare(session, lambda state: state.children_many(PATHS))

    @rule(session=either_session, some=some_paths, watch=whether_watched)
    def read_many(self, session, some, watch):
        self.compare(session, lambda state: described(state.read_many(some, watch)))

    @rule(session=either_session, some=some_paths)
    def children_many(self, session, some):
        self.compare(session, lambda state: state.children_many(some))

    @rule(session=either_session, path=some_path, watch=whether_watched)
    def children_data(self, session, path, watch):
        self.compare(session, lambda state: described(state.children_data(path, watch)))

    @rule(session=either_session, path=some_path, watch=whether_watched)
    def get_stat(self, session, path, watch):
        self.compare(session, lambda state: described(state.get_stat(path, watch)))

    @precondition(lambda self: not self.expired)
    @rule(session=either_session)
    def expire(self, session):
        # Slow, so once in an example.
        self.expired = True
        for store, pair in zip(self.stores, self.sessions, strict=True):
            store.expire(pair[session])
        # A server deletes the nodes of a session in any order.
        told = [
            [(sorted(map(str, heard.events())), heard.missed) for heard in pair]
            for pair in self.heard
        ]
        assert told[0] == told[1]
        self.forget()

    def compare(self, session, operation):
        outcomes = [outcome(operation, pair[session]) for pair in self.sessions]
        assert outcomes[0] == outcomes[1]
        told = [[heard.events() for heard in pair] for pair in self.heard]
        assert told[0] == told[1]
        self.forget()

    def forget(self):
        for heard in itertools.chain(*self.heard):
            heard._told.clear()


def commit(state, operations):
    transaction = Transaction(state.commit)
    for operation in operations:
        transaction.add(operation)
    return transaction.commit()


def described(found):
    """What two stores must agree on: no counts of changes, and whether there is an owner."""
    match found:
        case NodeStat():
            return (found.version, found.children, found.owner != 0)
        case NodeData():
            return (found.data, described(found.stat))
        case dict():
            return [(name, described(node)) for name, node in found.items()]
        case list():
            return [described(node) for node in found]
    return found


def outcome(operation, state):
    try:
        return operation(state)
    except TransactionError as error:
        return (TransactionError, error.index, type(error.reason))
    except StateError as error:
        return type(error)


@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_they_never_differ(zookeeper_server, zookeeper_root, monkeypatch, examples):
    # A registration that cannot be made waits for a time that memory, without a clock, has not.
    monkeypatch.setattr(recovery, "FIRST_PAUSE_SECS", 3600.0)
    monkeypatch.setattr(recovery, "LONGEST_PAUSE_SECS", 3600.0)
    numbers = itertools.count()
    run_state_machine_as_test(
        lambda: SideBySide(zookeeper_server, f"{zookeeper_root}/{next(numbers)}"),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # Shrinking would take longer than a test may; thirty steps can be read as they are.
            phases=[Phase.reuse, Phase.generate],
        ),
    )
