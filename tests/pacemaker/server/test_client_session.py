"""Who may do what: nobody reads before authenticating, and only in order does one authenticate."""

import asyncio
import logging
import math
import socket
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.client_session import ClientSession
from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import (
    RESERVED_PATH,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)
from stormkeeper.sasl import SAME_METHOD
from support.engines import ENGINES, Rig
from support.messages import field, i32, string
from support.sessions import (
    ADDRESS,
    HELLO,
    PATH,
    POLICY,
    RIGHT,
    SECRET,
    Password,
    ask,
    new_sessions,
    opened,
    token,
)

READS = {
    "EXISTS": Message(MessageType.EXISTS, 7, path=PATH),
    "GET_PULSE": Message(MessageType.GET_PULSE, 7, path=PATH),
    "GET_ALL_PULSE": Message(MessageType.GET_ALL_PULSE_FOR_PATH, 7, path="/workerbeats"),
    "GET_ALL_NODES": Message(MessageType.GET_ALL_NODES_FOR_PATH, 7, path="/workerbeats"),
    "CHANGES": Message(
        MessageType.CHANGES, 7, changes_request=ChangesRequest("/", 0, 0, "instance")
    ),
    "HELD": Message(MessageType.HELD, 7, path=PATH),
    "DELETED": Message(MessageType.DELETED, 7, path="/workerbeats"),
    "the reserved path": Message(MessageType.GET_PULSE, 7, path=RESERVED_PATH),
    "EXISTS of the reserved path": Message(MessageType.EXISTS, 7, path=RESERVED_PATH),
    "below the reserved path": Message(MessageType.GET_PULSE, 7, path=f"{RESERVED_PATH}/x"),
    "children of the reserved path": Message(
        MessageType.GET_ALL_NODES_FOR_PATH, 7, path=RESERVED_PATH
    ),
}
WRITES = {
    "CREATE_PATH": Message(MessageType.CREATE_PATH, 7, path=PATH),
    "SEND_PULSE": Message(MessageType.SEND_PULSE, 7, pulse=Pulse(PATH, b"new")),
    "DELETE_PATH": Message(MessageType.DELETE_PATH, 7, path="/workerbeats"),
    "DELETE_PULSE_ID": Message(MessageType.DELETE_PULSE_ID, 7, path=PATH),
}
REFUSED = [Message(MessageType.NOT_AUTHORIZED, 7)]


def framed(payload):
    return i32(len(payload)) + payload


def authenticate(session):
    ask(session, HELLO)
    return ask(session, RIGHT)


@pytest.mark.parametrize("request_", READS.values(), ids=READS)
def test_unauthenticated_client_reads_nothing(request_):
    session, _ = opened()
    assert ask(session, request_) == REFUSED
    ask(session, HELLO)
    assert ask(session, request_) == REFUSED
    ask(session, RIGHT)
    assert ask(session, request_)[0].type == request_.type + 1


@pytest.mark.parametrize("request_", WRITES.values(), ids=WRITES)
def test_everyone_writes_unless_writers_must_authenticate(request_):
    session, store = opened()
    assert ask(session, request_)[0].type == request_.type + 1
    session, store = opened(replace(POLICY, authenticates_writers=True))
    assert ask(session, request_) == REFUSED
    assert store.get(PATH.encode()) == SECRET
    authenticate(session)
    assert ask(session, request_)[0].type == request_.type + 1


@pytest.mark.parametrize("request_", [*READS.values(), *WRITES.values()], ids=[*READS, *WRITES])
def test_everyone_does_everything_with_none(request_):
    session, _ = opened(None)
    assert (session.may_read, session.may_write) == (True, True)
    assert ask(session, request_)[0].type == request_.type + 1


def test_fields_in_another_order_or_twice_do_not_help():
    session, _ = opened()
    path, number = field(12, 2, field(11, 1, string(PATH)) + b"\0"), field(8, 3, i32(7))
    send, get = field(8, 1, i32(4)), field(8, 1, i32(10))
    pulse = field(12, 2, field(12, 2, field(11, 1, string(PATH)) + field(11, 2, string(b"x"))))
    for payload in (
        path + get + number,
        number + path + get,
        send + get + path + number,
        get + field(12, 2, b"\0") + path + number,
        send + pulse + b"\0\0" + get + path + number,
    ):
        assert ask(session, framed(payload + b"\0")) == REFUSED
    # The last type counts: this one is refused for what it says in the end, as a write.
    with pytest.raises(RemoteProtocolError, match="SEND_PULSE with a path"):
        ask(session, framed(get + send + path + number + b"\0"))


