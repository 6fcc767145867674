"""What the client's state machine does when connections fail, and when peers break the protocol."""

import pytest

from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError, RemoteProtocolError
from stormkeeper.pacemaker.client.protocol import WrongAnswerError
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse

# --- failures -------------------------------------------------------------------------------------


def test_a_stuck_connection_is_dropped_and_its_calls_have_failed(connected):
    calls = [connected.ask(f"/{number}") for number in range(5)]
    connected.wait(0.99)
    assert not connected.drops
    connected.wait(0.02)
    assert connected.drops == ["no answer within 1 s"]
    for call in calls:
        connected.error(call, PacemakerUnavailableError)
    connected.wait(100.0)
    assert connected.connects == 1, "nobody waits, nobody connects"


def test_calls_without_slot_wait_for_next_connection(connected):
    calls = [connected.ask(f"/{number}") for number in range(105)]
    connected.fail()
    connected.wait(0.25)
    connected.connect()
    assert [request.path for request in connected.requests] == [f"/{n}" for n in range(100, 105)]
    connected.serve()
    for call in calls[:100]:
        connected.error(call, PacemakerUnavailableError)
    assert all(isinstance(connected.outcome(call), Message) for call in calls[100:])


def test_long_idle_connection_has_the_usual_timeout(connected):
    connected.wait(60.0)
    connected.ask("/a")
    connected.wait(1.0)
    assert connected.drops == ["no answer within 1 s"]


def test_pieces_of_a_large_answer_keep_the_connection(connected):
    call = connected.ask("/large")
    for _ in range(8):
        connected.wait(0.9)
        connected.receive()
    assert not connected.drops
    connected.serve()
    assert isinstance(connected.outcome(call), Message)


def test_endless_answer_ends_at_the_deadline(connected):
    call = connected.ask("/endless", deadline=5.0)
    for _ in range(11):
        connected.wait(0.5)
        connected.receive()
    connected.error(call, PacemakerUnavailableError)
    connected.wait(0.1)
    assert connected.drops, "the connection is of no use to the next call either"


def test_room_made_by_the_peer_keeps_the_connection(connected):
    connected.send("/large", b"x" * 1000)
    for _ in range(5):
        connected.wait(0.9)
        connected.protocol.taken(connected.now)
    assert not connected.drops


def test_an_error_says_how_often_and_for_how_long_it_was_tried(world):
    call = world.ask("/a")
    call.tries, call.started = 4, world.now - 3.8
    world.connect()
    world.wait(1.0)
    text = world.error(call, PacemakerUnavailableError)
    assert text == (
        "peer:1 did not answer a request to read /a (4 tries in 4.8 s; no answer within 1 s)"
    )


def test_a_refused_connection_is_a_try_too(world):
    call = world.ask("/a")
    world.fail("connection refused")
    assert "(1 try in 0.0 s; connection refused)" in world.error(call, PacemakerUnavailableError)


def test_the_deadline_bounds_a_long_back_off(world):
    world.backoff.delay = 30.0
    world.ask("/a")
    world.fail("connection refused")
    call = world.ask("/b", deadline=7.0)
    world.wait(7.0)
    assert "in 7.0 s; connection refused" in world.error(call, PacemakerUnavailableError)


def test_a_failure_that_is_over_is_no_reason(connected):
    connected.ask("/a")
    connected.fail("connection refused")
    connected.ask("/b")
    connected.wait(0.25)
    connected.connect()
    connected.serve()
    call = connected.ask("/c", deadline=0.5)
    connected.wait(0.5)
    assert "in 0.5 s; no answer yet" in connected.error(call, PacemakerUnavailableError)


def test_calls_made_during_the_back_off_wait_for_its_end(world):
    world.ask("/a")
    world.fail("connection refused")
    assert world.protocol.suspect
    assert world.protocol.retry_in(world.now) == 0.25
    late = world.ask("/b")
    assert world.connects == 1
    world.wait(0.24)
    assert world.connects == 1
    world.wait(0.02)
    assert world.connects == 2
    world.connect()
    world.serve()
    assert isinstance(world.outcome(late), Message)
    assert not world.protocol.suspect


def test_a_connection_alone_is_no_success(world):
    for failures in range(1, 4):
        world.ask("/a")
        world.connect()
        world.fail("cut")
        assert world.backoff.count == failures
        world.wait(0.25)


def test_an_idle_connection_may_end_without_any_suspicion(connected):
    connected.fail("the server closed the connection")
    assert not connected.protocol.suspect
    call = connected.ask("/a")
    assert connected.connects == 2, "at once"
    connected.connect()
    connected.serve()
    assert isinstance(connected.outcome(call), Message)


def test_expired_call_keeps_its_slot_until_answered(connected):
    impatient = connected.ask("/a", deadline=0.2)
    patient = connected.ask("/b")
    connected.wait(0.3)
    connected.error(impatient, PacemakerUnavailableError)
    assert not connected.drops
    connected.serve()
    assert connected.outcome(patient).pulse.id == "/b"


# --- a peer that breaks the protocol --------------------------------------------------------------


@pytest.mark.parametrize("message_id", [None, -1, 0, 2, 7])
def test_an_answer_to_nobody_or_out_of_order_ends_the_connection(connected, message_id):
    calls = [connected.ask("/a"), connected.ask("/b"), connected.ask("/c")]
    wrong = Message(MessageType.GET_PULSE_RESPONSE, message_id, pulse=Pulse("/b", b"wrong"))
    connected.receive(wrong)
    assert len(connected.drops) == 1
    for call in calls:
        assert f"an answer with message id {message_id} came" in connected.error(
            call, RemoteProtocolError
        )


def test_an_answer_that_nobody_asked_for_ends_an_idle_connection(connected):
    connected.receive(Message(MessageType.GET_PULSE_RESPONSE, 1, pulse=Pulse("/x", b"")))
    assert len(connected.drops) == 1


def test_a_wrong_answer_fails_its_call_and_those_behind_it(connected):
    first, second = connected.ask("/a"), connected.ask("/b")
    connected.receive(Message(MessageType.EXISTS_RESPONSE, 1, boolval=True))
    assert "EXISTS_RESPONSE came as the answer to GET_PULSE" in connected.error(
        first, WrongAnswerError
    )
    assert "did not answer a request to read /b" in connected.error(second, RemoteProtocolError)
    assert len(connected.drops) == 1


def test_a_peer_that_breaks_the_protocol_is_named_as_such(world):
    call = world.ask("/a")
    world.connect()
    world.protocol.lost("frame of negative length", world.now, peer_at_fault=True)
    world.carried_out()
    assert "frame of negative length" in world.error(call, RemoteProtocolError)


def test_a_refusal_is_an_error_and_not_an_answer(connected):
    call = connected.ask("/a")
    connected.receive(Message(MessageType.NOT_AUTHORIZED, 1))
    assert "peer:1 refused a request to read /a" in connected.error(call, NotAuthorizedError)
    assert not connected.drops
