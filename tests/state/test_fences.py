"""Locks: how they are named, made and given up."""

import re

import pytest

from stormkeeper.errors import (
    AccessDeniedError,
    NotLeaderError,
    OutcomeUnknownError,
    StateClosedError,
    StateUnavailableError,
)
from stormkeeper.state import fences, paths
from stormkeeper.state.fences import Fence
from support.interposed import Interposed

GUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


class TestOnEveryStore:
    def test_a_lock_is_an_ephemeral_node_with_a_guid_and_a_number(self, state):
        fence = fences.take(state, b"nimbus1:6627")
        assert re.fullmatch(f"/leader-lock/_c_{GUID}-latch-[0-9]{{10}}", fence.path)
        assert state.get_data(fence.path) == b"nimbus1:6627"
        stat = state.get_stat(fence.path)
        assert (stat.version, stat.created) == (0, fence.epoch)
        assert stat.owner

    def test_epochs_grow_with_every_lock_whoever_makes_it(self, store, state):
        taken = [fences.take(each) for each in (state, store.open(), state, store.open())]
        epochs = [fence.epoch for fence in taken]
        assert epochs == sorted(set(epochs))
        numbers = [int(fence.path[-10:]) for fence in taken]
        assert numbers == sorted(set(numbers))
        assert len({fence.path for fence in taken}) == 4

    def test_a_lock_that_was_given_up_is_gone_and_giving_up_again_is_fine(self, state):
        fence = fences.take(state)
        fences.give_up(state, fence)
        fences.give_up(state, fence)
        assert state.get_children(paths.LEADER_LOCK) == []

    def test_a_lock_ends_with_its_session_and_is_not_made_again(self, store, state):
        lock = fences.take(state)
        store.expire(state)
        assert not state.node_exists(lock.path)
        again = fences.take(state)
        assert again.epoch > lock.epoch
        assert again.path != lock.path


def test_a_lock_whose_answer_was_lost_is_found_and_no_second_one_made(ensemble, session):
    others = fences.take(ensemble.session())

    def create_sequential(path, data):
        session.create_sequential(path, data)
        raise OutcomeUnknownError("the answer was lost")

    fence = fences.take(Interposed(session, create_sequential=create_sequential))
    locks = session.get_children(paths.LEADER_LOCK)
    assert sorted(locks) == sorted(each.path.rpartition("/")[2] for each in (fence, others))
    assert session.get_stat(fence.path).created == fence.epoch
    assert session.get_stat(fence.path).owner == session.session_id


@pytest.mark.parametrize("others", [0, 2])
def test_a_lock_that_was_lost_on_its_way_stays_unknown(ensemble, session, others):
    for _ in range(others):
        fences.take(ensemble.session())

    def create_sequential(_path, _data):
        raise OutcomeUnknownError("the request was lost")

    with pytest.raises(OutcomeUnknownError, match="the request was lost"):
        fences.take(Interposed(session, create_sequential=create_sequential))
    assert session.node_exists(paths.LEADER_LOCK) == bool(others)
    assert not others or len(session.get_children(paths.LEADER_LOCK)) == others


def test_a_connection_that_stays_away_leaves_the_outcome_unknown(ensemble, session):
    ensemble.lose_answer(session, applied=True)
    with pytest.raises(OutcomeUnknownError):
        fences.take(session)


def test_a_lock_that_is_gone_at_once_is_none(ensemble, session):
    def get_stat(path, watch=False):
        ensemble.expire(session)
        return session.get_stat(path, watch)

    with pytest.raises(NotLeaderError, match="session ended; take another"):
        fences.take(Interposed(session, get_stat=get_stat))


def test_a_lock_without_an_epoch_does_not_keep_others_from_leading(session):
    def get_stat(_path, _watch=False):
        raise StateUnavailableError("not now")

    with pytest.raises(StateUnavailableError, match="not now"):
        fences.take(Interposed(session, get_stat=get_stat))
    assert session.get_children(paths.LEADER_LOCK) == []


def test_a_lock_that_is_neither_read_nor_deleted_is_not_one_that_was_never_made(ensemble, session):
    def create_sequential(path, data):
        made = session.create_sequential(path, data)
        ensemble.suspend(session)
        return made

    with pytest.raises(OutcomeUnknownError, match="was made, and could be neither"):
        fences.take(Interposed(session, create_sequential=create_sequential))
    ensemble.resume(session)
    assert len(session.get_children(paths.LEADER_LOCK)) == 1


@pytest.mark.parametrize("error", [AccessDeniedError, StateClosedError])
def test_what_else_keeps_a_lock_from_being_read_is_told(session, error):
    def refuse(*_):
        raise error("no")

    with pytest.raises(error, match="no"):
        fences.take(Interposed(session, get_stat=refuse, delete_node=refuse))


def test_a_fence_is_a_value():
    assert Fence("/leader-lock/a", 7) == Fence("/leader-lock/a", 7)
    assert len({Fence("/leader-lock/a", 7), Fence("/leader-lock/a", 7)}) == 1


class TestVerifying:
    """On every store."""

    def test_a_lock_that_was_taken_is_one_until_it_is_given_up(self, state):
        fence = fences.take(state)
        fences.verify(state, fence)
        fences.give_up(state, fence)
        with pytest.raises(NotLeaderError, match="it is gone, or never was there"):
            fences.verify(state, fence)

    def test_a_lock_of_another_session_is_none(self, store, state):
        with pytest.raises(NotLeaderError, match="another session made it"):
            fences.verify(state, fences.take(store.open()))

    def test_a_lock_with_another_epoch_is_none(self, state):
        fence = fences.take(state)
        for epoch in (fence.epoch + 1, fence.epoch - 1, 0):
            wrong = f"its epoch is {fence.epoch}, not {epoch};"
            with pytest.raises(NotLeaderError, match=wrong):
                fences.verify(state, Fence(fence.path, epoch))

    def test_a_persistent_node_is_none(self, state):
        path = f"{paths.LEADER_LOCK}/persistent"
        state.set_data(path, b"")
        with pytest.raises(NotLeaderError, match="it is persistent"):
            fences.verify(state, Fence(path, state.get_stat(path).created))

    def test_a_node_elsewhere_is_none(self, state):
        elsewhere = ("/supervisors/a", paths.LEADER_LOCK, f"{fences.take(state).path}/below")
        state.set_ephemeral_node("/supervisors/a", b"")
        for path in elsewhere:
            with pytest.raises(NotLeaderError, match=f"^{path} is no lock"):
                fences.verify(state, Fence(path, 1))

    @pytest.mark.parametrize("fence", [None, "/leader-lock/a", ("/leader-lock/a", 1)])
    def test_what_is_no_fence_is_none(self, state, fence):
        with pytest.raises(TypeError, match=r"has a Fence, as fences\.take returns it, not a "):
            fences.verify(state, fence)
