"""What one client may do, and how it comes to be allowed more; without I/O.

The rules that hold here:

- A request that is not known to be a write is a read. Reads need permission: Storm's verbs, ours,
  and the reserved path, which would tell an unauthenticated client what this server is.
- The decision is made on the very bytes that are then carried out.
- A client that has authenticated (`access`) may read and write. One that fails loses its
  connection. One that leaves half-way has failed too: it may have found in the first token that
  the server has another method, and then it tells only its own user.
- The first refusal of a client is logged; the others are counted. The log takes only so many lines
  about one address in a span of time, so nobody can fill it.
- Our own clients ask EXISTS of the reserved path before they authenticate, on a separate
  connection, as authenticating might end a Java Pacemaker. That refusal is not logged. Other
  clients ask with GET_PULSE who this server is. One that leaves after the refusal, and has done
  nothing else, may lack the method: that is logged.
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
from stormkeeper.pacemaker.server.request_handler import RequestHandler, RequestRefusedError
from stormkeeper.pacemaker.server.server_status import READ, WRITE, EventCounts
from stormkeeper.pacemaker.wire import (
    AUTHENTICATING,
    RESERVED_PATH,
    VERBS,
    Message,
    MessageType,
    decode_request,
)
from stormkeeper.pacemaker.wire.message_codec import (
    Control,
    control_frame,
    encode_acknowledgement,
    match_exact_shape,
    read_control,
    read_token,
    token_frame,
)
from stormkeeper.sasl import Mechanism, credentials, methods
from stormkeeper.sasl.jaas import login
from stormkeeper.sasl.mechanism import SAME_METHOD

#: Methods for which the JAAS file holds passwords; for KERBEROS it names a keytab.
_WITH_PASSWORDS: Final = ("DIGEST", "SCRAM")


_COMPLETE: Final = control_frame(Control.SASL_COMPLETE)


def _nobody(authorization_id: str) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True, slots=True)
class Policy:
    """What a client may do before it has authenticated, and how it does that.

    Parameters
    ----------
    method
        ``pacemaker.auth.method``. With NONE everyone may do everything; with any other, reading
        is for those who have authenticated.
    mechanism
        Makes the server's half of one authentication; None with NONE.
    is_authorised
        Whether somebody who has proved who they are may read.
    authenticates_writers
        Whether writing and deleting, too, are for those who have authenticated.
    handshake_timeout
        Seconds that a client has to authenticate, once it has begun to.
    fingerprint
        A hash of the JAAS file, which does not show the passwords in it. When it changes, clients
        must authenticate anew.
    keytab
        A hash of the keytab that the JAAS file names. When it changes, clients stay authenticated:
        a service's key is renewed as a matter of course, and has nothing to do with theirs.
    """

    method: str = "NONE"
    mechanism: Callable[[], Mechanism] | None = None
    is_authorised: Callable[[str], bool] = _nobody
    authenticates_writers: bool = False
    handshake_timeout: float = 10.0
    fingerprint: bytes = field(default=b"", repr=False)
    keytab: bytes = field(default=b"", repr=False)

    @property
    def everyone_may_read(self) -> bool:
        """Whether reading needs no authentication."""
        return self.mechanism is None

    @property
    def everyone_may_write(self) -> bool:
        """Whether writing and deleting need no authentication."""
        return self.mechanism is None or not self.authenticates_writers

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        """Read the policy of a configuration, and the files that this names.

        Raises
        ------
        ConfigError
            When the JAAS file or something in it is missing or wrong, or writers shall
            authenticate and there is no method by which they could.
        """
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
    """Return a hash of the JAAS file; warn if others can read passwords in it."""
    file, method = methods.login_file(conf), conf["pacemaker.auth.method"]
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
    """Return a hash of the server's keytab, if the JAAS file names one."""
    if conf["pacemaker.auth.method"] != "KERBEROS":
        return b""
    path = login(conf, methods.SERVER_SECTION).options.get("keyTab", "").removeprefix("FILE:")
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest() if path else b""
    except OSError:
        return b""  # who takes the key out of it says what is wrong


class ServerAuthentication:
    """The conversation with one client, from its first message about that.

    Parameters
    ----------
    policy
        Has the method and its mechanism.
    """

    __slots__ = ("_mechanism", "_policy", "authorization_id", "user")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        #: None before it has begun and after its end.
        self._mechanism: Mechanism | None = None
        #: Who the client is, at the end.
        self.authorization_id: str | None = None
        #: The same for people.
        self.user = ""

    def received(self, message: Message) -> bytes:
        """Take a client's message; return the frames of the answer, of which there may be none.

        Raises
        ------
        AuthenticationError
            If the client failed to authenticate, or is set to another method.
        RemoteProtocolError
            If the message is malformed or out of order.
        """
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
                    f"the client asked for a SASL token and is to send the first; {SAME_METHOD}"
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
        # With Storm's KERBEROS there is no token left to send, and the end is told twice.
        return frames + _COMPLETE if frames else _COMPLETE + _COMPLETE

    def _begin(self) -> Mechanism:
        assert self._policy.mechanism is not None
        self._mechanism = mechanism = self._policy.mechanism()
        return mechanism


