"""A client's connection to a Thrift server: the protocol without I/O, and the socket.

- A client authenticates before its first call, if it must.
- One call at a time is carried out. A frame that is too long, or an unreadable message, ends the
  connection after the answers to earlier calls, since the next message cannot be found.
- Nothing is read from a client while a call waits, or an answer is unread.
- Memory is allocated for received bytes, never for announced lengths, up to a limit for all
  connections together.
- Every state has a time limit, and every cause of an end a counter.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, Protocol, Self

from stormkeeper.conf import Conf
from stormkeeper.errors import RemoteProtocolError
from stormkeeper.rpc.dispatcher import Caller
from stormkeeper.rpc.message_frames import (
    SASL,
    FaultKind,
    Kind,
    ThriftMessage,
    bad_length,
    fault_frame,
    read_message,
    sasl_refusal,
)
from stormkeeper.thrift.framing import FrameSplitter
from stormkeeper.thrift.idl import Method

#: Bytes read from a client at once.
READ_BYTES: Final = 65_536
#: Seconds for a client to read the last bytes.
_LINGER: Final = 1.0
#: struct linger: send a reset at once.
_AT_ONCE: Final = struct.pack("ii", 1, 0)

# Causes of a connection's end, for counters.
BY_CLIENT: Final = "client"
PROTOCOL: Final = "protocol"
HANDSHAKE_TIMEOUT: Final = "handshake-timeout"
FRAME_TIMEOUT: Final = "frame-timeout"
ANSWER_TIMEOUT: Final = "answer-timeout"
UNREAD_TIMEOUT: Final = "unread-timeout"
IDLE: Final = "idle"
CROWDED: Final = "crowded"
MEMORY: Final = "memory"
DRAIN: Final = "drain"

#: Descriptors reserved for the process itself: files, ZooKeeper, other services.
_OWN_DESCRIPTORS: Final = 128
#: Most connections. A supervisor has one or two, a command one for a moment.
MAX_CONNECTIONS: Final = 2_000


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server's clients.

    Storm has keys for the first three. The others are wide enough for any cluster of Storm's, and
    protect the other clients from a broken or malicious one.
    """

    max_frame: int = 1024 * 1024
    threads: int = 64
    #: Calls that wait for a thread.
    max_waiting: int = 100_000
    max_connections: int = MAX_CONNECTIONS
    #: Connections from one address, so that one machine cannot keep the others out. A user
    #: interface or a proxy may need many.
    max_connections_per_address: int = 500
    #: Bytes of unanswered calls and unread answers of all connections. Above it, a connection that
    #: holds more than `READ_BYTES` ends.
    max_held: int = 128 * 1024 * 1024
    handshake_timeout: float = 10.0
    #: Seconds from the beginning of a message to its end.
    frame_timeout: float = 30.0
    #: Seconds for a call, with waiting. Storm's clients wait as long.
    answer_timeout: float = 600.0
    #: Seconds in which a client must read some of an answer.
    unread_timeout: float = 60.0
    #: Seconds without a call.
    idle_timeout: float = 900.0

    @classmethod
    def of(cls, conf: Conf) -> Self:
        """Return the limits of a Nimbus's configuration."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_DESCRIPTORS
        return cls(
            max_frame=conf["nimbus.thrift.max_buffer_size"],
            # A submission in one thread waits for Nimbuses that fetch copies through another.
            threads=max(2, conf["nimbus.thrift.threads"]),
            max_waiting=conf["nimbus.queue.size"],
            max_connections=max(1, min(MAX_CONNECTIONS, descriptors)),
        )


class StreamState(Enum):
    """The state of a connection."""

    AUTHENTICATING = "authenticating"
    READY = "ready"
    CALLED = "called"
    OVER = "over"


class HandshakeStep(NamedTuple):
    """The result of bytes in a handshake."""

    send: bytes = b""
    #: Bytes behind the end of the handshake; None while it continues.
    rest: bytes | None = None
    user: str | None = None
    #: The reason of a failure, safe to log.
    fault: str | None = None


class Handshake(Protocol):
    """An authentication without I/O."""

    def receive(self, data: bytes) -> HandshakeStep:
        """Process the client's next bytes."""


