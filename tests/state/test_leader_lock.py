"""Locks: how they are named, made and given up, and in which order they are."""

import re
import uuid
from itertools import pairwise
from queue import Queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper import paths
from stormkeeper.errors import (
    AccessDeniedError,
    NotLeaderError,
    OutcomeUnknownError,
    StateClosedError,
    StateUnavailableError,
)
from stormkeeper.state import leader_lock
from stormkeeper.state.leader_lock import Lock, in_line, predecessor
from stormkeeper.state.storage import EventType, NodeData, NodeStat
from support.interposed import Interposed
from support.memory_state import MemoryEnsemble
from support.transactions import Transaction
from support.waiting import DEADLINE_SECS

GUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class TestOnEveryStore:
    def test_a_lock_is_an_ephemeral_node_with_a_guid_and_a_number(self, state):
        lock = leader_lock.take(state, b"nimbus1:6627")
        assert re.fullmatch(f"/leader-lock/_c_{GUID}-latch-[0-9]{{10}}", lock.path)
        assert state.get_data(lock.path) == b"nimbus1:6627"
        stat = state.get_stat(lock.path)
        assert (stat.version, stat.created) == (0, lock.created)
        assert (lock.session_id, lock.holder) == (state.session_id, b"nimbus1:6627")
        assert not lock.revoked

    def test_each_lock_is_later_than_those_before_whoever_makes_it(self, store, state):
        taken = [leader_lock.take(each) for each in (state, store.open(), state, store.open())]
        made = [lock.created for lock in taken]
        assert made == sorted(set(made))
        numbers = [int(lock.path[-10:]) for lock in taken]
        assert numbers == sorted(set(numbers))
        assert len({lock.path for lock in taken}) == 4

    def test_lock_can_be_given_up_twice(self, state):
        lock = leader_lock.take(state)
        leader_lock.give_up(state, lock)
        leader_lock.give_up(state, lock)
        assert state.get_children(paths.LEADER_LOCK) == []

    def test_a_lock_ends_with_its_session_and_is_not_made_again(self, store, state):
        lock = leader_lock.take(state)
        store.expire(state)
        assert not state.node_exists(lock.path)
        again = leader_lock.take(state)
        assert again.created > lock.created
        assert again.path != lock.path


def test_lock_is_found_after_a_lost_answer(ensemble, session):
    others = leader_lock.take(ensemble.session())

    def create_sequential(path, data):
        session.create_sequential(path, data)
        raise OutcomeUnknownError("the answer was lost")

    lock = leader_lock.take(Interposed(session, create_sequential=create_sequential))
    names = session.get_children(paths.LEADER_LOCK)
    assert sorted(names) == sorted(each.path.rpartition("/")[2] for each in (lock, others))
    assert session.get_stat(lock.path).created == lock.created
    assert session.get_stat(lock.path).owner == session.session_id


@pytest.mark.parametrize("others", [0, 2])
def test_a_lock_that_was_lost_on_its_way_stays_unknown(ensemble, session, others):
    for _ in range(others):
        leader_lock.take(ensemble.session())

    def create_sequential(_path, _data):
        raise OutcomeUnknownError("the request was lost")

    with pytest.raises(OutcomeUnknownError, match="the request was lost"):
        leader_lock.take(Interposed(session, create_sequential=create_sequential))
    assert session.node_exists(paths.LEADER_LOCK) == bool(others)
    assert not others or len(session.get_children(paths.LEADER_LOCK)) == others


def test_a_connection_that_stays_away_leaves_the_outcome_unknown(ensemble, session):
    ensemble.lose_answer(session, applied=True)
    with pytest.raises(OutcomeUnknownError):
        leader_lock.take(session)


def test_a_lock_that_is_gone_at_once_is_none(ensemble, session):
    def get_stat(path, watch=False):
        ensemble.expire(session)
        return session.get_stat(path, watch)

    with pytest.raises(NotLeaderError, match="session ended; take another"):
        leader_lock.take(Interposed(session, get_stat=get_stat))


