"""Opening of a client's connection in a coroutine: lookup, connecting, TLS, authentication.

Blocking work (the resolver, Kerberos) runs in short-lived daemon threads. An authentication comes
before anything else on a connection::

    every     client: EXISTS of the reserved path     server: NOT_AUTHORIZED
              client: closes this connection, and makes another
    DIGEST    client: control SASL_TOKEN_REQUEST      server: token
              client: token                           server: token, control SASL_COMPLETE
    KERBEROS  client: token …                         server: token …
              client: token                           server: control SASL_COMPLETE, twice

SCRAM goes like DIGEST. The rules:

- A control message or token ends a Java Pacemaker without authentication, the whole daemon. So a
  harmless request comes first, and an answer means that the server wants no authentication. A Java
  Pacemaker with authentication ends at a control message or token after a plain request on the same
  connection, so the authentication uses another connection to the same address.
- The request is EXISTS, as clients ask what a server is with GET_PULSE: a server can tell a client
  about to authenticate from a client that lacks the method.
- The request precedes every authentication, as another server may have taken over the address.
- One danger is left: a Java Pacemaker with KERBEROS ends at the control message of DIGEST and
  SCRAM, and refuses EXISTS like a server with DIGEST.
- SASL_COMPLETE counts only once the mechanism is complete, as the server must prove itself too.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from stormkeeper.daemon.sockets import (
    Candidate,
    check_not_itself,
    client_socket,
    describe_error,
    resolve,
)
from stormkeeper.errors import (
    AuthenticationError,
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
)
from stormkeeper.names import host_port
from stormkeeper.pacemaker.client.client_tls import TlsStream
from stormkeeper.pacemaker.client.event_loop import run_in_thread
from stormkeeper.pacemaker.client.server_link import PacemakerConnection
from stormkeeper.pacemaker.wire.decoder import read_control, read_token
from stormkeeper.pacemaker.wire.encoder import control_frame, encode, token_frame
from stormkeeper.pacemaker.wire.messages import RESERVED_PATH, Control, Message, MessageType
from stormkeeper.sasl import SAME_METHOD, Mechanism
from stormkeeper.tls_files import Contexts

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Kerberos asks its servers one by one, a second each.
STEP_TIMEOUT: Final = 5.0

#: The longest mechanism, Kerberos, has two.
_MAX_TOKENS: Final = 8


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials for a server.

    `mechanism` makes the client's half of an authentication. `remedy` is advice on keys and files
    for errors.
    """

    method: str
    mechanism: Callable[[], Mechanism]
    remedy: str


@dataclass(eq=False)
class ConnectionOpener:
    """Opens connections to a server, one at a time."""

    host: str
    port: InitVar[int]
    _: KW_ONLY
    name: str
    try_timeout: float
    max_message_size: int
    tls: Contexts | None = None
    identity: Identity | None = None
    _connection: PacemakerConnection | None = field(default=None, init=False)
    _step: asyncio.Future[Any] | None = field(default=None, init=False)

    def __post_init__(self, port: int) -> None:
        self._peer = host_port(self.host, port)
        self._dialer = Dialer(self.host, port, name=f"{self.name} lookup")

    async def open(self) -> PacemakerConnection:
        """Return a connection that is ready for requests.

        Raises `PacemakerUnavailableError`, `RemoteProtocolError`, `NotAuthorizedError` if server
        and client reject each other, and `OSError` for timeouts and shortages of this process.
        """
        try:
            await self._connect(again=False)
            if self.identity is not None:
                await ClientAuthentication(self._peer, self.identity).run(self)
        except BaseException:
            self._close()
            raise
        opened, self._connection = self._connection, None
        assert opened is not None
        return opened

    def send(self, data: bytes) -> None:
        assert self._connection is not None
        self._connection.send(data)

    async def receive(self) -> Message:
        assert self._connection is not None
        timeout = self.try_timeout
        try:
            async with asyncio.timeout(timeout):
                return await self._connection.next_message()
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout:g} s in the authentication") from None

    async def reconnect(self) -> None:
        """Connect again, to the same address."""
        self._close()
        await self._connect(again=True)

    async def compute(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread; if the previous work still hangs, wait for it first."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                if self._step is not None:
                    await asyncio.wait([self._step])
                step = run_in_thread(partial(_step, work), f"{self.name} authentication")
                self._step = step
                return await asyncio.shield(step)
        except TimeoutError:
            raise TimeoutError(
                f"no credentials from our own side within {STEP_TIMEOUT:g} s"
            ) from None
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"no thread to authenticate in: {error}") from error

    async def _connect(self, *, again: bool) -> None:
        try:
            async with asyncio.timeout(self.try_timeout):
                try:
                    connected = await self._dialer.connect(again=again)
                except OSError as error:
                    raise PacemakerUnavailableError(describe_error(error)) from error
                tls = self.tls
                stream = None if tls is None else TlsStream(tls(), self.host, self._peer)
                self._connection = PacemakerConnection(
                    connected,
                    peer=self._peer,
                    max_message_size=self.max_message_size,
                    stream=stream,
                )
                await self._connection.shake_hands()
        except TimeoutError:
            raise TimeoutError(f"no connection within {self.try_timeout:g} s") from None

    def _close(self) -> None:
        gone, self._connection = self._connection, None
        if gone is not None:
            gone.socket.close()


