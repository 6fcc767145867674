"""What is renewed is read again, and nobody is asked for a passphrase."""

import os
import ssl
from datetime import UTC, datetime

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from stormkeeper.errors import ConfigError
from stormkeeper.tls_files import (
    Certificate,
    PassphraseError,
    expiry,
    load_pair,
    read_certificate,
    renewed,
)
from support.certificates import certificates


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file.pem"
    path.write_text("1")
    return path


def plain():
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def test_a_context_is_made_once_until_a_file_is_renewed(file):
    contexts = renewed([str(file), None], plain)
    first = contexts()
    assert contexts() is first
    os.utime(file, ns=(1, 1))
    second = contexts()
    assert second is not first
    assert contexts() is second
    file.unlink()
    assert contexts() is not second


def test_file_renewed_during_the_reading_is_read_again(file):
    read = []

    def make():
        read.append(file.read_text())
        if read == ["1"]:
            file.write_text("newer")  # in that very moment
        return plain()

    contexts = renewed([str(file)], make)
    for _ in range(3):
        contexts()
    assert read == ["1", "newer"]


def test_bad_file_is_raised_at_first_and_logged_later(file, caplog):
    def make():
        if file.read_text() == "wrong":
            raise ConfigError("key: file.pem is wrong")
        return plain()

    contexts = renewed([str(file)], make)
    before = contexts()
    file.write_text("wrong")
    assert contexts() is before
    assert contexts() is before
    assert caplog.messages == ["a renewed file is not used: key: file.pem is wrong"]
    with pytest.raises(ConfigError, match="is wrong"):
        renewed([str(file)], make)


def locked(pair, path):
    """Write the key of a pair with a passphrase."""
    path.write_bytes(
        load_pem_private_key(pair.key.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"long enough")
        )
    )
    return path


def test_another_key_is_not_another_passphrase(tmp_path):
    key = locked(certificates().server, tmp_path / "server.key")
    with pytest.raises(ssl.SSLError, match="key values mismatch"):
        load_pair(plain(), certificates().client.file, key, "long enough")


def test_passphrase_is_not_asked_for(tmp_path):
    client = certificates().client
    key = locked(client, tmp_path / "client.key")
    load_pair(plain(), client.file, key, "long enough")
    for passphrase in ("", "another"):
        with pytest.raises(PassphraseError):
            load_pair(plain(), client.file, key, passphrase)
    with pytest.raises(ssl.SSLError):
        load_pair(plain(), client.file, client.file)
    with pytest.raises(FileNotFoundError):
        load_pair(plain(), tmp_path / "none.pem")


@pytest.mark.parametrize("year", [2020, 2049, 2050, 2123])
@pytest.mark.parametrize("key_type", trustme.KeyType)
def test_when_a_certificate_expires(file, year, key_type):
    """RFC 5280 has two ways to write a time: one until 2049, one from 2050 on."""
    end = datetime(year, 2, 28, 23, 59, 58, tzinfo=UTC)
    leaf = trustme.CA(key_type=key_type).issue_cert("a.example", not_after=end, key_type=key_type)
    file.write_bytes(b"of mine:\n" + b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    assert expiry(file) == end


@pytest.mark.parametrize(
    ("common_name", "subject"),
    [
        (None, "O=Wächter, OU=Sturm"),
        ("a.example", "O=Wächter, OU=Sturm, CN=a.example"),
    ],
)
def test_whose_a_certificate_is_and_from_when_on(file, common_name, subject):
    begin, end = datetime(1999, 12, 31, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)
    leaf = trustme.CA().issue_cert(
        "b.example",
        common_name=common_name,
        organization_name="Wächter",
        organization_unit_name="Sturm",
        not_before=begin,
        not_after=end,
    )
    leaf.private_key_and_cert_chain_pem.write_to_path(file)
    assert read_certificate(file) == Certificate(subject, begin, end)


def test_other_files_have_no_expiry(file):
    certificate = certificates().server.file.read_text()
    lines = certificate.splitlines()
    for text in ("1", "", certificate[:200], "\n".join([*lines[:2], lines[-1]])):
        file.write_text(text)
        assert expiry(file) is None
    file.unlink()
    assert expiry(file) is None
