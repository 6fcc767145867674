"""GSSAPI against a real KDC; both halves also against the library itself as the other side."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.conf import defaults
from stormkeeper.errors import AuthenticationError, ConfigError
from stormkeeper.sasl import credentials, jaas, methods
from support import vectors
from support.kerberos import missing

if missing() is None:
    import gssapi

    from stormkeeper.sasl.gssapi import GssapiClient, GssapiServer, default_realm, server_keys

pytestmark = pytest.mark.usefixtures("kerberos_realm")

KRB5_TOKEN = b"\x60"  # RFC 2743 §3.1: an initial token's first byte


@pytest.fixture
def login_of():
    """Return a function that makes a JAAS section of some options."""

    def make(options, section="PacemakerClient"):
        text = " ".join(f'{name}="{value}"' for name, value in options.items())
        return jaas.parse(f"{section} {{ {text}; }};", "F")[section]

    return make


def conf_of(kerberos_realm, folder):
    return defaults().with_values(
        {
            "pacemaker.auth.method": "KERBEROS",
            "java.security.auth.login.config": str(kerberos_realm.jaas(folder)),
            "nimbus.daemon.user": "nimbus",
        }
    )


@pytest.fixture
def conf(kerberos_realm, tmp_path):
    return conf_of(kerberos_realm, tmp_path)


@pytest.fixture(scope="module")
def makers(kerberos_realm, tmp_path_factory):
    """What makes a client's half and a server's."""
    conf = conf_of(kerberos_realm, tmp_path_factory.mktemp("jaas"))
    return methods.client_mechanism(conf, "localhost"), methods.server_mechanism(conf)


@pytest.fixture
def halves(makers):
    client, server = (make() for make in makers)
    return client, server


def context(kerberos_realm, *, mutual=False, service="pacemaker@localhost"):
    """Return the library's own client, which has said nothing yet."""
    flags = gssapi.RequirementFlag.integrity
    if mutual:
        flags |= gssapi.RequirementFlag.mutual_authentication
    return gssapi.SecurityContext(
        name=gssapi.Name(service, gssapi.NameType.hostbased_service),
        creds=gssapi.Credentials(
            usage="initiate", store={"ccache": f"FILE:{kerberos_realm.kinit('nimbus')}"}
        ),
        flags=flags,
        usage="initiate",
    )


def accepted(client, server, offer=b"\x01\x01\x00\x00"):
    """Let a client begin, and check what the server offers."""
    wrapped = server.step(client.step())
    assert client.unwrap(wrapped).message == offer


def test_the_conversation_is_storms(halves):
    client, server = halves
    assert server.start() is None
    ticket = client.start()
    assert ticket.startswith(KRB5_TOKEN)
    offer = server.step(ticket)
    assert not server.complete
    choice = client.step(offer)
    assert client.complete
    assert server.step(choice) is None
    assert server.complete
    assert server.authorization_id == "nimbus@PM.TEST"
    assert credentials.shown(server) == "nimbus@PM.TEST"


def transcript(number):
    (vector,) = (
        v for v in vectors.load("pacemaker") if v["name"] == f"kerberos.transcript.{number}"
    )
    frame = bytes.fromhex(vector["hex"])
    start = frame.index(b"\xfe\x0c") + 2
    return frame[start + 4 : start + 4 + int.from_bytes(frame[start : start + 4])]


def test_the_tokens_have_the_shape_of_storms(halves):
    """The keys differ, so the bytes do; what is in the clear is the same."""
    client, server = halves
    ticket = client.start()
    offer = server.step(ticket)
    choice = client.step(offer)
    storms_ticket, storms_offer, storms_choice = transcript(1), transcript(2), transcript(3)
    oid = storms_ticket.index(bytes.fromhex("06092a864886f712010202"))
    assert ticket[oid : oid + 13] == storms_ticket[oid : oid + 13]
    # ap-options of the AP-REQ: none, so no mutual authentication.
    assert bytes.fromhex("a20703050000000000") in storms_ticket
    assert bytes.fromhex("a20703050000000000") in ticket
    # RFC 4121 §4.2.6.2: a wrap token in the clear: flags, filler, length of the checksum; its text.
    assert (storms_offer[:2], storms_offer[16:20]) == (b"\x05\x04", b"\x01\x01\x00\x00")
    assert (offer[:2], offer[16:20]) == (b"\x05\x04", b"\x01\x01\x00\x00")
    assert offer[3:8] == storms_offer[3:8]
    assert len(offer) == len(storms_offer)
    # By the acceptor (1), not sealed (2); the acceptor's own subkey (4) is Java's alone.
    assert offer[2] & 0b011 == storms_offer[2] & 0b011 == 0b001
    assert storms_choice[16:-12] == b"\x01\x00\x00\x00nimbus@PM.TEST"
    assert choice[16:-12] == b"\x01\x00\x00\x00nimbus@PM.TEST"
    assert choice[2] & 0b011 == storms_choice[2] & 0b011 == 0b000
    assert len(choice) == len(storms_choice)


