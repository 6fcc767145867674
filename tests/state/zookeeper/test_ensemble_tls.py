import os
import shlex
import ssl
import subprocess

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificate

from stormkeeper import conf as configuration
from stormkeeper.daemon.spark_environment import find_java
from stormkeeper.errors import ConfigError
from stormkeeper.state.zookeeper.ensemble_settings import client_contexts
from support.certificates import certificates

PASSWORD = "changeit"


def conf_of(**stores):
    """``key_store="file"`` as ``storm.zookeeper.ssl.keystore.path``, and the like."""
    names = {
        "key_store": "keystore.path",
        "key_password": "keystore.password",
        "trust_store": "truststore.path",
        "trust_password": "truststore.password",
        "check_hostname": "hostnameVerification",
    }
    values = {
        f"storm.zookeeper.ssl.{names[name]}": value if isinstance(value, bool) else str(value)
        for name, value in stores.items()
    }
    return configuration.defaults().with_values({"storm.zookeeper.ssl.enable": True, **values})


def contexts(**stores):
    return client_contexts(conf_of(**stores))


@pytest.fixture
def key_store(tmp_path):
    """A file with the client's key and certificates."""
    return pem_store(tmp_path / "client.pem", certificates().client)


def pem_store(path, certificate):
    path.write_bytes(certificate.key.read_bytes() + certificate.file.read_bytes())
    return path


def encrypted(store, path, password):
    """Return `store` with its key under a passphrase."""
    key = load_pem_private_key(store.read_bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())
    )
    path.write_bytes(key + certificates().client.file.read_bytes())
    return path


def keytool(*arguments, **options):
    program = find_java(os.environ).resolve().with_name("keytool")
    return subprocess.run(
        [program, *arguments], check=True, capture_output=True, timeout=60, **options
    ).stdout


def loaded_names(context):
    """The authorities that a context trusts, as their certificates name them."""
    return [dict(part[0] for part in c["subject"]) for c in context.get_ca_certs()]


def test_off_as_it_comes():
    assert client_contexts(configuration.defaults()) is None


def test_servers_must_always_have_a_certificate_that_is_trusted():
    context = contexts(trust_store=certificates().server.authority)()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert len(loaded_names(context)) == 1
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("checked", [True, False])
def test_the_servers_name_is_checked_where_that_is_set(checked):
    assert contexts(check_hostname=checked)().check_hostname is checked


def test_without_a_trust_store_the_system_s_is_used():
    system = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    system.load_default_certs()
    assert contexts()().cert_store_stats() == system.cert_store_stats()


def test_a_key_under_a_passphrase(key_store, tmp_path):
    store = encrypted(key_store, tmp_path / "encrypted.pem", "long enough")
    assert contexts(key_store=store, key_password="long enough")()
    with pytest.raises(ConfigError, match=r"another passphrase than \S+keystore\.password"):
        contexts(key_store=store, key_password="long")
    with pytest.raises(
        ConfigError, match=r"has a passphrase, and \S+keystore\.password is not set"
    ):
        contexts(key_store=store)


@pytest.mark.parametrize("name", ["key_store", "trust_store"])
def test_a_store_that_is_not_there(name, tmp_path):
    with pytest.raises(ConfigError, match=rf"ssl\.\w+\.path: {tmp_path}/none.pem cannot be read"):
        contexts(**{name: tmp_path / "none.pem"})


def test_a_key_store_without_its_key():
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.path: \S+ must hold a key and its"):
        contexts(key_store=certificates().client.file)


def test_a_key_of_another_certificate(tmp_path):
    store = tmp_path / "mixed.pem"
    ours, theirs = certificates().client, certificates().stranger
    store.write_bytes(ours.key.read_bytes() + theirs.file.read_bytes())
    with pytest.raises(ConfigError, match="the certificate of the key first"):
        contexts(key_store=store)


def test_a_trust_store_without_certificates():
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.path: \S+ holds no certificates"):
        contexts(trust_store=certificates().client.key)


