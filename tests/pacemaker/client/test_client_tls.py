"""A client over TLS: with servers as they should be, and with every wrong one."""

import asyncio
import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import time
from datetime import UTC, datetime

import pytest
import trustme

from stormkeeper import conf as configuration
from stormkeeper.errors import (
    ConfigError,
    NotAuthorizedError,
    PacemakerError,
    PacemakerUnavailableError,
    UntrustedServerError,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.client_tls import TlsStream, client_contexts
from stormkeeper.pacemaker.client.server_link import PacemakerConnection
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType
from support.certificates import certificates, tls_conf
from support.leaks import nothing_left_behind
from support.mechanisms import Digest, identity
from support.pacemaker import PacemakerProcess
from support.scripted_pacemaker import (
    JavaPacemaker,
    ScriptedConnection,
    ScriptedPacemaker,
    cut_at_the_request,
    honest,
)
from support.waiting import DEADLINE_SECS


class Place:
    """The files, and the contexts that are made of them."""

    def __init__(self, path, authority):
        self.path = path
        self.authority = authority

    def server(self, *names, maximum=None, asks=False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(*(names or ("127.0.0.1", "localhost"))).configure_cert(context)
        if maximum:
            context.maximum_version = maximum
        if asks:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.path / "ca.pem")
        return context

    def conf(self, **values):
        named = {"pacemaker.tls." + key.replace("_", "."): value for key, value in values.items()}
        files = {k: str(self.path / v) if k.endswith(".file") else v for k, v in named.items()}
        return configuration.defaults().with_values({"pacemaker.tls.enable": True, **files})

    def client(self, **values):
        return client_contexts(self.conf(**{"ca_file": "ca.pem", **values}))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("tls")
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(path / "ca.pem")
    other.cert_pem.write_to_path(path / "other.pem")
    ours = authority.issue_cert("client@example.org")
    ours.private_key_pem.write_to_path(path / "client.key")
    ours.cert_chain_pems[0].write_to_path(path / "client.pem")
    past = datetime(2020, 5, 6, 7, 8, tzinfo=UTC)
    for name, leaf in (
        ("expired", authority.issue_cert("client@example.org", not_after=past)),
        ("strange", other.issue_cert("client@example.org")),
    ):
        leaf.private_key_pem.write_to_path(path / f"{name}.key")
        leaf.cert_chain_pems[0].write_to_path(path / f"{name}.pem")
    (path / "empty.pem").write_text("nothing\n")
    return Place(path, authority)


def refused(peer, context):
    with PacemakerClient(peer.address, tls=context, retries=1000, deadline=120.0) as client:
        started = time.monotonic()
        with pytest.raises(UntrustedServerError) as failure:
            client.children("/")
        assert time.monotonic() - started < DEADLINE_SECS, "it was tried again and again"
    return str(failure.value)


def test_every_verb_works_over_tls_whatever_the_size(place):
    java = JavaPacemaker()
    with (
        nothing_left_behind(),
        ScriptedPacemaker(java, tls=place.server()) as peer,
        PacemakerClient(peer.address, tls=place.client()) as client,
    ):
        large = bytes(range(256)) * 12_000  # many records, and more than a socket's buffer
        client.send_pulse("/a", large)
        assert client.get_pulse("/a") == large
        futures = [
            client.submit(Message(MessageType.GET_PULSE, path=path)) for path in ["/a", "/b"] * 50
        ]
        answers = [future.result(DEADLINE_SECS) for future in futures]
        assert [answer.pulse.details for answer in answers] == [large, None] * 50
    assert peer.connections == 1


def test_a_client_authenticates_over_tls(place):
    with (
        ScriptedPacemaker(Digest(), tls=place.server()) as peer,
        PacemakerClient(peer.address, tls=place.client(), identity=identity()) as client,
    ):
        assert client.get_pulse("/a") == b"1"


def test_an_end_that_the_server_announces_is_one_at_once(place):
    """Ours waits for the client's own end before it closes, as long as a client's patience."""

    def refusing(connection):
        Digest(b"another password")(connection)
        connection.announce_end()

    with (
        nothing_left_behind(),
        ScriptedPacemaker(refusing, tls=place.server()) as peer,
        PacemakerClient(
            peer.address,
            tls=place.client(),
            identity=identity(),
            try_timeout=DEADLINE_SECS,
            deadline=DEADLINE_SECS,
        ) as client,
        pytest.raises(NotAuthorizedError, match="the server closed the connection"),
    ):
        client.get_pulse("/a")


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_answers_that_come_with_the_announced_end_are_not_lost(place, maximum):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = place.server(maximum=maximum).wrap_bio(incoming, outgoing, server_side=True)
    ours, wire = socket.socketpair()
    with ours, wire:
        ours.setblocking(False)
        wire.settimeout(DEADLINE_SECS)
        stream = TlsStream(place.client()(), "localhost", "p:1")
        channel = PacemakerConnection(ours, peer="p:1", max_message_size=1000, stream=stream)

        def accept():
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    theirs.do_handshake()
                    wire.sendall(outgoing.read())
                    return
                wire.sendall(outgoing.read())
                incoming.write(wire.recv(65_536))

        async def meet():
            await asyncio.gather(channel.shake_hands(), asyncio.to_thread(accept))

        asyncio.run(meet())
        theirs.write(encode(Message(MessageType.SEND_PULSE_RESPONSE, 7)))
        with pytest.raises(ssl.SSLWantReadError):
            theirs.unwrap()
        wire.sendall(outgoing.read())
        messages, fault = channel.read_messages(channel.receive())
    assert [message.message_id for message in messages] == [7]
    assert isinstance(fault, PacemakerUnavailableError)
    assert str(fault) == "the server closed the connection"


def test_client_shows_its_certificate_if_requested(place):
    pair = {"client_certificate_file": "client.pem", "client_key_file": "client.key"}
    with ScriptedPacemaker(honest, tls=place.server(asks=True)) as peer:
        with PacemakerClient(peer.address, tls=place.client(**pair)) as client:
            client.send_pulse("/a", b"1")
        assert "client.certificate.file" in refused(peer, place.client())


def cut_at_once(connection):
    connection.reset()


@pytest.mark.parametrize("cut", [cut_at_once, cut_at_the_request])
def test_cut_before_answer_hints_at_certificate(place, cut):
    pair = {"client_certificate_file": "client.pem", "client_key_file": "client.key"}
    expired = {"client_certificate_file": "expired.pem", "client_key_file": "expired.key"}
    missing = (
        "before it answered; perhaps it wants a client certificate:"
        " pacemaker.tls.client.certificate.file and pacemaker.tls.client.key.file"
    )
    wrong = (
        "before it answered; perhaps it does not accept this client's certificate"
        " (pacemaker.tls.client.certificate.file); its log has the reason"
    )
    old = (
        "before it answered; this client's certificate has expired on 2020-05-06 07:08 UTC: renew"
        " pacemaker.tls.client.certificate.file"
    )
    with ScriptedPacemaker(cut, tls=place.server()) as peer:
        for options, words in (({}, missing), (pair, wrong), (expired, old)):
            with (
                PacemakerClient(peer.address, tls=place.client(**options), retries=0) as client,
                pytest.raises(PacemakerUnavailableError, match=r"the server c") as failure,
            ):
                client.children("/")
            assert words in str(failure.value)


@pytest.mark.parametrize("maximum", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_does_not_accept_the_clients_certificate(place, maximum):
    """Ours closes without the alert that says it, as asyncio does."""
    pair = {"client_certificate_file": "strange.pem", "client_key_file": "strange.key"}
    conf = tls_conf(
        pacemaker_tls_client_auth="optional",
        pacemaker_tls_ca_file=str(certificates().server.authority),
    )
    contexts = place.client(ca_file=str(certificates().server.authority), **pair)
    contexts().maximum_version = maximum
    with (
        PacemakerProcess(conf=conf) as server,
        PacemakerClient(server.address, tls=contexts, retries=0) as client,
        pytest.raises(PacemakerError, match=r"pacemaker\.tls\.client\.certificate\.file"),
    ):
        client.children("/")


def test_a_server_whose_signer_is_not_trusted(place):
    with ScriptedPacemaker(honest, tls=place.server()) as peer:
        text = refused(peer, place.client(ca_file="other.pem"))
        assert "pacemaker.tls.ca.file" in text
        assert peer.address in text
        assert peer.connections == 1


def test_a_server_of_another_name(place):
    with ScriptedPacemaker(honest, tls=place.server("elsewhere.example.org")) as peer:
        text = refused(peer, place.client())
        assert "pacemaker.tls.check.hostname" in text
        assert "its certificate is not for '127.0.0.1'" in text
        [command] = re.findall(r"\((openssl .*) shows them\)", text)
        if shutil.which("openssl") is not None:
            shown = subprocess.run(
                ["sh", "-c", command],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECS,
            )
            assert "DNS:elsewhere.example.org" in shown.stdout
        unchecked = place.client(check_hostname=False)
        with PacemakerClient(peer.address, tls=unchecked) as client:
            assert client.children("/") == []


def test_a_server_of_another_version(place):
    old = place.server(maximum=ssl.TLSVersion.TLSv1_2)
    with ScriptedPacemaker(honest, tls=old) as peer:
        text = refused(peer, place.client(minimum_version="TLSv1.3"))
        assert "pacemaker.tls.minimum.version" in text
        with PacemakerClient(peer.address, tls=place.client()) as client:
            assert client.children("/") == []


def test_a_server_that_speaks_no_tls(place):
    """Ours ends the connection, as the beginning of TLS announces a frame of 370 MB."""

    def babbling(connection):
        connection.send(b"\x00\x00\x00\x10 what is this all about")
        connection.wait_for_end()

    with ScriptedPacemaker(babbling) as peer:
        assert "pacemaker.tls.enable" in refused(peer, place.client())
    with (
        ScriptedPacemaker(lambda _: None) as peer,
        PacemakerClient(peer.address, tls=place.client(), retries=1) as client,
        pytest.raises(PacemakerUnavailableError, match=r"does not speak TLS|cut the connection"),
    ):
        client.children("/")


def test_a_server_that_speaks_tls_to_a_client_that_does_not(place):
    with (
        ScriptedPacemaker(honest, tls=place.server()) as peer,
        PacemakerClient(peer.address, retries=1) as client,
        pytest.raises(PacemakerUnavailableError, match=r"pacemaker.tls.enable"),
    ):
        client.children("/")
    with ScriptedPacemaker(
        lambda connection: connection.send(b"\x15\x03\x03\x00\x02\x02\x46")
    ) as peer:
        assert "pacemaker.tls.enable" in refused(peer, None)


def test_hanging_handshake_times_out_like_a_try(place):
    with (
        ScriptedPacemaker(ScriptedConnection.wait) as peer,
        PacemakerClient(peer.address, tls=place.client(), try_timeout=0.2, retries=1) as client,
        pytest.raises(PacemakerUnavailableError, match=r"2 tries .* no connection within 0.2 s"),
    ):
        client.children("/")


def test_without_tls_there_is_no_context():
    assert client_contexts(configuration.defaults()) is None
    assert client_contexts(configuration.defaults()) is None


def test_a_renewed_file_holds_from_the_next_connection_on(place, caplog):
    file = place.path / "renewed.pem"
    file.write_bytes((place.path / "other.pem").read_bytes())
    contexts = place.client(ca_file="renewed.pem")
    assert contexts() is contexts()
    with ScriptedPacemaker(honest, tls=place.server()) as peer:
        refused(peer, contexts)
        file.write_bytes((place.path / "ca.pem").read_bytes())
        with PacemakerClient(peer.address, tls=contexts) as client:
            assert client.children("/") == []
        file.write_text("half of a fi")
        with PacemakerClient(peer.address, tls=contexts) as client:
            assert client.children("/") == []
    assert "pacemaker.tls.ca.file" in caplog.text


def test_system_authorities_apply_without_a_file(place):
    context = client_contexts(place.conf())()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ca_file": "absent.pem"}, "pacemaker.tls.ca.file: .*absent.pem cannot be read"),
        ({"ca_file": "empty.pem"}, "pacemaker.tls.ca.file: .*no certificates"),
        ({"client_certificate_file": "client.pem"}, "pacemaker.tls.client.key.file: must name"),
        ({"client_key_file": "client.key"}, "pacemaker.tls.client.certificate.file: must name"),
        (
            {"client_certificate_file": "ca.pem", "client_key_file": "client.key"},
            r"pacemaker.tls.client.key.file: .*client.key is not the key of the certificate in"
            r" .*ca.pem \(pacemaker.tls.client.certificate.file\)",
        ),
        (
            {"client_certificate_file": "empty.pem", "client_key_file": "client.key"},
            "pacemaker.tls.client.certificate.file: .*empty.pem holds no certificate in PEM",
        ),
        (
            {"client_certificate_file": "client.pem", "client_key_file": "empty.pem"},
            "pacemaker.tls.client.key.file: .*empty.pem holds no private key in PEM for",
        ),
    ],
)
def test_wrong_file_is_named_with_its_key(place, values, words):
    with pytest.raises(ConfigError, match=words):
        client_contexts(place.conf(**values))
