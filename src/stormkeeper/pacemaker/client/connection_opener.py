"""Opening of a client's connection in a coroutine: lookup, connecting, TLS, authentication.

A numeric address needs no lookup. What may block (the resolver, Kerberos) runs in short-lived
daemon threads.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from stormkeeper.errors import AuthenticationError, PacemakerUnavailableError, StormkeeperError
from stormkeeper.names import host_port
from stormkeeper.pacemaker.client.authentication import ClientAuthentication, Identity
from stormkeeper.pacemaker.client.client_tls import TlsStream
from stormkeeper.pacemaker.client.event_loop import run_in_thread
from stormkeeper.pacemaker.client.server_link import PacemakerConnection, describe_error
from stormkeeper.pacemaker.wire import Message
from stormkeeper.tls_files import Contexts

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds for a step of the client: Kerberos asks its servers one by one, a second each.
STEP_TIMEOUT: Final = 5.0

_Candidate = tuple[socket.AddressFamily, tuple[Any, ...]]


class ConnectionOpener:
    """Opens connections to a server, one at a time."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        name: str,
        try_timeout: float,
        max_message_size: int,
        tls: Contexts | None = None,
        identity: Identity | None = None,
    ) -> None:
        self._host = host
        self._peer = host_port(host, port)
        self._name = name
        self._try_timeout = try_timeout
        self._max_message_size = max_message_size
        self._tls = tls
        self._identity = identity
        self._dialer = Dialer(host, port, name=f"{name} lookup")
        self._connection: PacemakerConnection | None = None
        self._step: asyncio.Future[Any] | None = None

    async def open(self) -> PacemakerConnection:
        """Return a connection that is ready for requests.

        Raises `PacemakerUnavailableError`, `RemoteProtocolError`, `NotAuthorizedError` if server
        and client reject each other, and `OSError` for timeouts and shortages of our own.
        """
        try:
            await self._connect(again=False)
            if self._identity is not None:
                await ClientAuthentication(self._peer, self._identity).run(self)
        except BaseException:
            self._close()
            raise
        opened, self._connection = self._connection, None
        assert opened is not None
        return opened

    def send(self, data: bytes) -> None:
        """Send a frame of the authentication."""
        assert self._connection is not None
        self._connection.send(data)

    async def receive(self) -> Message:
        """Return the next message of the authentication."""
        assert self._connection is not None
        timeout = self._try_timeout
        try:
            async with asyncio.timeout(timeout):
                return await self._connection.next_message()
        except TimeoutError:
            raise TimeoutError(f"no answer within {timeout:g} s in the authentication") from None

    async def reconnect(self) -> None:
        """Replace the connection by another one to the same address."""
        self._close()
        await self._connect(again=True)

    async def compute(self, work: Callable[[], T]) -> T:
        """Do work in a thread; a step that hangs cannot be stopped, and the next one waits."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT):
                if self._step is not None:
                    await asyncio.wait([self._step])
                step = run_in_thread(partial(_defects_as_errors, work), self._step_name)
                self._step = step
                return await asyncio.shield(step)
        except TimeoutError:
            raise TimeoutError(
                f"no credentials from our own side within {STEP_TIMEOUT:g} s"
            ) from None
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"no thread to authenticate in: {error}") from error

    @property
    def _step_name(self) -> str:
        return f"{self._name} authentication"

    async def _connect(self, *, again: bool) -> None:
        try:
            async with asyncio.timeout(self._try_timeout):
                try:
                    connected = await self._dialer.connect(again=again)
                except OSError as error:
                    raise PacemakerUnavailableError(describe_error(error)) from error
                stream = (
                    None if self._tls is None else TlsStream(self._tls(), self._host, self._peer)
                )
                self._connection = PacemakerConnection(
                    connected,
                    peer=self._peer,
                    max_message_size=self._max_message_size,
                    stream=stream,
                )
                await self._connection.shake_hands()
        except TimeoutError:
            raise TimeoutError(f"no connection within {self._try_timeout:g} s") from None

    def _close(self) -> None:
        gone, self._connection = self._connection, None
        if gone is not None:
            gone.socket.close()


def _defects_as_errors(work: Callable[[], T]) -> T:
    try:
        return work()
    except StormkeeperError:
        raise
    except Exception as error:
        log.exception("authenticating failed with an internal error")
        raise AuthenticationError(f"internal error, {type(error).__name__}") from error


def _resolve(host: str, port: int, flags: int) -> list[_Candidate]:
    """Look up the addresses of a host, in the resolver's order; raises only `OSError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"no host name: {error}") from error
    return [(family, address) for family, _, _, _, address in found]


class Dialer:
    """Connects to a server.

    The addresses of a name are tried in turn, and each attempt begins with another one, so that an
    address that swallows packets does not hide the others.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        name: str,
        resolve: Callable[[str, int, int], list[_Candidate]] = _resolve,
    ) -> None:
        self._host = host
        self._port = port
        self._name = name
        self._resolve = resolve
        self._attempts = 0
        self._last: _Candidate | None = None
        self._lookup: asyncio.Future[list[_Candidate]] | None = None

    async def connect(self, *, again: bool = False) -> socket.socket:
        """Return a connected socket, with `again` to the last connection's address only.

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

    async def _candidates(self) -> list[_Candidate]:
        self._attempts += 1
        try:
            found = self._resolve(self._host, self._port, socket.AI_NUMERICHOST)
        except socket.gaierror:
            found = await self._look_up()
        first = (self._attempts - 1) % len(found) if found else 0
        return found[first:] + found[:first]

    async def _look_up(self) -> list[_Candidate]:
        """Look up the name; a lookup of an attempt that was given up serves the next one."""
        try:
            if self._lookup is None:
                work = partial(self._resolve, self._host, self._port, 0)
                self._lookup = run_in_thread(work, self._name)
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"no thread to look up its name: {error}") from error
        lookup = self._lookup
        try:
            return await asyncio.shield(lookup)
        finally:
            if lookup.done():
                self._lookup = None


async def _connect(family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(connecting, address)
        # TCP lets a socket connect to itself if the kernel assigns it the very port that it
        # connects to.
        number = errno.ECONNREFUSED if connecting.getsockname() == connecting.getpeername() else 0
    except OSError as error:
        number = error.errno or errno.EIO
    except BaseException:
        connecting.close()
        raise
    if number:
        connecting.close()
        # With the system's text, as asyncio's is the same for every error.
        raise OSError(number, os.strerror(number))
    return connecting
