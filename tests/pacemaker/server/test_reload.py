"""What a reload takes and what it leaves; and the real daemon under SIGHUP."""

import os
import re
import signal
import ssl
import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from cryptography import x509

from stormkeeper.conf import defaults
from stormkeeper.conf.schema import SCHEMA
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.server import pacemaker_server
from stormkeeper.pacemaker.server.pacemaker_server import PacemakerServer
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from stormkeeper.sasl import methods
from support.certificates import certificates, tls_conf
from support.engines import ENGINES
from support.pacemaker import PacemakerProcess
from support.plain_client import Client
from support.sessions import Password, ask, token
from support.waiting import until


def test_reload_applies_keys_and_lists_the_rest():
    new = {
        "pacemaker.max.connections": 7,
        "pacemaker.pulse.ttl.secs": 0,
        "pacemaker.auth.writes": True,
        "pacemaker.port": 1,
        "pacemaker.childopts": "-Dpassword=hush",
        "pacemaker.tls.ca.file": "/ca.pem",
        "ui.port": 1,
    }
    found = pacemaker_server.compare_confs(defaults(), defaults().with_values(new))
    assert found.changes == (
        "pacemaker.auth.writes = true (was false)",
        "pacemaker.childopts",
        "pacemaker.max.connections = 7 (was 0)",
        "pacemaker.pulse.ttl.secs = 0 (was 600)",
        "pacemaker.tls.ca.file = /ca.pem (was null)",
    )
    assert found.later == ("pacemaker.port = 1 (was 6699)",)
    assert found.conf["pacemaker.port"] == 6699
    assert found.conf["pacemaker.max.connections"] == 7
    # What waits is told again the next time.
    assert (
        pacemaker_server.compare_confs(found.conf, defaults().with_values(new)).later == found.later
    )
    assert pacemaker_server.compare_confs(defaults(), defaults()).changes == ()


def test_description_of_a_reload_matches_the_changes():
    def told(**new):
        new = {f"pacemaker.{key.replace('_', '.')}": value for key, value in new.items()}
        return pacemaker_server.compare_confs(defaults(), defaults().with_values(new)).describe()

    now, later = "pacemaker.max.connections = 7 (was 0)", "pacemaker.port = 1 (was 6699)"
    assert told() == "nothing has changed"
    assert told(max_connections=7) == now
    assert told(max_connections=7, port=1) == f"{now}; for a restart only: {later}"
    assert told(port=1) == f"no change applies now; for a restart only: {later}"


def test_every_pacemaker_key_is_reloaded_or_read_at_start():
    clients = {
        "pacemaker.servers",
        "pacemaker.host",
        "pacemaker.tls.check.hostname",
        "pacemaker.tls.client.certificate.file",
        "pacemaker.tls.client.key.file",
    }
    without_effect = {"pacemaker.max.threads"}
    keys = {key for key in SCHEMA if key.startswith("pacemaker.")} - clients - without_effect
    others = {
        "java.security.auth.login.config",
        "nimbus.daemon.user",
        "task.heartbeat.frequency.secs",
    }
    assert keys | others == pacemaker_server.RELOADED | pacemaker_server.AT_START
    assert not pacemaker_server.RELOADED & pacemaker_server.AT_START


def test_new_heartbeat_period_is_logged_and_shown():
    server = PacemakerServer(defaults())
    change = server.reload(defaults().with_values({"task.heartbeat.frequency.secs": 5}))
    assert change.describe() == "task.heartbeat.frequency.secs = 5 (was 3)"
    assert server.snapshot().heartbeat_period == 5