_log = logging.getLogger(__name__)

_RESERVED: Final = RESERVED_PATH.encode()

#: Lines about what one address, or a network of IPv6, did wrong, in so many seconds: enough to see
#: what it is.
_LINES: Final = 50
_LINES_SECONDS: Final = 10.0


class ClientSession:
    """One client's standing; made by `ClientSessions.open`.

    Parameters
    ----------
    sessions
        What all sessions of a server share.
    address
        The address that it comes from.
    port
        And the port.
    """

    __slots__ = (
        "_authentication",
        "_channel",
        "_has_asked",
        "_has_done_more",
        "_refusals",
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
        "user",
    )

    def __init__(self, sessions: "ClientSessions", address: str, port: int) -> None:
        self.address = address
        #: Where it comes from, with the port.
        self.origin = host_port(address, port)
        #: The client's name in the log: where it comes from and, when that is known, who it is.
        self.peer = self.origin
        #: Who it is, for the log; empty until it has authenticated.
        self.user = ""
        #: Who it is, once it has authenticated.
        self.authorization_id: str | None = None
        #: Why the connection must be closed, once it must.
        self.fault: str | None = None
        #: The same as one of the words by which ends are counted.
        self.cause = ""
        self._sessions = sessions
        self._channel = "plain TCP"
        #: Once it has begun.
        self._authentication: ServerAuthentication | None = None
        self._refusals = 0
        #: Whether it asked who this server is and was refused that; and whether it did more, or
        #: was refused more.
        self._has_asked = self._has_done_more = False
        policy = sessions.policy
        #: Whether requests that read, and that write or delete, are carried out.
        self.may_read = policy.everyone_may_read
        self.may_write = policy.everyone_may_write
        #: The clock at which the connection is closed if nothing changes; infinite if never.
        self.deadline = math.inf
        if not self.may_read and not self.may_write:
            # Of no use to anyone before it has authenticated.
            self.deadline = sessions.clock() + policy.handshake_timeout

    def answer(self, payload: bytes) -> bytes | None:
        """Carry out the request in a frame's payload, if the client may ask for it.

        Returns
        -------
        bytes or None
            The frames of the answer: one, or two at the end of an authentication, or none. None
            while the request is not finished: the caller gives it again.

        Raises
        ------
        RemoteProtocolError
            If the payload is no request, or the client failed to authenticate, or did so out of
            order. The caller sends the earlier answers, then closes the connection.
        """
        try:
            if not self._is_open_to_everyone():
                answer = self._authorise(payload)
                if answer is not None:
                    return answer
            return self._sessions.answerer.answer(payload)
        except RequestRefusedError as refusal:
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
        """Return why the connection must be closed now, as its `deadline` is past; else None."""
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
        """Take back the permissions of this client; its connection is closed at the next sweep."""
        self.may_read = self.may_write = False
        if self._is_authenticating:
            self._authentication = None
        self.fault, self.cause = fault, "revoked"
        self.deadline = -math.inf

    def is_within(self, policy: Policy, *, same_secrets: bool) -> bool:
        """Whether `policy` gives this client all that it has now.

        Parameters
        ----------
        policy
            Another than the one under which it came.
        same_secrets
            Whether clients authenticate under it with the same passwords and keys.
        """
        if self.authorization_id is not None:
            try:
                return same_secrets and policy.is_authorised(self.authorization_id)
            except AuthenticationError:
                return False
        if self._is_authenticating and not same_secrets:
            return False
        # Who is about to authenticate has not done so yet.
        return policy.everyone_may_write or not self.may_write

    def secured(self, connection: ssl.SSLObject) -> None:
        """Take note that the connection is encrypted, when the handshake of TLS is over."""
        self._channel, certificate = server_tls.describe(connection)
        if certificate:
            self._channel += f" with the certificate of {certificate}"
            _log.info("%s connected over %s", self.peer, self._channel, extra=self.fields)

    @property
    def refusals(self) -> int:
        """Requests of this client that were refused."""
        return self._refusals

    @property
    def fields(self) -> dict[str, str]:
        """The fields of log lines about this client."""
        return {"peer": self.origin} | ({"user": self.user} if self.user else {})

    def left(self) -> tuple[int, str, str] | None:
        """Take note that the client has closed the connection.

        Returns
        -------
        tuple of int, str and str, or None
            What the log is to say: the level, the cause as a word to count by, and the line.
        """
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
            f"{self.peer} asked who this server is, was told to authenticate ({self._method}), and"
            " left",
        )

    @property
    def _method(self) -> str:
        return self._sessions.policy.method

    @property
    def _is_authenticating(self) -> bool:
        return self._authentication is not None and self.authorization_id is None

    def _is_open_to_everyone(self) -> bool:
        return self._sessions.policy.mechanism is None and self.may_read and self.may_write

    def _authorise(self, payload: bytes) -> bytes | None:
        """Return the refusal, or what comes next in the authentication; None to go on."""
        exact = match_exact_shape(payload)
        if exact is not None:
            kind, message_id, path = exact[:3]
        else:
            message = decode_request(payload)
            if message.type in AUTHENTICATING:
                return self._converse(message)
            kind = -1 if message.type is None else message.type
            message_id = -1 if message.message_id is None else message.message_id
            path = (message.path or "").encode("utf-8", "surrogateescape")
        writes = kind in VERBS and VERBS[kind].writes
        if self.may_write if writes else self.may_read:
            self._has_done_more = True
            return None
        # An exact shape may have any type, and only a request deserves an answer.
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
            self._authentication = ServerAuthentication(sessions.policy)
        frames = self._authentication.received(message)
        authorization_id = self._authentication.authorization_id
        if authorization_id is not None:
            self._admit(authorization_id, self._authentication.user)
        return frames

    def _admit(self, authorization_id: str, shown: str) -> None:
        user = f"'{shown}'"
        if not self._sessions.policy.is_authorised(authorization_id):
            raise AuthenticationError(
                f"{user} is not among those who may read here: pacemaker.kerberos.users and"
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
        self._refusals += 1
        self._has_done_more = True
        if self._refusals == 1:
            line = f"refused {self.peer}: {reason} (later refusals are not logged)"
            sessions.warn(self, cause, line)

    def _count_authentication(self, outcome: str) -> None:
        self._sessions.events.authentications[self._method, outcome] += 1


class ClientSessions:
    """The sessions of one server, and what they share.

    Parameters
    ----------
    answerer
        Carries out the requests of all.
    policy
        Who may do what.
    events
        Where refusals and authentications are counted.
    clock
        Returns seconds, by which deadlines are set.
    """

    __slots__ = ("_lines", "_open", "answerer", "clock", "events", "policy")

    def __init__(
        self,
        answerer: RequestHandler,
        policy: Policy,
        events: EventCounts,
        clock: Callable[[], float],
    ) -> None:
        self.answerer = answerer
        #: Holds for sessions from now on.
        self.policy = policy
        self.events = events
        self.clock = clock
        self._open: set[ClientSession] = set()
        self._lines = LineBudget(_LINES, _LINES_SECONDS)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, address: str, port: int) -> ClientSession:
        """Begin the session of a new connection; it lasts until it is `ended`."""
        session = ClientSession(self, address, port)
        self._open.add(session)
        return session

    def ended(self, session: ClientSession, cause: str, reason: str) -> None:
        """Take note, once, that the connection of a session has ended.

        Parameters
        ----------
        session
            Whose connection it was.
        cause
            Why this server ended it, as a word to count by; empty if the client did.
        reason
            The same for the log.
        """
        self._open.discard(session)
        if session.refusals > 1:
            line = f"{session.peer}: {session.refusals} requests were refused in all"
            self._log(logging.INFO, session, line, session.fields)
        if not cause:
            told = session.left()
            if told is not None:
                level, cause, line = told
                self._log(level, session, line, session.fields | {"cause": cause})
            return
        cause = session.cause or cause
        self.events.closed[cause] += 1
        # A server that stops tells so once, not of each.
        if cause != "drain":
            self.warn(session, cause, f"closing {session.peer}: {reason}")

    def warn(self, session: ClientSession, cause: str, line: str) -> None:
        """Log what a client did wrong, unless its address had many lines lately."""
        self._log(logging.WARNING, session, line, session.fields | {"cause": cause})

    def replace_policy(self, policy: Policy) -> int:
        """Let `policy` hold from now on; return how many clients lose their connections by it.

        They are those whose password or key is no longer valid, those who may no longer read, and
        those who write without having authenticated where that is needed now.
        """
        same_secrets = policy.fingerprint == self.policy.fingerprint
        self.policy = policy
        losers = [s for s in self._open if not s.is_within(policy, same_secrets=same_secrets)]
        for session in losers:
            session.revoke("who may do what has changed: connect anew")
        return len(losers)

    def _log(self, level: int, session: ClientSession, line: str, extra: dict[str, str]) -> None:
        left_out = self._lines.spend(network_of(session.address), self.clock())
        if left_out is None:
            return
        more = f" (and {left_out} more from this address, not logged)" if left_out else ""
        _log.log(level, "%s%s", line, more, extra=extra)