def test_the_callers_tokens_stay_as_they_are(halves):
    client, server = halves
    tokens = [client.start()]
    tokens.append(server.step(tokens[0]))
    copies = [token.hex() for token in tokens]
    tokens.append(client.step(tokens[1]))
    copies.append(tokens[2].hex())
    server.step(tokens[2])
    assert [token.hex() for token in tokens] == copies


def test_connections_after_the_first_need_no_kdc(kerberos_realm, conf, halves):
    client, server = halves
    server.step(client.step(server.step(client.start())))
    make_client, make_server = (
        methods.client_mechanism(conf, "localhost"),
        methods.server_mechanism(conf),
    )
    kerberos_realm.stop_kdc()
    try:
        for _ in range(3):
            client, server = make_client(), make_server()
            server.step(client.step(server.step(client.start())))
            assert server.complete
    finally:
        kerberos_realm.start_kdc()


@pytest.mark.parametrize("cache", ["option", "environment"])
def test_a_client_with_a_ticket_cache(kerberos_realm, login_of, conf, monkeypatch, cache):
    tickets = str(kerberos_realm.kinit("ui"))
    options = {"useTicketCache": "true", "serviceName": "pacemaker"}
    if cache == "option":
        options["ticketCache"] = tickets
    else:
        monkeypatch.setenv("KRB5CCNAME", tickets)
    client, server = GssapiClient(login_of(options), "localhost"), methods.server_mechanism(conf)()
    server.step(client.step(server.step(client.start())))
    assert server.authorization_id == "ui@PM.TEST"


def test_any_key_of_a_keytab_will_do(kerberos_realm, login_of, halves):
    client, _ = halves
    keytab = kerberos_realm.keytab("pacemaker/elsewhere", "pacemaker/localhost")
    for options in {}, {"principal": "*"}:
        login = login_of({"keyTab": keytab} | options, "PacemakerServer")
        server = GssapiServer(server_keys(login))
    server.step(client.step(server.step(client.start())))
    assert server.complete


def test_a_client_that_wants_the_server_to_answer_first(kerberos_realm, conf):
    client, server = (
        context(kerberos_realm, mutual=True),
        methods.server_mechanism(conf)(),
    )
    reply = server.step(client.step())
    assert not client.complete
    client.step(reply)
    assert client.complete
    offer = client.unwrap(server.step(b"")).message
    assert offer == b"\x01\x01\x00\x00"
    assert server.step(client.wrap(b"\x01\x00\x00\x00", encrypt=False).message) is None
    assert server.authorization_id == "nimbus@PM.TEST"


def test_a_token_where_an_empty_one_is_due(kerberos_realm, conf):
    client, server = (
        context(kerberos_realm, mutual=True),
        methods.server_mechanism(conf)(),
    )
    server.step(client.step())
    with pytest.raises(AuthenticationError, match="where an empty one is due"):
        server.step(b"x")


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (b"", "did not take the one quality"),
        (b"\x01\x00\x00", "did not take the one quality"),
        (b"\x02\x00\x00\x00", "did not take the one quality"),
        (b"\x07\x00\x00\x00", "did not take the one quality"),
        (
            b"\x01\x00\x00\x00root@PM.TEST",
            "wants to act as root@PM.TEST: no client may act as another",
        ),
        (b"\x01\x00\x00\x00a\nb", "wants to act as a�b"),
        (b"\x01\x00\x00\x00\xff", "not in UTF-8"),
    ],
)
def test_server_refuses_other_choices(kerberos_realm, conf, choice, reason):
    client, server = context(kerberos_realm), methods.server_mechanism(conf)()
    accepted(client, server)
    with pytest.raises(AuthenticationError, match=reason) as caught:
        server.step(client.wrap(choice, encrypt=False).message)
    assert str(caught.value).isprintable()
    assert not server.complete
    with pytest.raises(AuthenticationError, match="after the end"):
        server.step(client.wrap(b"\x01\x00\x00\x00", encrypt=False).message)


