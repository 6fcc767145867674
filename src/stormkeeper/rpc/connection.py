"""One client's connection: bytes in, calls out, one at a time and in their order; without I/O.

The rules that hold here:

- A client authenticates before its first call, where it must. What it sends is not looked at as a
  call before that.
- There is at most one call under way. The next one is given when `answered` was called.
- A frame too long and a message that cannot be read end the connection, when the calls before it
  are answered: nobody can say where the next one begins, or what it would answer.
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
    FrameSplitter,
    Kind,
    ThriftMessage,
    bad_length,
    fault_frame,
    read_message,
    sasl_refusal,
)
from stormkeeper.thrift.idl import Method


class StreamState(Enum):
    """Where a connection is."""

    AUTHENTICATING = "authenticating"
    #: The next call may come.
    READY = "ready"
    #: A call is being answered.
    CALLED = "called"
    #: Nothing comes any more.
    OVER = "over"


class HandshakeStep(NamedTuple):
    """What an authentication makes of the bytes that came."""

    #: To be sent.
    send: bytes = b""
    #: What came behind its end; None while it goes on.
    rest: bytes | None = None
    #: Who the client is, at its end.
    user: str | None = None
    #: Why it failed, if it did; safe to log.
    fault: str | None = None


class Handshake(Protocol):
    """A conversation by which a client says who it is; without I/O."""

    def receive(self, data: bytes) -> HandshakeStep:
        """Take the next bytes of the client's."""


class CallStream:
    """The server's half of a connection.

    Parameters
    ----------
    methods
        Those of the service, by name.
    max_frame
        The longest message that is taken, in bytes.
    authentication
        What comes before the first call; None: nothing.
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
        #: Whole frames that wait for `next_call`.
        self._waiting: deque[bytes] = deque()
        #: Their bytes.
        self._whole = 0
        #: Whole frames that came so far.
        self.frames = 0
        self.state = StreamState.READY if authentication is None else StreamState.AUTHENTICATING
        #: Why no call comes any more, once none does.
        self.fault: str | None = None

    @property
    def has_partial(self) -> bool:
        """Whether a message has begun and is not whole."""
        return self._splitter.has_partial

    @property
    def has_whole(self) -> bool:
        """Whether messages wait for `next_call`."""
        return bool(self._waiting)

    @property
    def held_bytes(self) -> int:
        """How much is held of what came and was not given yet."""
        return self._whole + self._splitter.partial_bytes

    def receive(self, data: bytes) -> tuple[bytes, str | None]:
        """Take bytes that the client sent.

        Returns
        -------
        tuple of (bytes, str or None)
            What is to be sent at once; and who the client is, if that became known.
        """
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
        """Give the next call, if one is whole and none is under way.

        None, too, when no call comes any more: `fault` says why.
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
        """Take note that the call under way has its answer, or needs none."""
        if self.state is StreamState.CALLED:
            self.state = StreamState.READY

    def _check(self, message: ThriftMessage) -> None:
        if message.kind not in (Kind.CALL, Kind.ONEWAY):
            raise RemoteProtocolError(f"a message of type {message.kind.name} from a client")
        method = self._methods.get(message.name)
        if message.kind is Kind.ONEWAY and method is not None and method.answer is not None:
            # Its answer would be taken for that of the next call.
            raise RemoteProtocolError(f"{message.name} called as if nobody would answer it")

    def _end(self, fault: str) -> None:
        self.state, self.fault = StreamState.OVER, fault
        self._waiting.clear()
        self._whole = 0


#: Descriptors that are kept from clients: files, ZooKeeper, other services of the same process.
_OWN_DESCRIPTORS: Final = 128
#: Connections at a time. A supervisor has one or two, a person's command one, for a moment.
MAX_CONNECTIONS: Final = 2_000


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one server.

    Storm has keys for the first three. The others are wide enough for any cluster that Storm runs
    on, and keep whoever means harm, or is broken, from the rest.
    """

    #: The longest message of a client, in bytes.
    max_frame: int = 1024 * 1024
    #: Calls that are carried out at a time.
    threads: int = 64
    #: Calls that wait for that: at most one of each connection, and those whose client has gone.
    max_waiting: int = 100_000
    #: Connections at a time.
    max_connections: int = MAX_CONNECTIONS
    #: The same from one address, so that one machine cannot keep the others out. A user interface
    #: or a proxy may have many.
    max_connections_per_address: int = 500
    #: Bytes of unanswered calls and unread answers of all connections together. Beyond it, one that
    #: holds more than a reading's worth ends.
    max_held: int = 128 * 1024 * 1024
    #: Seconds for an authentication that has begun, and for one that should.
    handshake_timeout: float = 10.0
    #: Seconds for the rest of a message that has begun.
    frame_timeout: float = 30.0
    #: Seconds that a call may take, with its waiting. Storm's clients wait as long.
    answer_timeout: float = 600.0
    #: Seconds in which a client must read some of a waiting answer.
    unread_timeout: float = 60.0
    #: Seconds that a connection may stay open without a call.
    idle_timeout: float = 900.0

    @classmethod
    def of(cls, conf: Conf) -> Self:
        """Return the limits of Nimbus's service that a configuration sets."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_DESCRIPTORS
        return cls(
            max_frame=conf["nimbus.thrift.max_buffer_size"],
            # A submission waits in one for Nimbuses that fetch its copies in another.
            threads=max(2, conf["nimbus.thrift.threads"]),
            max_waiting=conf["nimbus.queue.size"],
            max_connections=max(1, min(MAX_CONNECTIONS, descriptors)),
        )


