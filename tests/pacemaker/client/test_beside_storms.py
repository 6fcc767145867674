"""Nothing that clients of ours do ends a Pacemaker of Storm's, whatever its method."""

import pytest

from stormkeeper import conf as configuration
from stormkeeper.conf import Address
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerUnavailableError,
    UnsupportedExtensionError,
)
from stormkeeper.pacemaker.client import pool_writes
from stormkeeper.pacemaker.client.client_settings import ClientSettings
from stormkeeper.pacemaker.client.pool import connect
from stormkeeper.pacemaker.wire.encoder import control_frame, encode, token_frame
from stormkeeper.pacemaker.wire.messages import Control, Message, MessageType
from support.pacemaker import PacemakerProcess
from support.plain_client import Client
from support.pools import InOrder
from support.storm_pacemaker import StormPacemaker
from support.waiting import DEADLINE_SECS, until

PULSE = "/workerbeats/wc-1-1700000000/node-6700"
OTHER = "/workerbeats/wc-2-1700000000/node-6700"

METHODS = ("NONE", "DIGEST", "KERBEROS")

REQUEST = control_frame(Control.SASL_TOKEN_REQUEST)
LISTING = encode(Message(MessageType.GET_ALL_NODES_FOR_PATH, 0, path="/w/("))
READ = encode(Message(MessageType.GET_PULSE, 0, path="/a"))
EMPTY_FRAME = bytes(4)


@pytest.fixture
def jaas(request, tmp_path):
    """The file in which both ends have their secrets, by their method."""
    file = tmp_path / "jaas.conf"

    def of(method):
        if method == "KERBEROS":
            return request.getfixturevalue("kerberos_realm").jaas(tmp_path)
        file.write_text('PacemakerDigest { username="reader" password="one nobody guesses"; };\n')
        return file

    return of


@pytest.fixture
def values(jaas):
    """The configuration of both ends with a method."""
    return lambda method: {
        "pacemaker.auth.method": method,
        "java.security.auth.login.config": None if method == "NONE" else str(jaas(method)),
        "nimbus.daemon.user": "nimbus",
    }


@pytest.fixture
def storms(jaas):
    """Makes a stand-in with a method; it is on the name that Kerberos has a key for."""
    return lambda method: StormPacemaker(method, None if method == "NONE" else jaas(method))


def client_of(server, values, **options):
    settings = ClientSettings.of(configuration.defaults().with_values(values))
    return settings.client(Address("localhost", server.port), **options)


def pool_of(values, *servers, role="reader", **options):
    names = [f"localhost:{server.port}" for server in servers]
    conf = configuration.defaults().with_values({**values, "pacemaker.servers": names})
    return connect(conf, role=role, **options)


# --- the stand-in itself --------------------------------------------------------------------------


def sent(storm, *frames):
    """Send frames on one connection; say what ended the daemon, if anything did."""
    with Client(storm) as client:
        for frame in frames:
            client.socket.sendall(frame)
            if frame is not frames[-1]:
                client.receive()
        client.socket.settimeout(DEADLINE_SECS)
        try:
            while client.socket.recv(4096):
                pass
        except OSError:
            pass
    return storm.ended_by


@pytest.mark.parametrize(
    ("method", "frames"),
    [
        ("NONE", [REQUEST]),
        ("NONE", [token_frame(b"AP-REQ")]),
        ("NONE", [EMPTY_FRAME]),
        ("NONE", [encode(Message(MessageType.CHANGES, 0, path="/"))]),
        ("NONE", [LISTING]),
        ("DIGEST", [READ, REQUEST]),
        ("DIGEST", [READ, token_frame(b"")]),
        ("DIGEST", [READ, EMPTY_FRAME]),
        ("DIGEST", [control_frame(Control.CLOSE)]),
    ],
)
def test_the_stand_in_ends_where_the_java_daemon_does(storms, method, frames):
    with storms(method) as storm:
        storm.store.pulses[PULSE] = b"1"
        assert sent(storm, *frames)
        with pytest.raises(OSError, match="refused"):
            Client(storm)


def test_stand_in_closes_where_the_java_daemon_does(storms):
    with storms("DIGEST") as storm:
        for frames in ([EMPTY_FRAME], [token_frame(b"AP-REQ")], [REQUEST, token_frame(b"no")]):
            assert sent(storm, *frames) is None
        assert storm.connections == 3


# --- one server -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_verb_of_a_client_leaves_it_unharmed(storms, values, method):
    with storms(method) as storm, client_of(storm, values(method)) as client:
        for path in (PULSE, OTHER):
            client.send_pulse(path, b"1")
        client.ask(Message(MessageType.CREATE_PATH, path=PULSE))
        assert client.get_pulse(PULSE) == b"1"
        assert client.exists(PULSE)
        assert client.children("/workerbeats") == ["wc-1-1700000000", "wc-2-1700000000"]
        assert {pulse.id for page in client.walk("/") for pulse in page} == {PULSE, OTHER}
        assert client.server_info() is None
        with pytest.raises(UnsupportedExtensionError):
            client.changes("/")
        client.delete_pulse(PULSE)
        client.delete_path("/workerbeats/wc-2-1700000000")
        assert client.children("/") == []
        assert storm.ended_by is None


