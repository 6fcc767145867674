"""Settings of a ZooKeeper session: servers and timeouts, credentials, access rules and TLS.

A client authenticates by digests of user and password, by SASL with DIGEST-MD5, or by a certificate
over TLS. TLS files are PEM.

The process that makes a node sets its ACL. Daemons keep their nodes to themselves, but let a
topology's workers read its records and make nodes in the directories for reports.
"""

import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from kazoo.security import ACL, CREATOR_ALL_ACL, make_acl

from stormkeeper import paths
from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError
from stormkeeper.sasl import Mechanism, credentials, jaas
from stormkeeper.sasl.digest_md5 import DigestClient
from stormkeeper.state.storage import Role, digest_id
from stormkeeper.tls_files import Contexts, PassphraseError, load_pair, renewed

log = logging.getLogger(__name__)

SASL_SECTION: Final = "Client"

#: Of every ZooKeeper server in DIGEST-MD5.
SASL_REALM: Final = "zk-sasl-md5"
SASL_DIGEST_URI: Final = "zookeeper/zk-sasl-md5"

_LOGIN_FILE: Final = "java.security.auth.login.config"
_SUPER_ACL: Final = "storm.zookeeper.superACL"

#: Scheme and payload, of the daemons and of a topology's workers.
_SERVER: Final = ("storm.zookeeper.auth.scheme", "storm.zookeeper.auth.payload")
_TOPOLOGY: Final = ("storm.zookeeper.topology.auth.scheme", "storm.zookeeper.topology.auth.payload")

#: The node's maker, under every proved identity.
_CREATOR: Final[list[ACL]] = CREATOR_ALL_ACL

#: Where a topology's workers may read: at and below ``<directory>/<topology id>``.
_READ: Final = frozenset(
    (paths.STORMS, paths.ASSIGNMENTS, paths.CREDENTIALS, paths.LOG_CONFIGS, paths.TASKS)
)

#: Where workers have all rights to ``<directory>/<topology id>`` itself, and so make nodes below.
#: Daemons' nodes there stay the daemons'.
_REPORT: Final = frozenset(
    (paths.WORKERBEATS, paths.ERRORS, paths.BACKPRESSURE, paths.TASKBEATS, paths.TASKERRORS)
)


class AccessRules:
    """ACLs of nodes that this process makes. Safe for threads.

    Without authentication nodes are open to all. `topology_digest` is the workers' `digest_id` for
    topologies without their own; `super_acl` is a worker's grant to the daemons.
    """

    def __init__(
        self,
        *,
        authenticated: bool,
        role: Role = Role.SERVER,
        topology_digest: str | None = None,
        super_acl: ACL | None = None,
    ) -> None:
        self._authenticated = authenticated
        self._role = role
        self._topology_digest = topology_digest
        self._workers_own = _CREATOR + ([] if super_acl is None else [super_acl])

    def acl(self, path: str, workers_digest: str | None = None) -> list[ACL] | None:
        """Return the ACL of a node made at `path`, relative to the root; None: open to all.

        `workers_digest` defaults to `topology_digest`.
        """
        if not self._authenticated:
            return None
        if self._role is Role.WORKER:
            return self._workers_own
        digest, top = workers_digest or self._topology_digest, paths.first_level(path)
        is_report = top in _REPORT and path.count("/") == 2
        if digest is None or paths.storm_id_of(path) is None or not (is_report or top in _READ):
            return _CREATOR
        return [*_CREATOR, make_acl("digest", digest, all=is_report, read=not is_report)]


OPEN: Final = AccessRules(authenticated=False)


