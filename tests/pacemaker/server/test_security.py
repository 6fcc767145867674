"""The real daemon with its guards up, over real sockets, on both engines."""

import base64
import contextlib
import hashlib
import re
import socket
import ssl
import subprocess
import sys
import time

import psutil
import pytest
from puresasl.client import SASLClient

from stormkeeper.conf import defaults
from stormkeeper.errors import UntrustedServerError
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.wire.encoder import control_frame, encode, token_frame
from stormkeeper.pacemaker.wire.messages import (
    RESERVED_PATH,
    ChangesRequest,
    Control,
    Message,
    MessageType,
    Pulse,
)
from stormkeeper.sasl import methods
from support.certificates import certificates, tls_conf
from support.engines import ENGINES
from support.pacemaker import PacemakerProcess
from support.plain_client import DEADLINE_SECS, Client
from support.waiting import until

PASSWORD = "open-sesame"
JAAS = f"""
PacemakerDigest {{
    org.apache.storm.security.auth.digest.DigestLoginModule required
    username="nimbus" password="{PASSWORD}";
}};
"""
KEY = "java.security.auth.login.config"
PATH = "/workerbeats/t/a-1"
REFUSED = Message(MessageType.NOT_AUTHORIZED, 1)

READS = {
    "EXISTS": {"path": PATH},
    "GET_PULSE": {"path": PATH},
    "GET_ALL_PULSE_FOR_PATH": {"path": "/workerbeats"},
    "GET_ALL_NODES_FOR_PATH": {"path": "/workerbeats"},
    "CHANGES": {"changes_request": ChangesRequest("/", 0, 0, None)},
}


@pytest.fixture(scope="module")
def jaas(tmp_path_factory):
    path = tmp_path_factory.mktemp("jaas") / "jaas.conf"
    path.write_text(JAAS)
    return path


def authenticating(jaas, method="DIGEST", **conf):
    return {
        "pacemaker.auth.method": method,
        "java.security.auth.login.config": str(jaas),
        **{key.replace("_", "."): value for key, value in conf.items()},
    }


@pytest.fixture(scope="module", params=ENGINES)
def digest_server(request, jaas):
    conf = authenticating(jaas, pacemaker_engine=request.param)
    with PacemakerProcess(conf=conf) as process:
        yield process


def half(jaas, method="DIGEST"):
    """Return our own client's half of a mechanism."""
    conf = defaults().with_values(authenticating(jaas, method))
    return methods.client_mechanism(conf, "localhost")()


class Independent:
    """The client's half of DIGEST-MD5 by pure-sasl, as Storm's client uses the JDK's."""

    def __init__(self, password=PASSWORD, name="pacemaker-client"):
        secret = hashlib.sha512(f"nimbus:{password}".encode()).hexdigest()
        self._sasl = SASLClient(
            "default",
            service="null",
            mechanism="DIGEST-MD5",
            username=base64.b64encode(name.encode()).decode(),
            password=base64.b64encode(secret.encode()).decode(),
        )

    def start(self):
        return None

    def step(self, token):
        return self._sasl.process(token)


def test_a_client_that_is_not_ours_authenticates_and_reads(digest_server):
    with Client(digest_server) as client:
        client.send(PATH, b"mine")
        for kind, data in READS.items():
            assert client.ask(MessageType[kind], **data) == REFUSED, kind
        assert client.ask(MessageType.GET_PULSE, path=RESERVED_PATH) == REFUSED
        assert client.authenticate(Independent())
        assert client.get(PATH) == b"mine"
        assert client.info().instance
        for kind, data in READS.items():
            assert client.ask(MessageType[kind], **data).type == MessageType[kind] + 1, kind
        host, port = client.socket.getsockname()
        who = f"{host}:{port}"
        assert f"{who} authenticated as 'pacemaker-client' with DIGEST over plain TCP" in until(
            lambda: digest_server.log
        )
        refusals = re.findall(rf"refused {who}.*", digest_server.log)
        assert len(refusals) == 1
        assert "EXISTS without having authenticated" in refusals[0]
    told = rf"{who}.*: {len(READS)} requests were refused in all"
    until(lambda: re.search(told, digest_server.log))


