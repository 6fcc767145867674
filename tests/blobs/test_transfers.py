import threading

import pytest

from stormkeeper.blobs.transfers import TransferSessions
from stormkeeper.errors import CodeError, TransferEndedError
from support.waiting import until


@pytest.fixture
def ended():
    return []


@pytest.fixture
def sessions(ended, clock):
    return TransferSessions("upload", 600.0, ended.append, most=3, clock=clock)


def test_what_is_under_way_is_used_until_it_is_ended(sessions, ended):
    session = sessions.add(lambda: "a")
    for _ in range(2):
        with sessions.using(session) as what:
            assert what == "a"
    assert ended == []
    sessions.end(session)
    assert ended == ["a"]
    with pytest.raises(TransferEndedError, match=f"no upload '{session}' is under way"):
        sessions.end(session)


def test_what_is_idle_ends_and_what_is_used_does_not(sessions, ended, clock):
    idle, used = sessions.add(lambda: "idle"), sessions.add(lambda: "used")
    clock.secs = 500
    with sessions.using(used):
        pass
    clock.secs = 601
    assert sessions.expire() == 1
    assert ended == ["idle"]
    with pytest.raises(TransferEndedError, match="idle for more than 600 s"), sessions.using(idle):
        pass
    with sessions.using(used):
        clock.secs = 5000
        assert sessions.expire() == 0, "a call is at it"
    assert sessions.expire() == 0, "the call has just ended"


def test_a_call_that_fails_ends_it(sessions, ended):
    session = sessions.add(lambda: "a")
    with pytest.raises(RuntimeError), sessions.using(session):
        raise RuntimeError
    assert ended == ["a"]
    assert len(sessions) == 0


def test_there_are_only_so_many_and_the_idle_make_room(sessions, ended, clock):
    for name in "abc":
        sessions.add(lambda name=name: name)
    with pytest.raises(CodeError, match="3 uploads are under way"):
        sessions.add(lambda: pytest.fail("it was made all the same"))
    clock.secs = 601
    sessions.add(lambda: "d")
    assert ended == ["a", "b", "c"]


def test_calls_for_the_same_one_wait_for_each_other(sessions, ended):
    session = sessions.add(lambda: "a")
    order = []

    def second():
        try:
            with sessions.using(session):
                order.append("second")
        except TransferEndedError:
            order.append("ended")

    with sessions.using(session, last=True):
        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
    thread.join(60)
    assert order == ["first", "ended"]
    assert ended == ["a"]


def test_close_ends_all(sessions, ended):
    first = sessions.add(lambda: "a")
    sessions.add(lambda: "b")
    with sessions.using(first):
        thread = threading.Thread(target=sessions.close)
        thread.start()
    thread.join(60)
    until(lambda: sorted(ended) == ["a", "b"])


def test_no_session_is_found_by_a_guess(sessions):
    assert sessions.add(lambda: "a") != sessions.add(lambda: "a")
    for guess in ("", "0", "../x"):
        with pytest.raises(TransferEndedError), sessions.using(guess):
            pass
