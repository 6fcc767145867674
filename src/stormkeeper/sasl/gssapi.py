"""GSSAPI (RFC 4752), the mechanism of Storm's ``pacemaker.auth.method: KERBEROS``.

There is no security layer and, as in Storm's client, no AP-REP: the server's wrapped token proves
as much, as only the service's key opens the ticket with the session key.
"""

import hashlib
import os
from typing import Any

from stormkeeper import extras
from stormkeeper.errors import AuthenticationError, ConfigError
from stormkeeper.sasl import Mechanism
from stormkeeper.sasl.credentials import printable
from stormkeeper.sasl.jaas import Login

try:
    import gssapi
except ImportError as error:
    raise ConfigError(
        "pacemaker.auth.method KERBEROS needs MIT Kerberos and the extra kerberos:"
        f" {extras.install_command('kerberos')} (Debian: apt-get install libkrb5-dev gcc"
        " python3-dev first)"
    ) from error

NAME = "GSSAPI"

#: No security layer, and the JDK's buffer of 65,536 bytes.
OFFER = b"\x01\x01\x00\x00"

#: No security layer, so no buffer.
CHOICE = b"\x01\x00\x00\x00"

_NO_LAYER = 1

_REASON = 300

_KRB5 = gssapi.MechType.kerberos

#: The keytab lacks the key of a ticket's version: KRB_AP_ERR_BADKEYVER, 44 (RFC 4120 §7.5.9), above
#: MIT Kerberos's base of errors.
_BAD_KEY_VERSION = (-1765328384 + 44) % 2**32


def server_keys(login: Login) -> Any:
    """Return the server's credentials, from a JAAS section; raises `ConfigError` without a key.

    By default, or with ``*``, of any principal of the keytab.
    """
    if not login.switch("useKeyTab", default="keyTab" in login.options):
        raise ConfigError(
            f"{login.place}: a server needs a keytab; add useKeyTab=true and keyTab to"
            f" {login.section}"
        )
    return _keys(login)


class _Gssapi(Mechanism):
    name = NAME
    _context: Any

    def step(self, token: bytes) -> bytes | None:
        try:
            return super().step(token)
        except gssapi.exceptions.GSSError as error:
            raise AuthenticationError(_reason(error) + _remedy(error)) from error


class GssapiServer(_Gssapi):
    """The server's half, which checks a ticket with the keytab alone.

    The client begins. `authorization_id` is the principal with realm.
    """

    def __init__(self, keys: Any) -> None:
        super().__init__(self._accept)
        self._context = _context(creds=keys, usage="accept")

    def _accept(self, token: bytes) -> bytes:
        answer: bytes | None = self._context.step(token)
        if not self._context.complete:
            if not answer:
                raise AuthenticationError("Kerberos gave neither an answer nor an end")
            self._next = self._accept
            return answer
        if answer:
            # An AP-REP for a client that wants one, which answers nothing (RFC 4752 §3.1).
            self._next = self._offer_after_nothing
            return answer
        return self._offer()

    def _offer_after_nothing(self, token: bytes) -> bytes:
        if token:
            raise AuthenticationError("a token came where an empty one is due")
        return self._offer()

    def _offer(self) -> bytes:
        self._next = self._agree
        offer: bytes = self._context.wrap(OFFER, encrypt=False).message
        return offer

    def _agree(self, token: bytes) -> None:
        choice = _unwrap(self._context, token)
        if len(choice) < len(CHOICE) or choice[0] != _NO_LAYER:
            raise AuthenticationError("the client did not take the one quality of protection, auth")
        try:
            authzid = choice[len(CHOICE) :].decode("utf-8")
        except UnicodeDecodeError:
            raise AuthenticationError("the client's authorization id is not in UTF-8") from None
        principal = str(self._context.initiator_name)
        if authzid not in ("", principal):
            raise AuthenticationError(
                f"{printable(principal)} wants to act as {printable(authzid)}:"
                " no client may act as another"
            )
        self.complete, self.authorization_id = True, principal


