"""What the client's state machine does when connections fail, and when peers break the protocol."""

import pytest

from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError, RemoteProtocolError
from stormkeeper.pacemaker.wire import Message, MessageType, Pulse

# --- failures -------------------------------------------------------------------------------------


def test_a_stuck_connection_is_dropped_and_its_calls_are_sent_again_in_order(connected):
    calls = [connected.ask(f"/{number}") for number in range(5)]
    connected.wait(0.99)
    assert not connected.drops
    connected.wait(0.02)
    assert connected.drops == ["no answer within 1 s"]
    connected.wait(0.25)
    assert connected.connects == 2
    connected.connect()
    assert [request.path for request in connected.requests] == [f"/{n}" for n in range(5)]
    connected.serve()
    assert all(isinstance(connected.outcome(call), Message) for call in calls)


def test_a_connection_that_was_idle_for_long_has_no_more_patience(connected):
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


def test_an_answer_that_never_ends_keeps_nobody_beyond_the_deadline(connected):
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
        connected.exchange.taken(connected.now)
    assert not connected.drops


def test_tries_are_bounded(world):
    call = world.ask("/a", retries=3, deadline=1000.0)
    for _ in range(4):
        assert world.outcome(call) is None
        world.connect()
        world.wait(1.0)  # no answer
        world.wait(0.25)  # back-off
    text = world.error(call, PacemakerUnavailableError)
    assert (
        "peer:1 did not answer a request to read /a (4 tries in 4.8 s; no answer within 1 s)"
        in text
    )
    world.wait(100.0)
    assert world.connects == 4, "nobody waits, nobody connects"


def test_refused_connections_are_tries_too(world):
    call = world.ask("/a", retries=2)
    for _ in range(3):
        world.fail("connection refused")
        world.wait(0.25)
    assert "3 tries in 0.5 s; connection refused" in world.error(call, PacemakerUnavailableError)


def test_making_a_connection_has_the_patience_of_a_try(world):
    call = world.ask("/a", retries=0)
    world.wait(0.99)
    assert world.outcome(call) is None
    world.wait(0.01)
    assert "no connection within 1 s" in world.error(call, PacemakerUnavailableError)
    assert world.drops


def test_the_deadline_bounds_what_tries_do_not(world):
    call = world.ask("/a", retries=10**6, deadline=7.0)
    for _ in range(100):
        world.fail("connection refused")
        world.wait(0.1)
    assert "connection refused" in world.error(call, PacemakerUnavailableError)
    assert "in 7.0 s" in world.error(call, PacemakerUnavailableError)


def test_calls_made_during_the_back_off_wait_for_its_end(world):
    world.ask("/a", retries=0)
    world.fail("connection refused")
    assert world.exchange.suspect
    assert world.exchange.retry_in(world.now) == 0.25
    late = world.ask("/b")
    assert world.connects == 1
    world.wait(0.24)
    assert world.connects == 1
    world.wait(0.02)
    assert world.connects == 2
    world.connect()
    world.serve()
    assert isinstance(world.outcome(late), Message)
    assert not world.exchange.suspect


def test_a_connection_alone_is_no_success(world):
    world.ask("/a", retries=5)
    for failures in range(1, 4):
        world.connect()
        world.fail("cut")
        assert world.backoff.failures == failures
        world.wait(0.25)


def test_an_idle_connection_may_end_without_any_suspicion(connected):
    connected.fail("the server closed the connection")
    assert not connected.exchange.suspect
    call = connected.ask("/a")
    assert connected.connects == 2, "at once"
    connected.connect()
    connected.serve()
    assert isinstance(connected.outcome(call), Message)


def test_a_call_that_gave_up_keeps_its_slot_until_the_answer_came(connected):
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
    assert all(connected.outcome(call) is None for call in calls)
    connected.wait(0.25)
    connected.connect()
    connected.serve()
    assert [connected.outcome(call).pulse.id for call in calls] == ["/a", "/b", "/c"]


def test_an_answer_that_nobody_asked_for_ends_an_idle_connection(connected):
    connected.receive(Message(MessageType.GET_PULSE_RESPONSE, 1, pulse=Pulse("/x", b"")))
    assert len(connected.drops) == 1


def test_a_wrong_answer_fails_its_call_and_sends_the_others_again(connected):
    first, second = connected.ask("/a"), connected.ask("/b")
    connected.receive(Message(MessageType.EXISTS_RESPONSE, 1, boolval=True))
    assert "EXISTS_RESPONSE came as the answer to GET_PULSE" in connected.error(
        first, RemoteProtocolError
    )
    assert connected.outcome(second) is None
    connected.wait(0.25)
    connected.connect()
    connected.serve()
    assert connected.outcome(second).pulse.id == "/b"


def test_a_peer_that_always_breaks_the_protocol_is_named_as_such(world):
    call = world.ask("/a", retries=1)
    for _ in range(2):
        world.connect()
        world.exchange.failed("frame of negative length", world.now, peer_at_fault=True)
        world.carried_out()
        world.wait(0.25)
    assert "frame of negative length" in world.error(call, RemoteProtocolError)


def test_a_refusal_is_an_error_and_not_an_answer(connected):
    call = connected.ask("/a")
    connected.receive(Message(MessageType.NOT_AUTHORIZED, 1))
    assert "peer:1 refused a request to read /a" in connected.error(call, NotAuthorizedError)
    assert not connected.drops