#: Bytes read from a client at a time.
READ_BYTES: Final = 65_536
#: Seconds that a client has to read what was sent before the end.
_LINGER: Final = 1.0
#: struct linger: do not wait, and send a reset.
_AT_ONCE: Final = struct.pack("ii", 1, 0)

# Why a connection was ended, for counters.
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


@dataclass(slots=True)
class ConnectionCounts:
    """What happened to connections since a server began."""

    #: Connections that were let in.
    accepted: int = 0
    #: Those that were not, by cause: connections, address; and descriptors, when accepting rested.
    turned_away: Counter[str] = field(default_factory=Counter)
    #: Connections that ended, by cause.
    ended: Counter[str] = field(default_factory=Counter)
    #: Calls that were refused, as too many waited.
    refused: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Host(Protocol):
    """What a channel needs of its server."""

    loop: asyncio.AbstractEventLoop
    limits: ServerLimits
    counts: ConnectionCounts
    #: What all channels hold, in bytes.
    held: int
    #: Where bytes come in, `READ_BYTES` of them; one for all, as they are taken out at once.
    buffer: memoryview
    #: Whether channels end as soon as they have nothing to answer.
    is_draining: bool

    def carry_out(self, channel: Channel, message: ThriftMessage) -> str | None:
        """Have a call carried out, and `channel` told; return why that is refused, if it is."""

    def warn(self, line: str, matter: Hashable) -> None:
        """Write a line into the log, unless there were many about that matter."""

    def used(self, channel: Channel) -> None:
        """Take note that a connection had a call answered."""

    def forget(self, channel: Channel) -> None:
        """Take note that a connection is closed."""


class Channel(asyncio.BufferedProtocol):
    """One connection. All but `is_over` belongs to the loop's thread.

    Parameters
    ----------
    server
        Whose client it is.
    caller
        The client.
    connection
        Makes calls of its bytes.
    """

    def __init__(self, server: Host, caller: Caller, connection: CallStream) -> None:
        self.caller = caller
        #: Whether no call is given any more; what is left to do is sending, and closing.
        self.is_over = False
        #: The method of the call under way.
        self.method: str | None = None
        self._server = server
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        #: Whether the client has said that nothing more comes from it.
        self._has_ended = False
        self._frames = 0
        self._held = 0
        #: What was unread when the client had last read something.
        self._unread = 0
        # Monotonic seconds: since when nothing was called, a call is under way, a message is
        # unfinished, answers are unread; and until when what was sent last may be read.
        self._idle_since = self._call_since = time.monotonic()
        self._frame_since: float | None = None
        self._unread_since: float | None = None
        self._lingers_until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # So that whatever the system does not take at once is known, and stops the next call.
        transport.set_write_buffer_limits(high=0)
        self.move()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it was lost
        """Take note that the connection is closed."""
        self._over(BY_CLIENT)
        self._transport = None
        self._hold(0)
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes are to go."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that came there."""
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
        """Return whether there is something to answer: who has only half closed waits for it."""
        self._has_ended = True
        return not self.is_over and (self.method is not None or self._connection.has_whole)

    def pause_writing(self) -> None:
        """Take note that what was sent waits for the client to read."""
        assert self._transport is not None
        self._unread_since = time.monotonic()
        self._unread = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        """Take note that it does no longer."""
        self._unread_since = None
        self._lingers_until = time.monotonic() + _LINGER
        self.move()

    def move(self) -> None:
        """Give the next call, or end, if it is time for one of these."""
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
        """Send the answer of the call under way; None: it has none."""
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
        """Whether nothing is lost when the connection ends: no call is under way or unanswered."""
        is_quiet = self.method is None and self._unread_since is None
        return is_quiet and self._transport is not None and not self._connection.has_whole

    def make_room(self, reason: str) -> None:
        """End the connection, which is idle, so that another one can be let in."""
        self._over(CROWDED, reason)
        if self._transport is not None:
            self._transport.close()
        self._server.forget(self)

    def sweep(self, now: float) -> None:
        """End the connection if it exceeds a time limit."""
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
        """End it, when nothing is under way, for what the client has not done."""
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
            # Or the system would hold what is unsent until it is read.
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
        # Not at once: one that sends many calls at a time would make us call ourselves as often.
        server.loop.call_soon(self.answered, frame)

    def _finish(self, cause: str, reason: str = "") -> None:
        """End when all is sent."""
        assert self._transport is not None
        self._over(cause, reason)
        self._hold(self._transport.get_write_buffer_size())
        if self._has_ended or not (reason or self._connection.has_partial):
            self._transport.close()
            return
        # Closed at once, the connection would be reset for what still comes, and the system would
        # drop the answers. So that is read, and dropped, for a moment.
        self._lingers_until = time.monotonic() + _LINGER
        self._transport.write_eof()
        self._read_or_not()

    def _read_or_not(self) -> None:
        assert self._transport is not None
        # What waits is as much as is taken at a time.
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
