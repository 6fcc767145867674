"""A channel over a pair of sockets, in the clear; over TLS it is tested with `tls`."""

import socket

import pytest

from stormkeeper.errors import (
    PacemakerUnavailableError,
    RemoteProtocolError,
    UntrustedServerError,
)
from stormkeeper.pacemaker.client.channel import Channel, in_words
from stormkeeper.pacemaker.wire import Message, MessageType, encode


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(5.0)
    with ours, theirs:
        yield Channel(ours, peer="p:1", max_message_size=1000, stream=None), theirs


def test_what_the_kernel_has_no_room_for_is_sent_later_and_in_order(pair):
    channel, theirs = pair
    pieces = [bytes([number]) * 300_000 for number in range(10)]
    channel.begin()
    for piece in pieces:
        channel.send(piece)
    assert channel.has_unsent
    got = bytearray()
    while len(got) < 3_000_000:
        got += theirs.recv(1_000_000)
        channel.flush()
    assert got == b"".join(pieces)
    assert not channel.has_unsent


def test_a_full_kernel_takes_nothing(pair):
    channel, _ = pair
    channel.send(bytes(10_000_000))
    while channel.flush():
        pass
    assert channel.has_unsent


def test_nothing_came(pair):
    assert pair[0].receive() is None


def test_messages_come_whole_however_they_are_cut(pair):
    channel, theirs = pair
    frames = encode(Message(MessageType.SEND_PULSE_RESPONSE, 7)) * 3
    got = []
    for place in range(0, len(frames), 5):
        theirs.sendall(frames[place : place + 5])
        messages, fault = channel.messages(channel.opened(channel.receive()))
        got += messages
        assert fault is None
    assert [message.message_id for message in got] == [7, 7, 7]


def test_messages_before_a_fault_are_not_lost(pair):
    channel, _ = pair
    whole = encode(Message(MessageType.SEND_PULSE_RESPONSE, 7))
    for nonsense in (b"\x7f\xff\xff\xff", b"\x00\x00\x00\x01\xff"):
        other = Channel(channel.socket, peer="p:1", max_message_size=1000, stream=None)
        messages, fault = other.messages(whole + nonsense)
        assert [message.message_id for message in messages] == [7]
        assert isinstance(fault, RemoteProtocolError)


@pytest.mark.parametrize("heard", [False, True])
def test_an_end_before_any_answer_may_mean_tls_or_a_limit(pair, heard):
    channel, theirs = pair
    if heard:
        theirs.sendall(b"\x00")
        channel.receive()
    theirs.close()
    with pytest.raises(PacemakerUnavailableError, match="closed the connection") as failure:
        channel.receive()
    for words in ("pacemaker.tls.enable", "pacemaker.max.connections", "its log has the reason"):
        assert (words in str(failure.value)) is not heard
    with pytest.raises(PacemakerUnavailableError, match="closed"):
        channel.send(b"x")


def test_an_alert_of_tls_is_known(pair):
    channel, theirs = pair
    theirs.sendall(b"\x15\x03\x03\x00\x02\x02\x46")
    with pytest.raises(UntrustedServerError, match=r"p:1 speaks TLS"):
        channel.receive()


def test_a_name_that_cannot_be_looked_up_is_said_to_be_one():
    for number in (socket.EAI_NONAME, socket.EAI_AGAIN):
        told = in_words(socket.gaierror(number, "so it is"))
        assert told == "the host's name could not be looked up: so it is"
    assert in_words(ConnectionRefusedError(111, "x")).startswith("connection refused")
