"""SCRAM-SHA-256 against RFC 7677's example, scramp's own halves, and what a peer may say wrong."""

import base64

import pytest
import scramp
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.errors import AuthenticationError, ConfigError
from stormkeeper.sasl import scram
from stormkeeper.sasl.credentials import UserPassword
from stormkeeper.sasl.scram import GREETING, ScramClient, ScramServer, ScramUsers

USER = UserPassword("user", "pencil")
USERS = ScramUsers({"user": USER, "other": UserPassword("other", "eraser")})

#: RFC 7677 §3.
EXAMPLE = [
    b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
]


class ExampleUsers:
    """The example's user, whose salt and rounds are the example's."""

    def verifier(self, name):
        assert name == "user"
        salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
        return scramp.ScramMechanism().make_auth_info("pencil", iteration_count=4096, salt=salt)


def converse(client, server):
    said = client.step(server.step(client.step(server.start())))
    assert client.step(server.step(said)) is None


def test_client_messages_match_the_example():
    ours = ScramClient(USER, nonce=lambda: "rOprNGfwEbeRWgbNEkqO")
    assert ours.start() is None
    assert ours.step(GREETING) == EXAMPLE[0]
    assert ours.step(EXAMPLE[1]) == EXAMPLE[2]
    assert not ours.complete
    assert ours.step(EXAMPLE[3]) is None
    assert ours.complete


def test_server_messages_match_the_example():
    ours = ScramServer(ExampleUsers(), nonce=lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert ours.start() == b"SCRAM-SHA-256"
    assert ours.step(EXAMPLE[0]) == EXAMPLE[1]
    assert ours.authorization_id is None
    assert ours.step(EXAMPLE[2]) == EXAMPLE[3]
    assert ours.complete
    assert ours.authorization_id == "user"


@pytest.mark.parametrize("user", ["user", "other"])
def test_each_user_has_a_password(user):
    password = {"user": "pencil", "other": "eraser"}[user]
    ours = ScramServer(USERS)
    converse(ScramClient(UserPassword(user, password)), ours)
    assert ours.authorization_id == user


@pytest.mark.parametrize("user", ["user", "other", "nobody"])
def test_a_wrong_password_and_an_unknown_user_look_alike(user):
    ours, theirs = ScramServer(USERS), ScramClient(UserPassword(user, "wrong"))
    said = theirs.step(ours.step(theirs.step(ours.start())))
    told = f"^wrong password or user: the proof of '{user}' does not match$"
    with pytest.raises(AuthenticationError, match=told):
        ours.step(said)
    assert not ours.complete
    assert ours.authorization_id is None


def test_a_long_name_that_was_tried_is_cut():
    ours, name = ScramServer(USERS), "y" * 300
    ours.step(f"n,,n={name},r=abcdef".encode())
    nonce = ours._server.nonce
    with pytest.raises(AuthenticationError) as failure:
        ours.step(f"c=biws,r={nonce},p={'A' * 43}=".encode())
    assert f"the proof of '{'y' * 100}…' does not match" in str(failure.value)


def first_answer(user, users=USERS):
    """Return salt and rounds that a server gives to whoever asks for a user."""
    ours = ScramServer(users)
    text = ours.step(f"n,,n={user},r=abcdef".encode()).decode()
    return text.split(",")[1:]


def test_an_unknown_user_has_a_salt_that_stays():
    known, unknown = first_answer("user"), first_answer("nobody")
    assert first_answer("nobody") == unknown
    assert first_answer("user") == known
    assert unknown != known
    assert [len(part) for part in unknown] == [len(part) for part in known]


def test_salts_change_with_every_start():
    assert first_answer("user") != first_answer("user", ScramUsers({"user": USER}))


def test_a_server_that_does_not_know_the_password():
    ours, theirs = ScramClient(USER), ScramServer(USERS)
    ours.step(theirs.step(ours.step(theirs.start())))
    with pytest.raises(AuthenticationError, match="signature doesn't match"):
        ours.step(b"v=" + base64.b64encode(b"x" * 32))
    assert not ours.complete


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "malformed first message"),
        (b"n,,n=user", "Malformed"),
        (b"n,,r=abc,n=user", "Malformed"),
        (b"n,,n=,r=abc", "at least one character"),
        (b"n,,n=u=ser,r=abc", "must be followed by"),
        (b"n,,n=us\x01er,r=abc", "control characters forbidden"),
        (b"n,a=root,n=user,r=abc", "authzid must be empty"),
        (b"p=tls-unique,,n=user,r=abc", "requires channel binding"),
        (b"n,,m=1,n=user,r=abc", "isn't supported"),
        (b"n,,n=user,r=\xff", "not in UTF-8"),
        (b"n,,n=user,r=" + b"x" * 4096, "bytes, more than 4096"),
    ],
)
def test_a_wrong_first_message(said, reason):
    ours = ScramServer(USERS)
    with pytest.raises(AuthenticationError, match=reason):
        ours.step(said)
    assert not ours.complete


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda said: said.replace(b"r=", b"r=x"), "nonce doesn't match"),
        (lambda said: said.replace(b"c=biws", b"c=eSws"), "channel bindings don't match"),
        (lambda said: said[: said.index(b",p=")], "Malformed"),
        (lambda said: said + b",p=AAAA", "Duplicate"),
        (lambda said: said[:-8], "wrong password|Invalid base 64"),
        (lambda _: b"\xff", "not in UTF-8"),
    ],
)
def test_a_wrong_final_message(change, reason):
    ours, theirs = ScramServer(USERS), ScramClient(USER)
    said = theirs.step(ours.step(theirs.step(ours.start())))
    with pytest.raises(AuthenticationError, match=reason):
        ours.step(change(said))
    assert not ours.complete


