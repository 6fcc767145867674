"""Proving to a server who we are before anything else leaves on a new connection; without I/O.

::

    every     client: EXISTS of the reserved path     server: NOT_AUTHORIZED
              client: closes this connection, and makes another
    DIGEST    client: control SASL_TOKEN_REQUEST      server: token
              client: token                           server: token, control SASL_COMPLETE
    KERBEROS  client: token …                         server: token …
              client: token                           server: control SASL_COMPLETE, twice

SCRAM goes like DIGEST. The rules that hold here:

- **Nothing harms a Java Pacemaker.** One that wants no authentication ends, the whole daemon, at a
  control message or a token. So a request that every Pacemaker knows comes first: who answers it
  wants no authentication, and is sent nothing more. One that does want it ends at a control message
  or a token that follows a plain message on the same connection. So the question has a connection
  of its own, and the authentication begins another.
- **The question is EXISTS.** Who only wants to know what a server of ours is, asks it with
  GET_PULSE. So the server can tell a client that is about to authenticate from one that does not
  know that it has to.
- **The question is asked each time.** Another server may have taken the place of the one that
  answered it before. Both connections go to the same address, of a host that has several, and the
  second is made within the patience of one try, in which no Java Pacemaker starts.
- **One case is left**: a Java Pacemaker of the method KERBEROS ends at the control message with
  which DIGEST and SCRAM begin, and refuses the question in the same words as one of DIGEST.
- **Both sides prove themselves.** The server's word that we are authenticated counts only once the
  mechanism is complete: with DIGEST, SCRAM and KERBEROS the server proves that it knows the secret.
- **Steps may block**, as Kerberos asks its own servers for tickets. They are given out as work to
  be done elsewhere; what comes meanwhile waits.
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
from stormkeeper.pacemaker.wire.message_codec import (
    Control,
    control_frame,
    read_control,
    read_token,
    token_frame,
)
from stormkeeper.sasl import Mechanism
from stormkeeper.sasl.mechanism import SAME_METHOD

#: Tokens that are taken from a server: the longest mechanism, Kerberos with its layers, has two.
_MAX_TOKENS: Final = 8

#: Seconds that a step of an authentication may take on our side: Kerberos asks one after another of
#: its servers, a second each.
STEP_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who we are to one server.

    Parameters
    ----------
    method
        The value of ``pacemaker.auth.method``, for messages.
    mechanism
        Makes the client's half of one authentication.
    remedy
        What to check when the server does not take us for who we say we are: keys and files.
    """

    method: str
    mechanism: Callable[[], Mechanism]
    remedy: str


Todo = list[Send | Reconnect | Compute]


class ClientAuthentication:
    """The authentication with a server: the connection of the question, and the one that follows.

    Parameters
    ----------
    peer
        Name of the server in messages.
    identity
        Who we are.
    """

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
        #: Made with the first step, as that may block too.
        self._mechanism: Mechanism | None = None
        #: Whether the server has said, on the first connection, that it wants authentication.
        self._is_wanted = False
        self._tokens = 0
        #: Whether anything has left that has to do with who we are: a token.
        self._has_said = False
        #: Messages that came while a step was being computed.
        self._unread: deque[Message] = deque()
        #: The step that is being computed.
        self.work: Compute | None = None
        #: Whether we have begun to prove ourselves: a connection that ends now ends because of it,
        #: as the password is wrong, or the method another.
        self.has_begun = False
        self.is_done = False

    def connected(self) -> Todo:
        """Note that a connection is made, the first or the second; return what to do."""
        if not self._is_wanted:
            return [Send(encode(Message(MessageType.EXISTS, 0, path=RESERVED_PATH)))]
        self.work = Compute(self._start)
        return [self.work]

    def received(self, message: Message) -> Todo:
        """Take the server's next message; return what to do.

        Raises
        ------
        NotAuthorizedError
            If server and client cannot agree. Another try would not help.
        RemoteProtocolError
            If the message has no place here.
        """
        if not self._is_wanted:
            self._take_first(message)
            self._is_wanted = True
            return [Reconnect()]
        self._unread.append(message)
        return self._go_on()

    def computed(self, token: bytes | None) -> Todo:
        """Take what `work` returned; return what to do. Raises as `received`."""
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
        """Make the error that says that the authentication failed, and what to check."""
        identity = self._identity
        # Only if a token was sent can keys or passwords be wrong.
        is_of_method = reason.endswith(SAME_METHOD) and not self._has_said
        remedy = "" if is_of_method else f"; {identity.remedy}"
        return NotAuthorizedError(
            f"{self._peer} and this client did not authenticate each other ({identity.method}:"
            f" {reason}){remedy}"
        )

    def ended(self, reason: str) -> NotAuthorizedError:
        """Make the error that says that the connection ended meanwhile, and what to check.

        So a Pacemaker tells that a password is wrong; and, when it has sent no token yet, that it
        knows nothing of the method.
        """
        return self.refusal(reason + self._doubt())

    def patience(self, try_timeout: float) -> float:
        """Return the seconds that the next step may take, the server's or our own."""
        return try_timeout if self.work is None else STEP_TIMEOUT

    def overdue(self, try_timeout: float) -> str:
        """Say what was waited for in vain, and how long."""
        if self.work is not None:
            return f"no credentials from our own side within {STEP_TIMEOUT:g} s"
        return f"no answer within {try_timeout:g} s in the authentication{self._doubt()}"

    def is_repetition(self, message: Message) -> bool:
        """Whether `message` says once more that we are authenticated, as with KERBEROS."""
        return (
            self.is_done
            and message.type == MessageType.CONTROL_MESSAGE
            and read_control(message) is Control.SASL_COMPLETE
        )

    def _doubt(self) -> str:
        """Ask, in a message, about the method if the server has gone into nothing so far."""
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
        """See from the answer to the first request whether the server wants authentication."""
        if message.type == MessageType.EXISTS_RESPONSE:
            raise NotAuthorizedError(
                f"{self._peer} asks nobody to authenticate, and this client is to do so with"
                f" {self._identity.method}: set pacemaker.auth.method to NONE here, or there to"
                f" {self._identity.method}"
            )
        if message.type != MessageType.NOT_AUTHORIZED:
            raise _out_of_place(message)

    def _take_end(self, message: Message) -> None:
        """Take a message that ends the authentication, well or not."""
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


class Background:
    """Does work elsewhere; safe for many threads.

    Parameters
    ----------
    name
        Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._next: Work | None = None
        self._is_running = False

    def run(self, work: Work) -> None:
        """Do `work`; it takes the place of work that was not begun yet. Its errors are logged."""
        with self._lock:
            self._next = work
            if self._is_running:
                return
            # Only now, as there may be no more threads; it waits for the lock.
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
                # Else no later piece would ever be begun.
                log.exception("%s failed: this is a defect of Stormkeeper", self._name)
