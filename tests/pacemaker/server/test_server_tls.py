"""The TLS context of a server: what makes one, what does not, and how failures are told."""

import logging
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.server import server_tls
from stormkeeper.tls_files import Certificate
from support.certificates import certificates, tls_conf


def context(**changes):
    return server_tls.server_context(defaults().with_values(tls_conf() | changes))


def shake_hands(server_context, client_context, name="localhost"):
    """Let both ends of a connection in memory greet each other; return them."""
    c2s, s2c = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(s2c, c2s, server_hostname=name)
    server = server_context.wrap_bio(c2s, s2c, server_side=True)
    for end in (client, server) * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    client.write(b"hello")
    assert server.read(5) == b"hello"
    return client, server


def client_context(certificate=None, **settings):
    made = ssl.create_default_context(cafile=certificates().server.authority)
    if certificate is not None:
        made.load_cert_chain(certificate.file, certificate.key)
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def test_without_tls_there_is_no_context():
    assert server_tls.server_context(defaults()) is None


def test_a_client_connects_and_is_described():
    _, server = shake_hands(context(), client_context())
    assert server_tls.describe(server) == ("TLSv1.3", "")


@pytest.mark.parametrize("wanted", ["optional", "required"])
def test_a_clients_certificate_is_described(wanted):
    asking = context(
        **{
            "pacemaker.tls.client.auth": wanted,
            "pacemaker.tls.ca.file": str(certificates().server.authority),
        }
    )
    _, server = shake_hands(asking, client_context(certificates().client))
    assert server_tls.describe(server) == ("TLSv1.3", "'worker-1'")
    with pytest.raises(ssl.SSLCertVerificationError) as raised:
        shake_hands(asking, client_context(certificates().stranger))
    assert "the client's certificate is not accepted" in server_tls.fault_of(raised.value)
    if wanted == "optional":
        assert server_tls.describe(shake_hands(asking, client_context())[1]) == ("TLSv1.3", "")
    else:
        with pytest.raises(ssl.SSLError) as raised:
            shake_hands(asking, client_context())
        assert "client.auth is required" in server_tls.fault_of(raised.value)


def test_the_oldest_version_is_kept_to():
    modern = context(**{"pacemaker.tls.minimum.version": "TLSv1.3"})
    old = client_context(maximum_version=ssl.TLSVersion.TLSv1_2)
    with pytest.raises(ssl.SSLError) as raised:
        shake_hands(modern, old)
    assert server_tls.describe(shake_hands(context(), old)[1])[0] == "TLSv1.2"
    assert server_tls.fault_of(raised.value)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "plain HTTP"),
        (b"\0\0\0\x30\x08\0\1\0\0\0\4\x0c\0\2\x0c\0\2\x0b\0\1", "pacemaker.tls.enable"),
        (b"\x16\x03\x01\xff\xff" + bytes(40), "TLS handshake failed"),
        (b"\x16\x03\x01\x00\x05" + b"\xff" * 40, "TLS handshake failed"),
    ],
)
def test_fault_of_a_client_without_tls_is_one_line(sent, said):
    incoming = ssl.MemoryBIO()
    incoming.write(sent)
    server = context().wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    with pytest.raises(ssl.SSLError) as raised:
        server.do_handshake()
    fault = server_tls.fault_of(raised.value)
    assert said in fault
    assert "_ssl.c" not in fault
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "pacemaker.handshake.timeout.secs"),
        (ConnectionAbortedError("taking longer"), "pacemaker.handshake.timeout.secs"),
        (ConnectionAbortedError(103, "aborted"), "the client went away"),
        (ConnectionResetError(104, "Connection reset by peer"), "the client went away"),
    ],
)
def test_fault_of_a_gone_or_slow_client_is_named(error, said):
    assert said in server_tls.fault_of(error)


