"""Sessions of clients: authentication, permissions, and log lines per client; without I/O.

The compiled engine reads pulses by itself while `reads_unasked` is true, and overwrites pulses
while `writes_unasked` is true. To add a rule by client or address, check the rule in `_authorise`
and make these properties false for the clients that the rule concerns.

- Every request except the known writes needs the permission to read, even for the reserved path.
- A failed or abandoned authentication is logged and ends the connection.
- Only the first refusal of a client is logged, and the lines per address are limited.
- Stormkeeper's clients send EXISTS of the reserved path on a separate connection before they
  authenticate; that refusal is not logged. A client that only sent GET_PULSE of the reserved path
  and left may lack the method: that is logged.
"""

import hashlib
import logging
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from stormkeeper.conf import Conf
from stormkeeper.daemon.logs import LineBudget
from stormkeeper.daemon.sockets import network_of
from stormkeeper.errors import AuthenticationError, ConfigError, RemoteProtocolError
from stormkeeper.names import host_port
from stormkeeper.pacemaker.server import server_tls
from stormkeeper.pacemaker.server.request_handler import RequestHandler
from stormkeeper.pacemaker.server.server_status import READ, WRITE, EventCounts
from stormkeeper.pacemaker.server.store_limits import LimitError
from stormkeeper.pacemaker.wire.decoder import (
    decode_request,
    match_exact_shape,
    read_control,
    read_token,
)
from stormkeeper.pacemaker.wire.encoder import control_frame, encode_acknowledgement, token_frame
from stormkeeper.pacemaker.wire.messages import (
    AUTHENTICATING,
    RESERVED_PATH,
    VERBS,
    Control,
    Message,
    MessageType,
)
from stormkeeper.sasl import SAME_METHOD, Mechanism, credentials, methods
from stormkeeper.sasl.jaas import login, login_file

_log = logging.getLogger(__name__)

#: For KERBEROS the JAAS file names a keytab.
_WITH_PASSWORDS: Final = ("DIGEST", "SCRAM")
_COMPLETE: Final = control_frame(Control.SASL_COMPLETE)
_RESERVED: Final = RESERVED_PATH.encode()