any_fields = st.lists(
    st.one_of(
        st.builds(lambda kind: field(8, 1, i32(kind)), st.sampled_from([2, 4, 6, 8, 10, 100])),
        st.builds(
            lambda path: field(12, 2, field(11, 1, string(path)) + b"\0"),
            st.sampled_from([PATH, "/workerbeats", "/", RESERVED_PATH, ""]),
        ),
        st.just(field(12, 2, field(12, 100, field(11, 1, string("/")) + b"\0") + b"\0")),
        st.just(field(8, 3, i32(7))),
        st.just(field(2, 9, b"\1")),
    ),
    max_size=6,
)


@given(any_fields)
def test_no_arrangement_of_fields_reads_anything(fields):
    session, store = opened()
    revision = store.index.revision
    try:
        answer = session.answer(b"".join(fields) + b"\0")
    except RemoteProtocolError:
        return
    for payload in PacemakerFrameSplitter().feed(answer):
        assert decode(payload).type in (MessageType.NOT_AUTHORIZED, MessageType.SEND_PULSE_RESPONSE)
    assert SECRET not in answer
    assert b"instance" not in answer
    assert store.index.revision == revision


exact = st.one_of(
    st.builds(
        lambda kind, path: encode(Message(kind, 7, path=path)),
        st.sampled_from([2, 6, 8, 10, 12]),
        st.sampled_from([PATH, "/workerbeats", RESERVED_PATH]),
    ),
    st.builds(
        lambda path: encode(Message(4, 7, pulse=Pulse(path, b"x"))),
        st.sampled_from(["/other", RESERVED_PATH]),
    ),
)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(exact | any_fields.map(lambda fields: framed(b"".join(fields) + b"\0")), max_size=12)
)
def test_no_engine_has_a_way_around_the_session(engine, frames):
    async def received():
        rig = Rig(engine, lambda: sessions.open(*ADDRESS))
        sessions, store, _ = new_sessions(POLICY, rig.index)
        async with rig:
            # What an engine may answer by itself: a pulse that is there.
            store.put(PATH.encode(), SECRET)
            client = rig.connect()
            await client.send(b"".join(frames))
            client.socket.shutdown(socket.SHUT_WR)
            return await client.receive_all()

    answers = asyncio.run(received())
    for payload in PacemakerFrameSplitter().feed(answers):
        answer = decode(payload)
        assert answer.type == MessageType.NOT_AUTHORIZED or answer.type - 1 in (4, 12)
    assert SECRET not in answers
    assert b"instance" not in answers


@pytest.mark.parametrize("engine", ENGINES)
def test_rule_by_address_is_asked_without_authentication(engine, monkeypatch):
    def authorise(session, payload):
        assert (session.address, decode(payload).pulse) == (ADDRESS[0], Pulse(PATH, b"new"))
        return encode(Message(MessageType.NOT_AUTHORIZED, 7))

    async def answers():
        rig = Rig(engine, lambda: sessions.open(*ADDRESS))
        sessions, store, _ = new_sessions(index=rig.index)
        async with rig:
            store.put(PATH.encode(), SECRET)
            client = rig.connect()
            await client.send(encode(WRITES["SEND_PULSE"]))
            client.socket.shutdown(socket.SHUT_WR)
            return await client.receive_all(), store.index.get(PATH.encode())

    monkeypatch.setattr(ClientSession, "writes_unasked", property(lambda _: False))
    monkeypatch.setattr(ClientSession, "_authorise", authorise)
    frames, stored = asyncio.run(answers())
    assert [decode(frame) for frame in PacemakerFrameSplitter().feed(frames)] == REFUSED
    assert stored == SECRET


def test_authentication_without_a_method_is_refused_under_a_rule(monkeypatch):
    monkeypatch.setattr(ClientSession, "writes_unasked", property(lambda _: False))
    sessions, _, _ = new_sessions()
    with pytest.raises(RemoteProtocolError, match=r"this server has NONE"):
        ask(sessions.open(*ADDRESS), HELLO)


