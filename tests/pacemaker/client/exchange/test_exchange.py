"""The client's state machine: the normal course, the order of writes, the end."""

import pytest

from stormkeeper.errors import PacemakerClosedError, PacemakerUnavailableError
from stormkeeper.pacemaker.client.exchange import Link
from stormkeeper.pacemaker.wire import Message, MessageType, Pulse
from support.exchange_world import World

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


def test_an_idle_exchange_asks_for_no_wake_up(connected):
    connected.wait(20.0)
    assert connected.exchange.alarm == float("inf")


def test_a_connection_whose_ids_are_used_up_is_replaced_without_loss():
    world = World(last_message_id=4)
    calls = [world.ask(f"/{number}") for number in range(12)]
    for _ in range(3):
        world.connect()
        world.serve()
    assert [world.outcome(call).pulse.id for call in calls] == [f"/{n}" for n in range(12)]
    assert world.ids == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0, 1]]
    assert not world.exchange.suspect


def test_a_connection_that_is_not_needed_is_let_go_and_the_next_call_makes_another(connected):
    connected.ask("/a")
    connected.exchange.rest()
    connected.carried_out()
    assert not connected.drops, "an answer is due on it"
    connected.serve()
    connected.exchange.rest()
    connected.carried_out()
    assert len(connected.drops) == 1
    call = connected.ask("/b")
    connected.connect()
    connected.serve()
    assert isinstance(connected.outcome(call), Message)
    assert not connected.exchange.suspect


# --- writes ---------------------------------------------------------------------------------------


def test_a_superseded_write_is_not_sent_again_and_ends_with_the_newer_one(connected):
    older, newer = connected.send("/a/b", b"1"), connected.send("/a/b", b"2")
    connected.fail()
    connected.wait(0.25)
    connected.connect()
    assert [request.pulse.details for request in connected.requests] == [b"2"]
    assert connected.outcome(older) is None, "nothing is certain yet"
    connected.serve()
    assert connected.outcome(older).type == MessageType.SEND_PULSE_RESPONSE
    assert connected.outcome(newer).type == MessageType.SEND_PULSE_RESPONSE


def test_a_newer_write_that_comes_during_the_back_off_supersedes_too(connected):
    older = connected.send("/a/b", b"1")
    connected.fail()
    connected.delete("/a")
    connected.wait(0.25)
    connected.connect()
    assert [request.type for request in connected.requests] == [MessageType.DELETE_PATH]
    connected.serve()
    assert connected.outcome(older).type == MessageType.SEND_PULSE_RESPONSE


def test_a_superseded_write_fails_with_the_newer_one(connected):
    older, newer = connected.send("/a", b"1", retries=9), connected.send("/a", b"2", retries=1)
    for _ in range(2):
        connected.fail()
        connected.wait(0.25)
        connected.connect()
    assert isinstance(connected.outcome(newer), PacemakerUnavailableError)
    assert isinstance(connected.outcome(older), PacemakerUnavailableError)
    assert connected.outcome(older) is not connected.outcome(newer)


def test_a_delete_is_sent_again_before_the_pulse_that_came_after_it(connected):
    connected.store = {"/a/old": b"old", "/a/new": b"old"}
    connected.delete("/a")
    connected.send("/a/new", b"new")
    connected.fail()
    connected.wait(0.25)
    connected.connect()
    connected.serve()
    assert connected.store == {"/a/new": b"new"}


def test_a_write_that_never_left_is_not_left_out(world):
    world.send("/a", b"1")
    world.send("/a", b"2")
    world.connect()
    assert [request.pulse.details for request in world.requests] == [b"1", b"2"]


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["down", "connecting", "up", "backing off"])
def test_closing_fails_every_open_call(state):
    world = World()
    call = world.ask("/a")
    if state == "up":
        world.connect()
    elif state == "backing off":
        world.fail("refused")
    held = world.changes()
    world.exchange.close()
    world.exchange.close()
    world.carried_out()
    world.error(call, PacemakerClosedError)
    world.error(held, PacemakerClosedError)
    assert world.exchange.alarm == float("inf")
    with pytest.raises(PacemakerClosedError, match="closed"):
        world.ask("/b")
    world.connect()
    world.fail()
    world.receive(Message(11, 0, pulse=Pulse("/a", b"")))
    assert world.exchange.state is Link.CLOSED
