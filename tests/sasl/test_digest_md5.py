"""DIGEST-MD5 against the RFC's examples, what Storm's own halves said, and pure-sasl's client."""

import re
from hashlib import md5

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from puresasl import SASLProtocolException
from puresasl.client import SASLClient

from stormkeeper.errors import AuthenticationError
from stormkeeper.sasl import digest_md5
from stormkeeper.sasl.credentials import UserPassword, storm_password, storm_username
from stormkeeper.sasl.digest_md5 import DigestClient, DigestServer, random_nonce
from stormkeeper.sasl.scram import GREETING
from support import vectors

USER = UserPassword(storm_username("nimbus"), storm_password(UserPassword("pmuser", "HUSH")))


def transcript(outcome):
    """Return the three tokens of an authentication between Storm's own halves."""
    return [
        vector
        for vector in vectors.load("pacemaker")
        if re.fullmatch(rf"digest\.pacemaker-client\.{outcome}\.[123]\..*", vector["name"])
    ]


def between_quotes(name, vector):
    return re.search(rf'\b{name}="([^"]*)"', vector["text"])[1].encode()


def server(password=USER.password, **options):
    return DigestServer(lambda _: password, **options)


def client(user=USER, **options):
    return DigestClient(user, **options)


def converse(client, server):
    token = client.step(server.start())
    assert client.step(server.step(token)) is None


def test_server_messages_match_storms():
    challenge, response, proof = transcript("good")
    ours = server(challenge["sasl_password"], nonce=lambda: between_quotes("nonce", challenge))
    assert ours.start() == bytes.fromhex(challenge["hex"])
    assert not ours.complete
    assert ours.step(bytes.fromhex(response["hex"])) == bytes.fromhex(proof["hex"])
    assert ours.complete
    assert ours.authorization_id == proof["server_authzid"]


def test_client_messages_match_storms():
    challenge, response, proof = transcript("good")
    user = UserPassword(challenge["sasl_username"], challenge["sasl_password"])
    ours = client(user, cnonce=lambda: between_quotes("cnonce", response))
    assert ours.start() is None
    assert ours.step(bytes.fromhex(challenge["hex"])) == bytes.fromhex(response["hex"])
    assert not ours.complete
    assert ours.step(bytes.fromhex(proof["hex"])) is None
    assert ours.complete


def test_server_refuses_as_storms_does():
    challenge, response, proof = transcript("bad")
    (good, *_) = transcript("good")
    assert proof["hex"] is None
    ours = server(good["sasl_password"], nonce=lambda: between_quotes("nonce", challenge))
    assert ours.start() == bytes.fromhex(challenge["hex"])
    with pytest.raises(AuthenticationError, match="wrong password"):
        ours.step(bytes.fromhex(response["hex"]))
    assert not ours.complete
    assert ours.authorization_id is None


#: RFC 2831 §4: an IMAP and an ACAP session of chris, whose password is "secret".
RFC = [
    (
        "imap/elwood.innosoft.com",
        b"OA6MG9tEQGm2hh",
        b"OA6MHXh6VqTrRk",
        b"d388dad90d4bbd760a152321f2143af7",
        b"ea40f60335c427b5527b84dbabcdfffd",
    ),
    (
        "acap/elwood.innosoft.com",
        b"OA9BSXrbuRhWay",
        b"OA9BSuZWMSpW8m",
        b"6084c6db3fede7352c551284490fd0fc",
        b"2f0b3d7c3c2e486600ef710726aa2eae",
    ),
]


@pytest.mark.parametrize(("digest_uri", "nonce", "cnonce", "response", "rspauth"), RFC)
def test_the_examples_of_the_rfc(digest_uri, nonce, cnonce, response, rspauth):
    realm = "elwood.innosoft.com"
    ours = DigestServer(
        {"chris": "secret"}.get, realm=realm, digest_uri=digest_uri, nonce=lambda: nonce
    )
    theirs = DigestClient(
        UserPassword("chris", "secret"),
        realm=realm,
        digest_uri=digest_uri,
        cnonce=lambda: cnonce,
    )
    said = theirs.step(ours.start())
    assert b"response=" + response in said.split(b",")
    proof = ours.step(said)
    assert proof == b"rspauth=" + rspauth
    theirs.step(proof)
    assert theirs.complete
    assert ours.authorization_id == "chris"


def test_the_rfcs_own_challenge_is_understood():
    theirs = DigestClient(
        UserPassword("chris", "secret"),
        realm="elwood.innosoft.com",
        digest_uri="imap/elwood.innosoft.com",
        cnonce=lambda: b"OA6MHXh6VqTrRk",
    )
    said = theirs.step(
        b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",'
        b"algorithm=md5-sess,charset=utf-8"
    )
    assert b"response=d388dad90d4bbd760a152321f2143af7" in said