def test_a_wrong_password_ends_the_connection_and_opens_nothing(caplog):
    sessions, store, _ = new_sessions(POLICY)
    store.put(PATH.encode(), SECRET)
    session = sessions.open(*ADDRESS)
    ask(session, HELLO)
    with caplog.at_level(logging.DEBUG), pytest.raises(RemoteProtocolError, match="wrong password"):
        ask(session, token("nimbus=a secret of somebody"))
    assert (session.cause, session.authorization_id) == ("authentication", None)
    assert ask(session, READS["GET_PULSE"]) == REFUSED
    assert sessions.events.authentications == {("SCRAM", "failed"): 1}
    assert "a secret" not in caplog.text
    assert "a secret" not in str(session.fault)


def test_unauthorised_client_is_named_in_the_error():
    session, _ = opened(replace(POLICY, method="KERBEROS", is_authorised=lambda name: name == "a"))
    ask(session, HELLO)
    with pytest.raises(RemoteProtocolError, match=r"'nimbus'.*pacemaker\.kerberos\.users"):
        ask(session, RIGHT)
    assert not session.may_read


class Encrypted:
    """What a session asks of an ``ssl.SSLObject``."""

    def __init__(self, certificate):
        self.certificate = certificate

    def version(self):
        return "TLSv1.3"

    def getpeercert(self):
        return self.certificate


def test_log_names_authenticated_client_and_method(caplog):
    with caplog.at_level(logging.INFO):
        session, _ = opened()
        authenticate(session)
        session, _ = opened()
        session.secured(Encrypted({"subject": ((("commonName", "worker-1"),),)}))
        authenticate(session)
        session, _ = opened(replace(POLICY, method="DIGEST", mechanism=Password.storms))
        session.secured(Encrypted({}))
        ask(session, HELLO)
        ask(session, token("bmltYnVz=open sesame"))
    who = "10.0.0.1:4711"
    assert [record.getMessage() for record in caplog.records] == [
        f"{who} authenticated as 'nimbus' with SCRAM over plain TCP",
        f"{who} connected over TLSv1.3 with the certificate of 'worker-1'",
        f"{who} authenticated as 'nimbus' with SCRAM over TLSv1.3 with the certificate of"
        " 'worker-1'",
        f"{who} authenticated as 'nimbus' with DIGEST over TLSv1.3",
    ]
    assert "sesame" not in caplog.text


def test_the_first_refusal_is_logged_and_the_others_are_counted(caplog):
    sessions, _, _ = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    with caplog.at_level(logging.INFO):
        for request in READS.values():
            ask(session, request)
        [record] = caplog.records
        sessions.ended(session, "", "closed by the client")
    assert "EXISTS" in record.getMessage()
    assert "pacemaker.auth.method: SCRAM" in record.getMessage()
    assert sessions.events.refusals == {("unauthenticated", "read"): len(READS) - 2}
    told = caplog.records[1].getMessage()
    assert told.endswith(f"{len(READS) - 2} requests were refused in all")
    assert len(sessions) == 0


def test_refused_writes_are_counted_apart_from_refused_reads():
    sessions, _, _ = new_sessions(replace(POLICY, authenticates_writers=True))
    session = sessions.open(*ADDRESS)
    for request in (*WRITES.values(), READS["EXISTS"]):
        assert ask(session, request) == REFUSED
    assert sessions.events.refusals == {
        ("unauthenticated", "write"): len(WRITES),
        ("unauthenticated", "read"): 1,
    }


def test_question_whether_to_authenticate_is_not_logged(caplog):
    sessions, _, _ = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    with caplog.at_level(logging.INFO):
        assert ask(session, READS["EXISTS of the reserved path"]) == REFUSED
        sessions.ended(session, "", "closed by the client")
    assert not sessions.events.refusals
    assert not caplog.records


ASK = READS["the reserved path"]
ASKED = "asked for the server's description, was refused without authentication (SCRAM), and left"