def test_a_choice_that_was_changed_on_its_way(halves):
    client, server = halves
    choice = bytearray(client.step(server.step(client.start())))
    choice[20] ^= 1
    with pytest.raises(AuthenticationError, match=r"^A token had an invalid Message Integrity"):
        server.step(bytes(choice))
    assert not server.complete


def test_an_offer_that_was_changed_on_its_way(halves):
    client, server = halves
    offer = bytearray(server.step(client.start()))
    offer[16] ^= 2
    with pytest.raises(AuthenticationError, match=r"^A token had an invalid Message Integrity"):
        client.step(bytes(offer))
    assert not client.complete


@pytest.mark.parametrize("token", [b"", b"\x00", b"nonsense", KRB5_TOKEN + b"\x84\xff\xff\xff\xff"])
def test_bad_ticket_is_refused(conf, token):
    server = methods.server_mechanism(conf)()
    told = r"^(No credentials were|Invalid token was|Unspecified GSS failure)"
    with pytest.raises(AuthenticationError, match=told) as caught:
        server.step(token)
    assert str(caught.value).isprintable()
    assert not server.complete


@settings(deadline=None)
@given(
    token=st.binary(max_size=80),
    prefix=st.sampled_from([b"", KRB5_TOKEN, bytes.fromhex("602006092a864886f7120102020100")]),
)
def test_any_bytes_are_no_ticket(makers, token, prefix):
    _, make_server = makers
    server = make_server()
    with pytest.raises(AuthenticationError) as caught:
        server.step(prefix + token)
    assert str(caught.value).isprintable()
    assert not server.complete


@settings(deadline=None)
@given(token=st.binary(max_size=80))
def test_any_bytes_are_no_choice_and_no_offer(makers, token):
    client, server = (make() for make in makers)
    offered = server.step(client.start())
    assert offered != token
    for half in server, client:
        with pytest.raises(AuthenticationError):
            half.step(token)
        assert not half.complete


def test_a_ticket_is_good_once(conf, halves):
    client, server = halves
    ticket = client.start()
    server.step(ticket)
    with pytest.raises(AuthenticationError, match="replay"):
        methods.server_mechanism(conf)().step(ticket)


def test_a_ticket_for_another_service(kerberos_realm, conf):
    kerberos_realm.keytab("pacemaker/elsewhere")
    client = context(kerberos_realm, service="pacemaker@elsewhere")
    with pytest.raises(AuthenticationError, match=r"^Cannot decrypt ticket .*localhost@PM\.TEST$"):
        methods.server_mechanism(conf)().step(client.step())


@pytest.mark.parametrize("principal", ["rotated/localhost", "*"])
def test_a_ticket_for_a_key_that_the_keytab_has_not_yet(kerberos_realm, login_of, principal):
    keytab = kerberos_realm.keytab("rotated/localhost")
    login = login_of({"keyTab": keytab, "principal": principal}, "PacemakerServer")
    kerberos_realm.renew_key("rotated/localhost")
    client = context(kerberos_realm, service="rotated@localhost")
    told = r"^[^:]* kvno \d+ .*; the ticket is for another version .* ktadd, then reload the d"
    with pytest.raises(AuthenticationError, match=told):
        GssapiServer(server_keys(login)).step(client.step())


def test_a_server_without_the_services_key(halves):
    client, _ = halves
    client.start()
    with pytest.raises(AuthenticationError, match=r"^A token had an invalid Message Integrity"):
        client.step(b"\x05\x04\x01\xff\x00\x0c" + bytes(26))
    with pytest.raises(AuthenticationError, match="after the end"):
        client.step(b"")


def test_an_offer_without_auth(kerberos_realm, login_of, halves):
    client, _ = halves
    login = login_of({"keyTab": kerberos_realm.keytab("pacemaker/localhost")}, "PacemakerServer")
    server = gssapi.SecurityContext(creds=server_keys(login), usage="accept")
    server.step(client.start())
    with pytest.raises(AuthenticationError, match="does not offer the quality of protection auth"):
        client.step(server.wrap(b"\x06\x01\x00\x00", encrypt=False).message)


def test_missing_ticket_is_explained(kerberos_realm, login_of):
    options = {"keyTab": kerberos_realm.keytab("nimbus"), "serviceName": "nobody"}
    client = GssapiClient(login_of(options | {"principal": "nimbus"}), "localhost")
    with pytest.raises(
        AuthenticationError,
        match=r"no ticket for nobody@localhost: Server .*not found in Kerberos database; see sec",
    ):
        client.start()