#: Per address (or network of IPv6) within `_LINES_SECONDS`.
_LINES: Final = 50
_LINES_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Permissions by configuration, and the mechanism of authentication.

    After a change of `fingerprint`, a hash of the JAAS file, clients must authenticate anew; after
    a change of `keytab`, a hash of the server's key, clients stay authenticated.
    """

    method: str = "NONE"
    mechanism: Callable[[], Mechanism] | None = None
    is_authorised: Callable[[str], bool] = lambda _: False
    authenticates_writers: bool = False
    handshake_timeout: float = 10.0
    fingerprint: bytes = field(default=b"", repr=False)
    keytab: bytes = field(default=b"", repr=False)

    @property
    def everyone_may_read(self) -> bool:
        return self.mechanism is None

    @property
    def everyone_may_write(self) -> bool:
        """Whether writes and deletes need no authentication."""
        return self.mechanism is None or not self.authenticates_writers

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        """Read the configuration and the JAAS file; raise `ConfigError`."""
        method: str = conf["pacemaker.auth.method"]
        authenticates_writers: bool = conf["pacemaker.auth.writes"]
        mechanism = methods.server_mechanism(conf)
        if mechanism is None and (authenticates_writers or method != "NONE"):
            raise ConfigError(
                "pacemaker.auth.writes: writers can only authenticate where there is a method: set"
                " pacemaker.auth.method to DIGEST, KERBEROS or SCRAM, or pacemaker.auth.writes to"
                " false"
            )
        return cls(
            method=method,
            mechanism=mechanism,
            is_authorised=lambda name: methods.authorised(conf, name),
            authenticates_writers=authenticates_writers,
            handshake_timeout=conf["pacemaker.handshake.timeout.secs"],
            fingerprint=_fingerprint(conf),
            keytab=_keytab(conf),
        )


def _fingerprint(conf: Conf) -> bytes:
    file, method = login_file(conf), conf["pacemaker.auth.method"]
    if file is None or method == "NONE":
        return b""
    path = file.path
    try:
        if method in _WITH_PASSWORDS and path.stat().st_mode & 0o077:
            _log.warning(
                "%s, which holds passwords, can be read by others than its owner: chmod 600", path
            )
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _keytab(conf: Conf) -> bytes:
    if conf["pacemaker.auth.method"] != "KERBEROS":
        return b""
    path = login(conf, methods.SERVER_SECTION).options.get("keyTab", "").removeprefix("FILE:")
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest() if path else b""
    except OSError:
        return b""  # the mechanism reports a missing key


class _ServerAuthentication:
    """The server's half of an authentication. Tokens appear in no log."""

    __slots__ = ("_mechanism", "_policy", "authorization_id", "user")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._mechanism: Mechanism | None = None
        self.authorization_id: str | None = None
        self.user = ""

    def received(self, message: Message) -> bytes:
        """Return the answer to a message; raise `AuthenticationError` on failure."""
        mechanism = self._mechanism
        if message.type == MessageType.CONTROL_MESSAGE:
            code = read_control(message)
            if code is not Control.SASL_TOKEN_REQUEST:
                raise RemoteProtocolError(f"control message {code.name} out of order")
            if mechanism is not None or self.authorization_id is not None:
                raise RemoteProtocolError("asked to authenticate for a second time")
            token = self._begin().start()
            if token is None:
                raise AuthenticationError(
                    f"the client asked for a SASL token, but must send the first; {SAME_METHOD}"
                )
            return token_frame(token)
        token = read_token(message)
        if self.authorization_id is not None:
            raise RemoteProtocolError("SASL token after the end of the authentication")
        if mechanism is None:
            mechanism = self._begin()
            if mechanism.start() is not None:
                raise AuthenticationError(
                    f"a SASL token came before it was asked for, as with KERBEROS; {SAME_METHOD}"
                )
        answer = mechanism.step(token)
        frames = b"" if answer is None else token_frame(answer)
        if not mechanism.complete:
            return frames
        self.authorization_id = mechanism.authorization_id or ""
        self.user = credentials.shown(mechanism)
        self._mechanism = None
        # Storm's KERBEROS sends no last token, but SASL_COMPLETE twice.
        return frames + _COMPLETE if frames else _COMPLETE + _COMPLETE

    def _begin(self) -> Mechanism:
        assert self._policy.mechanism is not None
        self._mechanism = mechanism = self._policy.mechanism()
        return mechanism


