"""Clients as the configuration makes them, against real daemons that ask who they are."""

import os
import re
import signal
import time

import pytest

from stormkeeper import conf as configuration
from stormkeeper.errors import NotAuthorizedError, PacemakerUnavailableError
from stormkeeper.pacemaker.client.pool import connect
from support.certificates import certificates, tls_conf
from support.pacemaker import PacemakerProcess
from support.waiting import DEADLINE_SECS, until

PULSE = "/workerbeats/wc-1-1/node-6700"


def jaas(folder, name="jaas.conf", password="one that nobody guesses"):
    path = folder / name
    path.write_text(f'PacemakerDigest {{ username="reader" password="{password}"; }};\n')
    return str(path)


def by(method, file=None, **more):
    return {
        "pacemaker.auth.method": method,
        "java.security.auth.login.config": file,
        **{key.replace("__", "."): value for key, value in more.items()},
    }


def pool(daemon, values, role="reader", **options):
    conf = configuration.defaults().with_values(
        {**values, "pacemaker.servers": [f"localhost:{daemon.port}"]}
    )
    return connect(conf, role=role, **options)


def refused(daemon, values, work=None):
    """Return the words of a refusal, which comes at once."""
    with pool(daemon, values, retries=1000, deadline=120.0) as client:
        started = time.monotonic()
        with pytest.raises(NotAuthorizedError) as failure:
            (work or (lambda client: client.children("/")))(client)
        assert time.monotonic() - started < DEADLINE_SECS
    return str(failure.value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module", params=["DIGEST", "SCRAM"])
def passworded(request, folder):
    """A daemon that wants a password from readers, and the same over TLS as method and file."""
    values = by(request.param, jaas(folder))
    with PacemakerProcess(conf=values) as daemon:
        yield daemon, values


def test_reader_needs_password_and_writer_needs_none(passworded):
    daemon, values = passworded
    worker = by(values["pacemaker.auth.method"])
    with pool(daemon, worker, "writer") as beating, pool(daemon, values) as reading:
        beating.send_pulse(PULSE, b"1")
        assert reading.get_pulse(PULSE) == b"1"
        assert reading.children("/workerbeats") == ["wc-1-1"]
        assert list(reading.read("/").by_path) == [PULSE]
        assert [info.keys for info in reading.server_infos().values()] == [1]
        reading.delete_path("/")
        assert reading.read("/").by_path == {}
    assert "one that nobody guesses" not in daemon.log


def test_who_has_none_is_told_how_to_say_it(passworded):
    daemon, _ = passworded
    for verb in ("children", "get_pulse", "reading", "read"):
        text = refused(daemon, {}, lambda client, verb=verb: getattr(client, verb)("/"))
        assert "set pacemaker.auth.method to the server's own (DIGEST, KERBEROS" in text
        assert "java.security.auth.login.config" in text
        assert "-c" not in text, "an option of the command line, and not of Spark's source"


def test_wrong_password_names_the_file(passworded, folder):
    daemon, values = passworded
    wrong = jaas(folder, "wrong.conf", "another")
    text = refused(daemon, {**values, "java.security.auth.login.config": wrong})
    assert f"section PacemakerDigest of {wrong}" in text
    assert "another" not in text


def test_another_method_is_told(passworded, folder):
    daemon, values = passworded
    daemon_method = values["pacemaker.auth.method"]
    other = {"DIGEST": "SCRAM", "SCRAM": "DIGEST"}[daemon_method]
    text = refused(daemon, by(other, jaas(folder)))
    mechanism = {"DIGEST": "DIGEST-MD5", "SCRAM": "SCRAM-SHA-256"}[other]
    assert f"the server does not speak {mechanism}; is pacemaker.auth.method the same" in text
    assert "username and password" not in text
    until(lambda: f"left in the middle of authenticating ({daemon_method})" in daemon.log)


def test_a_server_that_asks_nobody(folder):
    with PacemakerProcess() as daemon:
        text = refused(daemon, by("DIGEST", jaas(folder)))
        assert "wants no authentication" in text
        with pool(daemon, {}) as client:
            assert client.children("/") == []


def test_writers_authenticate_where_required(folder):
    values = by("SCRAM", jaas(folder), pacemaker__auth__writes=True)
    with PacemakerProcess(conf=values) as daemon:
        with pool(daemon, values, "writer") as worker:
            worker.send_pulse(PULSE, b"1")
            assert worker.get_pulse(PULSE) == b"1"
        text = refused(daemon, {}, lambda client: client.send_pulse(PULSE, b"2"))
        assert "pacemaker.auth.writes to true" in text
        refused(daemon, {}, lambda client: client.delete_path("/"))
        with pool(daemon, values) as reader:
            assert reader.get_pulse(PULSE) == b"1"


def test_client_returns_after_password_is_corrected(folder):
    values = by("DIGEST", jaas(folder))
    with PacemakerProcess(conf=values) as daemon, pool(daemon, values) as client:
        assert client.children("/") == []
        daemon.restart()
        client.send_pulse(PULSE, b"1")
        assert client.get_pulse(PULSE) == b"1"


def test_a_password_is_changed_under_a_client_that_lives_on(tmp_path):
    values = by("SCRAM", jaas(tmp_path))
    with PacemakerProcess(conf=values) as daemon, pool(daemon, values) as client:
        assert client.children("/") == []
        jaas(tmp_path, password="a newer one")
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: "reload" in daemon.log)
        assert client.children("/") == []
        assert daemon.log.count("authenticated as 'reader'") == 2


