"""The client's half of the authentication, message by message."""

import asyncio
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.errors import (
    AuthenticationError,
    ConfigError,
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
)
from stormkeeper.pacemaker.client.connection_opener import ClientAuthentication
from stormkeeper.pacemaker.wire.decoder import (
    PacemakerFrameSplitter,
    decode,
    read_control,
    read_token,
)
from stormkeeper.pacemaker.wire.encoder import control_frame, token_frame
from stormkeeper.pacemaker.wire.messages import Control, Message, MessageType, Pulse
from stormkeeper.sasl import SAME_METHOD
from support.mechanisms import REMEDY, Fake, identity

REFUSED = Message(MessageType.NOT_AUTHORIZED, 0)


def parsed(frame):
    (payload,) = PacemakerFrameSplitter().feed(frame)
    return decode(payload)


def token(data):
    return parsed(token_frame(data))


COMPLETE = parsed(control_frame(Control.SASL_COMPLETE))
END = PacemakerUnavailableError("the server closed the connection")
SILENCE = TimeoutError("no answer within 1 s in the authentication")


class Talk:
    """A channel to a server that sends what the test says, or ends as it says, and what left."""

    def __init__(self, *said, who=None, steps=()):
        #: What left, connection by connection.
        self.connections = [[]]
        self._said = deque(said)
        self._steps = deque(steps)
        self._authentication = ClientAuthentication("p:1", who or identity())

    @property
    def sent(self):
        return self.connections[-1]

    @property
    def rest(self):
        return list(self._said)

    def run(self):
        asyncio.run(self._authentication.run(self))
        return self

    def error(self, kind):
        with pytest.raises(kind) as failure:
            self.run()
        assert type(failure.value) is kind
        return str(failure.value)

    def send(self, data):
        self.sent.append(parsed(data))

    async def receive(self):
        said = self._said.popleft()
        if isinstance(said, Exception):
            raise said
        return said

    async def reconnect(self):
        self.connections.append([])

    async def compute(self, work):
        error = self._steps.popleft() if self._steps else None
        if error is not None:
            raise error
        return work()


def test_first_request_is_known_to_every_pacemaker():
    talk = Talk(END)
    assert talk.error(PacemakerUnavailableError) == "the server closed the connection"
    (only,) = talk.sent
    assert (only.type, only.path) == (MessageType.EXISTS, "/.stormkeeper")


def test_the_question_has_a_connection_of_its_own():
    talk = Talk(REFUSED, END)
    talk.error(NotAuthorizedError)
    asked, proving = talk.connections
    assert [message.type for message in asked] == [MessageType.EXISTS]
    assert [message.type for message in proving] == [MessageType.CONTROL_MESSAGE]


def test_digest_requests_challenge_and_checks_proof():
    talk = Talk(REFUSED, token(b"challenge"), token(b"proof"), COMPLETE).run()
    request, response = talk.sent
    assert read_control(request) is Control.SASL_TOKEN_REQUEST
    assert read_token(response) == b"response"
    assert talk.rest == []


def test_kerberos_speaks_first_and_ends_with_its_own_token():
    who = identity(lambda: Fake(b"AP-REQ", {b"layers": b"choice"}, b"layers"), "KERBEROS")
    talk = Talk(REFUSED, token(b"layers"), COMPLETE, COMPLETE, who=who).run()
    assert [read_token(message) for message in talk.sent] == [b"AP-REQ", b"choice"]
    assert talk.rest == [COMPLETE], "Storm says so twice"


@pytest.mark.parametrize("there", [False, True])
def test_server_with_method_none_gets_nothing_more(there):
    talk = Talk(Message(MessageType.EXISTS_RESPONSE, 0, boolval=there))
    text = talk.error(NotAuthorizedError)
    assert text.startswith("p:1 wants no authentication")
    assert "set pacemaker.auth.method to NO" in text
    assert len(talk.sent) == len(talk.connections) == 1


def test_unproven_completion_is_rejected():
    talk = Talk(REFUSED, token(b"challenge"), COMPLETE)
    assert "without having proved" in talk.error(NotAuthorizedError)


@pytest.mark.parametrize(
    "message", [REFUSED, parsed(control_frame(Control.FAILURE))], ids=["refused", "failure"]
)
def test_a_refusal_names_the_method_and_the_remedy(message):
    text = Talk(REFUSED, message).error(NotAuthorizedError)
    assert "DIGEST" in text
    assert "the server refused" in text
    assert REMEDY in text


