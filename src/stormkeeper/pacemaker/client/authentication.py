"""The client's half of an authentication, before anything else on a connection; without I/O.

::

    every     client: EXISTS of the reserved path     server: NOT_AUTHORIZED
              client: closes this connection, and makes another
    DIGEST    client: control SASL_TOKEN_REQUEST      server: token
              client: token                           server: token, control SASL_COMPLETE
    KERBEROS  client: token …                         server: token …
              client: token                           server: control SASL_COMPLETE, twice

SCRAM goes like DIGEST. The rules:

- A Java Pacemaker without authentication ends, the whole daemon, at a control message or token, so
  a harmless request comes first; an answer means that the server wants no authentication. A Java
  Pacemaker with authentication ends at a control message or token after a plain request on the same
  connection, so the authentication uses another connection.
- The request is EXISTS, as clients ask what a server is with GET_PULSE: so a server can tell a
  client about to authenticate from one that lacks the method.
- The request precedes every authentication, as another server may have taken over the address. Both
  connections go to the same address within the time of one try, in which no Java Pacemaker starts.
- One case is left: a Java Pacemaker with KERBEROS ends at the control message of DIGEST and SCRAM,
  and refuses EXISTS like one with DIGEST.
- SASL_COMPLETE counts only once the mechanism is complete, as the server must prove itself too.
- Steps may block, as Kerberos asks its own servers; they are effects, done by a `StepRunner`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stormkeeper.errors import NotAuthorizedError, RemoteProtocolError
from stormkeeper.pacemaker.client.calls import Compute, Reconnect, Send
from stormkeeper.pacemaker.wire import RESERVED_PATH, Message, MessageType, encode
from stormkeeper.pacemaker.wire.decoder import (
    read_control,
    read_token,
)
from stormkeeper.pacemaker.wire.encoder import (
    control_frame,
    token_frame,
)
from stormkeeper.pacemaker.wire.messages import (
    Control,
)
from stormkeeper.sasl import SAME_METHOD, Mechanism

#: Tokens accepted from a server; the longest mechanism, Kerberos, has two.
_MAX_TOKENS: Final = 8

#: Seconds for a step of the client: Kerberos asks its servers one by one, a second each.
STEP_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials for a server.

    `mechanism` makes the client's half of one authentication. `method`, the value of
    ``pacemaker.auth.method``, and `remedy`, advice on keys and files, appear in errors.
    """

    method: str
    mechanism: Callable[[], Mechanism]
    remedy: str


Todo = list[Send | Reconnect | Compute]


