"""A connection over a pair of sockets (over TLS: `test_client_tls`), and steps in threads."""

import asyncio
import socket
import threading

import pytest

from stormkeeper.daemon.sockets import describe_error
from stormkeeper.errors import (
    AuthenticationError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    UntrustedServerError,
)
from stormkeeper.pacemaker.client import connection_opener
from stormkeeper.pacemaker.client.connection_opener import ConnectionOpener
from stormkeeper.pacemaker.client.server_link import PacemakerConnection
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType
from support.waiting import DEADLINE_SECS, until


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(5.0)
    with ours, theirs:
        yield PacemakerConnection(ours, peer="p:1", max_message_size=1000, stream=None), theirs


def test_unsent_bytes_are_sent_later_in_order(pair):
    connection, theirs = pair
    pieces = [bytes([number]) * 300_000 for number in range(10)]
    for piece in pieces:
        connection.send(piece)
    assert connection.has_unsent
    got = bytearray()
    while len(got) < 3_000_000:
        got += theirs.recv(1_000_000)
        connection.flush()
    assert got == b"".join(pieces)
    assert not connection.has_unsent


def test_a_full_kernel_takes_nothing(pair):
    connection, _ = pair
    connection.send(bytes(10_000_000))
    while connection.flush():
        pass
    assert connection.has_unsent


def test_nothing_came(pair):
    assert pair[0].receive() is None


def test_messages_come_whole_however_they_are_cut(pair):
    connection, theirs = pair
    frames = encode(Message(MessageType.SEND_PULSE_RESPONSE, 7)) * 3
    got = []
    for place in range(0, len(frames), 5):
        theirs.sendall(frames[place : place + 5])
        messages, fault = connection.read_messages(connection.receive())
        got += messages
        assert fault is None
    assert [message.message_id for message in got] == [7, 7, 7]


def test_messages_before_a_fault_are_not_lost(pair):
    connection, _ = pair
    whole = encode(Message(MessageType.SEND_PULSE_RESPONSE, 7))
    for nonsense in (b"\x7f\xff\xff\xff", b"\x00\x00\x00\x01\xff"):
        other = PacemakerConnection(
            connection.socket, peer="p:1", max_message_size=1000, stream=None
        )
        messages, fault = other.read_messages(whole + nonsense)
        assert [message.message_id for message in messages] == [7]
        assert isinstance(fault, RemoteProtocolError)


@pytest.mark.parametrize("heard", [False, True])
def test_an_end_before_any_answer_may_mean_tls_or_a_limit(pair, heard):
    connection, theirs = pair
    if heard:
        theirs.sendall(b"\x00")
        connection.receive()
    theirs.close()
    with pytest.raises(PacemakerUnavailableError, match="closed the connection") as failure:
        connection.receive()
    for words in ("pacemaker.tls.enable", "pacemaker.max.connections", "its log has the reason"):
        assert (words in str(failure.value)) is not heard
    with pytest.raises(PacemakerUnavailableError, match="closed"):
        connection.send(b"x")


def test_an_alert_of_tls_is_known(pair):
    connection, theirs = pair
    theirs.sendall(b"\x15\x03\x03\x00\x02\x02\x46")
    with pytest.raises(UntrustedServerError, match=r"p:1 speaks TLS"):
        connection.receive()


def test_a_name_that_cannot_be_looked_up_is_said_to_be_one():
    for number in (socket.EAI_NONAME, socket.EAI_AGAIN):
        told = describe_error(socket.gaierror(number, "so it is"))
        assert told == "the host's name could not be looked up: so it is"
    assert describe_error(ConnectionRefusedError(111, "x")).startswith("connection refused")


# --- steps of an authentication, in threads -------------------------------------------------------


@pytest.fixture
def opener():
    return ConnectionOpener("h", 1, name="steps-test", try_timeout=1.0, max_message_size=1000)


def threads():
    names = [thread.name for thread in threading.enumerate()]
    return names.count("steps-test authentication")


def test_step_waits_for_one_that_hangs_and_newest_runs(opener, monkeypatch):
    go_on, done = threading.Event(), []

    async def take_steps():
        for number in range(3):
            with pytest.raises(TimeoutError, match="no credentials from our own side within"):
                await opener.compute(lambda: go_on.wait(DEADLINE_SECS))
            assert threads() == 1, number
        given_up = asyncio.create_task(opener.compute(lambda: done.append("given up")))
        await asyncio.sleep(0)
        given_up.cancel()
        go_on.set()
        await opener.compute(lambda: done.append("newest"))

    monkeypatch.setattr(connection_opener, "STEP_TIMEOUT", 0.3)
    asyncio.run(take_steps())
    assert done == ["newest"]
    until(lambda: threads() == 0)


def test_a_defect_in_a_step_is_named_and_keeps_none_out(opener, caplog):
    def fail():
        raise ZeroDivisionError("on purpose")

    async def take_steps():
        with pytest.raises(AuthenticationError, match="internal error, ZeroDivisionError"):
            await opener.compute(fail)
        return await opener.compute(lambda: b"later")

    assert asyncio.run(take_steps()) == b"later"
    assert [str(record.exc_info[1]) for record in caplog.records] == ["on purpose"]


def test_a_step_without_thread_does_not_block_later_ones(opener, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    async def take_steps():
        with monkeypatch.context() as shortage:
            shortage.setattr(threading.Thread, "start", refuse)
            with pytest.raises(OSError, match="no thread to authenticate in: can't start"):
                await opener.compute(lambda: b"never")
        return await opener.compute(lambda: b"later")

    assert asyncio.run(take_steps()) == b"later"