@pytest.mark.parametrize(
    "message",
    [
        Message(MessageType.GET_PULSE_RESPONSE, 0, pulse=Pulse("/a", b"")),
        parsed(control_frame(Control.OK)),
        Message(MessageType.SASL_MESSAGE_TOKEN, blob=b"\x00"),
        Message(MessageType.CONTROL_MESSAGE, blob=b""),
    ],
)
def test_message_out_of_place_is_the_servers_fault(message):
    Talk(REFUSED, message).error(RemoteProtocolError)


def test_nonsense_instead_of_a_refusal_is_the_servers_fault():
    Talk(Message(MessageType.SEND_PULSE_RESPONSE, 0)).error(RemoteProtocolError)


def test_a_server_that_never_comes_to_an_end_is_left():
    who = identity(lambda: Fake(answers={b"more": b"more"}))
    talk = Talk(REFUSED, *[token(b"more")] * 100, who=who)
    assert "no end after" in talk.error(NotAuthorizedError)
    assert len(talk.sent) < 20


def test_end_before_first_token_hints_at_method():
    waiting = str(SILENCE)
    assert Talk(SILENCE).error(TimeoutError) == waiting
    assert (
        Talk(REFUSED, SILENCE)
        .error(TimeoutError)
        .startswith(f"{waiting} before its first token; {SAME_METHOD}")
    )
    text = Talk(REFUSED, END).error(NotAuthorizedError)
    assert "connection before its first token; is pacemaker.auth.method the same at both" in text
    # It knows the method, so the password is wrong.
    assert Talk(REFUSED, token(b"challenge"), SILENCE).error(TimeoutError) == waiting
    text = Talk(REFUSED, token(b"challenge"), END).error(NotAuthorizedError)
    assert "first token" not in text
    assert REMEDY in text


def test_no_password_advice_before_a_token():
    reason = f"the server does not speak DIGEST-MD5; {SAME_METHOD}"
    failing = [None, AuthenticationError(reason)]
    for talk in Talk(REFUSED, token(b"challenge"), steps=failing), Talk(REFUSED, END):
        text = talk.error(NotAuthorizedError)
        assert text.endswith(f"{SAME_METHOD})")
        assert REMEDY not in text
    # A ticket was sent, and may be what is wrong.
    text = Talk(REFUSED, END, who=identity(lambda: Fake(b"AP-REQ"), "KERBEROS")).error(
        NotAuthorizedError
    )
    assert SAME_METHOD in text
    assert REMEDY in text


def test_a_step_that_fails_or_hangs_is_not_the_servers_end():
    for error in (AuthenticationError("no such user"), ConfigError("no file")):
        text = Talk(REFUSED, steps=[error]).error(NotAuthorizedError)
        assert f"(DIGEST: {error})" in text
    hung = TimeoutError("no credentials from our own side within 5 s")
    assert Talk(REFUSED, steps=[hung]).error(TimeoutError) == str(hung)
    talk = Talk(REFUSED, token(b"challenge"), steps=[None, hung])
    assert talk.error(TimeoutError) == str(hung)


def test_an_end_before_any_proof_is_no_refusal():
    class Refused(Talk):
        async def reconnect(self):
            raise END

    assert Refused(REFUSED).error(PacemakerUnavailableError) == str(END)


# --- anything in any order ------------------------------------------------------------------------

MESSAGES = [
    REFUSED,
    token(b"challenge"),
    token(b"proof"),
    token(b"nonsense"),
    COMPLETE,
    Message(MessageType.CONTROL_MESSAGE, blob=b"\xff"),
    Message(MessageType.GET_PULSE_RESPONSE, 0, pulse=Pulse("/0", b"1")),
    Message(MessageType.SEND_PULSE_RESPONSE, 0),
    END,
    SILENCE,
]
ERRORS = [None, AuthenticationError("no"), ConfigError("no file")]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(MESSAGES), max_size=6), st.lists(st.sampled_from(ERRORS), max_size=4)
)
def test_any_course_ends_in_proof_or_a_known_error(said, steps):
    talk = Talk(REFUSED, *said, END, steps=steps)
    try:
        talk.run()
    except (NotAuthorizedError, RemoteProtocolError, TimeoutError):
        return
    assert token(b"proof") in said[: said.index(COMPLETE)]