def independent(user=USER, *, password=None):
    """Return a client that is not ours."""
    return SASLClient(
        "default",
        service="null",
        mechanism="DIGEST-MD5",
        username=user.username,
        password=password or user.password,
    )


def test_an_independent_client_and_our_server():
    theirs, ours = independent(), server()
    proof = ours.step(theirs.process(ours.start()))
    theirs.process(proof)
    assert theirs.complete
    assert ours.authorization_id == USER.username


def test_an_independent_client_with_a_wrong_password():
    theirs, ours = independent(password="wrong"), server()
    with pytest.raises(AuthenticationError, match="wrong password"):
        ours.step(theirs.process(ours.start()))


def test_an_independent_client_takes_no_other_proof():
    theirs, ours = independent(), server()
    ours.step(theirs.process(ours.start()))
    with pytest.raises(SASLProtocolException):
        theirs.process(b"rspauth=" + b"0" * 32)


def test_an_unknown_user_is_refused_in_the_same_words():
    messages = []
    for password in None, "another", "":
        ours = server(password)
        with pytest.raises(AuthenticationError) as caught:
            ours.step(client().step(ours.start()))
        messages.append(str(caught.value))
    assert len(set(messages)) == 1


@pytest.mark.parametrize(
    ("tried", "told"),
    [
        ("reader", "'reader'"),
        (storm_username("word-count"), "'word-count'"),
        (storm_username("two\nlines'"), '"two\ufffdlines\'"'),
        ("y" * 300, f"'{'y' * 100}…'"),
    ],
)
def test_failure_names_the_user_in_one_escaped_line(tried, told):
    ours = server("another")
    said = client(UserPassword(tried, "not that one")).step(ours.start())
    with pytest.raises(AuthenticationError) as failure:
        ours.step(said)
    assert f"the digest of {told} does not match" in str(failure.value)
    assert "not that one" not in str(failure.value)


def test_an_unknown_user_cannot_come_in_with_an_empty_password():
    ours = server(None)
    said = client(UserPassword(USER.username, "")).step(ours.start())
    with pytest.raises(AuthenticationError, match="wrong password or user"):
        ours.step(said)


def test_a_nonce_is_never_given_twice():
    nonces = {random_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert {len(nonce) for nonce in nonces} == {40}


def test_a_response_is_good_for_its_own_challenge_alone():
    first, second = server(), server()
    said = client().step(first.start())
    second.start()
    with pytest.raises(AuthenticationError, match="nonce is not this challenge's"):
        second.step(said)
    first.step(said)
    with pytest.raises(AuthenticationError, match="after the end"):
        first.step(said)


def test_there_is_one_guess_for_each_challenge():
    ours = server()
    challenge = ours.start()
    with pytest.raises(AuthenticationError, match="wrong password"):
        ours.step(client(UserPassword("u", "wrong")).step(challenge))
    with pytest.raises(AuthenticationError, match="after the end"):
        ours.step(client().step(challenge))
    assert not ours.complete


def replace(name, text):
    """Return a function that gives a directive of a token another value, or takes it away."""
    pattern = re.compile(rb'(^|,)%s=("[^"]*"|[^,]*)' % name)

    def change(token):
        assert pattern.search(token)
        return pattern.sub(lambda match: match[1] + text if text else b"", token).lstrip(b",")

    return change


def append(text):
    return lambda token: token + b"," + text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        *(
            (replace(name, b""), f"{name.decode()} is missing")
            for name in (b"username", b"nonce", b"cnonce", b"nc", b"digest-uri", b"response")
        ),
        *(
            (append(name + b"=1"), f"{name.decode()} is there 2 times")
            for name in (
                *(b"username", b"nonce", b"cnonce", b"nc", b"digest-uri", b"response"),
                *(b"realm", b"qop", b"maxbuf", b"charset"),
            )
        ),
        (append(b"authzid=a,authzid=a"), "authzid is there 2 times"),
        (replace(b"realm", b""), "realm must be 'default'"),
        (replace(b"realm", b"realm=other"), "realm must be 'default'"),
        (replace(b"realm", b"realm=Default"), "realm must be 'default'"),
        (replace(b"realm", b'realm="\xff"'), "realm is not in UTF-8"),
        (replace(b"username", b'username="\xff"'), "username is not in UTF-8"),
        (replace(b"username", b'username="another"'), "wrong password or user"),
        (replace(b"digest-uri", b'digest-uri="imap/default"'), "digest-uri must be 'null/default'"),
        (replace(b"nc", b"nc=00000002"), "nc must be 00000001"),
        (replace(b"nc", b"nc=1"), "nc must be 00000001"),
        (replace(b"nonce", b'nonce="other"'), "nonce is not this challenge's"),
        (replace(b"cnonce", b'cnonce=""'), "cnonce is empty"),
        (replace(b"cnonce", b'cnonce="other"'), "wrong password or user"),
        (replace(b"charset", b"charset=utf-16"), "charset must be utf-8"),
        (replace(b"qop", b"qop=auth-int"), "qop must be auth"),
        (append(b"cipher=rc4"), "qop must be auth"),
        (replace(b"response", b"response=0"), "32 digits of lower-case hex"),
        (replace(b"response", b"response=" + b"A" * 32), "32 digits of lower-case hex"),
        (replace(b"response", b"response=" + b"0" * 32), "wrong password or user"),
        (append(b"authzid=root"), "authzid differs from username"),
        (append(b'authzid="\xff"'), "authzid is not in UTF-8"),
        (append(b"x=" + b"y" * 4096), "bytes, more than 4096"),
        (append(b"x"), "malformed at its byte"),
        (lambda _: b"", "username is missing"),
    ],
)
def test_responses_that_the_server_refuses(change, reason):
    ours = server()
    said = change(client().step(ours.start()))
    with pytest.raises(AuthenticationError, match=re.escape(reason)) as caught:
        ours.step(said)
    assert not ours.complete
    assert str(caught.value).isprintable()
    assert USER.password not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        append(b"x-new=1,x-new=2"),
        replace(b"qop", b""),
        replace(b"maxbuf", b""),
    ],
)
def test_responses_that_the_server_accepts(change):
    ours = server()
    ours.step(change(client().step(ours.start())))
    assert ours.complete