def test_a_client_that_reaches_no_kdc(kerberos_realm, login_of):
    keytab = kerberos_realm.keytab("latecomer")
    options = {"keyTab": keytab, "principal": "latecomer", "serviceName": "pacemaker"}
    client = GssapiClient(login_of(options), "localhost")
    kerberos_realm.stop_kdc()
    try:
        with pytest.raises(AuthenticationError, match="no ticket for pacemaker@localhost: Cannot"):
            client.start()
    finally:
        kerberos_realm.start_kdc()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"useKeyTab": "false"}, "F:1: a server needs a keytab"),
        ({"storeKey": "true"}, "F:1: a server needs a keytab"),
        ({"keyTab": "/nowhere"}, "F:1: the keytab /nowhere is not there"),
        ({"useKeyTab": "maybe"}, "must be true or false"),
    ],
)
def test_a_server_without_a_keytab(login_of, options, reason):
    with pytest.raises(ConfigError, match=reason):
        server_keys(login_of(options, "PacemakerServer"))


def test_a_keytab_without_the_principal(kerberos_realm, login_of):
    options = {"keyTab": kerberos_realm.keytab("nimbus"), "principal": "pacemaker/localhost"}
    with pytest.raises(ConfigError, match="F:1: no key for the principal pacemaker/localhost: "):
        server_keys(login_of(options, "PacemakerServer"))


def test_a_clients_keytab_without_the_principal(kerberos_realm, login_of, tmp_path):
    options = {"keyTab": kerberos_realm.keytab("nimbus"), "serviceName": "pacemaker"}
    told = r"F:1: no key for the principal ui/host: No key table entry .*ui/host.*; make the keytab"
    with pytest.raises(ConfigError, match=told):
        GssapiClient(login_of(options | {"principal": "ui/host"}), "localhost")
    (tmp_path / "not.keytab").write_text("no keytab")
    options["keyTab"] = tmp_path / "not.keytab"
    with pytest.raises(ConfigError, match=r"F:1: no key for the principal .*; make the keytab"):
        GssapiClient(login_of(options), "localhost")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"useTicketCache": "true"}, "has no serviceName"),
        ({"serviceName": "pacemaker"}, "add useKeyTab=true and keyTab, or useTicketCache"),
        ({"serviceName": "pacemaker", "keyTab": "/nowhere"}, "the keytab /nowhere is not there"),
    ],
)
def test_incomplete_client_section_is_an_error(login_of, options, reason):
    with pytest.raises(ConfigError, match=reason):
        GssapiClient(login_of(options), "localhost")


def test_the_default_realm():
    assert default_realm() == "PM.TEST"


def test_without_a_default_realm(conf, tmp_path, monkeypatch):
    (tmp_path / "krb5.conf").write_text("[libdefaults]\n")
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "krb5.conf"))
    with pytest.raises(ConfigError, match=r"krb5\.conf names no default_realm"):
        methods.server_mechanism(conf)
    with pytest.raises(AuthenticationError, match=r"krb5\.conf names no default_realm"):
        methods.authorised(conf, "nimbus@PM.TEST")


def test_authorised_principals_may_read(conf):
    assert methods.authorised(conf, "nimbus@PM.TEST")
    assert methods.authorised(conf, "nimbus/host@PM.TEST")
    assert not methods.authorised(conf, "nimbus@ELSEWHERE")
    assert not methods.authorised(conf, "ui@PM.TEST")
    conf = conf.with_values({"pacemaker.kerberos.users": ["ui", "watch/host@ELSEWHERE"]})
    assert methods.authorised(conf, "nimbus@PM.TEST")
    assert methods.authorised(conf, "ui@PM.TEST")
    assert methods.authorised(conf, "watch/host@ELSEWHERE")
    assert not methods.authorised(conf, "watch@ELSEWHERE")


def test_somebody_must_be_allowed_to_read(conf):
    with pytest.raises(ConfigError, match=r"set nimbus\.daemon\.user"):
        methods.server_mechanism(conf.with_values({"nimbus.daemon.user": None}))


def test_without_the_extra(conf, monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    monkeypatch.delitem(sys.modules, "stormkeeper.sasl.gssapi")
    monkeypatch.delattr("stormkeeper.sasl.gssapi")
    for make in methods.server_mechanism, lambda conf: methods.client_mechanism(conf, "localhost"):
        with pytest.raises(ConfigError, match=r"needs .* pip install 'stormkeeper\[kerberos\]'"):
            make(conf)
