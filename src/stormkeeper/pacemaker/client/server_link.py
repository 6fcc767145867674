"""The link of a client to a Pacemaker: calls in, bytes on a socket, answers out.

The event loop's thread connects, reads, keeps deadlines and completes futures. A calling thread
sends its own request as far as the kernel takes the bytes, which saves a switch of threads. Only
the loop's thread opens and closes sockets, so no other thread writes to a reused descriptor.
"""

import asyncio
import errno
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from stormkeeper.daemon.sockets import describe_error
from stormkeeper.errors import (
    NotAuthorizedError,
    PacemakerUnavailableError,
    RemoteProtocolError,
    StormkeeperError,
    UntrustedServerError,
)
from stormkeeper.pacemaker.client.client_tls import NO_ROOM, TlsStream, says_tls
from stormkeeper.pacemaker.client.event_loop import ClientEventLoop
from stormkeeper.pacemaker.client.protocol import (
    NEVER,
    ClientCall,
    ClientProtocol,
    Connect,
    Drop,
    LinkState,
    Send,
)
from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.messages import Control, Message, MessageType

log = logging.getLogger(__name__)

#: Seconds from an internal error to the next check of deadlines.
_DEFECT_SECS: Final = 0.1

#: Small enough that malloc needs no system call.
_READ_SIZE: Final = 65_536

_WRITE_SIZE: Final = 1_048_576

_CLOSED: Final = "the server closed the connection"

_BY_PEER: Final = (errno.ECONNRESET, errno.EPIPE)

_COMPLETE: Final = int(Control.SASL_COMPLETE).to_bytes(2, "big", signed=True)

_Settled = list[tuple[Future[Message], Message | StormkeeperError]]


class PacemakerConnection:
    """Bytes and messages over a connected, non-blocking socket, with TLS if `stream` is given.

    The caller guards `send`, `flush` and `receive` with one lock; `read_messages` belongs to one
    thread. Methods raise `PacemakerUnavailableError`, `RemoteProtocolError` or
    `UntrustedServerError`.
    """

    def __init__(
        self,
        connected: socket.socket,
        *,
        peer: str,
        max_message_size: int,
        stream: TlsStream | None,
    ) -> None:
        self.socket = connected
        self._peer = peer
        self._stream = stream
        self._splitter = PacemakerFrameSplitter(max_message_size)
        self._unsent = bytearray()
        self._has_heard = False
        #: Messages for `next_message`, and the fault after them.
        self.unread: deque[Message] = deque()
        self.fault: StormkeeperError | None = None

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    async def shake_hands(self) -> None:
        """Do the TLS handshake, if any."""
        if self._stream is not None:
            self._put(self._stream.begin())
            while not self._stream.is_up:
                await self._read()

    async def next_message(self) -> Message:
        while not self.unread:
            if self.fault is not None:
                raise self.fault
            await self._read()
        return self.unread.popleft()

    def send(self, data: bytes) -> None:
        """Send as far as the kernel takes bytes, and keep the rest."""
        self._put(data if self._stream is None else self._stream.sealed(data))

    def flush(self) -> bool:
        """Send kept bytes; return whether the kernel took any."""
        try:
            with memoryview(self._unsent) as unsent:
                sent = self.socket.send(unsent[:_WRITE_SIZE])
        except BlockingIOError:
            return False
        except OSError as error:
            raise PacemakerUnavailableError(self._broken(error)) from error
        del self._unsent[:sent]
        return True

    def receive(self) -> bytes | None:
        """Return decrypted bytes; None if none came. Answers for TLS itself."""
        try:
            data = self.socket.recv(_READ_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            raise PacemakerUnavailableError(self._broken(error)) from error
        if not data:
            raise PacemakerUnavailableError(self._ended(_CLOSED))
        stream = self._stream
        if stream is None:
            if not self._has_heard and says_tls(data):
                raise UntrustedServerError(
                    f"{self._peer} speaks TLS, and this client does not: set pacemaker.tls.enable"
                    " to true"
                )
            self._has_heard = True
            return data
        try:
            plain, answer = stream.received(data)
        except StormkeeperError:
            self._put(stream.farewell())
            raise
        self._put(answer)
        return plain

    def read_messages(self, plain: bytes) -> tuple[list[Message], StormkeeperError | None]:
        """Return the messages that decrypted bytes complete, and the fault after them.

        The end of TLS is a fault too.
        """
        messages: list[Message] = []
        try:
            for payload in self._splitter.feed(plain):
                messages.append(decode(payload))
        except StormkeeperError as error:
            return messages, error
        fault: StormkeeperError | None = self._splitter.fault
        if fault is None and self._stream is not None and self._stream.is_ended:
            fault = PacemakerUnavailableError(self._ended(_CLOSED))
        return messages, fault

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.socket, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.socket)
        messages, self.fault = self.read_messages(self.receive() or b"")
        self.unread += messages

    def _put(self, data: bytes) -> None:
        sent = 0
        if data and not self._unsent:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                pass
            except OSError as error:
                raise PacemakerUnavailableError(self._broken(error)) from error
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]

    def _broken(self, error: OSError) -> str:
        reason = describe_error(error)
        return self._ended(reason) if error.errno in _BY_PEER else reason

    def _ended(self, reason: str) -> str:
        """Describe the end of a connection, with possible reasons."""
        if self._stream is not None:
            return self._stream.ended(reason)
        if self._has_heard:
            return reason
        return (
            f"{reason} before it answered; if it speaks TLS, set pacemaker.tls.enable to true; or"
            f" it {NO_ROOM}"
        )