def test_lock_without_an_epoch_is_deleted(session):
    def get_stat(_path, _watch=False):
        raise StateUnavailableError("not now")

    with pytest.raises(StateUnavailableError, match="not now"):
        leader_lock.take(Interposed(session, get_stat=get_stat))
    assert session.get_children(paths.LEADER_LOCK) == []


def test_lock_that_is_neither_read_nor_deleted_is_unknown(ensemble, session):
    def create_sequential(path, data):
        made = session.create_sequential(path, data)
        ensemble.suspend(session)
        return made

    with pytest.raises(OutcomeUnknownError, match="was made, and could be neither"):
        leader_lock.take(Interposed(session, create_sequential=create_sequential))
    ensemble.resume(session)
    assert len(session.get_children(paths.LEADER_LOCK)) == 1


@pytest.mark.parametrize("error", [AccessDeniedError, StateClosedError])
def test_what_else_keeps_a_lock_from_being_read_is_told(session, error):
    def refuse(*_):
        raise error("no")

    with pytest.raises(error, match="no"):
        leader_lock.take(Interposed(session, get_stat=refuse, delete_node=refuse))


class TestTheQueue:
    """On every store."""

    def test_queue_has_all_locks_in_the_order_of_creation(self, store, state):
        assert leader_lock.queue(state) == []
        taken = [leader_lock.take(store.open(), str(number).encode()) for number in range(5)]
        assert leader_lock.queue(state) == taken
        for number in (3, 0):
            leader_lock.give_up(state, taken.pop(number))
            assert leader_lock.queue(state) == taken

    def test_each_lock_is_behind_its_predecessor(self, store, state):
        taken = [leader_lock.take(store.open()) for _ in range(3)]
        assert [leader_lock.before(state, lock) for lock in taken] == [None, *taken[:2]]
        leader_lock.give_up(state, taken[1])
        assert leader_lock.before(state, taken[2]) == taken[0]
        with pytest.raises(NotLeaderError, match=r"is gone.*take another"):
            leader_lock.before(state, taken[1])

    def test_whoever_waits_is_told_when_the_one_before_is_gone(self, store, state):
        first, second = leader_lock.take(store.open()), leader_lock.take(state)
        told = Queue()
        state.register(lambda event, path: told.put((event, path)))
        assert leader_lock.before(state, second) == first
        assert leader_lock.before(state, second, watch=True) == first
        # Nobody is woken who is not next.
        leader_lock.take(store.open())
        leader_lock.give_up(store.open(), first)
        assert told.get(timeout=DEADLINE_SECS) == (EventType.NODE_DELETED, first.path)
        assert leader_lock.before(state, second, watch=True) is None

    def test_a_revoked_one_keeps_its_place(self, store, state):
        first, second = leader_lock.take(store.open()), leader_lock.take(state)
        state.set_data(first.path, b"revoked")
        ahead = leader_lock.before(state, second)
        assert (ahead.path, ahead.revoked, ahead.holder) == (first.path, True, b"revoked")
        assert leader_lock.before(state, first) is None

    def test_what_is_no_lock_has_no_place(self, state):
        state.set_data(f"{paths.LEADER_LOCK}/_c_0-latch-0000000000", b"persistent")
        state.set_ephemeral_node(f"{paths.LEADER_LOCK}/other", b"")
        lock = leader_lock.take(state)
        assert leader_lock.queue(state) == [lock]

    def test_numbers_that_wrap_or_begin_again_change_no_order(self, state):
        """ZooKeeper's count of 32 bits; one that begins again when the directory was deleted."""
        numbers = (2147483646, 2147483647, -2147483648, -2147483647, 3)
        names = [f"_c_{number:x}-latch-{number:010d}" for number in numbers]
        state.mkdirs(paths.LEADER_LOCK)
        for name in names:
            path = f"{paths.LEADER_LOCK}/{name}"
            Transaction(state.commit).create(path, b"", ephemeral=True).commit()
        assert [lock.path.rpartition("/")[2] for lock in leader_lock.queue(state)] == names

    def test_the_locks_of_storm_s_nimbuses_count(self, store, state):
        """As Curator names them, with its protection and without."""
        theirs = store.open()
        theirs.create_sequential(f"{paths.LEADER_LOCK}/_c_{uuid.uuid4()}-latch-", b"java1:6627:0")
        theirs.create_sequential(f"{paths.LEADER_LOCK}/latch-", b"java2:6627")
        mine = leader_lock.take(state)
        assert leader_lock.before(state, mine).holder == b"java2:6627"
        assert [lock.holder for lock in leader_lock.queue(state)] == [
            b"java1:6627:0",
            b"java2:6627",
            b"",
        ]