def test_upper_and_lower_case_are_the_same_in_a_digest_uri():
    ours = server()
    converse(client(digest_uri="NULL/Default"), ours)
    assert ours.complete


def test_a_client_may_say_that_it_acts_as_itself():
    ours = server(nonce=lambda: b"n")
    ours.start()
    user = USER.username
    secret = md5(f"{user}:default:{USER.password}".encode()).digest()
    key = md5(secret + f":n:c:{user}".encode()).hexdigest()
    call = md5(b"AUTHENTICATE:null/default").hexdigest()
    response = md5(f"{key}:n:00000001:c:auth:{call}".encode()).hexdigest()
    ours.step(
        f'charset=utf-8,username="{user}",realm="default",nonce="n",nc=00000001,cnonce="c",'
        f'digest-uri="null/default",qop=auth,response={response},authzid="{user}"'.encode()
    )
    assert ours.authorization_id == user


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replace(b"nonce", b""), "nonce is missing"),
        (replace(b"algorithm", b""), "algorithm is missing"),
        (append(b"nonce=1"), "nonce is there 2 times"),
        (append(b"algorithm=md5-sess"), "algorithm is there 2 times"),
        (append(b"charset=utf-8"), "charset is there 2 times"),
        (append(b'qop="auth",qop="auth"'), "qop is there 2 times"),
        (replace(b"nonce", b'nonce=""'), "nonce is empty"),
        (replace(b"algorithm", b"algorithm=md5"), "algorithm must be md5-sess"),
        (replace(b"charset", b"charset=latin-1"), "charset must be utf-8"),
        (append(b'qop="auth-int,auth-conf"'), "does not offer the qop auth"),
        (replace(b"realm", b"realm=other"), "does not offer the realm 'default'"),
        (replace(b"realm", b'realm="\xff"'), "realm is not in UTF-8"),
        (append(b"x=" + b"y" * 2048), "bytes, more than 2048"),
        (lambda _: b"", "nonce is missing"),
        (lambda _: b"\x00", "malformed"),
    ],
)
def test_challenges_that_the_client_refuses(change, reason):
    ours = client()
    with pytest.raises(AuthenticationError, match=reason):
        ours.step(change(server().start()))
    with pytest.raises(AuthenticationError, match="after the end"):
        ours.step(server().start())
    assert not ours.complete


@pytest.mark.parametrize(
    "change",
    [
        append(b'realm="other"'),
        append(b'qop="auth-int, auth"'),
        replace(b"realm", b""),
        replace(b"charset", b""),
        append(b"stale=true,maxbuf=1000,x-new=1,x-new=2"),
    ],
)
def test_challenges_that_the_client_accepts(change):
    ours, theirs = client(), server()
    assert ours.step(theirs.step(ours.step(change(theirs.start())))) is None
    assert ours.complete


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (b"rspauth=" + b"0" * 32, "does not know the password"),
        (b"", "rspauth is missing"),
        (b"rspauth=a,rspauth=b", "rspauth is there 2 times"),
        (b"\xff", "malformed"),
    ],
)
def test_a_server_without_the_password(proof, reason):
    ours = client()
    ours.step(server().start())
    with pytest.raises(AuthenticationError, match=reason):
        ours.step(proof)
    assert not ours.complete