def test_the_fast_way_is_closed_to_reads_and_open_to_writes(digest_server):
    """Requests in one piece, with the pulse there already: what a compiled engine answers alone."""
    get = encode(Message(MessageType.GET_PULSE, 2, path=PATH))
    send = encode(Message(MessageType.SEND_PULSE, 3, pulse=Pulse(PATH, b"again")))
    with Client(digest_server) as client:
        client.send(PATH)
        client.socket.sendall((send + get) * 50)
        answers = [client.receive().type for _ in range(100)]
        assert answers == [MessageType.SEND_PULSE_RESPONSE, MessageType.NOT_AUTHORIZED] * 50
        # What is sent behind the last token is answered by what the token did.
        mechanism = half(client_jaas(digest_server))
        client.socket.sendall(control_frame(Control.SASL_TOKEN_REQUEST))
        response = token_frame(mechanism.step(client.receive().blob[6:]))
        client.socket.sendall(get + response + get)
        kinds = [client.receive().type for _ in range(4)]
        assert kinds == [
            MessageType.NOT_AUTHORIZED,
            MessageType.SASL_MESSAGE_TOKEN,
            MessageType.CONTROL_MESSAGE,
            MessageType.GET_PULSE_RESPONSE,
        ]


def client_jaas(server):
    return server._conf["java.security.auth.login.config"]


@pytest.mark.parametrize(
    "frames",
    [
        [token_frame(b"response=0123456789abcdef")],
        [control_frame(Control.SASL_TOKEN_REQUEST), control_frame(Control.SASL_TOKEN_REQUEST)],
        [control_frame(Control.SASL_TOKEN_REQUEST), token_frame(b"\xff\x00 no response")],
        [control_frame(Control.SASL_TOKEN_REQUEST), token_frame(b"")],
        [control_frame(Control.SASL_COMPLETE)],
    ],
)
def test_bad_frame_ends_connection_before_later_requests(digest_server, frames):
    get = encode(Message(MessageType.GET_PULSE, 2, path=PATH))
    with Client(digest_server) as other, Client(digest_server) as client:
        other.send(PATH, b"hidden")
        client.socket.sendall(b"".join(frames) + get)
        while (answer := client.receive()) is not None:
            assert answer.type == MessageType.SASL_MESSAGE_TOKEN
        other.send(PATH)
    assert "Traceback" not in digest_server.log


def test_a_wrong_password_closes_the_connection(digest_server):
    with Client(digest_server) as client:
        host, port = client.socket.getsockname()
        assert not client.authenticate(Independent("a-wrong-one"))
        assert client.receive() is None
    tried = "wrong password or user: the digest of '.+' does not match"
    until(lambda: re.search(rf"closing {host}:{port}: DIGEST: {tried}", digest_server.log))
    for secret in (PASSWORD, "a-wrong-one"):
        assert secret not in digest_server.log
        assert hashlib.sha512(f"nimbus:{secret}".encode()).hexdigest() not in digest_server.log


def test_answer_to_another_connections_challenge_fails(digest_server, jaas):
    mechanism = half(jaas)
    with Client(digest_server) as first, Client(digest_server) as second:
        for client in (first, second):
            client.socket.sendall(control_frame(Control.SASL_TOKEN_REQUEST))
        response = token_frame(mechanism.step(first.receive().blob[6:]))
        second.receive()
        second.socket.sendall(response)
        assert second.receive() is None
        first.socket.sendall(response)
        assert first.receive().type == MessageType.SASL_MESSAGE_TOKEN


def test_scram_authenticates(start_pacemaker, jaas):
    server = start_pacemaker(conf=authenticating(jaas, "SCRAM"))
    with Client(server) as client:
        client.send(PATH)
        assert client.ask(MessageType.GET_PULSE, path=PATH) == REFUSED
        assert client.authenticate(half(jaas, "SCRAM"))
        assert client.get(PATH) == b"pulse"
    assert "authenticated as 'nimbus' with SCRAM" in server.log