def test_one_that_goes_while_it_is_watched_is_not_waited_for(ensemble, session):
    first, second, third = (
        leader_lock.take(each) for each in (session, ensemble.session(), session)
    )

    def node_exists(path, watch):
        if path == second.path:
            leader_lock.give_up(session, second)
        return session.node_exists(path, watch)

    racing = Interposed(session, node_exists=node_exists)
    assert leader_lock.before(racing, third, watch=True) == first


@given(ends=st.lists(st.integers(0, 4), max_size=30))
def test_first_lock_stays_first_and_epochs_grow(ends):
    """Whatever ends when, also the directory, whose numbers begin again at 0."""
    ensemble = MemoryEnsemble(inline=True)
    state = ensemble.session()
    taken = []
    leaders = []
    for end in ends:
        taken.append(leader_lock.take(state))
        first = leader_lock.queue(state)[0]
        assert first == taken[0]
        if not leaders or first != leaders[-1]:
            leaders.append(first)
        if end < len(taken):
            leader_lock.give_up(state, taken.pop(end))
        if not taken:
            state.delete_node(paths.LEADER_LOCK)
    epochs = [lock.created for lock in leaders]
    assert epochs == sorted(set(epochs))


def node(created, owner=1, version=0, data=b""):
    return NodeData(data, NodeStat(version, created, created, created, owner, 0))


@given(
    created=st.lists(st.integers(1, 2**62), unique=True, max_size=8),
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=8, max_size=8),
    later=st.integers(2**62 + 1, 2**63 - 1),
    number=st.integers(-(2**31), 2**31 - 1),
)
def test_nobody_gets_in_before_a_lock(created, numbers, later, number):
    """Whatever number it has."""
    nodes = {f"_c_{at:x}-latch-{n:010d}": node(at) for at, n in zip(created, numbers, strict=False)}
    line = in_line(nodes)
    assert [lock.created for lock in line] == sorted(created)
    assert in_line({**nodes, f"_c_late-latch-{number:010d}": node(later)})[:-1] == line
    for ahead, lock in pairwise([None, *line]):
        assert predecessor(line, lock) == ahead


def test_locks_of_one_change_are_ordered_by_number():
    line = in_line({f"latch-{number:010d}": node(7) for number in (10, -2, 9)})
    numbers = [int(lock.path.rpartition("latch-")[2]) for lock in line]
    assert numbers == [-2, 9, 10]


@pytest.mark.parametrize(
    "name", ["latch-1", "latch-12345678901", "latch-", "lock-0000000001", "latch-000000000a", "a"]
)
def test_other_names_are_none_of_locks(name):
    assert in_line({name: node(1)}) == []


@pytest.mark.parametrize(
    ("holder", "nimbus"),
    [
        (b"nimbus1.example:6627:6628", ("nimbus1.example", 6627, 6628)),
        (b"nimbus1.example:6627", ("nimbus1.example", 6627, 0)),
        (b"storm local", None),
        (b"", None),
        (b"\xff:6627:\xff", None),
    ],
)
def test_a_lock_says_which_nimbus_holds_it(session, holder, nimbus):
    """As Storm's do, before and since 2.6.4."""
    lock = leader_lock.take(session, holder)
    assert [lock.nimbus, leader_lock.queue(session)[0].nimbus] == [nimbus, nimbus]


def test_a_lock_is_not_another_one_of_its_name():
    line = in_line({"latch-0000000001": node(7)})
    with pytest.raises(NotLeaderError):
        predecessor(line, Lock(f"{paths.LEADER_LOCK}/latch-0000000001", 6, 1, b""))
