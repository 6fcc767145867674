"""No extension is used before the server has told that it has it."""

import pytest

from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.wire.messages import RESERVED_PATH, Message, MessageType, Pulse

TOLD_CHANGES = b"\x0f\x00\x04\x0b\x00\x00\x00\x01\x00\x00\x00\x07changes\x00"


def told(world, details):
    (question,) = world.requests
    assert question.type == MessageType.GET_PULSE
    assert question.path == RESERVED_PATH
    world.requests = []
    answer = Message(11, question.message_id, pulse=Pulse(RESERVED_PATH, details))
    world.receive(answer)


def test_an_extension_is_asked_for_before_it_is_used(connected):
    calls = [connected.changes(), connected.changes()]
    told(connected, TOLD_CHANGES)
    assert [request.type for request in connected.requests] == [MessageType.CHANGES] * 2
    connected.serve()
    assert all(connected.outcome(call).changes for call in calls)
    again = connected.changes()
    connected.serve()
    assert connected.outcome(again).changes, "asked once for each connection"


def test_a_java_pacemaker_never_sees_an_extension(connected):
    calls = [connected.changes(), connected.changes()]
    told(connected, None)
    calls.append(connected.changes())
    assert connected.requests == []
    for call in calls:
        assert "peer:1 does not list the extension 'changes'" in connected.error(
            call, UnsupportedExtensionError
        )
    assert not connected.drops


def listing(world, name):
    return world.call(Message(MessageType.GET_ALL_NODES_FOR_PATH, 0, path=f"/w/{name}"))


@pytest.mark.parametrize("name", ["a(", "a[b", "*", "c++", "a|b", "{1", "a\\", "$x"])
def test_dangerous_listing_waits_for_the_servers_extensions(connected, name):
    call = listing(connected, name)
    told(connected, TOLD_CHANGES)
    assert [request.path for request in connected.requests] == [f"/w/{name}"]
    connected.fail()
    connected.error(call, PacemakerUnavailableError)
    call = listing(connected, name)
    connected.wait(0.25)
    connected.connect()
    told(connected, None)
    assert connected.requests == []
    assert "peer:1 is a Java Pacemaker" in connected.error(call, UnsupportedExtensionError)


@pytest.mark.parametrize("name", ["wc-1-1700000000", "host.example.com-6700", "a]b}", "Ünï code"])
def test_any_other_listing_asks_nothing(connected, name):
    listing(connected, name)
    assert [request.path for request in connected.requests] == [f"/w/{name}"]


def test_a_refused_question_is_asked_again(connected):
    for message_id in (1, 2):
        call = connected.changes("/a")
        (question,) = connected.requests
        assert question.path == RESERVED_PATH
        connected.requests = []
        connected.receive(Message(MessageType.NOT_AUTHORIZED, message_id))
        connected.error(call, NotAuthorizedError)


def test_a_new_connection_is_asked_again(connected):
    connected.changes()
    told(connected, TOLD_CHANGES)
    connected.fail()
    call = connected.changes()
    connected.wait(0.25)
    connected.connect()
    told(connected, None)  # the server was replaced by one of Storm's
    connected.error(call, UnsupportedExtensionError)


def test_held_calls_fail_with_the_connection(connected):
    call = connected.changes()
    connected.wait(1.0)
    assert connected.drops == ["no answer within 1 s"]
    connected.error(call, PacemakerUnavailableError)


def test_others_pass_a_call_that_waits_for_the_servers_word(connected):
    held = connected.changes()
    other = connected.ask("/a")
    assert [request.path for request in connected.requests] == [RESERVED_PATH, "/a"]
    question, ask = connected.requests
    connected.receive(Message(11, question.message_id, pulse=Pulse(RESERVED_PATH, TOLD_CHANGES)))
    connected.receive(Message(11, ask.message_id, pulse=Pulse("/a", b"")))
    assert connected.outcome(other)
    assert connected.outcome(held) is None


def test_a_refused_question_refuses_whoever_waited_for_it(connected):
    call = connected.changes("/a")
    (question,) = connected.requests
    connected.receive(Message(MessageType.NOT_AUTHORIZED, question.message_id))
    error = connected.error(call, NotAuthorizedError)
    assert "refused a request to read what changed below /a" in error
    assert "it wants readers to authenticate" in error
    assert "limit" not in error


def test_a_refusal_of_who_may_read_is_for_a_limit(connected):
    call = connected.changes("/a")
    told(connected, TOLD_CHANGES)
    (request,) = connected.requests
    connected.receive(Message(MessageType.NOT_AUTHORIZED, request.message_id))
    error = connected.error(call, NotAuthorizedError)
    assert "the path or the answer exceeds a limit of the server" in error
    assert "authenticate" not in error


def test_who_may_not_ask_who_the_server_is_has_to_authenticate(connected):
    call = connected.ask(RESERVED_PATH)
    connected.receive(Message(MessageType.NOT_AUTHORIZED, 1))
    error = connected.error(call, NotAuthorizedError)
    assert "it wants readers to authenticate" in error
    assert "limit" not in error


def test_a_held_call_keeps_its_deadline(connected):
    call = connected.changes(deadline=0.5)
    connected.wait(0.5)
    connected.error(call, PacemakerUnavailableError)
    told(connected, TOLD_CHANGES)
    assert connected.requests == []


def test_an_unreadable_word_of_the_server_is_its_fault(connected):
    call = connected.changes()
    told(connected, b"\x0f garbage")
    assert "not readable" in connected.error(call, RemoteProtocolError)
    assert len(connected.drops) == 1


def test_users_own_question_replaces_the_clients(connected):
    connected.ask(RESERVED_PATH)
    told(connected, TOLD_CHANGES)
    connected.changes()
    assert [request.type for request in connected.requests] == [MessageType.CHANGES]