def _step(work: Callable[[], T]) -> T:
    try:
        return work()
    except StormkeeperError:
        raise
    except Exception as error:
        log.exception("authenticating failed with an internal error")
        raise AuthenticationError(f"internal error, {type(error).__name__}") from error


class ClientAuthentication:
    """An authentication over two connections."""

    def __init__(self, peer: str, identity: Identity) -> None:
        self._peer = peer
        self._identity = identity
        self._tokens = 0
        self._has_said = False

    async def run(self, channel: ConnectionOpener) -> None:
        """Authenticate on the connections of a channel.

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
            # A Pacemaker ends the connection after a wrong password or, before the first token, for
            # an unknown method.
            raise self._refusal(f"{error}{self._doubt()}") from error
        except TimeoutError as error:
            raise TimeoutError(f"{error}{self._doubt()}") from error

    def _start(self) -> tuple[Mechanism, bytes | None]:
        mechanism = self._identity.mechanism()
        return mechanism, mechanism.start()

    async def _compute(self, channel: ConnectionOpener, work: Callable[[], T]) -> T:
        try:
            return await channel.compute(work)
        except StormkeeperError as error:
            raise self._refusal(str(error)) from error

    def _doubt(self) -> str:
        return "" if self._tokens else f" before its first token; {SAME_METHOD}"

    async def _exchange_tokens(
        self, channel: ConnectionOpener, mechanism: Mechanism, token: bytes | None
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


def _out_of_place(message: Message) -> RemoteProtocolError:
    return RemoteProtocolError(f"a message of type {message.type} came in the authentication")


@dataclass(eq=False)
class Dialer:
    """Connects to a server.

    Each attempt begins with another address of the name, so that an address that swallows packets
    does not hide the others.
    """

    host: str
    port: int
    _: KW_ONLY
    name: str
    resolve: Callable[[str, int, int], list[Candidate]] = resolve
    _attempts: int = field(default=0, init=False)
    _last: Candidate | None = field(default=None, init=False)
    _lookup: asyncio.Future[list[Candidate]] | None = field(default=None, init=False)

    async def connect(self, *, again: bool = False) -> socket.socket:
        """Return a connected socket, with `again` to the last address only.

        Raises `OSError` if the name has no address or no address accepts the connection.
        """
        candidates = [self._last] if again and self._last else await self._candidates()
        failure = OSError(errno.EADDRNOTAVAIL, "no address to connect to")
        for candidate in candidates:
            self._last = candidate
            try:
                return await _connect(*candidate)
            except OSError as error:
                failure = error
        raise failure

    async def _candidates(self) -> list[Candidate]:
        self._attempts += 1
        try:
            found = self.resolve(self.host, self.port, socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await self._look_up()
        first = (self._attempts - 1) % len(found) if found else 0
        return found[first:] + found[:first]

    async def _look_up(self) -> list[Candidate]:
        """Look up the name; an abandoned attempt's lookup serves the next attempt."""
        try:
            if self._lookup is None:
                work = partial(self.resolve, self.host, self.port, 0)
                self._lookup = run_in_thread(work, self.name)
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"no thread to look up its name: {error}") from error
        lookup = self._lookup
        try:
            return await asyncio.shield(lookup)
        finally:
            if lookup.done():
                self._lookup = None


async def _connect(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    connecting = client_socket(family)
    try:
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, address)
        check_not_itself(connecting)
    except BaseException as error:
        connecting.close()
        if isinstance(error, OSError) and error.errno:
            # asyncio's text is the same for every error.
            raise OSError(error.errno, os.strerror(error.errno)) from error
        raise
    return connecting