@pytest.mark.parametrize("user", ["nimbus", "nimbus/host.example", "somebody"])
def test_kerberos_admits_named_principals(start_pacemaker, kerberos_realm, tmp_path, user):
    jaas = kerberos_realm.jaas(tmp_path, client=user)
    conf = authenticating(jaas, "KERBEROS", nimbus_daemon_user="nimbus")
    server = start_pacemaker(conf=conf)
    client_conf = defaults().with_values(conf)
    with Client(server) as client:
        client.send(PATH)
        assert client.ask(MessageType.GET_PULSE, path=PATH) == REFUSED
        mechanism = methods.client_mechanism(client_conf, "localhost")()
        assert client.authenticate(mechanism) is (user != "somebody")
        if user == "somebody":
            until(lambda: "pacemaker.kerberos.users" in server.log)
            return
        assert client.receive().type == MessageType.CONTROL_MESSAGE  # as Storm's: twice
        assert client.get(PATH) == b"pulse"
    assert f"authenticated as '{user}@PM.TEST' with KERBEROS over plain TCP" in server.log


def test_writers_authenticate_where_that_is_asked_for_and_soon(start_pacemaker, jaas):
    conf = authenticating(jaas, pacemaker_auth_writes=True, pacemaker_handshake_timeout_secs=4)
    server = start_pacemaker(conf=conf)
    with Client(server) as client, Client(server) as idle:
        writes = {
            "SEND_PULSE": {"pulse": Pulse(PATH, b"x")},
            "CREATE_PATH": {"path": PATH},
            "DELETE_PATH": {"path": "/"},
            "DELETE_PULSE_ID": {"path": PATH},
        }
        for kind, data in writes.items():
            assert client.ask(MessageType[kind], **data) == REFUSED, kind
        assert client.authenticate(half(jaas))
        client.send(PATH)
        assert idle.receive() is None
        assert client.get(PATH) == b"pulse"
    assert "did not authenticate (DIGEST) within 4 s" in server.log


def test_authenticating_client_is_closed_with_method_none(start_pacemaker):
    server = start_pacemaker()
    with Client(server) as other, Client(server) as client:
        assert not client.authenticate(Independent())
        other.send(PATH)
        assert other.get(PATH) == b"pulse"
    assert "pacemaker.auth.method" in server.log


# TLS


def client_context(certificate=None, **settings):
    context = ssl.create_default_context(cafile=certificates().server.authority)
    if certificate is not None:
        context.load_cert_chain(certificate.file, certificate.key)
    for name, value in settings.items():
        setattr(context, name, value)
    return context


@pytest.fixture(scope="module")
def tls_server():
    with PacemakerProcess(conf=tls_conf(pacemaker_handshake_timeout_secs=3)) as process:
        yield process


def test_pulses_over_tls(tls_server):
    with Client(tls_server, client_context()) as client:
        client.send(PATH, bytes(2_000_000))
        requests = encode(Message(MessageType.GET_PULSE, 1, path=PATH)) * 5
        client.socket.sendall(requests)
        assert [len(client.receive().pulse.details) for _ in range(5)] == [2_000_000] * 5
        assert client.info().connections == 1
        assert client.socket.version() == "TLSv1.3"


INTRUDERS = {
    "a plain client": (encode(Message(10, 1, path=PATH)), "pacemaker.tls.enable"),
    "an HTTP request": (b"GET / HTTP/1.1\r\n\r\n", "plain HTTP"),
    "garbage": (b"\x16\x03\x01\x00\x40" + b"\xa5" * 64, "TLS handshake failed"),
    "nothing": (b"", "pacemaker.handshake.timeout.secs"),
    "the beginning of a hello": (b"\x16\x03\x01\x02\x00\x01\x00", "handshake.timeout.secs"),
}


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_client_without_tls_loses_its_connection_only(tls_server, intruder):
    sent, reason = INTRUDERS[intruder]
    with Client(tls_server, client_context()) as other:
        other.send("/other", intruder.encode())
        with socket.create_connection((tls_server.host, tls_server.port), DEADLINE_SECS) as sock:
            host, port = sock.getsockname()
            sock.sendall(sent)
            until_closed(sock)
        lines = until(lambda: re.findall(rf".*{host}:{port}\b.*", tls_server.log))
        assert len(lines) == 1
        assert reason in lines[0]
        assert other.get("/other") == intruder.encode()
        until(lambda: other.info().connections == 1)
    assert "Traceback" not in tls_server.log