class ClientSession:
    """Permissions and authentication of a connection."""

    __slots__ = (
        "_authentication",
        "_channel",
        "_has_asked",
        "_has_done_more",
        "_sessions",
        "address",
        "authorization_id",
        "cause",
        "deadline",
        "fault",
        "may_read",
        "may_write",
        "origin",
        "peer",
        "refusals",
        "user",
    )

    def __init__(self, sessions: "ClientSessions", address: str, port: int) -> None:
        self.address = address
        self.origin = host_port(address, port)
        #: For the log: address, port and authenticated user.
        self.peer = self.origin
        self.user = ""
        self.authorization_id: str | None = None
        #: Reason for closing the connection, and the counted cause.
        self.fault: str | None = None
        self.cause = ""
        self._sessions = sessions
        self._channel = "plain TCP"
        self._authentication: _ServerAuthentication | None = None
        self.refusals = 0
        # Whether the client was refused the reserved path, and whether the client did more.
        self._has_asked = self._has_done_more = False
        policy = sessions.policy
        self.may_read = policy.everyone_may_read
        self.may_write = policy.everyone_may_write
        #: End of the time to authenticate.
        self.deadline = math.inf
        if not self.may_read and not self.may_write:
            self.deadline = sessions.clock() + policy.handshake_timeout

    @property
    def reads_unasked(self) -> bool:
        """Whether the compiled engine may read without the session."""
        return self.may_read

    @property
    def writes_unasked(self) -> bool:
        """Whether the compiled engine may overwrite without the session."""
        return self.may_write

    def answer(self, payload: bytes) -> bytes | None:
        """Carry out a request, if permitted, as `RequestHandler.answer`.

        A `RemoteProtocolError` ends the connection after the earlier answers.
        """
        try:
            if not self._is_unasked:
                answer = self._authorise(payload)
                if answer is not None:
                    return answer
            return self._sessions.handler.answer(payload)
        except LimitError as refusal:
            self._refuse(refusal.cause, refusal.wanted, str(refusal))
            return refusal.answer
        except AuthenticationError as error:
            self.fault, self.cause = f"{self._method}: {error}", "authentication"
            self._count_authentication("failed")
            raise RemoteProtocolError(self.fault) from error
        except RemoteProtocolError as error:
            self.fault, self.cause = str(error), "protocol"
            raise

    def handshake_due(self, now: float) -> str | None:
        """Return the reason for closing a connection past the `deadline`."""
        if now < self.deadline:
            return None
        if self.fault is None:
            self.cause = "handshake-timeout"
            self.fault = (
                f"did not authenticate ({self._method}) within"
                f" {self._sessions.policy.handshake_timeout:g} s (pacemaker.handshake.timeout.secs)"
            )
            if self._is_authenticating:
                self._count_authentication("timeout")
        return self.fault

    def revoke(self, fault: str) -> None:
        """Revoke all permissions; the next sweep closes the connection."""
        self.may_read = self.may_write = False
        if self._is_authenticating:
            self._authentication = None
        self.fault, self.cause = fault, "revoked"
        self.deadline = -math.inf

    def is_within(self, policy: Policy, *, same_secrets: bool) -> bool:
        """Return whether `policy` grants all current permissions."""
        if self.authorization_id is not None:
            try:
                return same_secrets and policy.is_authorised(self.authorization_id)
            except AuthenticationError:
                return False
        if self._is_authenticating and not same_secrets:
            return False
        return policy.everyone_may_write or not self.may_write

    def secured(self, connection: ssl.SSLObject) -> None:
        """Record TLS version and certificate."""
        self._channel, certificate = server_tls.describe(connection)
        if certificate:
            self._channel += f" with the certificate of {certificate}"
            _log.info("%s connected over %s", self.peer, self._channel, extra=self.fields)

    @property
    def fields(self) -> dict[str, str]:
        return {"peer": self.origin} | ({"user": self.user} if self.user else {})

    def left(self) -> tuple[int, str, str] | None:
        """Handle the end; return level, cause and text of a log line, if any."""
        if self._is_authenticating and self.fault is None:
            self._count_authentication("failed")
            line = f"{self.peer} left in the middle of authenticating ({self._method})"
            return logging.WARNING, "authentication", f"{line}; {SAME_METHOD}"
        if not self._has_asked or self._has_done_more:
            return None
        self._sessions.events.refusals["unauthenticated", READ] += 1
        return (
            logging.INFO,
            "unauthenticated",
            f"{self.peer} asked for the server's description, was refused without authentication"
            f" ({self._method}), and left",
        )

    @property
    def _method(self) -> str:
        return self._sessions.policy.method

    @property
    def _is_authenticating(self) -> bool:
        return self._authentication is not None and self.authorization_id is None

    @property
    def _is_unasked(self) -> bool:
        is_open = self._sessions.policy.mechanism is None
        return is_open and self.reads_unasked and self.writes_unasked

    def _authorise(self, payload: bytes) -> bytes | None:
        """Answer an authentication, or refuse a request; None if permitted."""
        exact = match_exact_shape(payload)
        if exact is not None:
            kind, message_id, path = exact[:3]
        else:
            message = decode_request(payload)
            if message.type in AUTHENTICATING:
                # Without a mechanism the request handler refuses, with a remedy.
                return self._converse(message) if self._sessions.policy.mechanism else None
            kind = -1 if message.type is None else message.type
            message_id = -1 if message.message_id is None else message.message_id
            path = (message.path or "").encode("utf-8", "surrogateescape")
        writes = kind in VERBS and VERBS[kind].writes
        if self.may_write if writes else self.may_read:
            self._has_done_more = True
            return None
        # Raises for an exact shape that is no request.
        decode_request(payload)
        if path == _RESERVED and kind in (MessageType.GET_PULSE, MessageType.EXISTS):
            self._has_asked |= kind == MessageType.GET_PULSE
        else:
            self._refuse(
                "unauthenticated",
                WRITE if writes else READ,
                f"{MessageType(kind).name} without having authenticated; set"
                f" pacemaker.auth.method: {self._method} for this client too",
            )
        return encode_acknowledgement(MessageType.NOT_AUTHORIZED, message_id)

    def _converse(self, message: Message) -> bytes:
        sessions = self._sessions
        if self._authentication is None:
            self.deadline = min(self.deadline, sessions.clock() + sessions.policy.handshake_timeout)
            self._authentication = _ServerAuthentication(sessions.policy)
        frames = self._authentication.received(message)
        authorization_id = self._authentication.authorization_id
        if authorization_id is not None:
            self._admit(authorization_id, self._authentication.user)
        return frames

    def _admit(self, authorization_id: str, shown: str) -> None:
        user = f"'{shown}'"
        if not self._sessions.policy.is_authorised(authorization_id):
            raise AuthenticationError(
                f"{user} may not read here: pacemaker.kerberos.users and"
                " nimbus.daemon.user say who may"
            )
        self.authorization_id = authorization_id
        self.may_read = self.may_write = True
        self.deadline = math.inf
        self._count_authentication("ok")
        _log.info(
            "%s authenticated as %s with %s over %s",
            *(self.peer, user, self._method, self._channel),
            extra={"peer": self.origin, "user": shown, "method": self._method},
        )
        self.user, self.peer = shown, f"{self.origin} ({user})"
        self._has_done_more = True

    def _refuse(self, cause: str, wanted: str, reason: str) -> None:
        sessions = self._sessions
        sessions.events.refusals[cause, wanted] += 1
        self.refusals += 1
        self._has_done_more = True
        if self.refusals == 1:
            line = f"refused {self.peer}: {reason} (later refusals are not logged)"
            sessions.warn(self, cause, line)

    def _count_authentication(self, outcome: str) -> None:
        self._sessions.events.authentications[self._method, outcome] += 1