class ClientAuthentication:
    """An authentication with the server `peer`, over two connections."""

    __slots__ = (
        "_has_said",
        "_identity",
        "_is_wanted",
        "_mechanism",
        "_peer",
        "_tokens",
        "_unread",
        "has_begun",
        "is_done",
        "work",
    )

    def __init__(self, peer: str, identity: Identity) -> None:
        self._peer = peer
        self._identity = identity
        #: Made with the first step, as making it may block.
        self._mechanism: Mechanism | None = None
        #: Whether the first connection has shown that the server wants authentication.
        self._is_wanted = False
        self._tokens = 0
        self._has_said = False
        self._unread: deque[Message] = deque()
        self.work: Compute | None = None
        #: Whether the first step is done: from then on the end of the connection means a wrong
        #: password or method.
        self.has_begun = False
        self.is_done = False

    def connected(self) -> Todo:
        """Handle the first or second connection."""
        if not self._is_wanted:
            return [Send(encode(Message(MessageType.EXISTS, 0, path=RESERVED_PATH)))]
        self.work = Compute(self._start)
        return [self.work]

    def received(self, message: Message) -> Todo:
        """Handle a message of the server.

        Raises `NotAuthorizedError` if a retry would not help, and `RemoteProtocolError` for a
        message out of order.
        """
        if not self._is_wanted:
            self._take_first(message)
            self._is_wanted = True
            return [Reconnect()]
        self._unread.append(message)
        return self._go_on()

    def computed(self, token: bytes | None) -> Todo:
        """Handle the result of a step; raises as `received` does."""
        self.work = None
        answer: Todo = []
        self.has_begun = True
        if token is not None:
            self._has_said = True
            answer.append(Send(token_frame(token)))
        elif self._tokens == 0:
            answer.append(Send(control_frame(Control.SASL_TOKEN_REQUEST)))
        return answer + self._go_on()

    def refusal(self, reason: str) -> NotAuthorizedError:
        """Make the error of a failed authentication, with advice."""
        identity = self._identity
        # Keys or passwords can only be wrong if a token was sent.
        is_of_method = reason.endswith(SAME_METHOD) and not self._has_said
        remedy = "" if is_of_method else f"; {identity.remedy}"
        return NotAuthorizedError(
            f"{self._peer} and this client did not authenticate each other ({identity.method}:"
            f" {reason}){remedy}"
        )

    def ended(self, reason: str) -> NotAuthorizedError:
        """Make the error of a connection that ended during the authentication.

        A Pacemaker ends the connection for a wrong password, or, before its first token, for an
        unknown method.
        """
        return self.refusal(reason + self._doubt())

    def patience(self, try_timeout: float) -> float:
        """Return the seconds for the next step of either side."""
        return try_timeout if self.work is None else STEP_TIMEOUT

    def overdue(self, try_timeout: float) -> str:
        """Describe a timeout."""
        if self.work is not None:
            return f"no credentials from our own side within {STEP_TIMEOUT:g} s"
        return f"no answer within {try_timeout:g} s in the authentication{self._doubt()}"

    def is_repetition(self, message: Message) -> bool:
        """Return whether `message` is a second SASL_COMPLETE, as with KERBEROS."""
        return (
            self.is_done
            and message.type == MessageType.CONTROL_MESSAGE
            and read_control(message) is Control.SASL_COMPLETE
        )

    def _doubt(self) -> str:
        if not self.has_begun or self._tokens:
            return ""
        return f" before its first token; {SAME_METHOD}"

    def _go_on(self) -> Todo:
        under_way = self.work
        while self._unread and self.work is None:
            message = self._unread.popleft()
            if self.is_done:
                if not self.is_repetition(message):
                    raise _out_of_place(message)
            elif message.type == MessageType.SASL_MESSAGE_TOKEN:
                self._tokens += 1
                if self._tokens > _MAX_TOKENS:
                    raise self.refusal(f"no end after {_MAX_TOKENS} tokens of the server")
                self.work = self._step(read_token(message))
            else:
                self._take_end(message)
        return [] if self.work is None or self.work is under_way else [self.work]

    def _take_first(self, message: Message) -> None:
        """Check from the answer to EXISTS that the server wants authentication."""
        if message.type == MessageType.EXISTS_RESPONSE:
            raise NotAuthorizedError(
                f"{self._peer} wants no authentication, and this client uses"
                f" {self._identity.method}: set pacemaker.auth.method to NONE here, or there to"
                f" {self._identity.method}"
            )
        if message.type != MessageType.NOT_AUTHORIZED:
            raise _out_of_place(message)

    def _take_end(self, message: Message) -> None:
        if message.type == MessageType.NOT_AUTHORIZED:
            raise self.refusal("the server refused")
        if message.type != MessageType.CONTROL_MESSAGE:
            raise _out_of_place(message)
        code = read_control(message)
        if code is Control.FAILURE:
            raise self.refusal("the server refused")
        if code is not Control.SASL_COMPLETE:
            raise _out_of_place(message)
        if self._mechanism is None or not self._mechanism.complete:
            raise self.refusal("the server ended it without having proved that it is the right one")
        self.is_done = True

    def _start(self) -> bytes | None:
        self._mechanism = self._identity.mechanism()
        return self._mechanism.start()

    def _step(self, token: bytes) -> Compute:
        mechanism = self._mechanism
        assert mechanism is not None
        return Compute(lambda: mechanism.step(token))


def _out_of_place(message: Message) -> RemoteProtocolError:
    return RemoteProtocolError(f"a message of type {message.type} came in the authentication")


log = logging.getLogger(__name__)

Work = Callable[[], None]


class StepRunner:
    """Runs blocking steps in a thread that ends with the last step; thread-safe.

    A step cannot be stopped: the next one waits for its end, and of several waiting steps only the
    newest runs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next: Work | None = None
        self._is_running = False

    def run(self, work: Work) -> None:
        """Run `work` in place of waiting work; errors are logged."""
        with self._lock:
            self._next = work
            if self._is_running:
                return
            # Set `_is_running` afterwards, as the start may fail.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._is_running = True

    def _run(self) -> None:
        while True:
            with self._lock:
                work, self._next = self._next, None
                if work is None:
                    self._is_running = False
                    return
            try:
                work()
            except BaseException:
                # Without this no later step would run.
                log.exception("%s failed with an internal error", self._name)
