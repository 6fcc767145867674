"""Looks at the queue: what they see, what they watch, and what makes them worthless."""

import pytest

from stormkeeper.errors import AccessDeniedError, NotLeaderError
from stormkeeper.nimbus.election import GiveUp, Look, Looked, StoreFailed, Take, Wrote
from stormkeeper.nimbus.elector import ROUNDS, LockQueue, watched
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.leader_lock import Lock
from stormkeeper.state.storage import EventType
from support.interposed import Interposed
from support.memory_state import MemoryEnsemble

NIMBUS = NimbusId("nimbus1.example", 6627, 6628)


@pytest.fixture
def ensemble():
    return MemoryEnsemble(inline=True)


@pytest.fixture
def session(ensemble):
    return ensemble.session()


def queueing(session, now=100.0, **calls):
    network = Interposed(session, session_timeout_secs=12.0, **calls)
    return LockQueue(network, NIMBUS, lambda: now)


def test_a_look_sees_the_queue_by_whom_and_since_when(ensemble, session):
    theirs = leader_lock.take(ensemble.session())
    mine = leader_lock.take(session)
    seen = queueing(session).carry_out(Look())
    assert seen == Looked((theirs, mine), session.session_id, 12.0, 100.0)


def test_it_began_before_the_store_was_asked(session):
    times = []

    def sync_path(path):
        times.append(200.0)
        session.sync_path(path)

    network = Interposed(session, session_timeout_secs=12.0, sync_path=sync_path)
    one = LockQueue(network, NIMBUS, lambda: times[-1] if times else 100.0)
    assert one.carry_out(Look()).began_at == 100.0


def test_it_watches_its_lock_and_the_one_before_it_alone(ensemble, session):
    others = [leader_lock.take(ensemble.session()) for _ in range(3)]
    mine = leader_lock.take(session)
    behind = leader_lock.take(ensemble.session())
    told = []
    session.register(lambda event, path: told.append((event, path)))
    queueing(session).carry_out(Look())
    hand = ensemble.session()
    for lock in (behind, *others[:2]):
        leader_lock.give_up(hand, lock)
    ensemble.deliver()
    assert told == []
    leader_lock.give_up(hand, others[2])
    hand.set_data(mine.path, b"revoked")
    ensemble.deliver()
    assert told == [
        (EventType.NODE_DELETED, others[2].path),
        (EventType.NODE_DATA_CHANGED, mine.path),
    ]


@pytest.mark.parametrize("how", ["deleted", "revoked"])
def test_what_changes_before_it_is_watched_is_looked_at_again(ensemble, session, how):
    theirs = leader_lock.take(ensemble.session())
    mine = leader_lock.take(session)
    hand = ensemble.session()

    def read_many(nodes, watch=False):
        if how == "deleted":
            leader_lock.give_up(hand, theirs)
        else:
            hand.set_data(theirs.path, b"revoked")
        return session.read_many(nodes, watch)

    seen = queueing(session, read_many=read_many).carry_out(Look())
    assert [lock.revoked for lock in seen.queue if lock != mine] == [True] * (how == "revoked")


def test_a_queue_that_never_rests_is_given_up(session):
    leader_lock.take(session)
    looks = []

    def read_many(nodes, watch=False):
        looks.append(session.read_many(nodes, watch))
        return [None] * len(nodes)

    assert queueing(session, read_many=read_many).carry_out(Look()) == StoreFailed()
    assert len(looks) == ROUNDS


def test_a_look_of_two_sessions_is_worth_nothing(ensemble, session):
    def read_many(nodes, watch=False):
        ensemble.expire(session)
        return session.read_many(nodes, watch)

    assert queueing(session, read_many=read_many).carry_out(Look()) == StoreFailed()


def test_a_lock_says_who_takes_it_and_is_given_up(session):
    one = queueing(session)
    assert one.carry_out(Take()) == Wrote()
    (lock,) = leader_lock.queue(session)
    assert lock.nimbus == NIMBUS
    assert one.carry_out(GiveUp(lock)) == Wrote()
    assert one.carry_out(GiveUp(lock)) == Wrote()
    assert leader_lock.queue(session) == []


@pytest.mark.parametrize(
    ("error", "answer"),
    [(NotLeaderError("gone already"), Wrote()), (AccessDeniedError("no"), StoreFailed())],
)
def test_one_that_cannot_be_taken(session, error, answer):
    def create_sequential(_path, _data):
        raise error

    assert queueing(session, create_sequential=create_sequential).carry_out(Take()) == answer


def test_what_fails_for_long_is_logged_ever_more_seldom(session, caplog):
    def sync_path(_path):
        raise AccessDeniedError("the node's ACL does not allow it")

    one = queueing(session, sync_path=sync_path)
    for _ in range(10):
        assert one.carry_out(Look()) == StoreFailed()
    warnings = [each for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 4
    assert "Look failed: the node's ACL does not allow it" in warnings[0].getMessage()


def test_a_store_that_is_away_says_so_itself(ensemble, session, caplog):
    ensemble.suspend(session)
    assert queueing(session).carry_out(Look()) == StoreFailed()
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def of(number, session_id):
    return Lock(f"/leader-lock/latch-{number:010d}", number, session_id, b"")


@pytest.mark.parametrize(
    ("sessions", "expected"),
    [([], []), ([1, 2], []), ([7, 1], [0]), ([1, 2, 7, 3], [1, 2]), ([1, 7, 2, 7], [0, 1])],
)
def test_what_is_watched(sessions, expected):
    line = [of(number, session) for number, session in enumerate(sessions)]
    assert watched(line, 7) == [line[at] for at in expected]
