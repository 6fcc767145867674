"""The client's state machine: the normal course, the order of writes, the end."""

import pytest

from stormkeeper.errors import PacemakerClosedError, PacemakerUnavailableError
from stormkeeper.pacemaker.client.protocol import LinkState
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.protocol_world import World

# --- the normal course ----------------------------------------------------------------------------


def test_nothing_connects_before_the_first_call(world):
    world.wait(100.0)
    assert world.connects == 0


def test_many_calls_wait_for_one_connection(world):
    calls = [world.ask(f"/{number}") for number in range(64)]
    assert world.connects == 1
    world.store = {f"/{number}": b"%d" % number for number in range(64)}
    world.connect()
    world.serve()
    assert world.connects == 1
    assert [world.outcome(call).pulse.details for call in calls] == [b"%d" % n for n in range(64)]


def test_at_most_a_hundred_are_under_way(connected):
    calls = [connected.ask(f"/{number}") for number in range(250)]
    assert len(connected.requests) == 100
    connected.serve(30)
    assert len(connected.requests) == 100
    while connected.requests:
        connected.serve(7)
    assert [connected.outcome(call).pulse.id for call in calls] == [f"/{n}" for n in range(250)]


def test_an_idle_protocol_asks_for_no_wake_up(connected):
    connected.wait(20.0)
    assert connected.protocol.alarm == float("inf")


def test_an_idle_connection_closes_and_the_next_call_connects(connected):
    connected.ask("/a")
    connected.protocol.close_idle()
    connected.carried_out()
    assert not connected.drops, "an answer is due on it"
    connected.serve()
    connected.protocol.close_idle()
    connected.carried_out()
    assert len(connected.drops) == 1
    call = connected.ask("/b")
    connected.connect()
    connected.serve()
    assert isinstance(connected.outcome(call), Message)
    assert not connected.protocol.suspect


# --- writes ---------------------------------------------------------------------------------------


def test_writes_leave_in_their_order_and_none_a_second_time(connected):
    older, newer = connected.send("/a", b"1"), connected.send("/a", b"2")
    assert [request.pulse.details for request in connected.requests] == [b"1", b"2"]
    connected.fail()
    late = connected.send("/a", b"3")
    for call in (older, newer):
        connected.error(call, PacemakerUnavailableError)
    connected.wait(0.25)
    connected.connect()
    assert [request.pulse.details for request in connected.requests] == [b"3"]
    connected.serve()
    assert connected.outcome(late).type == MessageType.SEND_PULSE_RESPONSE


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["down", "connecting", "up", "backing off"])
def test_closing_fails_every_open_call(state):
    world = World()
    call = world.ask("/a")
    if state == "up":
        world.connect()
    elif state == "backing off":
        world.fail("refused")
        call = world.ask("/a")
    held = world.changes()
    world.protocol.close()
    world.protocol.close()
    world.carried_out()
    world.error(call, PacemakerClosedError)
    world.error(held, PacemakerClosedError)
    assert world.protocol.alarm == float("inf")
    with pytest.raises(PacemakerClosedError, match="closed"):
        world.ask("/b")
    world.connect()
    world.fail()
    world.receive(Message(11, 0, pulse=Pulse("/a", b"")))
    assert world.protocol.state is LinkState.CLOSED