def until_closed(sock):
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass


def test_a_client_of_ours_without_tls_tries_once(tls_server):
    seen = len(tls_server.log)
    with (
        PacemakerClient(tls_server.address, retries=1000, deadline=2 * DEADLINE_SECS) as client,
        pytest.raises(UntrustedServerError, match=r"set pacemaker\.tls\.enable to true"),
    ):
        client.children("/")
    until(lambda: "no TLS on a port with TLS" in tls_server.log[seen:])
    assert tls_server.log[seen:].count("no TLS on a port with TLS") == 1


def test_tls_on_a_plain_port_is_named_in_the_log(start_pacemaker):
    server = start_pacemaker()
    with pytest.raises(OSError, match=r"EOF|reset|TLS|SSL"):
        Client(server, client_context())
    until(lambda: "pacemaker.tls.enable alike at both ends" in server.log)


def test_pulses_before_an_immediate_end_are_stored(tls_server):
    pulses = b"".join(
        encode(Message(MessageType.SEND_PULSE, n, pulse=Pulse(f"/last/{n}", b"x" * 2_000)))
        for n in range(1_000)
    )
    client = Client(tls_server, client_context())
    client.socket.sendall(pulses)
    # The end of the encrypted stream comes with the last of it, and nobody reads the answers.
    client.socket.setblocking(False)
    with pytest.raises(ssl.SSLError):  # the answers are still to come
        client.socket.unwrap()
    with Client(tls_server, client_context()) as other:
        until(lambda: other.get("/last/999") == b"x" * 2_000)
        assert len(other.ask(MessageType.GET_ALL_NODES_FOR_PATH, path="/last").nodes) == 1_000
    client.socket.close()


def test_old_tls_and_untrusted_server_are_logged_in_a_line(start_pacemaker):
    conf = tls_conf(pacemaker_tls_minimum_version="TLSv1.3")
    server = start_pacemaker(conf=conf)
    with pytest.raises(ssl.SSLError):
        Client(server, client_context(maximum_version=ssl.TLSVersion.TLSv1_2))
    with pytest.raises(ssl.SSLCertVerificationError):
        Client(server, ssl.create_default_context(cafile=certificates().stranger.authority))
    lines = until(
        lambda: len(found := re.findall("TLS handshake failed: (.*)", server.log)) == 2 and found
    )
    assert "pacemaker.tls.minimum.version" in lines[0]
    assert "does not trust" in lines[1]


def is_served(server, context):
    """Whether a server takes a pulse; with TLS 1.3 a client is refused only after its handshake."""
    try:
        with Client(server, context) as client:
            client.send(PATH)
            return True
    except (OSError, AttributeError, AssertionError):
        return False


def test_digest_over_tls_with_a_clients_certificate(start_pacemaker, jaas):
    conf = tls_conf(pacemaker_tls_client_auth="required") | authenticating(jaas)
    conf["pacemaker.tls.ca.file"] = str(certificates().server.authority)
    server = start_pacemaker(conf=conf)
    for stranger in (None, certificates().stranger):
        assert not is_served(server, client_context(stranger))
    with Client(server, client_context(certificates().client)) as client:
        client.send(PATH)
        assert client.ask(MessageType.GET_PULSE, path=PATH) == REFUSED
        assert client.authenticate(Independent())
        assert client.get(PATH) == b"pulse"
    assert "with DIGEST over TLSv1.3 with the certificate of 'worker-1'" in server.log
    assert "client.auth is required" in server.log
    assert "the client's certificate is not accepted" in server.log


# Limits on connections


@pytest.mark.parametrize("engine", ENGINES)
def test_connection_beyond_the_limit_is_turned_away(start_pacemaker, engine):
    server = start_pacemaker(
        conf={
            "pacemaker.engine": engine,
            "pacemaker.max.connections": 4,
            "pacemaker.max.connections.per.address": 2,
        }
    )
    hosts = ["127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"]
    clients = [Client(server, source=host) for host in hosts]
    for n, client in enumerate(clients):
        client.send(f"/held/{n}")
    for host in ("127.0.0.1",) * 3 + ("127.0.0.3",):
        with Client(server, source=host) as refused:
            assert is_turned_away(refused)
    # Four were turned away for one cause: one line.
    assert re.findall("turned away (.*)", server.log) == [
        "127.0.0.1: 4 connections open already (pacemaker.max.connections)"
    ]
    clients.pop().socket.close()
    until(lambda: clients[0].info().connections == 3)
    with Client(server, source="127.0.0.1") as refused:
        assert is_turned_away(refused)
    until(lambda: "pacemaker.max.connections.per.address" in server.log)
    with Client(server, source="127.0.0.3") as welcome:
        welcome.send("/welcome")
    for client in clients:
        client.socket.close()