@pytest.mark.parametrize("times", [1, 3])
def test_client_that_asks_and_leaves_is_logged(caplog, times):
    sessions, _, _ = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    for _ in range(times):
        assert ask(session, ASK) == REFUSED
    with caplog.at_level(logging.INFO):
        sessions.ended(session, "", "closed by the client")
    [record] = caplog.records
    assert record.getMessage() == f"10.0.0.1:4711 {ASKED}"
    assert (record.levelname, record.peer, record.cause) == (
        *("INFO", "10.0.0.1:4711"),
        "unauthenticated",
    )
    assert sessions.events.refusals == {("unauthenticated", "read"): 1}


@pytest.mark.parametrize(
    "frames",
    [
        [HELLO, RIGHT],
        [HELLO, RIGHT, ASK],
        [WRITES["SEND_PULSE"]],
        [WRITES["SEND_PULSE"], ASK],
        [],
    ],
    ids=["authenticates", "and asks again", "writes", "writes and asks again", "is cut off"],
)
def test_client_that_asks_and_stays_is_not_logged(caplog, frames):
    sessions, _, _ = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    with caplog.at_level(logging.INFO):
        for frame in (ASK, *frames):
            ask(session, frame)
        sessions.ended(session, "" if frames else "drain", "")
    assert "asked" not in caplog.text
    assert not sessions.events.refusals


@pytest.mark.parametrize("frames", [[HELLO], [ASK, HELLO], [HELLO, token("not yet")]])
def test_leaving_within_an_authentication_counts_as_failed(caplog, frames):
    sessions, _, _ = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    for frame in frames:
        ask(session, frame)
    with caplog.at_level(logging.INFO):
        sessions.ended(session, "", "closed by the client")
    [record] = caplog.records
    assert record.getMessage() == (
        f"10.0.0.1:4711 left in the middle of authenticating (SCRAM); {SAME_METHOD}"
    )
    assert (record.levelname, record.cause) == ("WARNING", "authentication")
    assert sessions.events.authentications == {("SCRAM", "failed"): 1}
    assert not sessions.events.refusals


def test_client_that_failed_and_left_is_counted_once(caplog):
    sessions, _, _ = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    ask(session, HELLO)
    with pytest.raises(RemoteProtocolError, match="wrong password"):
        ask(session, token("nimbus=wrong"))
    sessions.ended(session, "", "reset by the client")
    assert sessions.events.authentications == {("SCRAM", "failed"): 1}
    assert not caplog.records


def test_silent_connection_is_not_logged(caplog):
    sessions, _, _ = new_sessions(POLICY)
    with caplog.at_level(logging.INFO):
        sessions.ended(sessions.open(*ADDRESS), "", "closed by the client")
    assert not caplog.records
    assert not sessions.events.authentications


def test_questions_on_many_connections_have_bounded_lines(caplog):
    sessions, _, _ = new_sessions(POLICY)
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            session = sessions.open(*ADDRESS)
            ask(session, ASK)
            sessions.ended(session, "", "closed by the client")
    assert len(caplog.records) == 50
    assert sessions.events.refusals == {("unauthenticated", "read"): 100}


def test_address_and_user_are_separate_log_fields(caplog):
    sessions, _, _ = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    authenticate(session)
    sessions.ended(session, "protocol", "garbage")
    [record] = caplog.records
    assert (record.peer, record.user, record.cause) == ("10.0.0.1:4711", "nimbus", "protocol")
    assert record.getMessage() == "closing 10.0.0.1:4711 ('nimbus'): garbage"
    assert session.peer == "10.0.0.1:4711 ('nimbus')"


def test_of_a_drain_each_is_counted_and_none_has_a_line(caplog):
    sessions, _, _ = new_sessions()
    for _ in range(3):
        sessions.ended(sessions.open(*ADDRESS), "drain", "this server stops")
    assert sessions.events.closed == {"drain": 3}
    assert not caplog.records


def test_many_ends_from_one_address_have_bounded_lines(caplog):
    sessions, _, clock = new_sessions()
    for _ in range(1_000):
        sessions.ended(sessions.open(*ADDRESS), "protocol", "garbage")
    assert len(caplog.records) == 50
    sessions.ended(sessions.open("10.0.0.2", 1), "protocol", "garbage")
    assert "10.0.0.2" in caplog.records[-1].getMessage()
    clock.now += 10
    sessions.ended(sessions.open(*ADDRESS), "protocol", "garbage")
    assert "950 more from this address" in caplog.records[-1].getMessage()
    assert sessions.events.closed == {"protocol": 1_002}