@dataclass(frozen=True)
class Security:
    """Credentials, TLS and ACLs of a session; ``Security()`` has none."""

    #: As kazoo's ``auth_data``.
    digests: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: For each connection; None: no SASL.
    mechanism: Callable[[], Mechanism] | None = None
    #: For each connection; None: no TLS.
    contexts: Callable[[], ssl.SSLContext] | None = None
    #: For messages: "digest:storm:…=", "sasl:nimbus". Contains no secret.
    identities: tuple[str, ...] = ()
    rules: AccessRules = OPEN

    @property
    def authenticated(self) -> bool:
        """Whether the session authenticates, other than by a certificate."""
        return bool(self.digests) or self.mechanism is not None

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any], role: Role = Role.SERVER) -> Self:
        """Read ``storm.zookeeper.auth.*``, ``.topology.auth.*``, ``.superACL``, ``.ssl.*``, JAAS.

        Raises `ConfigError`, which names the key and a remedy, and never a password.
        """
        server, topology = _payload(conf, *_SERVER), _payload(conf, *_TOPOLOGY)
        mechanism, user = _sasl(conf)
        own = server if role is Role.SERVER else topology
        return cls(
            digests=() if own is None else (("digest", own),),
            mechanism=mechanism,
            contexts=client_contexts(conf),
            identities=(
                *(() if own is None else (f"digest:{digest_id(own)}",)),
                *(() if user is None else (f"sasl:{user}",)),
            ),
            rules=_rules(conf, role, own, topology, sasl=mechanism is not None),
        )


def _rules(
    conf: Mapping[str, Any], role: Role, own: str | None, topology: str | None, *, sasl: bool
) -> AccessRules:
    authenticated = own is not None or sasl
    super_acl = _super_acl(conf)
    if role is Role.WORKER and topology is not None and super_acl is None:
        raise ConfigError(
            f"{_TOPOLOGY[0]} is set and {_SUPER_ACL} is not: the daemons could not read what a"
            " worker makes; set it to who they are, as scheme:id (sasl:nimbus, or digest:user: and"
            " the digest of user:password)"
        )
    if role is Role.SERVER and topology is not None and not authenticated:
        raise ConfigError(
            f"{_TOPOLOGY[0]} is set, and the daemons themselves do not authenticate to ZooKeeper:"
            f" nothing would be theirs; set {_SERVER[0]} and {_SERVER[1]}, or a JAAS file with a"
            f" section {SASL_SECTION}"
        )
    if not authenticated:
        return OPEN
    return AccessRules(
        authenticated=True,
        role=role,
        topology_digest=None if topology is None else digest_id(topology),
        super_acl=super_acl,
    )


def _payload(conf: Mapping[str, Any], scheme_key: str, payload_key: str) -> str | None:
    scheme, payload = conf.get(scheme_key), conf.get(payload_key)
    if scheme is None and payload is None:
        return None
    if scheme is None:
        raise ConfigError(f"{payload_key} is set and {scheme_key} is not: set it to digest")
    if scheme != "digest":
        raise ConfigError(
            f"{scheme_key} is {scheme!r}, and digest is the only scheme that is spoken; for SASL"
            f" set {_LOGIN_FILE} to a JAAS file with a section {SASL_SECTION}"
        )
    if payload is None:
        raise ConfigError(f"{scheme_key} is set and {payload_key} is not: set it to user:password")
    user, _, password = payload.partition(":") if isinstance(payload, str) else ("", "", "")
    if not user or not password:
        raise ConfigError(f"{payload_key}: expected user:password; its value is not shown here")
    return str(payload)


def _super_acl(conf: Mapping[str, Any]) -> ACL | None:
    value = conf.get(_SUPER_ACL)
    if value is None:
        return None
    scheme, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not scheme or not name:
        raise ConfigError(f"{_SUPER_ACL}: expected scheme:id, such as sasl:nimbus; got {value!r}")
    return make_acl(scheme, name, all=True)


