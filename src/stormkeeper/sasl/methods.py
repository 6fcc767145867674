"""The mechanism of ``pacemaker.auth.method``, with secrets, and the authorised clients."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stormkeeper.conf import Conf
from stormkeeper.errors import AuthenticationError, ConfigError
from stormkeeper.sasl import Mechanism, credentials, jaas
from stormkeeper.sasl.credentials import UserPassword
from stormkeeper.sasl.digest_md5 import DigestClient, DigestServer
from stormkeeper.sasl.jaas import Login, login, login_file

#: Storm's sections of a JAAS file; SCRAM's is ours.
DIGEST_SECTION = "PacemakerDigest"
SCRAM_SECTION = "PacemakerScram"
SERVER_SECTION = "PacemakerServer"
CLIENT_SECTION = "PacemakerClient"

_OF_SERVERS = {
    DIGEST_SECTION: "DIGEST or SCRAM",
    SCRAM_SECTION: "SCRAM",
    SERVER_SECTION: "KERBEROS",
}


def server_mechanism(conf: Conf) -> Callable[[], Mechanism] | None:
    """Return a factory for the server's side; None for NONE. Raises `ConfigError`."""
    match conf["pacemaker.auth.method"]:
        case "NONE":
            return None
        case "DIGEST":
            user = credentials.user_password(login(conf, DIGEST_SECTION))
            password = credentials.storm_password(user)
            # As in Storm, only the password counts.
            return lambda: DigestServer(lambda _: password)
        case "SCRAM":
            return _scram_server(login(conf, SCRAM_SECTION, DIGEST_SECTION))
        case _:
            return _gssapi_server(conf)


def unused_login(conf: Conf) -> str | None:
    """Return a warning about a JAAS file without effect, as the method is NONE.

    None without a Pacemaker's section: Storm's daemons may need the file for ZooKeeper.
    """
    file = login_file(conf)
    if file is None or conf["pacemaker.auth.method"] != "NONE":
        return None
    try:
        logins = jaas.read(file.path, file.named_by)
    except ConfigError as error:
        return f"{error}; with pacemaker.auth.method NONE a Pacemaker does without it"
    for section, by in _OF_SERVERS.items():
        if section in logins:
            return (
                f"the section {section} of {file} has no effect, and every client may read: set"
                f" pacemaker.auth.method to {by} to have readers authenticate"
            )
    return None


def client_mechanism(conf: Conf, host: str) -> Callable[[], Mechanism] | None:
    """Return a factory for the client's side; None for NONE. Raises `ConfigError`.

    `host` is the Pacemaker's configured name, a part of the Kerberos principal.
    """
    match conf["pacemaker.auth.method"]:
        case "NONE":
            return None
        case "DIGEST":
            password = credentials.storm_password(
                credentials.user_password(login(conf, DIGEST_SECTION))
            )
            name = conf.get("topology.name") or credentials.DEFAULT_CLIENT_NAME
            storm_user = UserPassword(credentials.storm_username(str(name)), password)
            return lambda: DigestClient(storm_user)
        case "SCRAM":
            return _scram_client(login(conf, SCRAM_SECTION, DIGEST_SECTION))
        case _:
            return _gssapi_client(login(conf, CLIENT_SECTION), host)


# Late imports, as most processes need neither.


def _scram_server(login: Login) -> Callable[[], Mechanism]:
    from stormkeeper.sasl.scram import ScramServer, ScramUsers  # noqa: PLC0415

    users = ScramUsers(credentials.user_passwords(login))
    return lambda: ScramServer(users)


def _scram_client(login: Login) -> Callable[[], Mechanism]:
    from stormkeeper.sasl.scram import ScramClient  # noqa: PLC0415

    user = credentials.user_password(login)
    # To find an invalid name or password now.
    ScramClient(user)
    return lambda: ScramClient(user)


def _gssapi_server(conf: Conf) -> Callable[[], Mechanism]:
    from stormkeeper.sasl.gssapi import GssapiServer, default_realm, server_keys  # noqa: PLC0415

    if not _readers(conf):
        raise ConfigError(
            "with pacemaker.auth.method KERBEROS no client may read: set"
            " nimbus.daemon.user to the short name of Nimbus's principal, or pacemaker.kerberos"
            ".users to a list of principals"
        )
    default_realm()
    keys = server_keys(login(conf, SERVER_SECTION))
    return lambda: GssapiServer(keys)


def _gssapi_client(login: Login, host: str) -> Callable[[], Mechanism]:
    from stormkeeper.sasl.gssapi import GssapiClient  # noqa: PLC0415

    GssapiClient(login, host)
    return lambda: GssapiClient(login, host)


def authorised(conf: Conf, authorization_id: str) -> bool:
    """Return whether the client that authenticated as `authorization_id` may read.

    With KERBEROS ``nimbus.daemon.user`` and ``pacemaker.kerberos.users`` may, else all. Raises
    `AuthenticationError` for an invalid principal, or without the default realm in ``krb5.conf``.
    """
    match conf["pacemaker.auth.method"]:
        case "NONE":
            return True
        case "KERBEROS":
            from stormkeeper.sasl.gssapi import default_realm  # noqa: PLC0415

            try:
                realm = default_realm()
            except ConfigError as error:
                raise AuthenticationError(str(error)) from error
            return admits(_readers(conf), authorization_id, realm)
        case _:
            return bool(authorization_id)


def _readers(conf: Conf) -> set[str]:
    nimbus = conf["nimbus.daemon.user"]
    return {*conf["pacemaker.kerberos.users"], *([nimbus] if nimbus else [])}


# As krb5_unparse_name: components between slashes, then the realm; a backslash escapes these
# characters.
_PRINCIPAL_PART = re.compile(r"((?:[^\\/@]|\\.)*)([/@]|\Z)", re.DOTALL)
_PRINCIPAL_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Principal:
    """A Kerberos principal, such as ``nimbus/host@REALM`` with two components."""

    components: tuple[str, ...]
    realm: str

    @classmethod
    def parse(cls, text: str) -> "Principal":
        """Parse a principal with realm; raises `AuthenticationError`."""
        components: list[str] = []
        position = 0
        while (match := _PRINCIPAL_PART.match(text, position)) is not None and match[2]:
            components.append(_unescaped_part(match[1]))
            position = match.end()
            if match[2] == "@":
                break
        realm = _PRINCIPAL_PART.fullmatch(text, position)
        if realm is None or not realm[1] or "@" not in text[:position] or not components[0]:
            raise AuthenticationError(f"{text!r} is not a principal with its realm")
        return cls(tuple(components), _unescaped_part(realm[1]))

    def short_name(self, default_realm: str) -> str | None:
        """Return the first of at most two components in the default realm, else None.

        That is ``DEFAULT`` of Java's ``auth_to_local``. Other realms have other users.
        """
        if self.realm != default_realm or len(self.components) > 2:
            return None
        return self.components[0]


def admits(users: Iterable[str], principal: str, default_realm: str) -> bool:
    """Return whether `principal` is among `users`; raises `AuthenticationError` if invalid.

    Users are principals, also without the default realm, and short names.
    """
    parsed = Principal.parse(principal)
    names = {principal, parsed.short_name(default_realm)}
    if parsed.realm == default_realm and len(parsed.components) > 1:
        names.add(principal.rpartition("@")[0])
    return not names.isdisjoint(users)


def _unescaped_part(text: str) -> str:
    return _PRINCIPAL_ESCAPE.sub(r"\1", text)