def test_refusals_on_many_connections_have_bounded_lines(caplog):
    sessions, _, _ = new_sessions(POLICY)
    with caplog.at_level(logging.INFO):
        for _ in range(100):
            session = sessions.open(*ADDRESS)
            ask(session, READS["EXISTS"])
            ask(session, READS["EXISTS"])
            sessions.ended(session, "", "closed by the client")
    assert len(caplog.records) == 50
    assert sessions.events.refusals == {("unauthenticated", "read"): 200}


def test_begun_handshake_has_a_deadline():
    sessions, _, clock = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    clock.now += 1_000
    assert (session.deadline, session.handshake_due(clock.now)) == (math.inf, None)
    ask(session, HELLO)
    clock.now += 9.9
    assert session.handshake_due(clock.now) is None
    ask(session, token("not yet"))  # gives no more time
    clock.now += 0.1
    assert "handshake.timeout" in session.handshake_due(clock.now)
    assert session.cause == "handshake-timeout"


def test_authenticated_client_has_no_deadline():
    sessions, _, clock = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    authenticate(session)
    assert session.handshake_due(clock.now + 1e9) is None


def test_client_without_permissions_has_a_deadline():
    sessions, _, clock = new_sessions(replace(POLICY, authenticates_writers=True))
    session = sessions.open(*ADDRESS)
    assert session.handshake_due(clock.now + 9.9) is None
    assert session.handshake_due(clock.now + 10.1) is not None


def test_new_policy_revokes_permissions_that_it_lacks():
    sessions, store, clock = new_sessions(replace(POLICY, fingerprint=b"1"))
    store.put(PATH.encode(), SECRET)
    reader, writer, beginner = (sessions.open(*ADDRESS) for _ in range(3))
    authenticate(reader)
    ask(beginner, HELLO)

    assert sessions.replace_policy(replace(POLICY, fingerprint=b"1", handshake_timeout=3)) == 0
    assert ask(reader, READS["GET_PULSE"])[0].pulse.details == SECRET

    assert sessions.replace_policy(replace(POLICY, fingerprint=b"2")) == 2
    for session in (reader, beginner):
        assert ask(session, READS["GET_PULSE"]) == REFUSED
        assert session.handshake_due(clock.now) == session.fault
        assert session.cause == "revoked"
    assert ask(writer, WRITES["SEND_PULSE"])[0].type == MessageType.SEND_PULSE_RESPONSE

    assert (
        sessions.replace_policy(replace(POLICY, fingerprint=b"2", authenticates_writers=True)) == 1
    )
    assert ask(writer, WRITES["SEND_PULSE"]) == REFUSED


def test_unfinished_authentication_keeps_no_write_permission():
    sessions, _, clock = new_sessions(POLICY)
    beginner = sessions.open(*ADDRESS)
    ask(beginner, HELLO)
    assert sessions.replace_policy(replace(POLICY, authenticates_writers=True)) == 1
    assert ask(beginner, WRITES["SEND_PULSE"]) == REFUSED
    assert beginner.handshake_due(clock.now) == beginner.fault


def test_another_policy_may_name_other_users():
    sessions, _, _ = new_sessions(POLICY)
    nimbus, other = sessions.open(*ADDRESS), sessions.open(*ADDRESS)
    authenticate(nimbus)
    ask(other, HELLO)
    ask(other, token("other=open sesame"))
    assert sessions.replace_policy(replace(POLICY, is_authorised=lambda name: name == "other")) == 1
    assert (nimbus.may_read, other.may_read) == (False, True)


def test_an_end_by_the_server_is_counted_and_logged_once(caplog):
    sessions, _, _ = new_sessions(POLICY)
    session = sessions.open(*ADDRESS)
    with pytest.raises(RemoteProtocolError):
        session.answer(b"")
    sessions.ended(session, "protocol", session.fault)
    assert sessions.events.closed == {"protocol": 1}
    [record] = caplog.records
    assert record.getMessage() == f"closing 10.0.0.1:4711: {session.fault}"
    assert (record.peer, record.cause) == ("10.0.0.1:4711", "protocol")


def test_an_ipv6_address_is_written_in_brackets():
    sessions, _, _ = new_sessions()
    assert sessions.open("::1", 80).peer == "[::1]:80"
