"""The client's half of an authentication, before anything else on a connection.

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
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
)
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

_COMPLETE: Final = int(Control.SASL_COMPLETE).to_bytes(2, "big", signed=True)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials for a server.

    `mechanism` makes the client's half of one authentication. `method`, the value of
    ``pacemaker.auth.method``, and `remedy`, advice on keys and files, appear in errors.
    """

    method: str
    mechanism: Callable[[], Mechanism]
    remedy: str


class AuthenticationChannel(Protocol):
    """A connection that authenticates.

    Methods raise `PacemakerUnavailableError` at the end of the connection, and `TimeoutError`.
    """

    def send(self, data: bytes) -> None:
        """Send a frame."""

    async def receive(self) -> Message:
        """Return the next message."""

    async def reconnect(self) -> None:
        """Replace the connection by another one to the same address."""

    async def compute(self, work: Callable[[], T]) -> T:
        """Do work that may block, as Kerberos asks its own servers."""


class ClientAuthentication:
    """An authentication with the server `peer`, over two connections."""

    def __init__(self, peer: str, identity: Identity) -> None:
        self._peer = peer
        self._identity = identity
        self._tokens = 0
        self._has_said = False

    async def run(self, channel: AuthenticationChannel) -> None:
        """Authenticate.

        Raises `NotAuthorizedError` if a retry would not help, `RemoteProtocolError` for a message
        out of order, and errors of the channel.
        """
        channel.send(encode(Message(MessageType.EXISTS, 0, path=RESERVED_PATH)))
        self._check_wanted(await channel.receive())
        await channel.reconnect()
        mechanism, token = await self._compute(channel, self._start)
        try:
            await self._exchange_tokens(channel, mechanism, token)
        except PacemakerUnavailableError as error:
            # The end of the connection, as a Pacemaker answers a wrong password, or, before its
            # first token, an unknown method.
            raise self._refusal(f"{error}{self._doubt()}") from error
        except TimeoutError as error:
            raise TimeoutError(f"{error}{self._doubt()}") from error

    def _start(self) -> tuple[Mechanism, bytes | None]:
        mechanism = self._identity.mechanism()
        return mechanism, mechanism.start()

    async def _compute(self, channel: AuthenticationChannel, work: Callable[[], T]) -> T:
        try:
            return await channel.compute(work)
        except StormkeeperError as error:
            raise self._refusal(str(error)) from error

    def _doubt(self) -> str:
        return "" if self._tokens else f" before its first token; {SAME_METHOD}"

    async def _exchange_tokens(
        self, channel: AuthenticationChannel, mechanism: Mechanism, token: bytes | None
    ) -> None:
        if token is None:
            channel.send(control_frame(Control.SASL_TOKEN_REQUEST))
        while True:
            if token is not None:
                self._has_said = True
                channel.send(token_frame(token))
            message = await channel.receive()
            if message.type != MessageType.SASL_MESSAGE_TOKEN:
                self._check_end(message, mechanism)
                return
            self._tokens += 1
            if self._tokens > _MAX_TOKENS:
                raise self._refusal(f"no end after {_MAX_TOKENS} tokens of the server")
            token = await self._compute(channel, partial(mechanism.step, read_token(message)))

    def _check_wanted(self, message: Message) -> None:
        """Check from the answer to EXISTS that the server wants authentication."""
        if message.type == MessageType.EXISTS_RESPONSE:
            raise NotAuthorizedError(
                f"{self._peer} wants no authentication, and this client uses"
                f" {self._identity.method}: set pacemaker.auth.method to NONE here, or there to"
                f" {self._identity.method}"
            )
        if message.type != MessageType.NOT_AUTHORIZED:
            raise _out_of_place(message)

    def _check_end(self, message: Message, mechanism: Mechanism) -> None:
        is_control = message.type == MessageType.CONTROL_MESSAGE
        code = read_control(message) if is_control else None
        if message.type == MessageType.NOT_AUTHORIZED or code is Control.FAILURE:
            raise self._refusal("the server refused")
        if code is not Control.SASL_COMPLETE:
            raise _out_of_place(message)
        if not mechanism.complete:
            raise self._refusal(
                "the server ended it without having proved that it is the right one"
            )

    def _refusal(self, reason: str) -> NotAuthorizedError:
        identity = self._identity
        # Keys or passwords can only be wrong if a token was sent.
        is_of_method = reason.endswith(SAME_METHOD) and not self._has_said
        remedy = "" if is_of_method else f"; {identity.remedy}"
        return NotAuthorizedError(
            f"{self._peer} and this client did not authenticate each other ({identity.method}:"
            f" {reason}){remedy}"
        )


def is_completion(message: Message) -> bool:
    """Return whether `message` is SASL_COMPLETE, which KERBEROS sends twice."""
    return message.type == MessageType.CONTROL_MESSAGE and message.blob == _COMPLETE


def _out_of_place(message: Message) -> RemoteProtocolError:
    return RemoteProtocolError(f"a message of type {message.type} came in the authentication")