def _sasl(conf: Mapping[str, Any]) -> tuple[Callable[[], Mechanism] | None, str | None]:
    file = conf.get(_LOGIN_FILE)
    login = None if file is None else jaas.read(Path(file)).get(SASL_SECTION)
    if login is None:
        # The file may be for Pacemakers only.
        return None, None
    if "username" not in login.options and login.module is not None and "Krb5" in login.module:
        raise ConfigError(
            f"{login.place}: the section {SASL_SECTION} logs in to ZooKeeper with Kerberos, and"
            " only DIGEST-MD5 is spoken to ZooKeeper: give it a username and a password that the"
            " ZooKeeper servers know, or leave it out"
        )
    user = credentials.user_password(login)
    return (
        lambda: DigestClient(user, realm=SASL_REALM, digest_uri=SASL_DIGEST_URI),
        user.username,
    )


_ENABLE: Final = "storm.zookeeper.ssl.enable"
_CHECK_HOSTNAME: Final = "storm.zookeeper.ssl.hostnameVerification"
_KEY_STORE: Final = "storm.zookeeper.ssl.keystore.path"
_KEY_PASSWORD: Final = "storm.zookeeper.ssl.keystore.password"
_TRUST_STORE: Final = "storm.zookeeper.ssl.truststore.path"
_TRUST_PASSWORD: Final = "storm.zookeeper.ssl.truststore.password"

_STORES: Final = (_KEY_STORE, _TRUST_STORE)

#: In every PEM file, and in none of Java's stores.
_PEM: Final = b"-----BEGIN "

#: Java's own format; any other is taken for PKCS#12, Java's default.
_JKS: Final = b"\xfe\xed\xfe\xed"

_TO_PKCS12: Final = (
    "keytool -importkeystore -srckeystore {} -destkeystore store.p12 -deststoretype PKCS12"
)
_TO_PEM: Final = "openssl pkcs12 -in {} -out store.pem"
_CERTIFICATES_TO_PEM: Final = "keytool -list -rfc -keystore {} > store.pem"


def client_contexts(conf: Mapping[str, Any]) -> Contexts | None:
    """Return the maker of each connection's TLS context; None without TLS.

    An invalid renewed file is logged; the earlier context stays in use.
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
    if key == _TRUST_STORE:
        return _CERTIFICATES_TO_PEM.format(path)
    if store.startswith(_JKS):
        return f"{_TO_PKCS12.format(path)} && {_TO_PEM.format('store.p12')}"
    return _TO_PEM.format(path)


@dataclass(frozen=True, slots=True)
class EnsembleSettings:
    """How to reach an ensemble."""

    servers: tuple[Address, ...]
    root: str = "/"
    session_timeout_secs: float = 20.0
    #: Timeout of a call, and of connecting.
    call_timeout_secs: float = 15.0
    #: After lost connections, with doubling pauses.
    retry_times: int = 5
    retry_interval_secs: float = 1.0
    retry_ceiling_secs: float = 30.0
    security: Security = field(default_factory=Security)
    make_root: bool = True

    @classmethod
    def from_conf(
        cls, conf: Mapping[str, Any], role: Role = Role.SERVER, *, make_root: bool = True
    ) -> Self:
        """Read ``storm.zookeeper.*``; an authenticated worker never makes the root."""
        port = conf["storm.zookeeper.port"]
        servers = tuple(Address.parse(entry, port) for entry in conf["storm.zookeeper.servers"])
        for server in servers:
            if server.port == 0:
                raise ConfigError(
                    f"the ZooKeeper server {server.host} has no port and storm.zookeeper.port is 0"
                )
        security = Security.from_conf(conf, role)
        return cls(
            servers=servers,
            root=conf["storm.zookeeper.root"],
            session_timeout_secs=conf["storm.zookeeper.session.timeout"] / 1000,
            call_timeout_secs=conf["storm.zookeeper.connection.timeout"] / 1000,
            retry_times=conf["storm.zookeeper.retry.times"],
            retry_interval_secs=conf["storm.zookeeper.retry.interval"] / 1000,
            retry_ceiling_secs=conf["storm.zookeeper.retry.intervalceiling.millis"] / 1000,
            security=security,
            make_root=make_root and not (role is Role.WORKER and security.authenticated),
        )
