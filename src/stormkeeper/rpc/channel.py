"""The socket of one client: moves its bytes and keeps its time limits; belongs to one asyncio loop.

The rules that hold here:

- Nothing is taken from a client that has a call waiting behind the one under way, or behind an
  answer that it does not read.
- Memory is taken for bytes that came, never for those that a length announces, and is bounded for
  all connections together (`Limits.max_held`).
- Every state in which a client can keep a connection has a time limit. What ends a connection, a
  client's own end and a silence excepted, has a line in the log; and each has a counter.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from stormkeeper.rpc.connection import Connection, State
from stormkeeper.rpc.dispatching import Caller
from stormkeeper.rpc.limits import Limits
from stormkeeper.rpc.messages import FaultKind, Kind, Message, fault_frame

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
class Counts:
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
    limits: Limits
    counts: Counts
    #: What all channels hold, in bytes.
    held: int
    #: Where bytes come in, `READ_BYTES` of them; one for all, as they are taken out at once.
    buffer: memoryview
    #: Whether channels end as soon as they have nothing to answer.
    is_draining: bool

    def carry_out(self, channel: Channel, message: Message) -> str | None:
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

    def __init__(self, server: Host, caller: Caller, connection: Connection) -> None:
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
        if self._connection.state is State.AUTHENTICATING:
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

    def _call(self, message: Message) -> None:
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
