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

import logging
import math
import ssl
from collections.abc import Callable
from typing import Final

from stormkeeper.daemon.logs import LineBudget
from stormkeeper.daemon.sockets import network_of
from stormkeeper.errors import AuthenticationError, RemoteProtocolError
from stormkeeper.names import host_port
from stormkeeper.pacemaker.server.access import Authentication, Policy
from stormkeeper.pacemaker.server.answering import Answerer, RequestRefusedError
from stormkeeper.pacemaker.server.connections import tls
from stormkeeper.pacemaker.server.snapshot import READ, WRITE, EventCounts
from stormkeeper.pacemaker.wire import (
    AUTHENTICATING,
    RESERVED_PATH,
    VERBS,
    Message,
    MessageType,
    decode_request,
)
from stormkeeper.pacemaker.wire.decoding import match_exact_shape
from stormkeeper.pacemaker.wire.encoding import encode_acknowledgement
from stormkeeper.sasl.mechanism import SAME_METHOD

_log = logging.getLogger(__name__)

_RESERVED: Final = RESERVED_PATH.encode()

#: Lines about what one address, or a network of IPv6, did wrong, in so many seconds: enough to see
#: what it is.
_LINES: Final = 50
_LINES_SECONDS: Final = 10.0


class Session:
    """One client's standing; made by `Sessions.open`.

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

    def __init__(self, sessions: "Sessions", address: str, port: int) -> None:
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
        self._authentication: Authentication | None = None
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
        self._channel, certificate = tls.describe(connection)
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
            self._authentication = Authentication(sessions.policy)
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


class Sessions:
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
        answerer: Answerer,
        policy: Policy,
        events: EventCounts,
        clock: Callable[[], float],
    ) -> None:
        self.answerer = answerer
        #: Holds for sessions from now on.
        self.policy = policy
        self.events = events
        self.clock = clock
        self._open: set[Session] = set()
        self._lines = LineBudget(_LINES, _LINES_SECONDS)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, address: str, port: int) -> Session:
        """Begin the session of a new connection; it lasts until it is `ended`."""
        session = Session(self, address, port)
        self._open.add(session)
        return session

    def ended(self, session: Session, cause: str, reason: str) -> None:
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

    def warn(self, session: Session, cause: str, line: str) -> None:
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

    def _log(self, level: int, session: Session, line: str, extra: dict[str, str]) -> None:
        left_out = self._lines.spend(network_of(session.address), self.clock())
        if left_out is None:
            return
        more = f" (and {left_out} more from this address, not logged)" if left_out else ""
        _log.log(level, "%s%s", line, more, extra=extra)
