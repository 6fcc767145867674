"""Length-framed connections of Thrift messages, for the server and for blocking clients.

A bad length or message ends a connection after the messages before: the next one cannot be found.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from stormkeeper.conf.address import Address
from stormkeeper.daemon.periodic import in_thread
from stormkeeper.daemon.sockets import (
    Candidate,
    check_not_itself,
    client_socket,
    describe_error,
    resolve,
)
from stormkeeper.errors import RemoteProtocolError, RpcUnavailableError
from stormkeeper.rpc.message_frames import (
    SASL,
    Kind,
    ThriftMessage,
    bad_length,
    read_message,
    sasl_refusal,
)
from stormkeeper.thrift.framing import FrameQueue
from stormkeeper.thrift.idl import Method

READ_BYTES: Final = 65_536


class MessageStream(FrameQueue):
    """Messages of at most `max_frame` bytes from a chopped stream of bytes."""

    __slots__ = ()

    def __init__(self, max_frame: int) -> None:
        super().__init__(max_frame, bad_length)

    @property
    def is_empty(self) -> bool:
        """Whether every received byte belongs to a returned message."""
        return not (self._waiting or self._partial or self.fault)

    def next_message(self) -> ThriftMessage | None:
        """Return the next message, or None; raise `RemoteProtocolError`."""
        if self._waiting:
            payload = self._waiting.popleft()
            self._waiting_bytes -= len(payload)
            return read_message(payload)
        if self.fault is not None:
            raise self.fault
        return None


class CallStream(MessageStream):
    """The server's half of the protocol; no call comes after `fault`."""

    __slots__ = ("_methods", "frames")

    def __init__(self, methods: Mapping[str, Method], max_frame: int) -> None:
        super().__init__(max_frame)
        self._methods = methods
        self.frames = 0

    def accept(self, data: bytes) -> bytes:
        """Process received bytes; return bytes to send at once."""
        is_sasl = self.frames == 0 and self.is_empty and data.startswith(SASL)
        self.frames += self.receive(data)
        return sasl_refusal() if is_sasl else b""

    def next_call(self) -> ThriftMessage | None:
        """Return the next call; None without a call, and after a `fault`."""
        try:
            message = self.next_message()
            if message is not None:
                self._check(message)
        except RemoteProtocolError as error:
            self.end(error)
            return None
        return message

    def _check(self, message: ThriftMessage) -> None:
        if message.kind not in (Kind.CALL, Kind.ONEWAY):
            raise RemoteProtocolError(f"a message of type {message.kind.name} from a client")
        method = self._methods.get(message.name)
        if message.kind is Kind.ONEWAY and method is not None and method.answer is not None:
            # The client would take the answer for that of the next call.
            raise RemoteProtocolError(f"{message.name} called one-way, but it has an answer")


class ClientConnection:
    """A client's blocking TCP connection; deadlines are on the monotonic clock.

    The constructor raises `RpcUnavailableError`; `send` and `receive` raise `OSError`, a
    `TimeoutError` after the deadline.
    """

    def __init__(self, address: Address, max_frame: int, timeout: float) -> None:
        self._address = address
        self._max_frame = max_frame
        self._socket = connect(address, timeout)

    def is_stale(self) -> bool:
        """Return whether the idle connection ended, or received unexpected bytes."""
        self._socket.settimeout(0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def send(self, frame: bytes, deadline: float) -> None:
        with memoryview(frame) as unsent:
            sent = 0
            while sent < len(frame):
                self._socket.settimeout(_left(deadline))
                sent += self._socket.send(unsent[sent:])

    def receive(self, deadline: float) -> ThriftMessage:
        """Receive one answer; raise `RemoteProtocolError` for any other bytes."""
        stream = MessageStream(self._max_frame)
        while True:
            self._socket.settimeout(_left(deadline))
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionAbortedError(0, "the server closed the connection")
            stream.receive(data)
            try:
                message = stream.next_message()
            except RemoteProtocolError as error:
                raise RemoteProtocolError(f"{self._address}: {error}") from None
            if message is None:
                continue
            if not stream.is_empty:
                raise RemoteProtocolError(f"{self._address}: more than one answer to one call")
            return message

    def shut_down(self) -> None:
        """Make a call in another thread fail."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def _left(deadline: float) -> float:
    """Return the remaining seconds; raise `TimeoutError` without any."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def in_words(error: OSError) -> str:
    if isinstance(error, TimeoutError) and error.errno is None:
        return "no answer in time"
    return describe_error(error)


def connect(address: Address, timeout: float) -> socket.socket:
    """Connect to the host's addresses in turn, each for a share of the time.

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
    connection = client_socket(family)
    try:
        connection.settimeout(timeout)
        connection.connect(place)
        check_not_itself(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _look_up(address: Address, deadline: float) -> list[Candidate]:
    """Return the addresses of a host; raises only `OSError`."""
    try:
        return resolve(address.host, address.port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    try:
        # A thread waits, as the resolver has no timeout.
        found = in_thread(partial(resolve, address.host, address.port), f"lookup-{address.host}")
        return found.result(max(0.0, deadline - time.monotonic()))
    except RuntimeError as error:  # the system's limit of threads
        raise OSError(errno.EAGAIN, f"no thread to look up its name: {error}") from error
    except TimeoutError:
        raise OSError(errno.ETIMEDOUT, "its name was not looked up in time") from None
