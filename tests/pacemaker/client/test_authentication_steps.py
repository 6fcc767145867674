"""The client's half of the authentication, message by message."""

import pytest

from stormkeeper.errors import NotAuthorizedError, RemoteProtocolError
from stormkeeper.pacemaker.client.authentication import STEP_TIMEOUT, ClientAuthentication
from stormkeeper.pacemaker.client.calls import Compute, Reconnect, Send
from stormkeeper.pacemaker.wire import Message, MessageType, PacemakerFrameSplitter, Pulse, decode
from stormkeeper.pacemaker.wire.decoder import (
    read_control,
    read_token,
)
from stormkeeper.pacemaker.wire.encoder import (
    control_frame,
    token_frame,
)
from stormkeeper.pacemaker.wire.messages import (
    Control,
)
from stormkeeper.sasl import SAME_METHOD
from support.mechanisms import REMEDY, Fake, identity

REFUSED = Message(MessageType.NOT_AUTHORIZED, 0)


def parsed(frame):
    (payload,) = PacemakerFrameSplitter().feed(frame)
    return decode(payload)


def token(data):
    return parsed(token_frame(data))


COMPLETE = parsed(control_frame(Control.SASL_COMPLETE))


class Talk:
    """A handshake whose steps are computed and connections made at once, and what it sent."""

    def __init__(self, who=None):
        self.handshake = ClientAuthentication("p:1", who or identity())
        #: What left, connection by connection.
        self.connections = [[]]
        self.do(self.handshake.connected())

    @property
    def sent(self):
        return self.connections[-1]

    def do(self, todo):
        for one in todo:
            if isinstance(one, Compute):
                self.do(self.handshake.computed(one.work()))
            elif isinstance(one, Reconnect):
                self.connections.append([])
                self.do(self.handshake.connected())
            else:
                self.sent.append(parsed(one.data))

    def hear(self, *messages):
        for message in messages:
            self.do(self.handshake.received(message))


def test_first_request_is_known_to_every_pacemaker():
    (only,) = Talk().sent
    assert (only.type, only.path) == (MessageType.EXISTS, "/.stormkeeper")


def test_the_question_has_a_connection_of_its_own():
    talk = Talk()
    talk.hear(REFUSED)
    asked, proving = talk.connections
    assert [message.type for message in asked] == [MessageType.EXISTS]
    assert [message.type for message in proving] == [MessageType.CONTROL_MESSAGE]


def test_digest_requests_challenge_and_checks_proof():
    talk = Talk()
    assert not talk.handshake.has_begun
    talk.hear(REFUSED)
    assert read_control(talk.sent[-1]) is Control.SASL_TOKEN_REQUEST
    assert talk.handshake.has_begun
    talk.hear(token(b"challenge"))
    assert read_token(talk.sent[-1]) == b"response"
    assert not talk.handshake.is_done
    talk.hear(token(b"proof"), COMPLETE)
    assert talk.handshake.is_done
    assert len(talk.sent) == 2


def test_kerberos_speaks_first_and_ends_with_a_token_of_its_own():
    talk = Talk(identity(lambda: Fake(b"AP-REQ", {b"layers": b"choice"}, b"layers"), "KERBEROS"))
    talk.hear(REFUSED, token(b"layers"))
    assert [read_token(message) for message in talk.sent] == [b"AP-REQ", b"choice"]
    talk.hear(COMPLETE)
    assert talk.handshake.is_done
    talk.hear(COMPLETE)  # Storm says so twice
    assert talk.handshake.is_repetition(COMPLETE)
    assert not talk.handshake.is_repetition(Message(MessageType.GET_PULSE_RESPONSE, 0))


def test_what_comes_during_a_step_waits_for_its_end():
    handshake = ClientAuthentication("p:1", identity())
    handshake.connected()
    assert handshake.received(REFUSED) == [Reconnect()]
    (start,) = handshake.connected()
    (ask,) = handshake.computed(start.work())
    assert isinstance(ask, Send)
    (step,) = handshake.received(token(b"challenge"))
    assert handshake.received(token(b"proof")) == [], "the step is under way, and not done twice"
    assert handshake.received(COMPLETE) == []
    answer, last = handshake.computed(step.work())
    assert read_token(parsed(answer.data)) == b"response"
    assert not handshake.is_done
    assert handshake.computed(last.work()) == []
    assert handshake.is_done


