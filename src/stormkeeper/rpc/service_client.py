"""The blocking client of a Thrift service at one address: one call at a time, each with a deadline.

A call ends in its value; in an exception that its method declares; in `RpcRefusedError`, if the
server says that it failed; in `RpcUnavailableError`, if it was not sent; or in
`RpcOutcomeUnknownError`, if it was sent and not answered.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from stormkeeper.conf.address import Address
from stormkeeper.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RpcOutcomeUnknownError,
    RpcRefusedError,
    RpcUnavailableError,
    SerializationError,
)
from stormkeeper.rpc.message_frames import (
    FaultKind,
    Kind,
    ThriftMessage,
    bad_length,
    internal_error,
    read_fault,
    read_message,
    record_frame,
)
from stormkeeper.thrift.framing import FrameSplitter
from stormkeeper.thrift.idl import Method, Service, schema_of
from stormkeeper.thrift.reader import decode

#: Bytes read at once.
_READ_BYTES: Final = 65_536
#: Most seconds for connecting, out of a call's timeout.
_CONNECT_SECONDS: Final = 10.0


#: Texts for errors of sockets.
_IN_WORDS: Final = {
    errno.ECONNREFUSED: "connection refused: nothing listens there",
    errno.ECONNRESET: "the server cut the connection",
    errno.EPIPE: "the server closed the connection",
    errno.ETIMEDOUT: "the network timed out",
}


class Calls:
    """A service's methods as Python methods, each of which is a `call` with the method's name."""

    def __init__(self, service: Service, call: Callable[..., Any]) -> None:
        self._service = service
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._service.methods:
            raise AttributeError(f"{self._service.name} has no method {name}")
        return partial(self._call, name)


class ServiceClient:
    """Calls a service at one address, from any thread; connects at the first call.

    `max_frame` is the longest message in bytes, `timeout` the default of a call in seconds.
    """

    def __init__(
        self, service: Service, address: Address, *, max_frame: int, timeout: float
    ) -> None:
        self.address = address
        self._service = service
        self._max_frame = max_frame
        self._timeout = timeout
        self._turn = threading.Lock()
        self._socket: socket.socket | None = None
        self._sequence = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a call in progress fails."""
        self._is_closed = True
        connection = self._socket
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.retire()

    def retire(self) -> None:
        """Close the connection after the call in progress, if any."""
        self._is_closed = True
        if self._turn.acquire(blocking=False):
            self._drop()
            self._turn.release()
        # Otherwise the thread with the call in progress closes the connection.

    def call(self, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Make a call, with the arguments in the order of the IDL; those left out are absent.

        Raises an exception of the method, an `RpcError` (see the module), `RemoteProtocolError` for
        an invalid answer, `LocalProtocolError` for arguments too large for a message, or
        `SerializationError`.
        """
        method = self._service.methods[name]
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        kind = Kind.ONEWAY if method.answer is None else Kind.CALL
        if not self._turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RpcUnavailableError(f"{self.address}: an earlier call is still in progress")
        try:
            self._sequence = self._sequence % 0x7FFFFFFF + 1
            frame = record_frame(kind, name, self._sequence, method.arguments(*arguments))
            if len(frame) - 4 > self._max_frame:
                raise LocalProtocolError(
                    f"a call of {name} with {len(frame) - 4} bytes; a message has at most"
                    f" {self._max_frame}: raise nimbus.thrift.max_buffer_size here and in Nimbus"
                )
            message = self._exchange(frame, name, deadline, is_answered=kind is Kind.CALL)
        finally:
            self._turn.release()
            if self._is_closed:
                self.retire()
        return None if message is None else self._value(method, message)

    def connect(self, timeout: float) -> None:
        """Connect now rather than at the first call; raise `RpcUnavailableError`."""
        with self._turn:
            self._connected(time.monotonic() + timeout)

    def _exchange(
        self, frame: bytes, name: str, deadline: float, *, is_answered: bool
    ) -> ThriftMessage | None:
        """Send a call and receive the answer."""
        connection = self._connected(deadline)
        is_whole = False
        try:
            self._send(connection, frame, deadline)
            is_whole = True
            message = self._receive(connection, deadline) if is_answered else None
            if message is not None:
                self._check(message, name)
        except OSError as error:
            self._drop()
            why = f"{self.address}: {name}: {in_words(error)}"
            if is_whole:
                raise RpcOutcomeUnknownError(
                    f"{why}; the call may have been carried out: look before you try again"
                ) from error
            raise RpcUnavailableError(why) from error
        except BaseException:
            self._drop()
            raise
        return message

    def _connected(self, deadline: float) -> socket.socket:
        if self._socket is not None and _is_stale(self._socket):
            self._drop()
        if self._socket is None and not self._is_closed:
            left = max(0.0, deadline - time.monotonic())
            self._socket = connect(self.address, min(left, _CONNECT_SECONDS))
        if self._socket is None or self._is_closed:
            raise RpcUnavailableError(f"{self.address}: this client was closed")
        return self._socket

    def _drop(self) -> None:
        gone, self._socket = self._socket, None
        if gone is not None:
            gone.close()

    def _send(self, connection: socket.socket, frame: bytes, deadline: float) -> None:
        with memoryview(frame) as unsent:
            sent = 0
            while sent < len(frame):
                connection.settimeout(_left(deadline))
                sent += connection.send(unsent[sent:])

    def _receive(self, connection: socket.socket, deadline: float) -> ThriftMessage:
        splitter = FrameSplitter(self._max_frame, bad_length)
        while True:
            connection.settimeout(_left(deadline))
            data = connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionAbortedError(0, "the server closed the connection")
            frames = self._cut(splitter, data)
            if len(frames) > 1 or (frames and (splitter.has_partial or splitter.fault)):
                raise RemoteProtocolError(f"{self.address}: more than one answer to one call")
            if frames:
                return read_message(frames[0])

    def _cut(self, splitter: FrameSplitter, data: bytes) -> list[bytes]:
        try:
            return splitter.feed(data)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{self.address}: {error}") from None

    def _check(self, message: ThriftMessage, name: str) -> None:
        if message.kind not in (Kind.REPLY, Kind.EXCEPTION):
            raise RemoteProtocolError(
                f"{self.address}: a message of type {message.kind.name} instead of an answer"
            )
        if message.sequence != self._sequence or message.name != name:
            raise RemoteProtocolError(
                f"{self.address}: the answer to call {message.sequence}, {message.name}, instead of"
                f" call {self._sequence}, {name}"
            )

    def _value(self, method: Method, message: ThriftMessage) -> Any:
        try:
            if message.kind is Kind.EXCEPTION:
                kind, text = read_fault(message.body)
                beginning = internal_error(method.name)
                reason = text.removeprefix(f"{beginning}: ") or "no reason given"
                if reason == beginning:  # Storm gives no reason
                    reason += "; its log says why"
                raise RpcRefusedError(f"{self.address}: {method.name}: {reason}", kind, reason)
            assert method.answer is not None
            answer = decode(method.answer, message.body)
        except SerializationError as error:
            raise RemoteProtocolError(f"{self.address}: {method.name}: {error}") from error
        fields = schema_of(method.answer).fields
        for field in fields:
            value = getattr(answer, field.name)
            if value is not None:
                if field.id:
                    raise value
                return value
        if any(field.id == 0 for field in fields):
            raise RpcRefusedError(
                f"{self.address}: {method.name}: answered without a result",
                FaultKind.MISSING_RESULT,
            )
        return None


def _left(deadline: float) -> float:
    """Return the remaining seconds; raise `TimeoutError` if there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _is_stale(connection: socket.socket) -> bool:
    """Return whether an idle connection has ended, or has received unexpected bytes."""
    connection.settimeout(0)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


Candidate = tuple[socket.AddressFamily, tuple[Any, ...]]


def in_words(error: OSError) -> str:
    """Return the meaning of a socket's error."""
    if isinstance(error, socket.gaierror):  # has other error numbers
        return f"the host's name could not be looked up: {error.strerror}"
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer in time"
    return _IN_WORDS.get(error.errno or 0) or error.strerror or str(error)


def connect(address: Address, timeout: float) -> socket.socket:
    """Return a TCP connection, trying the host's addresses in turn, each for a share of the time.

    Raises `RpcUnavailableError`.
    """
    deadline = time.monotonic() + timeout
    error: OSError = OSError(errno.EADDRNOTAVAIL, "no address to connect to")
    try:
        candidates = _look_up(address, deadline)
        for tried, candidate in enumerate(candidates):
            left = max(0.001, deadline - time.monotonic())
            try:
                return _connect(candidate, left / (len(candidates) - tried))
            except OSError as reason:
                error = reason
    except OSError as reason:
        error = reason
    raise RpcUnavailableError(f"{address}: {in_words(error)}") from error


def _connect(candidate: Candidate, timeout: float) -> socket.socket:
    family, place = candidate
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(place)
        _check_is_another(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_is_another(connection: socket.socket) -> None:
    """Raise `ConnectionRefusedError` if a socket is connected to itself.

    TCP does so if the kernel chooses the port that is dialled, on which no process listens.
    """
    if connection.getsockname() == connection.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _look_up(address: Address, deadline: float) -> list[Candidate]:
    """Return the addresses of a host; raises only `OSError`."""
    try:
        return _resolve(address, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    # The resolver has no timeout, so a thread of its own waits for it.
    found: list[list[Candidate] | OSError] = []

    def look_up() -> None:
        try:
            found.append(_resolve(address, 0))
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=look_up, name=f"rpc-lookup-{address.host}", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # the system's limit of threads
        raise OSError(errno.EAGAIN, f"no thread to look up its name: {error}") from error
    thread.join(max(0.0, deadline - time.monotonic()))
    if not found:
        raise OSError(errno.ETIMEDOUT, "its name was not looked up in time")
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def _resolve(address: Address, flags: int) -> list[Candidate]:
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        # A label of the name is empty or too long.
        raise socket.gaierror(socket.EAI_NONAME, f"no host name: {error}") from error
    return [(family, place) for family, _, _, _, place in found]
