import pytest

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.client.calls import (
    ClientCall,
    ServerExtensions,
    Verdict,
    make_question,
    unsupported,
)
from stormkeeper.pacemaker.wire import Message, MessageType, Pulse

TOLD_CHANGES = b"\x0f\x00\x04\x0b\x00\x00\x00\x01\x00\x00\x00\x07changes\x00"


def call(kind):
    return ClientCall(int(kind), "/a", b"", 1.0, 0.0)


def told(details):
    return Message(MessageType.GET_PULSE_RESPONSE, 0, pulse=Pulse("/.stormkeeper", details))


def test_storms_own_requests_pass_and_ask_nothing():
    gate = ServerExtensions()
    assert gate.judge(call(MessageType.SEND_PULSE)) is Verdict.SEND
    assert gate.release() == []


def test_the_first_of_an_extension_asks_and_all_wait():
    gate, calls = ServerExtensions(), [call(MessageType.CHANGES), call(MessageType.HELD)]
    assert [gate.judge(one) for one in calls] == [Verdict.ASK, Verdict.HOLD]
    gate.take_answer(told(TOLD_CHANGES))
    assert gate.release() == calls
    assert [gate.judge(one) for one in calls] == [Verdict.SEND, Verdict.REFUSE]


def test_a_java_pacemaker_tells_nothing_and_is_sent_none():
    gate = ServerExtensions()
    gate.judge(call(MessageType.CHANGES))
    gate.take_answer(told(None))
    assert gate.judge(call(MessageType.CHANGES)) is Verdict.REFUSE


def test_what_is_not_told_is_asked_for_again():
    gate = ServerExtensions()
    gate.judge(call(MessageType.CHANGES))
    gate.take_refusal()
    assert gate.judge(call(MessageType.CHANGES)) is Verdict.ASK


@pytest.mark.parametrize("name", ["a(", "a[b", "*", "c++", "a|b", "{1", "a\\", "$x"])
def test_dangerous_listing_waits_for_the_servers_extensions(name):
    listing = ClientCall(int(MessageType.GET_ALL_NODES_FOR_PATH), f"/w/{name}", b"", 1.0, 0.0)
    ours, java = ServerExtensions(), ServerExtensions()
    assert ours.judge(listing) is java.judge(listing) is Verdict.ASK
    ours.take_answer(told(TOLD_CHANGES))
    java.take_answer(told(None))
    assert ours.judge(listing) is Verdict.SEND
    assert java.judge(listing) is Verdict.REFUSE
    assert "p:1 is a Java Pacemaker" in str(unsupported("p:1", listing))


@pytest.mark.parametrize("name", ["wc-1-1700000000", "host.example.com-6700", "a]b}", "Ünï code"])
def test_any_other_listing_asks_nothing(name):
    listing = ClientCall(int(MessageType.GET_ALL_NODES_FOR_PATH), f"/w/{name}", b"", 1.0, 0.0)
    assert ServerExtensions().judge(listing) is Verdict.SEND


def test_nonsense_is_the_servers_fault():
    with pytest.raises(RemoteProtocolError):
        ServerExtensions().take_answer(told(b"\x0f\x00"))


def test_calls_that_ended_meanwhile_are_not_held():
    gate, ended = ServerExtensions(), call(MessageType.CHANGES)
    gate.judge(ended)
    ended.settled = True
    gate.forget_settled()
    assert gate.release() == []


def test_the_question_and_the_error():
    assert make_question(1.0).path == "/.stormkeeper"
    assert "p:1 does not list" in str(unsupported("p:1", call(MessageType.HELD)))
    assert "'held'" in str(unsupported("p:1", call(MessageType.HELD)))