def test_over_tls_with_a_password_and_a_certificate(folder):
    server = {
        **tls_conf(),
        **by("DIGEST", jaas(folder)),
        "pacemaker.tls.client.auth": "required",
        "pacemaker.tls.ca.file": str(certificates().client.authority),
    }
    client = {
        **by("DIGEST", jaas(folder)),
        "pacemaker.tls.enable": True,
        "pacemaker.tls.ca.file": str(certificates().server.authority),
        "pacemaker.tls.client.certificate.file": str(certificates().client.file),
        "pacemaker.tls.client.key.file": str(certificates().client.key),
    }
    with PacemakerProcess(conf=server) as daemon:
        with pool(daemon, client) as secured:
            large = bytes(range(256)) * 4_000
            secured.send_pulse(PULSE, large)
            assert secured.get_pulse(PULSE) == large
        wrong = jaas(folder, "wrong.conf", "another")
        text = refused(daemon, {**client, "java.security.auth.login.config": wrong})
        assert "the server closed the connection" in text
        assert f"section PacemakerDigest of {wrong}" in text
        unknown = {**client, "pacemaker.tls.client.certificate.file": None}
        unknown["pacemaker.tls.client.key.file"] = None
        with (
            pool(daemon, unknown, retries=0) as nameless,
            pytest.raises(
                (NotAuthorizedError, PacemakerUnavailableError), match=r"client\.certificate\.file"
            ),
        ):
            nameless.children("/")
        stranger = str(certificates().stranger.authority)
        assert "pacemaker.tls.ca.file" in refused(
            daemon, {**client, "pacemaker.tls.ca.file": stranger}
        )
        with (
            pool(daemon, by("DIGEST", jaas(folder)), retries=0) as plain,
            pytest.raises((NotAuthorizedError, PacemakerUnavailableError), match=r"tls\.enable"),
        ):
            plain.children("/")


def test_with_kerberos(kerberos_realm, tmp_path):
    values = {
        **by("KERBEROS", str(kerberos_realm.jaas(tmp_path))),
        "nimbus.daemon.user": "nimbus",
    }
    (tmp_path / "other").mkdir()
    other = {
        **values,
        "java.security.auth.login.config": str(kerberos_realm.jaas(tmp_path / "other", "guest")),
    }
    with PacemakerProcess(conf=values) as daemon:
        with pool(daemon, by("KERBEROS"), "writer") as worker:
            worker.send_pulse(PULSE, b"1")
        with pool(daemon, values) as nimbus:
            assert nimbus.get_pulse(PULSE) == b"1"
            assert list(nimbus.read("/").by_path) == [PULSE]
        text = refused(daemon, other)
        assert "nimbus.daemon.user" in text
        assert "PacemakerClient" in text
        assert "set pacemaker.auth.method" in refused(daemon, {})
        for method in ("DIGEST", "SCRAM"):
            text = refused(daemon, by(method, jaas(tmp_path, "passwords.conf")))
            assert "before its first token; is pacemaker.auth.method the same" in text
            assert "username and password" not in text
        told = "KERBEROS: the client asked for a SASL token.*; is pacemaker.auth.method the same"
        assert re.search(told, daemon.log)


def test_missing_kdc_costs_a_reader_only_its_deadline(kerberos_realm, tmp_path):
    # One of whom no ticket is known yet.
    values = {
        **by("KERBEROS", str(kerberos_realm.jaas(tmp_path, "ticketless"))),
        "pacemaker.kerberos.users": ["ticketless"],
    }
    with PacemakerProcess(conf=values) as daemon, pool(daemon, values, deadline=6.0) as nimbus:
        kerberos_realm.stop_kdc()
        try:
            started = time.monotonic()
            with pytest.raises((NotAuthorizedError, PacemakerUnavailableError)):
                nimbus.children("/")
            assert time.monotonic() - started < 30.0
        finally:
            kerberos_realm.start_kdc()
        assert nimbus.children("/") == []