class ClientSessions:
    """All sessions of a server; policy, counters and log budget are shared."""

    __slots__ = ("_lines", "_open", "clock", "events", "handler", "policy")

    def __init__(
        self,
        handler: RequestHandler,
        policy: Policy,
        events: EventCounts,
        clock: Callable[[], float],
    ) -> None:
        self.handler = handler
        self.policy = policy
        self.events = events
        self.clock = clock
        self._open: set[ClientSession] = set()
        self._lines = LineBudget(_LINES, _LINES_SECONDS)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, address: str, port: int) -> ClientSession:
        session = ClientSession(self, address, port)
        self._open.add(session)
        return session

    def ended(self, session: ClientSession, cause: str, reason: str) -> None:
        """Count and log the end; `cause` is empty if the client closed."""
        self._open.discard(session)
        if session.refusals > 1:
            line = f"{session.peer}: {session.refusals} requests were refused in all"
            self._log(logging.INFO, session, line, session.fields)
        if not cause:
            ending = session.left()
            if ending is not None:
                level, cause, line = ending
                self._log(level, session, line, session.fields | {"cause": cause})
            return
        cause = session.cause or cause
        self.events.closed[cause] += 1
        # A stopping server logs its stop once.
        if cause != "drain":
            self.warn(session, cause, f"closing {session.peer}: {reason}")

    def warn(self, session: ClientSession, cause: str, line: str) -> None:
        """Log a client's fault, within the budget of the address."""
        self._log(logging.WARNING, session, line, session.fields | {"cause": cause})

    def replace_policy(self, policy: Policy) -> int:
        """Apply a policy; return the number of clients that lose connections."""
        same_secrets = policy.fingerprint == self.policy.fingerprint
        self.policy = policy
        losers = [s for s in self._open if not s.is_within(policy, same_secrets=same_secrets)]
        for session in losers:
            session.revoke("permissions have changed: connect anew")
        return len(losers)

    def _log(self, level: int, session: ClientSession, line: str, extra: dict[str, str]) -> None:
        left_out = self._lines.spend(network_of(session.address), self.clock())
        if left_out is None:
            return
        more = f" (and {left_out} more from this address, not logged)" if left_out else ""
        _log.log(level, "%s%s", line, more, extra=extra)