class ServerLink:
    """Runs a `ClientProtocol` over connections; thread-safe.

    `open_connection` raises `PacemakerUnavailableError`, `RemoteProtocolError`,
    `NotAuthorizedError` or `OSError`. An internal error costs only the connection, not the loop.
    """

    def __init__(
        self,
        protocol: ClientProtocol,
        open_connection: Callable[[], Awaitable[PacemakerConnection]],
        loop: ClientEventLoop,
        *,
        name: str,
    ) -> None:
        self._protocol = protocol
        self._open_connection = open_connection
        self._loop = loop
        self._name = name
        #: Guards protocol and attributes below, and orders the bytes on the socket.
        self._lock = threading.Lock()
        self._futures: dict[ClientCall, Future[Message]] = {}
        self._connection: PacemakerConnection | None = None
        #: The newest attempt to connect; older attempts are ignored.
        self._attempt = 0
        self._timer_at = NEVER
        self._is_failure_logged = False
        #: Internal errors, each followed by a reconnect.
        self.defects = 0
        # Used by the loop's thread only.
        self._opening: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, call: ClientCall) -> Future[Message]:
        """Make a call and return the future, which is complete by the call's deadline.

        Raises `PacemakerClosedError`, and `PacemakerUnavailableError` as `ClientEventLoop.start`.
        """
        if self._protocol.state is not LinkState.CLOSED:
            self._loop.start()
        future: Future[Message] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._protocol.submit(call, time.monotonic())
            self._futures[call] = future
            settled = self._perform()
        _settle(settled)
        return future

    def retry_in(self) -> float:
        with self._lock:
            return self._protocol.retry_in(time.monotonic())

    def close_idle(self) -> None:
        self._change(self._protocol.close_idle)

    def close(self) -> None:
        """Fail all open calls and disconnect. Idempotent."""
        self._change(self._protocol.close)
        self._timer_at = NEVER
        self._loop.call(self._set_timer)

    def _change(self, event: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Pass an event to the protocol, and carry out the effects."""
        with self._lock:
            event(*arguments, **options)
            settled = self._perform()
        _settle(settled)

    def _perform(self) -> _Settled:
        """Carry out the effects; return the futures to complete without the lock."""
        settled: _Settled = []
        effects = self._protocol.effects
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Send):
                self._send(effect.data)
            elif isinstance(effect, Connect):
                self._attempt += 1
                self._loop.call(self._guard, self._begin_opening, self._attempt)
            elif isinstance(effect, Drop):
                self._release_connection()
                self._log_drop(effect.reason)
            else:
                settled.append((self._futures.pop(effect.call), effect.outcome))
        if self._protocol.alarm < self._timer_at:
            self._timer_at = self._protocol.alarm
            self._loop.call(self._set_timer)
        return settled

    def _send(self, data: bytes) -> None:
        connection = self._connection
        if connection is None:
            return
        had_unsent = connection.has_unsent
        try:
            connection.send(data)
        except StormkeeperError as error:
            self._fail(error)
        if connection.has_unsent and not had_unsent:
            self._loop.call(self._guard, self._await_writable, connection)

    def _fail(self, fault: BaseException) -> None:
        now = time.monotonic()
        if isinstance(fault, NotAuthorizedError):
            self._protocol.lost(str(fault), now, refusal=fault)
        elif isinstance(fault, OSError):
            self._protocol.lost(describe_error(fault), now)
        else:
            at_fault = isinstance(fault, RemoteProtocolError)
            self._protocol.lost(str(fault), now, peer_at_fault=at_fault)

    def _release_connection(self) -> None:
        self._attempt += 1
        gone, self._connection = self._connection, None
        self._loop.call(self._guard, self._close_socket, gone and gone.socket)

    def _log_drop(self, reason: str) -> None:
        is_first = self._protocol.suspect and not self._is_failure_logged
        self._is_failure_logged = self._is_failure_logged or is_first
        log.log(logging.INFO if is_first else logging.DEBUG, "%s: %s", self._name, reason)

    # --- in the loop's thread

    def _guard(self, step: Callable[..., None], *arguments: object) -> None:
        try:
            step(*arguments)
        except BaseException as error:
            self._record_defect(error)

    def _record_defect(self, error: BaseException) -> None:
        self.defects += 1
        if self.defects & (self.defects - 1) == 0:
            log.error(
                "%s reconnects after an internal error (%s so far)",
                self._name,
                self.defects,
                exc_info=error,
            )
        with self._lock:
            self._release_connection()
            now = time.monotonic()
            self._protocol.lost(f"internal error: {error!r}", now)
            settled = self._perform()
            if self._protocol.state is not LinkState.CLOSED:
                self._timer_at = now + _DEFECT_SECS
                self._loop.call(self._set_timer)
        _settle(settled)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at, self._timer = self._timer_at, None
        if at != NEVER:
            self._timer = self._loop.start().call_at(at, self._guard, self._on_timer)

    def _on_timer(self) -> None:
        # No timeout while received bytes wait, as this thread may be scheduled late.
        if self._connection is not None:
            self._on_readable(self._connection)
        with self._lock:
            self._timer_at = NEVER
            self._protocol.passed(time.monotonic())
            settled = self._perform()
        _settle(settled)

    def _begin_opening(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._opening = self._loop.start().create_task(self._open(attempt))

    async def _open(self, attempt: int) -> None:
        try:
            connection = await self._open_connection()
        except asyncio.CancelledError:
            raise
        except (StormkeeperError, OSError) as error:
            if attempt == self._attempt:
                self._change(self._fail, error)
        except BaseException as error:
            self._record_defect(error)
        else:
            self._guard(self._take_connection, attempt, connection)

    def _take_connection(self, attempt: int, connection: PacemakerConnection) -> None:
        with self._lock:
            if attempt != self._attempt:
                connection.socket.close()
                return
            self._connection = connection
            try:
                self._loop.start().add_reader(
                    connection.socket, self._guard, self._on_readable, connection
                )
            except OSError as error:
                self._fail(error)
            else:
                self._protocol.connected(time.monotonic())
                if connection.unread:
                    self._receive(connection.unread)
                if connection.fault is not None:
                    self._fail(connection.fault)
                self._await_writable(connection)
            settled = self._perform()
        _settle(settled)

    def _close_socket(self, gone: socket.socket | None) -> None:
        """Stop connecting, and close a dropped socket."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if gone is not None:
            loop = self._loop.start()
            loop.remove_reader(gone)
            loop.remove_writer(gone)
            gone.close()

    def _await_writable(self, connection: PacemakerConnection) -> None:
        if connection is self._connection and connection.has_unsent:
            self._loop.start().add_writer(
                connection.socket, self._guard, self._on_writable, connection
            )

    def _on_writable(self, connection: PacemakerConnection) -> None:
        with self._lock:
            if self._connection is not connection:
                return
            try:
                if connection.flush():
                    self._protocol.taken(time.monotonic())
            except StormkeeperError as error:
                self._fail(error)
            if not connection.has_unsent:
                self._loop.start().remove_writer(connection.socket)
            settled = self._perform()
        _settle(settled)

    def _on_readable(self, connection: PacemakerConnection) -> None:
        answers: list[Message] = []
        fault: StormkeeperError | None = None
        try:
            with self._lock:
                plain = connection.receive() if self._connection is connection else None
            if plain is None:
                return
            # Without the lock: pages of a bulk read are large.
            answers, fault = connection.read_messages(plain)
        except StormkeeperError as error:
            fault = error
        with self._lock:
            if self._connection is not connection:
                return
            self._receive(answers)
            # Unless the answers have ended this connection already.
            if fault is not None and self._protocol.state is LinkState.UP:
                self._fail(fault)
            settled = self._perform()
            self._await_writable(connection)  # TLS may have answered
            if self._is_failure_logged and not self._protocol.suspect:
                self._is_failure_logged = False
                log.info("%s: the server answers again", self._name)
        _settle(settled)

    def _receive(self, answers: Iterable[Message]) -> None:
        # KERBEROS ends an authentication twice.
        wanted = [
            answer
            for answer in answers
            if answer.type != MessageType.CONTROL_MESSAGE or answer.blob != _COMPLETE
        ]
        self._protocol.received(wanted, time.monotonic())


def _settle(settled: _Settled) -> None:
    for future, outcome in settled:
        if isinstance(outcome, StormkeeperError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