def test_a_token_after_the_end_is_refused():
    ours, theirs = client(), server()
    converse(ours, theirs)
    for half in ours, theirs:
        with pytest.raises(AuthenticationError):
            half.step(b"")


@pytest.mark.parametrize("name", ["chris", "größe", "测试", 'a"b\\c, d=e'])
def test_names_and_passwords_of_any_script(name):
    user = UserPassword(name, name + " secret")
    ours = DigestServer({user.username: user.password}.get, realm="rëalm")
    theirs = DigestClient(user, realm="rëalm")
    theirs.step(ours.step(theirs.step(ours.start())))
    assert theirs.complete
    assert ours.authorization_id == name


@settings(deadline=None)
@given(token=st.binary(max_size=200))
def test_any_bytes_are_refused_by_either_half(token):
    ours = server()
    ours.start()
    for half in ours, client():
        with pytest.raises(AuthenticationError):
            half.step(token)
        assert not half.complete


def hashed(token):
    """Return what a response's digest is over, and the digest."""
    names = {"username", "realm", "nonce", "cnonce", "nc", "digest-uri", "response"}
    return {item for item in digest_md5.parse_directives(token, len(token)) if item[0] in names}


@settings(deadline=None)
@given(data=st.data())
def test_a_response_that_was_changed_is_refused(data):
    ours = server(nonce=lambda: b"fixed")
    said = client(cnonce=lambda: b"fixed too").step(ours.start())
    at = data.draw(st.integers(0, len(said) - 1))
    changed = said[:at] + data.draw(st.binary(min_size=1, max_size=2)) + said[at + 1 :]
    try:
        ours.step(changed)
    except AuthenticationError:
        assert not ours.complete
    else:
        assert hashed(changed) == hashed(said)


def test_scram_server_differs_from_a_broken_server():
    with pytest.raises(AuthenticationError, match=r"does not speak DIGEST-MD5; is pacemaker\.auth"):
        client().step(GREETING)


NAMES = st.text(st.sampled_from("abcxyz-0189"), min_size=1)


def test_a_list_as_the_jdk_writes_it():
    token = b'realm="default",nonce="a+b/c=",charset=utf-8'
    assert digest_md5.parse_directives(token, 100) == [
        ("realm", b"default"),
        ("nonce", b"a+b/c="),
        ("charset", b"utf-8"),
    ]


def test_spaces_empty_items_and_upper_case_are_allowed():
    token = b' , Realm = "a" ,, \r\n\tNC=1 , '
    assert digest_md5.parse_directives(token, 100) == [("realm", b"a"), ("nc", b"1")]


def test_escapes_and_commas_in_quotes():
    assert digest_md5.parse_directives(rb'a="x\"y\\z,b=c"', 100) == [("a", b'x"y\\z,b=c')]


def test_nothing_is_an_empty_list():
    assert digest_md5.parse_directives(b"", 0) == []


@pytest.mark.parametrize(
    ("token", "position"),
    [
        (b"a", 0),
        (b"a=", 0),
        (b'a="b', 0),
        (b'a="b\\', 0),
        (b"a=b c=d", 0),
        (b'a="b"c', 0),
        (b"a=b,=c", 4),
        (b"a=b,c=\xff", 4),
        (b"a=b,c=d=e", 4),
        (b"\x00", 0),
    ],
)
def test_malformed_directives_are_refused(token, position):
    with pytest.raises(AuthenticationError, match=f"malformed at its byte {position}$"):
        digest_md5.parse_directives(token, 100)


def test_a_long_token_is_refused():
    assert digest_md5.parse_directives(b"a=" + b"x" * 98, 100)
    with pytest.raises(AuthenticationError, match="has 101 bytes, more than 100"):
        digest_md5.parse_directives(b"a=" + b"x" * 99, 100)


@settings(deadline=None)
@given(token=st.binary(max_size=60) | st.text(st.sampled_from('ab,="\\ ')).map(str.encode))
def test_any_bytes_are_read_or_refused(token):
    try:
        read = digest_md5.parse_directives(token, 50)
    except AuthenticationError:
        return
    assert all(name.isascii() and name == name.lower() for name, _ in read)


@settings(deadline=None)
@given(items=st.lists(st.tuples(NAMES, st.binary(max_size=20), st.just(True))))
def test_what_is_written_is_read_back(items):
    written = digest_md5.write_directives(items)
    assert digest_md5.parse_directives(written, len(written)) == [
        (name, value) for name, value, _ in items
    ]
