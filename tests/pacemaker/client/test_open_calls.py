"""Every call ends once, with those that follow it."""

from collections import deque

import pytest

from stormkeeper.errors import PacemakerUnavailableError, RemoteProtocolError
from stormkeeper.pacemaker.client.calls import Call
from stormkeeper.pacemaker.client.open_calls import OpenCalls
from stormkeeper.pacemaker.wire import Message, MessageType


@pytest.fixture
def effects():
    return deque()


@pytest.fixture
def calls(effects):
    return OpenCalls("peer:1", effects)


def call(deadline=1.0, kind=MessageType.SEND_PULSE):
    return Call(kind, "/a", b"", deadline, 0, 0.0)


def outcomes(effects):
    return {settled.call: settled.outcome for settled in effects}


def test_calls_have_their_places_from_1(calls):
    made = [call() for _ in range(3)]
    for one in made:
        calls.add(one)
    assert [one.sequence for one in made] == [1, 2, 3]
    assert list(calls) == made


def test_a_call_ends_once(calls, effects):
    one = call()
    calls.add(one)
    answer = Message(MessageType.SEND_PULSE_RESPONSE, 1)
    calls.settle(one, answer)
    calls.settle(one, PacemakerUnavailableError("too late"))
    assert [(settled.call, settled.outcome) for settled in effects] == [(one, answer)]
    assert not calls


def test_nobody_is_told_how_the_exchanges_own_question_ended(calls, effects):
    question = call()
    calls.settle(question, Message(MessageType.SEND_PULSE_RESPONSE, 1))
    assert question.settled
    assert not effects


def test_who_follows_has_an_answer_of_its_own(calls, effects):
    newer, older = call(kind=MessageType.DELETE_PATH), call()
    for one in (older, newer):
        calls.add(one)
    newer.followers.append(older)
    calls.settle(newer, Message(MessageType.DELETE_PATH_RESPONSE, 7))
    assert outcomes(effects)[older].type == MessageType.SEND_PULSE_RESPONSE
    assert not calls


def test_who_follows_has_an_error_of_its_own(calls, effects):
    newer, older = call(), call()
    for one in (older, newer):
        calls.add(one)
    newer.followers.append(older)
    calls.settle(newer, PacemakerUnavailableError("down"))
    told = outcomes(effects)
    assert str(told[older]) == str(told[newer]) == "down"
    assert told[older] is not told[newer]


def test_the_first_deadline_is_the_one_to_wake_up_for(calls):
    assert calls.deadline() == float("inf")
    soon, late = call(2.0), call(3.0)
    for one in (late, soon):
        calls.add(one)
    assert calls.deadline() == 2.0
    assert calls.overdue(1.9) == []
    assert calls.overdue(2.0) == [soon]
    calls.give_up(soon, 2.0, "")
    assert calls.deadline() == 3.0


def test_giving_up_says_why(calls, effects):
    for reason, last_failure, told in (
        ("cut", "refused", "1 try in 4.0 s; cut"),
        ("", "refused", "1 try in 4.0 s; refused"),
        ("", "", "1 try in 4.0 s; no answer yet"),
    ):
        one = call()
        one.reason, one.tries = reason, 1
        calls.add(one)
        calls.give_up(one, 4.0, last_failure)
        error = effects.pop().outcome
        assert type(error) is PacemakerUnavailableError
        assert str(error) == f"peer:1 did not answer a request to store /a ({told})"


def test_tries_of_calls_that_asked_the_same_before_are_counted_too(calls, effects):
    one = call()
    one.tries, one.earlier_tries = 1, 3
    calls.add(one)
    calls.give_up(one, 4.0, "")
    assert "(4 tries in 4.0 s; no answer yet)" in str(effects.pop().outcome)


def test_a_peer_at_fault_is_named_as_such(calls, effects):
    one = call()
    one.peer_at_fault, one.tries = True, 2
    calls.add(one)
    calls.give_up(one, 1.0, "")
    assert isinstance(effects.pop().outcome, RemoteProtocolError)