def test_a_fingerprint_tells_contents_apart(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.write_text("ab")
    second.write_text("c")
    conf = {"x": str(first), "y": str(second), "z": None}
    before = pacemaker_server.hash_files(conf, ("x", "y", "z"))
    assert pacemaker_server.hash_files(conf, ("x", "y", "z")) == before
    first.write_text("a")
    second.write_text("bc")
    assert pacemaker_server.hash_files(conf, ("x", "y", "z")) != before
    second.unlink()
    assert pacemaker_server.hash_files(conf, ("x", "y", "z")) != before


def test_failed_reload_changes_nothing():
    server = PacemakerServer(defaults())
    before = server.conf
    with pytest.raises(ConfigError, match=r"tls\.ca\.file|writers"):
        server.reload(
            defaults().with_values({"pacemaker.auth.writes": True, "pacemaker.max.connections": 3})
        )
    assert server.conf is before
    assert server.admission.most > 3


@pytest.fixture
def kerberos(monkeypatch, tmp_path):
    """Return a configuration with a keytab, to whose server a word is as good as a ticket."""
    stub = SimpleNamespace(
        server_keys=lambda login: login.options["keyTab"],
        GssapiServer=lambda _: Password(greeting=None, farewell=None),
        default_realm=lambda: "PM.TEST",
    )
    monkeypatch.setitem(sys.modules, "stormkeeper.sasl.gssapi", stub)
    keytab, jaas = tmp_path / "pacemaker.keytab", tmp_path / "jaas.conf"
    keytab.write_bytes(b"first")
    jaas.write_text(f'PacemakerServer {{ x required useKeyTab=true keyTab="{keytab}"; }};\n')
    return keytab, {
        "pacemaker.auth.method": "KERBEROS",
        "java.security.auth.login.config": str(jaas),
        "nimbus.daemon.user": "nimbus",
        "pacemaker.kerberos.users": ["ui/host@PM.TEST"],
    }


@pytest.mark.parametrize(
    ("change", "losers"),
    [
        ({}, ()),
        ({"nimbus.daemon.user": "storm"}, ("nimbus/host@PM.TEST",)),
        ({"nimbus.daemon.user": "ui", "pacemaker.kerberos.users": []}, ("nimbus/host@PM.TEST",)),
        ({"pacemaker.kerberos.users": ["nimbus"]}, ("ui/host@PM.TEST",)),
        (
            {"nimbus.daemon.user": None, "pacemaker.kerberos.users": ["x"]},
            ("nimbus/host@PM.TEST", "ui/host@PM.TEST"),
        ),
    ],
)
def test_removed_principal_loses_its_connections(kerberos, change, losers):
    _, conf = kerberos
    server = PacemakerServer(defaults().with_values(conf))
    users = {}
    for number, name in enumerate(("nimbus/host@PM.TEST", "ui/host@PM.TEST")):
        users[name] = server.sessions.open("10.0.0.1", number)
        ask(users[name], token(f"{name}=open sesame"))
        assert users[name].may_read
    told = server.reload(defaults().with_values({**conf, **change})).changes
    assert {name for name, session in users.items() if not session.may_read} == set(losers)
    for name in losers:
        assert users[name].handshake_due(0.0) == "permissions have changed: connect anew"
    assert any("to begin anew" in line for line in told) is bool(losers)


def test_new_keytab_is_logged_and_ends_no_connection(kerberos):
    keytab, conf = kerberos
    server = PacemakerServer(defaults().with_values(conf))
    session = server.sessions.open("10.0.0.1", 1)
    ask(session, token("nimbus@PM.TEST=open sesame"))
    assert server.reload(defaults().with_values(conf)).changes == ()
    keytab.write_bytes(b"second")
    assert server.reload(defaults().with_values(conf)).changes == ("the keytab",)
    assert session.may_read


JAAS = 'PacemakerDigest {{ username="nimbus" password="{}"; }};\n'


class Settings:
    """A ``storm.yaml`` and a JAAS file that a daemon reads, and a client's mechanisms for them."""

    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "storm.yaml"
        self.jaas = folder / "jaas.conf"
        self.options = ["--config", str(self.file)]

    def write(self, **conf):
        conf = defaults().with_values({k.replace("_", "."): v for k, v in conf.items()})
        self.file.write_text(conf.to_yaml())

    def mechanism(self, password):
        path = self.folder / f"{password}.conf"
        path.write_text(JAAS.format(password))
        conf = {
            "pacemaker.auth.method": "DIGEST",
            "java.security.auth.login.config": str(path),
        }
        return methods.client_mechanism(defaults().with_values(conf), "localhost")()


@pytest.fixture
def settings(tmp_path):
    return Settings(tmp_path)


def refused(client):
    answer = client.ask(MessageType.GET_PULSE, path="/a")
    return answer == Message(MessageType.NOT_AUTHORIZED, 1)


def test_warning_of_a_reload_is_a_log_line(start_pacemaker, settings):
    settings.write(pacemaker_bogus="x")
    server = start_pacemaker(options=settings.options)
    server.reload()
    *_, warning, _ = server.log.splitlines()
    assert re.fullmatch(r"\S+Z WARNING storm .*: unknown key pacemaker\.bogus", warning)


@pytest.mark.parametrize("engine", ENGINES)
def test_new_password_ends_connections_with_the_old_one(start_pacemaker, settings, engine):
    conf = {
        "pacemaker_auth_method": "DIGEST",
        "java_security_auth_login_config": str(settings.jaas),
        "pacemaker_engine": engine,
    }
    settings.write(**conf)
    settings.jaas.write_text(JAAS.format("first"))
    settings.jaas.chmod(0o644)
    server = start_pacemaker(options=settings.options)
    for warnings in (1, 2):
        assert server.log.count("can be read by others than its owner") == warnings
        server.reload()
    settings.jaas.chmod(0o600)
    with Client(server) as reader, Client(server) as writer:
        assert reader.authenticate(settings.mechanism("first"))
        writer.send("/a")
        assert reader.get("/a") == b"pulse"

        settings.jaas.write_text("PacemakerDigest { username=")  # broken
        server.reload()
        assert "not reloaded, all stays as it was" in server.log
        assert str(settings.jaas) in server.log
        assert reader.get("/a") == b"pulse"

        settings.jaas.write_text(JAAS.format("second"))
        server.reload()
        assert reader.receive() is None
        writer.send("/a")
        assert refused(writer)
        assert "users and passwords; 1 connection to begin anew" in server.log
        for password, is_right in (("first", False), ("second", True)):
            with Client(server) as client:
                assert client.authenticate(settings.mechanism(password)) is is_right
        assert not any(password in server.log for password in ("first", "second"))


def test_limits_change_under_the_clients(start_pacemaker, settings):
    settings.write()
    server = start_pacemaker(options=settings.options)
    with Client(server) as first, Client(server) as second:
        first.send("/" + "x" * 500, bytes(100_000))
        settings.write(
            pacemaker_max_connections=1,
            pacemaker_path_max_bytes=100,
            pacemaker_store_max_bytes=110_000,
            pacemaker_frame_timeout_secs=2,
            pacemaker_pulse_ttl_secs=3_600,
            pacemaker_engine="interpreted",
        )
        server.reload()
        assert "pacemaker.max.connections = 1 (was 0)" in server.log
        assert re.search("for a restart only: .*pacemaker.engine = interpreted", server.log)
        # Who is in stays in.
        second.send("/a")
        for path, details in (("/" + "y" * 500, b""), ("/b", bytes(20_000))):
            answer = first.ask(MessageType.SEND_PULSE, pulse=Pulse(path, details))
            assert answer == Message(MessageType.NOT_AUTHORIZED, 1)
        assert first.get("/" + "x" * 500) == bytes(100_000)
        with pytest.raises((OSError, AssertionError)), Client(server) as third:
            third.send("/c")
        second.socket.sendall(b"\0\0")
        assert second.receive() is None
        assert "pacemaker.frame.timeout.secs" in server.log


@pytest.mark.parametrize("engine", ENGINES)
def test_lowered_limit_allows_overwrites_that_do_not_grow(start_pacemaker, settings, engine):
    settings.write(pacemaker_engine=engine)
    server = start_pacemaker(options=settings.options)
    with Client(server) as client:
        client.send("/a", bytes(1_000))
        client.send("/b", bytes(1_000))
        settings.write(pacemaker_engine=engine, pacemaker_store_max_bytes=500)
        server.reload()
        client.send("/a", b"x" * 1_000)
        for path, length in (("/a", 1_001), ("/c", 0)):
            answer = client.ask(MessageType.SEND_PULSE, pulse=Pulse(path, bytes(length)))
            assert answer == Message(MessageType.NOT_AUTHORIZED, 1)
        assert client.get("/a") == b"x" * 1_000
        client.send("/a", bytes(999))


def test_a_broken_file_keeps_the_old_settings(start_pacemaker, settings):
    settings.write()
    server = start_pacemaker(options=settings.options)
    with Client(server) as client:
        settings.file.write_text("pacemaker.max.connections: many\n")
        server.reload()
        [line] = [line for line in server.log.splitlines() if "not reloaded" in line]
        assert " ERROR " in line
        assert "pacemaker.max.connections" in line
        client.send("/a")
        settings.file.write_text("pacemaker.tls.enable: true\n")
        server.reload()
        assert "for a restart only: pacemaker.tls.enable = true (was false)" in server.log
        client.send("/a")
        server.reload()


def test_a_file_that_is_gone_or_emptied_keeps_the_old_settings(start_pacemaker, settings):
    conf = {
        "pacemaker_auth_method": "DIGEST",
        "pacemaker_auth_writes": True,
        "java_security_auth_login_config": str(settings.jaas),
    }
    settings.write(**conf)
    settings.jaas.write_text(JAAS.format("first"))
    server = start_pacemaker(environ={"STORM_CONF_DIR": str(settings.folder)})
    with Client(server) as client:
        aside = settings.file.rename(settings.folder / "aside")
        for says in ("is gone, and was read before", "is empty and was not before"):
            server.reload()
            line = server.log.splitlines()[-1]
            assert f"not reloaded, all stays as it was: {settings.file}: {says}" in line
            assert " ERROR " in line
            answer = client.ask(MessageType.SEND_PULSE, pulse=Pulse("/a", b"x"))
            assert answer == Message(MessageType.NOT_AUTHORIZED, 1)
            settings.file.touch()
        aside.rename(settings.file)
        server.reload()
        assert server.log.endswith("reloaded: nothing has changed\n")
        settings.write(**conf, pacemaker_max_connections=7)
        server.reload()
        assert server.log.endswith("reloaded: pacemaker.max.connections = 7 (was 0)\n")


def test_a_file_that_appears_holds_from_the_reload_on(start_pacemaker, settings):
    server = start_pacemaker(environ={"STORM_CONF_DIR": str(settings.folder)})
    settings.write(pacemaker_max_connections=7)
    server.reload()
    assert server.log.endswith("reloaded: pacemaker.max.connections = 7 (was 0)\n")
    settings.file.unlink()
    server.reload()
    assert f"not reloaded, all stays as it was: {settings.file}: is gone" in server.log


def serial(client):
    return client.socket.getpeercert()["serialNumber"]


def test_next_client_sees_a_renewed_certificate(tmp_path):
    files = certificates()
    paths = {name: tmp_path / f"{name}.pem" for name in ("file", "key")}

    def install(certificate):
        for name, path in paths.items():
            path.write_bytes(getattr(certificate, name).read_bytes())
            path.chmod(0o600)

    install(files.server)
    conf = tls_conf(files.server) | {
        "pacemaker.tls.certificate.file": str(paths["file"]),
        "pacemaker.tls.key.file": str(paths["key"]),
    }
    context = ssl.create_default_context(cafile=files.server.authority)
    with PacemakerProcess(conf=conf) as server, Client(server, context) as old:
        assert f"or newer, certificate until {ends(files.server)}, client cert" in server.log
        paths["key"].write_text("half of a key")
        server.reload()
        assert "not reloaded" in server.log
        install(files.renewed)
        server.reload()
        until_when = ends(files.renewed)
        assert f"reloaded: certificates and keys, certificate until {until_when}\n" in server.log
        with Client(server, context) as new:
            new.send("/a")
            assert serial(new) != serial(old)
        assert old.get("/a") == b"pulse"
        server.reload()
        assert "reloaded: nothing has changed" in server.log
        assert " WARNING " not in server.log
        install(files.expired)
        server.reload()
        assert f"certificates and keys, certificate until {ends(files.expired)}\n" in server.log
        [line] = [line for line in server.log.splitlines() if " WARNING " in line]
        assert str(paths["file"]) in line
        assert "expired at 2020-02-28T01:02:03Z" in line


def ends(certificate):
    found = x509.load_pem_x509_certificate(certificate.file.read_bytes())
    return f"{found.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"


def test_a_certificates_end_is_among_the_figures():
    server = PacemakerServer(defaults().with_values(tls_conf(certificates().expired)))
    assert (
        server.snapshot().certificate_ends
        == datetime(*(2020, 2, 28, 1, 2, 3), tzinfo=UTC).timestamp()
    )
    server.reload(defaults().with_values(tls_conf(certificates().renewed)))
    assert server.snapshot().certificate_ends > time.time()
    assert PacemakerServer(defaults()).snapshot().certificate_ends is None


def test_hangup_does_not_end_the_daemon(pacemaker):
    for _ in range(20):
        os.kill(pacemaker.pid, signal.SIGHUP)
    until(lambda: "reloaded: nothing has changed" in pacemaker.log)
    with Client(pacemaker) as client:
        client.send("/a")
    assert pacemaker.stop() == 0