def test_a_passphrase_is_in_no_message(key_store, tmp_path):
    store = encrypted(key_store, tmp_path / "encrypted.pem", "long enough")
    with pytest.raises(ConfigError) as failure:
        contexts(key_store=store, key_password="not for others")
    assert "not for others" not in str(failure.value)


def remedy(**stores):
    """Return the command that the message about one of Java's stores gives."""
    with pytest.raises(ConfigError, match="Java's key stores are not read here") as failure:
        contexts(**stores)
    return str(failure.value).partition("convert it (")[2].partition(") and name")[0]


def run(command, folder, answers):
    """Run what a message says, as somebody would who types `answers` where they are asked."""
    java = find_java(os.environ).resolve().parent
    subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        input="".join(f"{answer}\n" for answer in answers),
        text=True,
        check=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "PATH": f"{java}:{os.environ['PATH']}"},
    )
    return folder / "store.pem"


def test_javas_trust_store_is_refused_with_a_remedy_that_works(tmp_path):
    jks = tmp_path / "trust.jks"
    keytool(
        *("-importcert", "-noprompt", "-alias", "authority", "-storetype", "JKS"),
        *("-file", certificates().server.authority, "-keystore", jks, "-storepass", PASSWORD),
    )
    store = run(remedy(trust_store=jks), tmp_path, [PASSWORD])
    direct = contexts(trust_store=certificates().server.authority)()
    assert loaded_names(contexts(trust_store=store)()) == loaded_names(direct)


def test_javas_key_stores_are_refused_with_remedies_that_work(key_store, tmp_path):
    p12, jks = tmp_path / "key.p12", tmp_path / "key.jks"
    pem = key_store.read_bytes()
    p12.write_bytes(
        serialize_key_and_certificates(
            b"nimbus",
            load_pem_private_key(pem, None),
            load_pem_x509_certificate(pem),
            None,
            BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    store = run(with_openssl_answers(remedy(key_store=p12)), tmp_path, [])
    assert contexts(key_store=store, key_password=PASSWORD)()
    keytool(
        *("-importkeystore", "-srckeystore", p12, "-srcstorepass", PASSWORD),
        *("-destkeystore", jks, "-deststoretype", "JKS", "-deststorepass", PASSWORD),
    )
    store.unlink()
    command = with_openssl_answers(remedy(key_store=jks))
    store = run(command, tmp_path, [PASSWORD, PASSWORD, PASSWORD])
    assert contexts(key_store=store, key_password=PASSWORD)()


def with_openssl_answers(command):
    """OpenSSL asks on the terminal alone, which a test has not."""
    asked = shlex.join(["-passin", f"pass:{PASSWORD}", "-passout", f"pass:{PASSWORD}"])
    return command.replace("openssl pkcs12", f"openssl pkcs12 {asked}")


def test_a_renewed_file_counts_for_the_next_connection(tmp_path):
    store = tmp_path / "trust.pem"
    store.write_bytes(certificates().server.authority.read_bytes())
    give = contexts(trust_store=store)
    before = give()
    assert give() is before
    store.write_bytes(certificates().stranger.authority.read_bytes())
    os.utime(store, ns=(1, 1))
    after = give()
    assert after is not before
    assert after.get_ca_certs() != before.get_ca_certs()
    assert give() is after


def test_a_renewed_file_that_is_wrong_changes_nothing(tmp_path, caplog):
    store = tmp_path / "trust.pem"
    store.write_bytes(certificates().server.authority.read_bytes())
    give = contexts(trust_store=store)
    before = give()
    store.write_text("half of")
    assert give() is before
    assert give() is before
    (message,) = caplog.messages
    assert "a renewed file is not used" in message


def test_a_password_for_certificates_has_no_effect(caplog):
    with caplog.at_level("INFO", "stormkeeper.state"):
        assert contexts(trust_store=certificates().server.authority, trust_password=PASSWORD)()
    assert "storm.zookeeper.ssl.truststore.password has no effect" in caplog.text
    assert PASSWORD not in caplog.text