class GssapiClient(_Gssapi):
    """The client's half; `start` may wait some seconds for each silent Kerberos server.

    Raises `ConfigError` for an incomplete section or keytab.
    """

    def __init__(self, login: Login, host: str) -> None:
        super().__init__()
        self._login = login
        self._service = f"{login.option('serviceName')}@{host}"
        self._store = _client_store(login)

    def start(self) -> bytes:
        """Return the ticket, as an AP-REQ; raises `AuthenticationError` without a ticket."""
        principal = self._login.options.get("principal")
        try:
            credentials = gssapi.Credentials(
                name=None if principal is None else _principal(principal),
                mechs=[_KRB5],
                usage="initiate",
                store=self._store,
            )
            self._context = _context(
                name=gssapi.Name(self._service, gssapi.NameType.hostbased_service),
                creds=credentials,
                mech=_KRB5,
                flags=gssapi.RequirementFlag.integrity
                | gssapi.RequirementFlag.replay_detection
                | gssapi.RequirementFlag.out_of_sequence_detection,
                usage="initiate",
            )
            self._next = self._negotiate
            return self._context.step() or b""
        except gssapi.exceptions.GSSError as error:
            raise AuthenticationError(
                f"Kerberos gives no ticket for {self._service}: {_reason(error)}; see section"
                f" {self._login.section} of {self._login.source}"
            ) from error

    def _negotiate(self, token: bytes) -> bytes:
        if not self._context.complete:
            self._next = self._negotiate
            return self._context.step(token) or b""
        offer = _unwrap(self._context, token)
        if len(offer) != len(OFFER) or not offer[0] & _NO_LAYER:
            raise AuthenticationError("the server does not offer the quality of protection auth")
        self.complete = True  # the server may still refuse this client
        authzid = str(self._context.initiator_name).encode()
        choice: bytes = self._context.wrap(CHOICE + authzid, encrypt=False).message
        return choice


def default_realm() -> str:
    """Return the default realm of ``krb5.conf``; raises `ConfigError` without a realm."""
    try:
        name = gssapi.Name("x", gssapi.NameType.kerberos_principal).canonicalize(_KRB5)
    except gssapi.exceptions.GSSError as error:
        raise ConfigError(
            f"krb5.conf names no default_realm in its [libdefaults]; add it ({_reason(error)})"
        ) from error
    return str(name).rpartition("@")[2]


def _context(**arguments: Any) -> Any:
    context = gssapi.SecurityContext(**arguments)
    # Otherwise a failure with a token for the peer is raised one step later.
    context.__DEFER_STEP_ERRORS__ = False
    return context


def _unwrap(context: Any, token: bytes) -> bytes:
    # MIT Kerberos (1.20) changes its input buffer; `bytes(token)` would be the same object.
    message: bytes = context.unwrap(bytes(bytearray(token))).message
    return message


def _principal(text: str) -> Any:
    return gssapi.Name(text, gssapi.NameType.kerberos_principal)


def _keytab(login: Login, key: str) -> dict[str, str]:
    path = login.options.get("keyTab")
    if not path:
        return {}
    path = path.removeprefix("FILE:")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{login.place}: the keytab {path} is not there or not readable")
    return {key: path}


def _keys(login: Login) -> Any:
    principal = login.options.get("principal", "*")
    try:
        return gssapi.Credentials(
            name=None if principal == "*" else _principal(principal),
            mechs=[_KRB5],
            usage="accept",
            store=_keytab(login, "keytab"),
        )
    except gssapi.exceptions.GSSError as error:
        raise ConfigError(
            f"{login.place}: no key for the principal {principal}: {_reason(error)}; make the"
            " keytab with kadmin's ktadd, readable for this user"
        ) from error


def _client_store(login: Login) -> dict[str, str]:
    if login.switch("useTicketCache"):
        cache = login.options.get("ticketCache")
        return {"ccache": cache} if cache else {}
    if not login.switch("useKeyTab", default="keyTab" in login.options):
        raise ConfigError(
            f"{login.place}: add useKeyTab=true and keyTab, or useTicketCache=true, to"
            f" {login.section}"
        )
    # In memory, shared by a login's connections; the library renews tickets.
    identity = "\0".join(login.options.get(name, "") for name in ("principal", "keyTab"))
    cache = "MEMORY:stormkeeper-" + hashlib.sha256(identity.encode()).hexdigest()[:16]
    keytab = _keytab(login, "client_keytab")
    if keytab:
        # Otherwise the library reports a missing cache for a bad keytab.
        _keys(login)
    return keytab | {"ccache": cache}


def _remedy(error: Any) -> str:
    if error.min_code != _BAD_KEY_VERSION:
        return ""
    return (
        "; the ticket is for another version of the service's key: add the newest one to the keytab"
        " with kadmin's ktadd, then reload the daemon"
    )


def _reason(error: Any) -> str:
    texts = error.get_all_statuses(error.min_code, False) if error.min_code else []
    # A damaged token has no code of the mechanism.
    texts = [text for text in texts if text != "Success"]
    return printable("; ".join(texts or error.get_all_statuses(error.maj_code, True)), _REASON)
