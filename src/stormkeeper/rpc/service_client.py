"""The blocking client of a Thrift service at one address: one call at a time, each with a deadline.

A call returns a value or raises an exception of the method; `RpcRefusedError` if the call failed at
the server; `RpcUnavailableError` if not sent; `RpcOutcomeUnknownError` if not answered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from stormkeeper.conf.address import Address
from stormkeeper.daemon.lifecycle import Closing
from stormkeeper.errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RpcOutcomeUnknownError,
    RpcRefusedError,
    RpcUnavailableError,
    SerializationError,
)
from stormkeeper.rpc.connection import ClientConnection, in_words
from stormkeeper.rpc.message_frames import (
    FaultKind,
    Kind,
    ThriftMessage,
    internal_error,
    read_fault,
    record_frame,
)
from stormkeeper.thrift.idl import Method, Service, schema_of
from stormkeeper.thrift.reader import decode

_CONNECT_SECONDS: Final = 10.0


class Calls:
    """A service's methods as Python methods, which pass the method's name to `call`."""

    def __init__(self, service: Service, call: Callable[..., Any]) -> None:
        self._service = service
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in self._service.methods:
            raise AttributeError(f"{self._service.name} has no method {name}")
        return partial(self._call, name)


class ServiceClient(Closing):
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
        self._connection: ClientConnection | None = None
        self._sequence = 0
        self._is_closed = False

    def close(self) -> None:
        """Close the connection; a call in progress fails."""
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            connection.shut_down()
        self.retire()

    def retire(self) -> None:
        """Close the connection after the call in progress."""
        self._is_closed = True
        if self._turn.acquire(blocking=False):
            self._drop()
            self._turn.release()
        # Otherwise the thread with the call closes the connection.

    def call(self, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Make a call, with arguments in the IDL's order; missing ones are absent.

        Raises an exception of the method, an `RpcError`, `RemoteProtocolError`,
        `SerializationError`, or `LocalProtocolError` for too large arguments.
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
        """Connect now; raise `RpcUnavailableError`."""
        with self._turn:
            self._connected(time.monotonic() + timeout)

    def _exchange(
        self, frame: bytes, name: str, deadline: float, *, is_answered: bool
    ) -> ThriftMessage | None:
        connection = self._connected(deadline)
        is_sent = False
        try:
            connection.send(frame, deadline)
            is_sent = True
            message = connection.receive(deadline) if is_answered else None
            if message is not None:
                self._check(message, name)
        except OSError as error:
            self._drop()
            why = f"{self.address}: {name}: {in_words(error)}"
            if is_sent:
                raise RpcOutcomeUnknownError(
                    f"{why}; the call may have been carried out: look before you try again"
                ) from error
            raise RpcUnavailableError(why) from error
        except BaseException:
            self._drop()
            raise
        return message

    def _connected(self, deadline: float) -> ClientConnection:
        if self._connection is not None and self._connection.is_stale():
            self._drop()
        if self._connection is None and not self._is_closed:
            left = max(0.0, deadline - time.monotonic())
            timeout = min(left, _CONNECT_SECONDS)
            self._connection = ClientConnection(self.address, self._max_frame, timeout)
        if self._connection is None or self._is_closed:
            raise RpcUnavailableError(f"{self.address}: this client was closed")
        return self._connection

    def _drop(self) -> None:
        gone, self._connection = self._connection, None
        if gone is not None:
            gone.close()

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
