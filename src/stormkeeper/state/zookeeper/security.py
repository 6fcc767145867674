"""As whom ZooKeeper is spoken to, over what, and who may use what is made there.

Three ways to prove who one is, which may be combined, as with the Java client: digests of a user
and a password, which no server checks before an access control list asks for them; SASL with
DIGEST-MD5, which a server checks at once; and a certificate, where the connection is TLS.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from kazoo.security import ACL, Id, Permissions

from stormkeeper.errors import ConfigError
from stormkeeper.sasl import credentials, jaas
from stormkeeper.sasl.digest_md5 import DigestClient
from stormkeeper.sasl.mechanism import Mechanism
from stormkeeper.state.access import OPEN, AccessRules, Grant, Permission, Role, digest_id
from stormkeeper.state.zookeeper.tls import client_contexts

#: The section of a JAAS file that ZooKeeper's clients log in with.
SASL_SECTION: Final = "Client"

#: What every ZooKeeper server calls itself in DIGEST-MD5.
SASL_REALM: Final = "zk-sasl-md5"
SASL_DIGEST_URI: Final = "zookeeper/zk-sasl-md5"

_LOGIN_FILE: Final = "java.security.auth.login.config"
_SUPER_ACL: Final = "storm.zookeeper.superACL"

#: Scheme and payload of the daemons, and of a topology's workers.
_SERVER: Final = ("storm.zookeeper.auth.scheme", "storm.zookeeper.auth.payload")
_TOPOLOGY: Final = ("storm.zookeeper.topology.auth.scheme", "storm.zookeeper.topology.auth.payload")

_PERMISSIONS: Final = {Permission.READ: Permissions.READ, Permission.ALL: Permissions.ALL}


@dataclass(frozen=True)
class Security:
    """As whom a session speaks, over what, and what it grants. ``Security()`` is none of it."""

    #: Schemes and payloads that are sent in every connection, as kazoo's ``auth_data``.
    digests: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    #: Makes the client's half of SASL, one for each connection; None: no SASL.
    mechanism: Callable[[], Mechanism] | None = None
    #: Gives the TLS context of each connection; None: no TLS.
    contexts: Callable[[], ssl.SSLContext] | None = None
    #: Who we say we are, for messages: "digest:storm:…=", "sasl:nimbus". No secret is in them.
    identities: tuple[str, ...] = ()
    #: Who may use the nodes that are made.
    rules: AccessRules = OPEN

    @property
    def authenticated(self) -> bool:
        """Whether the session proves who it is, other than by a certificate."""
        return bool(self.digests) or self.mechanism is not None

    def acl(self, path: str, workers: str | None = None) -> list[ACL] | None:
        """Return the access control list of a node made at `path`, relative to the root.

        None where it is open to everyone. `workers` is as in `AccessRules.grants`.
        """
        return [_acl(grant) for grant in self.rules.grants(path, workers)] or None

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any], role: Role = Role.SERVER) -> Self:
        """Read ``storm.zookeeper.auth.*``, ``.topology.auth.*``, ``.superACL``, ``.ssl.*``, JAAS.

        Raises
        ------
        ConfigError
            A value or a file is not as it must be, or something is missing beside it; names the
            key and says what to do. Passwords are in no message.
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


def _super_acl(conf: Mapping[str, Any]) -> Grant | None:
    value = conf.get(_SUPER_ACL)
    if value is None:
        return None
    scheme, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not scheme or not name:
        raise ConfigError(f"{_SUPER_ACL}: expected scheme:id, such as sasl:nimbus; got {value!r}")
    return Grant(scheme, name, Permission.ALL)


def _sasl(conf: Mapping[str, Any]) -> tuple[Callable[[], Mechanism] | None, str | None]:
    """Return what makes the mechanism, and the user's name; two times None without SASL."""
    file = conf.get(_LOGIN_FILE)
    login = None if file is None else jaas.read(Path(file)).get(SASL_SECTION)
    if login is None:
        # The file may be there for a Pacemaker's sake.
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


def _acl(grant: Grant) -> ACL:
    return ACL(_PERMISSIONS[grant.permission], Id(grant.scheme, grant.id))