def test_a_final_message_is_good_once():
    first, second, theirs = ScramServer(USERS), ScramServer(USERS), ScramClient(USER)
    hello = theirs.step(first.start())
    said = theirs.step(first.step(hello))
    second.step(hello)
    with pytest.raises(AuthenticationError, match="nonce doesn't match"):
        second.step(said)
    first.step(said)
    with pytest.raises(AuthenticationError, match="after the end"):
        first.step(said)


def test_there_is_one_guess():
    ours = ScramServer(USERS)
    with pytest.raises(AuthenticationError, match="malformed"):
        ours.step(b"")
    with pytest.raises(AuthenticationError, match="after the end"):
        ours.step(b"n,,n=user,r=abcdef")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"r=abc,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce doesn't match"),
        (b"r=NONCEx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1000001", "1000001 rounds .* more than 1000000"),
        (b"r=NONCEx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1", "must not be < 4096"),
        (b"r=NONCE,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "longer than the client nonce"),
        (b"r=NONCEx,s=%%%,i=4096", "base 64"),
        (b"e=other-error", "server returned an error"),
        (b"e=made-up", "invalid error"),
        (b"", "Malformed"),
        (b"\xff", "not in UTF-8"),
    ],
)
def test_a_wrong_answer_of_a_server(said, reason):
    ours = ScramClient(USER, nonce=lambda: "NONCE")
    ours.step(GREETING)
    with pytest.raises(AuthenticationError, match=reason):
        ours.step(said)
    with pytest.raises(AuthenticationError, match="after the end"):
        ours.step(EXAMPLE[1])


def test_a_server_of_another_mechanism():
    with pytest.raises(AuthenticationError, match=r"not speak SCRAM-SHA-256; is pacemaker\.auth"):
        ScramClient(USER).step(b'realm="default",nonce="x",algorithm=md5-sess')


@pytest.mark.parametrize("name", ["größe", "测试", 'a"b\\c, d=e', "\u2168"])
def test_names_and_passwords_of_any_script(name):
    user = UserPassword(name, name + " secret")
    ours = ScramServer(ScramUsers({name: user}))
    converse(ScramClient(user), ours)
    assert ours.complete


@pytest.mark.parametrize("user", [UserPassword("a\x00", "HUSH"), UserPassword("a", "HUSH\x00")])
def test_forbidden_characters_are_refused(user):
    for make in lambda: ScramUsers({user.username: user}), lambda: ScramClient(user):
        with pytest.raises(ConfigError, match="choose others") as caught:
            make()
        assert "HUSH" not in str(caught.value)


def test_no_repr_shows_a_password():
    shown = f"{USERS!r} {ScramClient(USER)!r} {ScramServer(USERS)!r}"
    assert "pencil" not in shown


MESSAGES = st.binary(max_size=60) | st.lists(
    st.sampled_from([b"n", b"y", b"p=", b"n=user", b"r=abc", b"c=biws", b"p=", b"v=", b"i=4096"]),
    max_size=6,
).map(b",".join)


@settings(deadline=None)
@given(first=MESSAGES, second=MESSAGES)
def test_any_bytes_are_taken_or_refused(first, second):
    for half in ScramServer(USERS), ScramClient(USER):
        for said in first, second, second:
            try:
                half.step(said)
            except AuthenticationError as refusal:
                reason = str(refusal)
                assert reason.isprintable(), reason
        assert not half.complete


def test_rounds_are_at_least_those_of_the_rfc():
    assert 4096 <= scram.ITERATIONS <= scram.MAX_ITERATIONS
