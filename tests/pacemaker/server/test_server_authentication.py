"""How a session's client authenticates: in Storm's own order, and in no other."""

import re
from dataclasses import replace
from functools import partial

import pytest

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.wire.encoder import control_frame, encode, token_frame
from stormkeeper.pacemaker.wire.messages import Control, Message
from stormkeeper.sasl.digest_md5 import DigestServer
from support.sessions import ADDRESS, HELLO, POLICY, RIGHT, Password, new_sessions, opened
from support.vectors import load

KERBEROS = replace(POLICY, mechanism=partial(Password, greeting=None, farewell=None))


def test_the_conversation_is_storms():
    session, _ = opened()
    assert session.answer(HELLO[4:]) == token_frame(b"who is there?")
    assert session.answer(token_frame(b"not yet")[4:]) == token_frame(b"go on")
    assert session.may_read is False
    complete = control_frame(Control.SASL_COMPLETE)
    assert session.answer(RIGHT[4:]) == token_frame(b"welcome") + complete
    assert (session.may_read, session.may_write) == (True, True)
    assert session.authorization_id == "nimbus"
    assert "nimbus" in session.peer


def test_kerberos_begins_with_client_and_ends_twice():
    session, _ = opened(KERBEROS)
    assert session.answer(token_frame(b"not yet")[4:]) == token_frame(b"go on")
    assert session.answer(RIGHT[4:]) == control_frame(Control.SASL_COMPLETE) * 2
    assert session.may_read


@pytest.mark.parametrize("run", ["good", "bad"])
def test_the_frames_of_digest_are_storms(run):
    """A conversation that Storm's own server had, with its nonce."""
    golden = {
        vector["name"].rpartition(".")[2]: vector
        for vector in load("pacemaker.jsonl")
        if vector["name"].startswith(f"digest.pacemaker-client.{run}.")
    }
    password = next(v for v in load("pacemaker.jsonl") if v["name"] == "digest.secret")
    nonce = re.search('nonce="(.*?)"', golden["challenge"]["text"])[1].encode()
    policy = replace(
        POLICY,
        method="DIGEST",
        mechanism=lambda: DigestServer(lambda _: password["sasl_password"], nonce=lambda: nonce),
    )
    session, _ = opened(policy)
    frames = {name: bytes.fromhex(vector.get("frame", "")) for name, vector in golden.items()}
    assert session.answer(HELLO[4:]) == frames["challenge"]
    if run == "good":
        complete = control_frame(Control.SASL_COMPLETE)
        assert session.answer(frames["response"][4:]) == frames["rspauth"] + complete
        assert "('pacemaker-client')" in session.peer
    else:
        with pytest.raises(RemoteProtocolError, match="DIGEST"):
            session.answer(frames["response"][4:])
    assert session.may_read is (run == "good")


OUT_OF_ORDER = {
    "asked twice": (POLICY, [HELLO, HELLO]),
    "asked again": (POLICY, [HELLO, RIGHT, HELLO]),
    "a token too many": (POLICY, [HELLO, RIGHT, RIGHT]),
    "completed by the client": (POLICY, [control_frame(Control.SASL_COMPLETE)]),
    "completed within": (POLICY, [HELLO, control_frame(Control.SASL_COMPLETE)]),
    "OK": (POLICY, [control_frame(Control.OK)]),
    "CLOSE": (POLICY, [HELLO, control_frame(Control.CLOSE)]),
    "FAILURE": (POLICY, [control_frame(Control.FAILURE)]),
    "a token too many with KERBEROS": (KERBEROS, [RIGHT, RIGHT]),
    "unknown code": (POLICY, [encode(Message(16, blob=b"\0\0"))]),
    "no code": (POLICY, [encode(Message(16, blob=b""))]),
    "no token": (POLICY, [HELLO, encode(Message(17, blob=b"\xfe\x0c"))]),
    "longer token announced": (
        POLICY,
        [HELLO, encode(Message(17, blob=b"\xfe\x0c\0\0\0\x20nimbus=open sesame"))],
    ),
    "control message with a path": (POLICY, [encode(Message(16, 1, path="/a"))]),
    "with NONE": (None, [HELLO]),
    "a token with NONE": (None, [RIGHT]),
}


@pytest.mark.parametrize("case", OUT_OF_ORDER)
def test_out_of_order_the_connection_ends(case):
    policy, frames = OUT_OF_ORDER[case]
    session, _ = opened(policy)
    for frame in frames[:-1]:
        session.answer(frame[4:])
    with pytest.raises(RemoteProtocolError) as raised:
        session.answer(frames[-1][4:])
    assert session.fault == str(raised.value)
    assert session.cause == "protocol"
    assert "sesame" not in session.fault


@pytest.mark.parametrize(
    ("policy", "frame", "words"),
    [
        (
            replace(KERBEROS, method="KERBEROS"),
            HELLO,
            "KERBEROS: the client asked for a SASL token",
        ),
        (POLICY, RIGHT, "SCRAM: a SASL token came before it was asked for, as with KERBEROS"),
    ],
    ids=["of the server's", "of its own"],
)
def test_other_method_fails_with_hint_in_log(policy, frame, words):
    sessions, _, _ = new_sessions(policy)
    session = sessions.open(*ADDRESS)
    with pytest.raises(RemoteProtocolError) as raised:
        session.answer(frame[4:])
    assert session.fault == str(raised.value)
    assert session.fault.startswith(words)
    assert session.fault.endswith("is pacemaker.auth.method the same at both ends?")
    assert "sesame" not in session.fault
    assert (session.cause, session.may_read) == ("authentication", False)
    assert sessions.events.authentications == {(policy.method, "failed"): 1}


def test_authentication_to_method_none_has_advice():
    session, _ = opened(None)
    with pytest.raises(RemoteProtocolError, match=r"pacemaker\.auth\.method"):
        session.answer(HELLO[4:])
