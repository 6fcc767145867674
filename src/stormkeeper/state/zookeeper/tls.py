"""How ZooKeeper is spoken to over TLS, out of configuration (``storm.zookeeper.ssl.*``).

The stores are PEM files, as ZooKeeper itself takes them where their names end in ``.pem``: the key
with its certificates in one file, the certificates of who signs the servers' in another. Java's own
stores are not read here.
"""

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stormkeeper.errors import ConfigError
from stormkeeper.tls_files import Contexts, PassphraseError, load_pair, renewed

log = logging.getLogger(__name__)

_ENABLE: Final = "storm.zookeeper.ssl.enable"
_CHECK_HOSTNAME: Final = "storm.zookeeper.ssl.hostnameVerification"
_KEY_STORE: Final = "storm.zookeeper.ssl.keystore.path"
_KEY_PASSWORD: Final = "storm.zookeeper.ssl.keystore.password"
_TRUST_STORE: Final = "storm.zookeeper.ssl.truststore.path"
_TRUST_PASSWORD: Final = "storm.zookeeper.ssl.truststore.password"

_STORES: Final = (_KEY_STORE, _TRUST_STORE)

#: What every PEM file has in it, and none of Java's stores.
_PEM: Final = b"-----BEGIN "

#: What Java's own format begins with; any other is taken for PKCS#12, which is its default.
_JKS: Final = b"\xfe\xed\xfe\xed"

_TO_PKCS12: Final = (
    "keytool -importkeystore -srckeystore {} -destkeystore store.p12 -deststoretype PKCS12"
)
_TO_PEM: Final = "openssl pkcs12 -in {} -out store.pem"
_CERTIFICATES_TO_PEM: Final = "keytool -list -rfc -keystore {} > store.pem"


def client_contexts(conf: Mapping[str, Any]) -> Contexts | None:
    """Return what gives the context for each connection; None without TLS.

    A file that was renewed and cannot be used is logged, and what held before holds on.

    Raises
    ------
    ConfigError
        A file cannot be read, or is not what it should be; names the key and the file. What is
        returned raises nothing later.
    """
    if not conf.get(_ENABLE):
        return None
    if conf.get(_TRUST_PASSWORD) is not None:
        log.info("%s has no effect: certificates in PEM have none", _TRUST_PASSWORD)
    return renewed([conf.get(key) for key in _STORES], lambda: _context(conf))


def _context(conf: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(conf.get(_CHECK_HOSTNAME))
    trusted = _store(conf, _TRUST_STORE)
    if trusted is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(trusted)
        except OSError as error:
            raise ConfigError(f"{_TRUST_STORE}: {trusted} holds no certificates in PEM") from error
    own = _store(conf, _KEY_STORE)
    if own is not None:
        _load_own(context, own, conf.get(_KEY_PASSWORD))
    return context


def _load_own(context: ssl.SSLContext, store: Path, password: str | None) -> None:
    try:
        load_pair(context, store, passphrase=password or "")
    except PassphraseError as error:
        if password is None:
            reason = f"has a passphrase, and {_KEY_PASSWORD} is not set"
        else:
            reason = f"has another passphrase than {_KEY_PASSWORD}"
        raise ConfigError(f"{_KEY_STORE}: {store} {reason}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{_KEY_STORE}: {store} must hold a key and its certificates, both in PEM, the"
            " certificate of the key first"
        ) from error


def _store(conf: Mapping[str, Any], key: str) -> Path | None:
    """Return the file that `key` names; None where it names none."""
    name = conf.get(key)
    if name is None:
        return None
    path = Path(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
    if _PEM not in data:
        raise ConfigError(
            f"{key}: {path} is not PEM, and Java's key stores are not read here; convert it"
            f" ({_conversion(key, path, data)}) and name store.pem instead"
        )
    return path


def _conversion(key: str, path: Path, store: bytes) -> str:
    """Return the command that makes PEM of one of Java's stores."""
    if key == _TRUST_STORE:
        return _CERTIFICATES_TO_PEM.format(path)
    if store.startswith(_JKS):
        return f"{_TO_PKCS12.format(path)} && {_TO_PEM.format('store.p12')}"
    return _TO_PEM.format(path)