@pytest.mark.parametrize("there", [False, True])
def test_server_with_method_none_gets_nothing_more(there):
    talk = Talk()
    with pytest.raises(NotAuthorizedError, match=r"p:1 wants no authentication.*method to NO"):
        talk.hear(Message(MessageType.EXISTS_RESPONSE, 0, boolval=there))
    assert len(talk.sent) == 1


def test_unproven_completion_is_rejected():
    talk = Talk()
    talk.hear(REFUSED, token(b"challenge"))
    with pytest.raises(NotAuthorizedError, match="without having proved"):
        talk.hear(COMPLETE)


@pytest.mark.parametrize(
    "message", [REFUSED, parsed(control_frame(Control.FAILURE))], ids=["refused", "failure"]
)
def test_a_refusal_names_the_method_and_the_remedy(message):
    talk = Talk()
    talk.hear(REFUSED)
    with pytest.raises(NotAuthorizedError) as failure:
        talk.hear(message)
    assert "DIGEST" in str(failure.value)
    assert REMEDY in str(failure.value)


@pytest.mark.parametrize(
    "message",
    [
        Message(MessageType.GET_PULSE_RESPONSE, 0, pulse=Pulse("/a", b"")),
        parsed(control_frame(Control.OK)),
        Message(MessageType.SASL_MESSAGE_TOKEN, blob=b"\x00"),
        Message(MessageType.CONTROL_MESSAGE, blob=b""),
    ],
)
def test_what_has_no_place_in_it_is_the_servers_fault(message):
    talk = Talk()
    talk.hear(REFUSED)
    with pytest.raises(RemoteProtocolError):
        talk.hear(message)


def test_a_server_that_never_comes_to_an_end_is_left():
    talk = Talk(identity(lambda: Fake(answers={b"more": b"more"})))
    talk.hear(REFUSED)
    with pytest.raises(NotAuthorizedError, match="no end after"):
        talk.hear(*[token(b"more")] * 100)
    assert len(talk.sent) < 20


def test_end_before_first_token_hints_at_method():
    talk = Talk()
    waiting = "no answer within 1 s in the authentication"
    assert talk.handshake.overdue(1.0) == waiting
    talk.hear(REFUSED)
    assert talk.handshake.overdue(1.0).startswith(f"{waiting} before its first token")
    text = str(talk.handshake.ended("the server closed the connection"))
    assert "connection before its first token; is pacemaker.auth.method the same at both" in text
    talk.hear(token(b"challenge"))
    # It knows the method, so the password is wrong.
    assert talk.handshake.overdue(1.0) == waiting
    assert "first token" not in str(talk.handshake.ended("the server closed the connection"))


def test_no_password_advice_before_a_token():
    reason = f"the server does not speak DIGEST-MD5; {SAME_METHOD}"
    talk = Talk()
    talk.hear(REFUSED)
    for error in talk.handshake.refusal(reason), talk.handshake.ended("the server left"):
        assert str(error).endswith(f"{SAME_METHOD})")
    assert REMEDY in str(talk.handshake.refusal("the server refused"))
    # A ticket was sent, and may be what is wrong.
    talk = Talk(identity(lambda: Fake(b"AP-REQ"), "KERBEROS"))
    talk.hear(REFUSED)
    text = str(talk.handshake.ended("the server left"))
    assert SAME_METHOD in text
    assert REMEDY in text


def test_a_step_of_our_own_has_its_own_patience():
    talk = ClientAuthentication("p:1", identity())
    talk.connected()
    assert talk.patience(1.0) == 1.0
    talk.received(REFUSED)
    assert talk.patience(1.0) == 1.0
    talk.connected()
    assert talk.patience(1.0) == STEP_TIMEOUT
    assert talk.overdue(1.0) == "no credentials from our own side within 5 s"
    talk.computed(talk.work.work())
    assert talk.patience(1.0) == 1.0