@pytest.mark.parametrize("method", METHODS)
def test_path_not_regex_is_not_listed_at_java(storms, values, method):
    with (
        storms(method) as storm,
        PacemakerProcess(conf=values(method)) as daemon,
        pool_of(values(method), storm, daemon) as pool,
    ):
        odd = "/workerbeats/wc(1-1700000000"
        for client in pool.clients.values():
            client.send_pulse(PULSE, b"1")
            client.send_pulse(f"{odd}/node-6700", b"1")
        for path in (odd, "/workerbeats/[", "/a|b", "/c++"):
            assert pool.children(path) == (["node-6700"] if path == odd else [])
            assert pool.silent == {Address("localhost", storm.port)}
        assert pool.get_pulse(f"{odd}/node-6700") == b"1"
        assert set(pool.read("/").by_path) == {PULSE, f"{odd}/node-6700"}
        assert storm.ended_by is None


@pytest.mark.parametrize(
    ("its", "ours"),
    [
        ("NONE", "DIGEST"),
        ("NONE", "SCRAM"),
        ("NONE", "KERBEROS"),
        ("DIGEST", "NONE"),
        ("DIGEST", "SCRAM"),
        ("DIGEST", "KERBEROS"),
        ("KERBEROS", "NONE"),  # nothing tells it from one of DIGEST, before it ends
    ],
)
def test_other_method_leaves_java_pacemaker_unharmed(storms, values, its, ours):
    with storms(its) as storm, client_of(storm, values(ours), retries=0) as client:
        for _ in range(2):
            with pytest.raises((NotAuthorizedError, PacemakerUnavailableError), match=r"auth\.me"):
                client.get_pulse(PULSE)
            until(lambda: not client.retry_in())
        assert storm.ended_by is None


def test_a_wrong_password_leaves_it_unharmed(storms, values, tmp_path):
    wrong = tmp_path / "wrong.conf"
    wrong.write_text('PacemakerDigest { username="reader" password="another"; };\n')
    given = {**values("DIGEST"), "java.security.auth.login.config": str(wrong)}
    with storms("DIGEST") as storm, client_of(storm, given) as client:
        with pytest.raises(NotAuthorizedError, match=r"wrong\.conf"):
            client.get_pulse(PULSE)
        assert storm.ended_by is None


def test_what_takes_the_place_of_a_server_is_asked_again(storms, values):
    before, after = storms("DIGEST"), storms("NONE")
    with before, client_of(before, values("DIGEST")) as client:
        assert client.get_pulse(PULSE) is None
        before.stop()
        after.port = before.port
        with after:
            with pytest.raises(NotAuthorizedError, match="wants no authentication"):
                client.get_pulse(PULSE)
            assert after.ended_by is None


def test_the_question_costs_one_connection_and_one_request(storms, values):
    with storms("DIGEST") as storm, client_of(storm, values("DIGEST")) as client:
        for _ in range(5):
            assert client.get_pulse(PULSE) is None
        assert storm.connections == 2
        assert storm.store.asked == {MessageType.EXISTS: 1, MessageType.GET_PULSE: 5}


# --- a set of two ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_of_one_of_each_kind_does_all_that_it_does(storms, values, method):
    with (
        storms(method) as storm,
        PacemakerProcess(conf=values(method)) as daemon,
        pool_of(values(method), storm, daemon) as reader,
    ):
        for at in reader.clients:
            servers = sorted((storm, daemon), key=lambda server: server.port != at.port)
            with pool_of(values(method), *servers, role="writer", random=InOrder()) as writer:
                writer.send_pulse(f"/workerbeats/at-{at.port}/node-6700", b"1")
        both = sorted(f"at-{server.port}" for server in (storm, daemon))
        paths = [f"/workerbeats/{name}/node-6700" for name in both]
        assert reader.children("/workerbeats") == both
        assert sorted(reader.read("/").by_path) == paths
        for path in paths:
            assert reader.get_pulse(path) == b"1"
            assert reader.reading(path).value == b"1"
        infos = reader.server_infos()
        assert [info is None for info in infos.values()] == [True, False]
        for path in paths:
            reader.delete_path(path)
        assert reader.read("/").by_path == {}
        assert not reader.silent
        assert storm.ended_by is None


@pytest.mark.parametrize("method", ["NONE", "DIGEST"])
def test_writers_go_to_it_and_leave_it_again(storms, values, method, monkeypatch):
    monkeypatch.setattr(pool_writes, "LOOK_SECS", 0.1)
    storm = storms(method)
    with PacemakerProcess(conf=values(method)) as daemon, storm:
        home = Address("localhost", storm.port)
        demanded = {**values(method), "pacemaker.auth.writes": True}
        with pool_of(demanded, storm, daemon, role="writer", random=InOrder()) as pool:
            pool.send_pulse(PULSE, b"1")
            storm.stop()
            pool.send_pulse(PULSE, b"2")
            assert pool.sender.placement.current != home
            with storm:
                until(lambda: pool.send_pulse(PULSE, b"3") or PULSE in storm.store.pulses)
                assert storm.store.pulses[PULSE] == b"3"
                assert storm.ended_by is None