class CallStream:
    """The server's half of the protocol: bytes in, calls out.

    `max_frame` is the longest message in bytes; without `authentication` the first call may come at
    once.
    """

    __slots__ = (
        "_authentication",
        "_methods",
        "_splitter",
        "_waiting",
        "_whole",
        "fault",
        "frames",
        "state",
    )

    def __init__(
        self,
        methods: Mapping[str, Method],
        max_frame: int,
        authentication: Handshake | None = None,
    ) -> None:
        self._methods = methods
        self._authentication = authentication
        self._splitter = FrameSplitter(max_frame, bad_length)
        #: Complete frames that wait for `next_call`, and their bytes.
        self._waiting: deque[bytes] = deque()
        self._whole = 0
        #: Complete frames received so far.
        self.frames = 0
        self.state = StreamState.READY if authentication is None else StreamState.AUTHENTICATING
        #: Why no further call comes, at the end.
        self.fault: str | None = None

    @property
    def has_partial(self) -> bool:
        """Whether a message is incomplete."""
        return self._splitter.has_partial

    @property
    def has_whole(self) -> bool:
        """Whether messages wait for `next_call`."""
        return bool(self._waiting)

    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet returned as calls."""
        return self._whole + self._splitter.partial_bytes

    def receive(self, data: bytes) -> tuple[bytes, str | None]:
        """Process received bytes; return bytes to send at once, and a newly authenticated user."""
        send, user = b"", None
        if self.state is StreamState.AUTHENTICATING:
            assert self._authentication is not None
            send, rest, user, fault = self._authentication.receive(data)
            if fault is not None:
                self._end(fault)
                return send, None
            if rest is None:
                return send, None
            self.state, self._authentication, data = StreamState.READY, None, rest
        if self.state is not StreamState.OVER and self._splitter.fault is None:
            is_sasl = self.frames == 0 and not self.has_partial and data.startswith(SASL)
            send = sasl_refusal() if is_sasl else send
            # The fault is kept until the frames before it are answered.
            with suppress(RemoteProtocolError):
                frames = self._splitter.feed(data)
                self._waiting.extend(frames)
                self._whole += sum(map(len, frames))
                self.frames += len(frames)
        return send, user

    def next_call(self) -> ThriftMessage | None:
        """Return the next call, or None.

        None if no call is complete or one is in progress; also at the end, for which `fault` has
        the reason.
        """
        if self.state is not StreamState.READY:
            return None
        if not self._waiting:
            if self._splitter.fault is not None:
                self._end(str(self._splitter.fault))
            return None
        payload = self._waiting.popleft()
        self._whole -= len(payload)
        try:
            message = read_message(payload)
            self._check(message)
        except RemoteProtocolError as error:
            self._end(str(error))
            return None
        self.state = StreamState.CALLED
        return message

    def answered(self) -> None:
        """Record that the call in progress is answered."""
        if self.state is StreamState.CALLED:
            self.state = StreamState.READY

    def _check(self, message: ThriftMessage) -> None:
        if message.kind not in (Kind.CALL, Kind.ONEWAY):
            raise RemoteProtocolError(f"a message of type {message.kind.name} from a client")
        method = self._methods.get(message.name)
        if message.kind is Kind.ONEWAY and method is not None and method.answer is not None:
            # The client would take its answer for that of the next call.
            raise RemoteProtocolError(f"{message.name} called one-way, but it has an answer")

    def _end(self, fault: str) -> None:
        self.state, self.fault = StreamState.OVER, fault
        self._waiting.clear()
        self._whole = 0


@dataclass(slots=True)
class ConnectionCounts:
    """Counters of connections since the server started."""

    accepted: int = 0
    #: Refused connections by cause: connections, address; and descriptors, for pauses of accepting.
    turned_away: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    #: Calls refused since too many waited.
    refused: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Host(Protocol):
    """The server, as its channels use it."""

    loop: asyncio.AbstractEventLoop
    limits: ServerLimits
    counts: ConnectionCounts
    held: int
    #: Receives `READ_BYTES` bytes; shared, as a channel copies them at once.
    buffer: memoryview
    #: Whether channels end as soon as nothing is to be answered.
    is_draining: bool

    def carry_out(self, channel: Channel, message: ThriftMessage) -> str | None:
        """Start a call and report its answer to `channel`; return the reason of a refusal."""

    def warn(self, line: str, matter: Hashable) -> None:
        """Log a line, unless there were many about that matter."""

    def used(self, channel: Channel) -> None:
        """Record an answered call."""

    def forget(self, channel: Channel) -> None:
        """Record a closed connection."""


class Channel(asyncio.BufferedProtocol):
    """The socket of one client; belongs to one asyncio loop, except for `is_over`."""

    def __init__(self, server: Host, caller: Caller, connection: CallStream) -> None:
        self.caller = caller
        #: Whether only sending and closing is left.
        self.is_over = False
        self.method: str | None = None
        self._server = server
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        #: Whether the client has shut down its sending.
        self._has_ended = False
        self._frames = 0
        self._held = 0
        #: Unread bytes when the client last read something.
        self._unread = 0
        # Monotonic times: the last answer, the beginning of a call, of an unfinished message and of
        # unread answers; and the end of lingering.
        self._idle_since = self._call_since = time.monotonic()
        self._frame_since: float | None = None
        self._unread_since: float | None = None
        self._lingers_until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # So any unsent byte calls `pause_writing`, which delays the next call.
        transport.set_write_buffer_limits(high=0)
        self.move()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it was lost
        """Record the end of the connection."""
        self._over(BY_CLIENT)
        self._transport = None
        self._hold(0)
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return the buffer for the next bytes."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process received bytes."""
        self._server.counts.bytes_in += nbytes
        if self.is_over:
            return
        answer, user = self._connection.receive(self._server.buffer[:nbytes].tobytes())
        if user is not None:
            self.caller.user = user
        if answer:
            self._write(answer)
        if self._connection.frames != self._frames:
            self._frames = self._connection.frames
            self._frame_since = None
        self.move()

    def eof_received(self) -> bool:
        """Return whether a half-closed connection still waits for an answer."""
        self._has_ended = True
        return not self.is_over and (self.method is not None or self._connection.has_whole)

    def pause_writing(self) -> None:
        """Record that the client has not read all bytes."""
        assert self._transport is not None
        self._unread_since = time.monotonic()
        self._unread = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Record that the client has read all bytes."""
        self._unread_since = None
        self._lingers_until = time.monotonic() + _LINGER
        self.move()

    def move(self) -> None:
        """Start the next call, or end, if possible."""
        connection, server = self._connection, self._server
        if self.is_over or self._transport is None:
            return
        if self.method is None and self._unread_since is None:
            message = connection.next_call()
            if message is not None:
                self._call(message)
            elif connection.fault is not None:
                self._finish(PROTOCOL, connection.fault)
                return
            elif self._has_ended or server.is_draining:
                self._finish(BY_CLIENT if self._has_ended else DRAIN)
                return
        self._read_or_not()
        size = connection.held_bytes + self._transport.get_write_buffer_size()
        self._hold(size)
        if server.held > server.limits.max_held and size > READ_BYTES:
            reason = f"it held {size} bytes, and all connections together hold as much as they may"
            self.abort(MEMORY, reason)

    def answered(self, frame: bytes | None) -> None:
        """Send the answer of the call in progress; None for a one-way call."""
        method, self.method = self.method, None
        if self.is_over:
            return
        self._connection.answered()
        self._idle_since = time.monotonic()
        self._server.used(self)
        if frame is not None:
            size, most = len(frame) - 4, self._server.limits.max_frame
            if size > most:
                self._server.warn(
                    f"the answer of {method} to {self.caller} has {size} bytes: clients take {most}"
                    " where nimbus.thrift.max_buffer_size is as here; raise it there",
                    matter=method,
                )
            self._write(frame)
        self.move()

    @property
    def is_idle(self) -> bool:
        """Whether the connection can end without loss: no call is in progress or unanswered."""
        is_quiet = self.method is None and self._unread_since is None
        return is_quiet and self._transport is not None and not self._connection.has_whole

    def make_room(self, reason: str) -> None:
        """End the idle connection for the sake of another one."""
        self._over(CROWDED, reason)
        if self._transport is not None:
            self._transport.close()
        self._server.forget(self)

    def sweep(self, now: float) -> None:
        """End the connection if a time limit is exceeded."""
        limits, transport = self._server.limits, self._transport
        if transport is None:
            return
        if self._unread_since is not None:
            unread = transport.get_write_buffer_size()
            if unread < self._unread:
                self._unread, self._unread_since = unread, now
            elif now - self._unread_since > limits.unread_timeout:
                reason = f"nothing of its answer was read for {limits.unread_timeout:g} s"
                self.abort(UNREAD_TIMEOUT, reason)
        elif self.is_over:
            if now > self._lingers_until:
                transport.abort()
        elif self.method is not None:
            if now - self._call_since > limits.answer_timeout:
                reason = f"{self.method} was not answered within {limits.answer_timeout:g} s"
                self.abort(ANSWER_TIMEOUT, reason)
        else:
            self._sweep_unoccupied(now)

    def _sweep_unoccupied(self, now: float) -> None:
        """Check the limits of a connection without a call."""
        limits = self._server.limits
        if self._connection.state is StreamState.AUTHENTICATING:
            if now - self._idle_since > limits.handshake_timeout:
                reason = f"it did not authenticate within {limits.handshake_timeout:g} s"
                self._finish(HANDSHAKE_TIMEOUT, reason)
        elif self._frame_since is not None:
            if now - self._frame_since > limits.frame_timeout:
                reason = f"a message was not whole {limits.frame_timeout:g} s after it began"
                self._finish(FRAME_TIMEOUT, reason)
        elif now - self._idle_since > limits.idle_timeout:
            self._finish(IDLE)

    def abort(self, cause: str, reason: str = "") -> None:
        """Cut the connection."""
        self._over(cause, reason)
        if self._transport is not None:
            # Without a reset, the system would keep unsent bytes.
            with suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE
                )
            self._transport.abort()

    def _call(self, message: ThriftMessage) -> None:
        server = self._server
        self.method, self._call_since = message.name, time.monotonic()
        refusal = server.carry_out(self, message)
        if refusal is None:
            return
        server.counts.refused += 1
        server.warn(f"refused {message.name} of {self.caller}: {refusal}", matter="refused")
        frame = None
        if message.kind is Kind.CALL:
            frame = fault_frame(message.name, message.sequence, FaultKind.INTERNAL_ERROR, refusal)
        # Later, as many refused calls in a row would recurse as deep.
        server.loop.call_soon(self.answered, frame)

    def _finish(self, cause: str, reason: str = "") -> None:
        """End after sending everything."""
        assert self._transport is not None
        self._over(cause, reason)
        self._hold(self._transport.get_write_buffer_size())
        if self._has_ended or not (reason or self._connection.has_partial):
            self._transport.close()
            return
        # A socket closed with unread input is reset, and the answers are lost. So further input is
        # read and dropped for a moment.
        self._lingers_until = time.monotonic() + _LINGER
        self._transport.write_eof()
        self._read_or_not()

    def _read_or_not(self) -> None:
        assert self._transport is not None
        # A waiting frame stops the reading.
        wanted = self.is_over or not self._connection.has_whole
        if self._has_ended:
            return
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        if not wanted or not self._connection.has_partial:
            self._frame_since = None
        elif self._frame_since is None:
            self._frame_since = time.monotonic()

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._server.counts.bytes_out += len(data)
        self._transport.write(data)

    def _hold(self, size: int) -> None:
        self._server.held += size - self._held
        self._held = size

    def _over(self, cause: str, reason: str = "") -> None:
        if self.is_over:
            return
        self.is_over = True
        self._server.counts.ended[cause] += 1
        if reason:
            self._server.warn(f"closing {self.caller}: {reason}", matter=self.caller.address)