@pytest.fixture
def files(tmp_path):
    encrypted = tmp_path / "encrypted.pem"
    key = serialization.load_pem_private_key(certificates().server.key.read_bytes(), None)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    (tmp_path / "garbage.pem").write_text("no PEM at all\n")
    (tmp_path / "folder").mkdir()
    return {
        "missing": tmp_path / "missing.pem",
        "garbage": tmp_path / "garbage.pem",
        "folder": tmp_path / "folder",
        "encrypted": encrypted,
        "other key": certificates().stranger.key,
        "key": certificates().server.key,
        "certificate": certificates().server.file,
    }


@pytest.mark.parametrize(
    ("key", "which", "said"),
    [
        ("pacemaker.tls.certificate.file", None, "must name a file"),
        ("pacemaker.tls.key.file", None, "must name a file"),
        ("pacemaker.tls.ca.file", None, "the authorities of clients' certificates"),
        ("pacemaker.tls.certificate.file", "missing", "No such file"),
        ("pacemaker.tls.key.file", "missing", "No such file"),
        ("pacemaker.tls.ca.file", "missing", "No such file"),
        ("pacemaker.tls.certificate.file", "folder", "Is a directory"),
        ("pacemaker.tls.certificate.file", "garbage", "no certificate in PEM"),
        ("pacemaker.tls.certificate.file", "key", "no certificate in PEM"),
        ("pacemaker.tls.key.file", "garbage", "no private key in PEM"),
        ("pacemaker.tls.key.file", "certificate", "no private key in PEM"),
        ("pacemaker.tls.key.file", "other key", "is not the key of the certificate"),
        ("pacemaker.tls.key.file", "encrypted", "passphrase"),
        ("pacemaker.tls.ca.file", "garbage", "no certificates in PEM"),
    ],
)
def test_bad_tls_file_is_named_with_its_key(files, key, which, said):
    changes = {
        "pacemaker.tls.client.auth": "required",
        "pacemaker.tls.ca.file": str(certificates().server.authority),
        key: str(files[which]) if which else None,
    }
    with pytest.raises(ConfigError) as raised:
        context(**changes)
    message = str(raised.value)
    assert message.startswith(f"{key}: ")
    assert said in message
    assert which is None or str(files[which]) in message


def test_a_certificate_that_has_expired_gets_a_warning(caplog):
    expired = certificates().expired
    with caplog.at_level(logging.WARNING):
        made = server_tls.server_context(defaults().with_values(tls_conf(expired)))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    told = record.getMessage()
    assert told.startswith(f"pacemaker.tls.certificate.file: {expired.file}: the certificate of ")
    assert told.endswith(" expired at 2020-02-28T01:02:03Z: clients do not accept it")
    assert made.certificate.subject in told
    assert "O=" in made.certificate.subject


@pytest.mark.parametrize(
    ("begins", "ends", "said"),
    [
        (-1, 15, ""),
        (-1, 14, ""),
        (-1, 13.99, "ends at 2026-01-14T23:45:36Z, in less than 14 days"),
        (-1, 0, "expired at 2026-01-01T00:00:00Z"),
        (-2, -1, "expired at 2025-12-31T00:00:00Z"),
        (0, 15, ""),
        (0.5, 9, "is not valid before 2026-01-01T12:00:00Z (until 2026-01-10T00:00:00Z)"),
    ],
)
def test_fault_of_a_certificate_is_explained(begins, ends, said):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    days = [now + timedelta(days=number) for number in (begins, ends)]
    told = server_tls.what_is_wrong(Certificate("CN=a.example", *days), now)
    assert said in told
    assert bool(told) == bool(said)
    assert not said or "'CN=a.example'" in told


def test_unreadable_end_of_a_certificate_is_reported():
    assert "cannot be read" in server_tls.what_is_wrong(None, datetime.now(UTC))


def test_a_key_that_others_can_read_gets_a_warning(tmp_path, caplog):
    open_key = tmp_path / "key.pem"
    open_key.write_bytes(certificates().server.key.read_bytes())
    open_key.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        context()
        assert not caplog.records
        context(**{"pacemaker.tls.key.file": str(open_key)})
    assert str(open_key) in caplog.text