def is_turned_away(client):
    try:
        client.socket.sendall(encode(Message(MessageType.EXISTS, 1, path="/x")))
        return client.receive() is None
    except (ConnectionResetError, BrokenPipeError):
        return True


# What ends the command before a port is bound

BROKEN = {
    "pacemaker.tls.certificate.file": {"pacemaker.tls.enable": True},
    "java.security.auth.login.config": {"pacemaker.auth.method": "DIGEST"},
    "/nonexistent/jaas.conf": {
        "pacemaker.auth.method": "DIGEST",
        "pacemaker.childopts": "-Xmx1g -Djava.security.auth.login.config=/nonexistent/jaas.conf",
    },
    "pacemaker.auth.writes": {"pacemaker.auth.writes": True},
}


@pytest.mark.parametrize("named", BROKEN)
def test_wrong_configuration_is_a_line_and_exit_code_2(named):
    options = [part for k, v in BROKEN[named].items() for part in ("-c", f"{k}={v}")]
    ended = subprocess.run(
        [sys.executable, "-m", "stormkeeper", "pacemaker", "-c", "pacemaker.port=0", *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert named in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_login_file_in_childopts_counts_and_rest_is_logged(start_pacemaker, jaas):
    conf = authenticating(jaas)
    del conf["java.security.auth.login.config"]
    options = (
        f"-Xmx2g -Djavax.net.ssl.trustStorePassword=hush -Djava.security.auth.login.config={jaas}"
    )
    server = start_pacemaker(conf=conf | {"pacemaker.childopts": options})
    with Client(server) as client:
        assert client.authenticate(Independent())
    [line] = [line for line in server.log.splitlines() if "no JVM here" in line]
    assert "-Xmx2g" in line
    assert f"the JAAS file is {jaas} (pacemaker.childopts)" in server.log
    assert "hush" not in server.log


def test_login_file_is_logged_at_start_and_reload(start_pacemaker, jaas, tmp_path):
    storm_yaml = tmp_path / "storm.yaml"
    key, option = (f"{KEY}: {jaas}\n", f"pacemaker.childopts: -D{KEY}={tmp_path / 'other.conf'}\n")
    (tmp_path / "other.conf").write_text(JAAS)
    storm_yaml.write_text(key)
    method = ("-c", "pacemaker.auth.method=DIGEST")
    server = start_pacemaker(options=["--config", str(storm_yaml), *method])
    assert f"the JAAS file is {jaas} ({KEY})" in server.log
    storm_yaml.write_text(key + option)
    server.reload()
    of_option = f"the JAAS file is {tmp_path / 'other.conf'} (pacemaker.childopts)"
    assert re.search(f"reloaded: .*{re.escape(of_option)}", server.log)
    server.reload()
    assert server.log.count("the JAAS file is") == 2
    # Without a method there is nothing to read it for.
    idle = start_pacemaker(options=["--config", str(storm_yaml)])
    assert "the JAAS file is" not in idle.log
    assert "the section PacemakerDigest of" in idle.log


def test_a_worker_that_waits_costs_little_over_tls():
    with PacemakerProcess(conf=tls_conf()) as process, contextlib.ExitStack() as stack:
        context = ssl.create_default_context(cafile=certificates().server.authority)

        def connect(count):
            for _ in range(count):
                raw = stack.enter_context(socket.create_connection((process.host, process.port)))
                stack.enter_context(context.wrap_socket(raw, server_hostname="localhost"))
            time.sleep(0.5)
            return psutil.Process(process.pid).memory_info().rss

        few = connect(50)
        assert connect(200) - few < 200 * 100 * 1024
