"""Channels on asyncio, for the interpreted engine and for TLS; `channels` has the rules."""

import asyncio
import os
import socket
import ssl
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

from stormkeeper.daemon.sockets import reset_on_close
from stormkeeper.pacemaker.server.channels import (
    AN_ERROR_OF_OURS,
    ANSWER_BYTES,
    BATCH_SECONDS,
    BY_CLIENT,
    CLOSED_BY_CLIENT,
    CLOSED_WITHIN_A_MESSAGE,
    DRAIN,
    ERROR,
    FRAME_TIMEOUT,
    HANDSHAKE_TIMEOUT,
    LATENCY_BOUNDS,
    LINGER,
    MEMORY,
    OUTPUT_TIMEOUT,
    READ_BYTES,
    RESET_BY_CLIENT,
    STOPPING,
    TLS,
    TURN_ROUNDS,
    TURN_SECONDS,
    OnClosed,
    OnFreed,
    RequestStream,
    log_error_of_ours,
    prepare,
    too_much_held,
    unfinished_frame,
    unread_answers,
)
from stormkeeper.pacemaker.server.client_session import ClientSession
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.server_tls import TLS_BYTES, fault_of, secure

#: Rounds of the loop with reads in a drain: enough for all bytes that a client can have sent, also
#: over TLS.
_LAST_LOOKS: Final = READ_BYTES // TLS_BYTES + 1

_HANDSHAKE_SECONDS: Final = 10.0


class AsyncioChannels:
    """All open connections of a server, on asyncio's transports; called in the loop's thread only.

    `_compiled.EpollChannels` has the same interface. `max_size` is the largest payload, `clock` the
    source of every ``now``; the timeouts are the seconds to complete a frame and to read some of an
    answer. `max_buffered` may be set later; 0: no limit.
    """

    def __init__(
        self,
        index: PulseIndex,  # noqa: ARG002 - only the compiled engine uses it
        *,
        max_size: int,
        clock: Callable[[], float],
        frame_timeout: float,
        output_timeout: float,
        on_closed: OnClosed,
        on_freed: OnFreed,
    ) -> None:
        self.max_size = max_size
        self.frame_timeout = frame_timeout
        self.output_timeout = output_timeout
        self.max_buffered = 0
        self.buffered = 0
        self.clock = clock
        self.on_closed = on_closed
        self._on_freed = on_freed
        self.is_draining = False
        #: For all channels; asyncio would allocate a buffer per read.
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.bytes_in = self.bytes_out = 0
        self.sends = self.gets = self.others = 0
        self._buckets = [0] * (len(LATENCY_BOUNDS) + 1)
        self._seconds = 0.0
        self._channels: dict[_Channel, ClientSession] = {}
        #: End of the turns of this round of the loop; None before the first turn.
        self._round_ends: float | None = None
        self.is_cut = False
        self._long: deque[_Channel] = deque()

    def __len__(self) -> int:
        """Count open descriptors, also of ended sessions."""
        return len(self._channels)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: asyncio watches the sockets."""

    def detach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing."""

    def adopt(
        self,
        connection: socket.socket,
        session: ClientSession,
        now: float,  # noqa: ARG002 - no deadline begins with a connection
        tls: ssl.SSLContext | None = None,
        handshake_timeout: float = _HANDSHAKE_SECONDS,
    ) -> None:
        """Serve a client; raise `OSError`, with the socket closed, on failure."""
        prepare(connection)
        channel = _Channel(self, session)
        self._channels[channel] = session
        channel.task = asyncio.get_running_loop().create_task(
            channel.connect(connection, tls, handshake_timeout)
        )
        channel.task.add_done_callback(lambda task: channel.connected(task, connection))

    def sweep(self, now: float) -> None:
        """End channels beyond a time limit; called about once a second."""
        for channel in list(self._channels):
            channel.sweep(now)

    def drain(self) -> None:
        """Answer received requests, read no more, then half-close every channel."""
        self.is_draining = True
        for channel in list(self._channels):
            channel.move()

    def abort(self) -> None:
        """End all channels at once."""
        for channel in list(self._channels):
            channel.abort(DRAIN, STOPPING)

    def counters(self) -> dict[str, int]:
        return {
            "sends": self.sends,
            "gets": self.gets,
            "others": self.others,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }

    def latency(self) -> tuple[tuple[float, ...], list[int], float]:
        """Return `LATENCY_BOUNDS`, the requests per bucket, and the sum of their seconds.

        A request's time ends when all answers of the batch were sent, or kept for the client.
        """
        return LATENCY_BOUNDS, list(self._buckets), self._seconds

    def count(self, requests: RequestStream, seconds: float) -> None:
        """Move a turn's counts to the server's counters."""
        count = requests.sends + requests.gets + requests.others
        if count:
            self.sends += requests.sends
            self.gets += requests.gets
            self.others += requests.others
            requests.sends = requests.gets = requests.others = 0
            self._buckets[bisect_left(LATENCY_BOUNDS, seconds)] += count
            self._seconds += count * seconds

    def is_round_over(self, now: float) -> bool:
        """Return whether this round's turns took `BATCH_SECONDS`."""
        if self._round_ends is None:
            self._round_ends = now + BATCH_SECONDS
            asyncio.get_running_loop().call_soon(self._begin_round)
        return now > self._round_ends

    def _begin_round(self) -> None:
        self._round_ends = None
        if self.is_cut:
            self.is_cut = False
            os.sched_yield()

    def await_long_turn(self, channel: "_Channel") -> None:
        """Queue a channel behind all short requests."""
        if not self._long:
            asyncio.get_running_loop().call_soon(self._give_long_turns)
        self._long.append(channel)

    def _give_long_turns(self) -> None:
        ends = monotonic() + TURN_SECONDS
        for _ in range(len(self._long)):
            self._long[0].take_long_turn()
            del self._long[0]
            if monotonic() > ends:
                break
        if self._long:
            os.sched_yield()
            asyncio.get_running_loop().call_soon(self._give_long_turns)

    def forget(self, channel: "_Channel") -> None:
        """Remove a channel with a closed descriptor."""
        session = self._channels.pop(channel, None)
        if session is not None:
            self._on_freed(session)


class _Unread(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


class _Channel(asyncio.BufferedProtocol):
    """A connection of a client.

    Nothing is read while requests wait, so the end of the stream is seen after all answers. TLS
    reads ahead: at the end of the stream the waiting writes and deletions are still carried out.
    """

    def __init__(self, channels: AsyncioChannels, session: ClientSession) -> None:
        self.task: asyncio.Task[None] | None = None
        self._channels = channels
        self._session = session
        self._requests = RequestStream(session, channels.max_size)
        self._transport: asyncio.Transport | None = None
        #: The TCP transport, which also holds unsent bytes of TLS.
        self._below: asyncio.Transport | None = None
        self._is_full = False
        self._is_over = False
        # Whether another turn is scheduled, and a turn for a long request.
        self._is_due = False
        self._is_due_long = False
        #: Remaining rounds with reads in a drain.
        self._looks = _LAST_LOOKS
        self._waits_since: float | None = None
        # Since when a frame is incomplete and answers are unread.
        self._frame_since: float | None = None
        self._unsent_since: float | None = None
        self._unsent = 0
        self._held = 0

    async def connect(
        self, connection: socket.socket, tls: ssl.SSLContext | None, handshake_timeout: float
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            if tls is None:
                await loop.connect_accepted_socket(lambda: self, connection)
                return
            # In two steps, to know the TCP transport.
            self._below, _ = await loop.connect_accepted_socket(_Unread, connection)
            await secure(
                self._below,
                self,
                tls,
                handshake_timeout=handshake_timeout,
                shutdown_timeout=LINGER,
            )
            if self._transport is None and not self._is_over:
                raise ConnectionResetError
        except OSError as error:
            self._close(connection)
            if tls is None:
                self._end(BY_CLIENT, RESET_BY_CLIENT)
            else:
                self._end(TLS, fault_of(error))
            self._channels.forget(self)

    def _close(self, connection: socket.socket) -> None:
        if self._below is None:
            connection.close()
        else:
            self._below.abort()

    def connected(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        """Handle the end of `connect`, which may have been cancelled before the start."""
        self.task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log_error_of_ours(self._session, error)
        if task.cancelled() or error is not None:
            self._close(connection)
            self._end(ERROR, AN_ERROR_OF_OURS)
            self._channels.forget(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._below is None:
            self._below = transport
        ssl_object = transport.get_extra_info("ssl_object")
        # Any unsent byte pauses the answers; asyncio's TLS would pause at 0, with nothing to send.
        self._below.set_write_buffer_limits(high=0)
        if ssl_object is not None:
            transport.set_write_buffer_limits(high=1)
            self._session.secured(ssl_object)
        if self._channels.is_draining:
            self.move()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(BY_CLIENT, CLOSED_BY_CLIENT if exc is None else RESET_BY_CLIENT)
        self._transport = None
        self._hold(0)
        self._channels.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._channels.buffer

    def buffer_updated(self, nbytes: int) -> None:
        channels = self._channels
        channels.bytes_in += nbytes
        if not self._is_over:
            if self._requests.receive(channels.buffer[:nbytes].tobytes()):
                self._frame_since = None
            self.move()

    def eof_received(self) -> None:
        if not self._is_over:
            self._take_last_writes()
        within = self._requests.has_partial
        self._end(BY_CLIENT, CLOSED_WITHIN_A_MESSAGE if within else CLOSED_BY_CLIENT)

    def _take_last_writes(self) -> None:
        try:
            if not self._requests.take_last_writes():
                asyncio.get_running_loop().call_soon(self._take_last_writes)
        except Exception:
            log_error_of_ours(self._session)
        self._channels.count(self._requests, 0.0)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._unsent_since = None
        self.move()

    def move(self, *, may_be_long: bool = False) -> None:
        transport, requests = self._transport, self._requests
        if transport is None or self._is_over:
            return
        began = monotonic()
        ends = began + TURN_SECONDS
        # Short requests first, so that long requests cannot take the whole round.
        must_wait = (
            not may_be_long
            and requests.has_waiting
            and not requests.has_long
            and self._channels.is_round_over(began)
        )
        rounds = TURN_ROUNDS if must_wait else 0
        try:
            while not self._is_full and rounds < TURN_ROUNDS and requests.ending is None:
                answers = requests.next_answers(
                    ANSWER_BYTES, lambda: monotonic() > ends, may_be_long=may_be_long
                )
                if answers:
                    self._channels.bytes_out += len(answers)
                    transport.write(answers)
                if requests.has_long or not requests.has_waiting:
                    break
                rounds = TURN_ROUNDS if monotonic() > ends else rounds + 1
            self._channels.count(requests, monotonic() - (self._waits_since or began))
            if not requests.has_waiting or self._is_full:
                # A client that does not read causes this wait.
                self._waits_since = None
            elif self._waits_since is None:
                self._waits_since = began
            held = self._unsent_bytes() + requests.held_bytes
            self._hold(held)
            if held > READ_BYTES and 0 < self._channels.max_buffered < self._channels.buffered:
                self.abort(MEMORY, too_much_held(held))
            else:
                self._rest(transport)
        except Exception:
            log_error_of_ours(self._session)
            self.abort(ERROR, AN_ERROR_OF_OURS)

    def _rest(self, transport: asyncio.Transport) -> None:
        requests = self._requests
        if requests.ending is not None:
            self._end(*requests.ending)
            self._half_close(transport)
        elif requests.has_waiting or self._is_full:
            transport.pause_reading()
            if self._is_full and self._channels.is_draining:
                self._looks = 0  # a client that does not read may send without end
            if self._is_full or self._is_due or self._is_due_long:
                pass
            elif requests.has_long:
                self._is_due_long = True
                self._channels.await_long_turn(self)
            else:
                self._is_due = self._channels.is_cut = True
                asyncio.get_running_loop().call_soon(self._take_turn)
        elif self._channels.is_draining and not self._looks:
            transport.pause_reading()
            self._end(DRAIN, STOPPING)
            self._half_close(transport)
        else:
            transport.resume_reading()
            if self._channels.is_draining and not self._is_due:
                self._looks -= 1
                self._is_due = True
                asyncio.get_running_loop().call_soon(self._take_turn)
        if not requests.has_partial or not transport.is_reading():
            self._frame_since = None
        elif self._frame_since is None:
            self._frame_since = self._channels.clock()

    def _unsent_bytes(self) -> int:
        transport, below = self._transport, self._below
        if transport is None or below is None:
            return 0
        size = below.get_write_buffer_size()
        return size if transport is below else size + transport.get_write_buffer_size()

    def _hold(self, size: int) -> None:
        self._channels.buffered += size - self._held
        self._held = size

    def _take_turn(self) -> None:
        self._is_due = False
        self.move()

    def take_long_turn(self) -> None:
        self._is_due_long = False
        self.move(may_be_long=True)

    def sweep(self, now: float) -> None:
        transport, channels = self._transport, self._channels
        if transport is None or self._is_over:
            return
        overdue = self._session.handshake_due(now)
        if overdue is not None:
            self._end(HANDSHAKE_TIMEOUT, overdue)
            self._half_close(transport)
            return
        unsent = self._unsent_bytes()
        if unsent != self._unsent or self._unsent_since is None:
            self._unsent, self._unsent_since = unsent, now
        if unsent and now - self._unsent_since > channels.output_timeout:
            self.abort(OUTPUT_TIMEOUT, unread_answers(now - self._unsent_since))
        elif self._frame_since is not None and now - self._frame_since > channels.frame_timeout:
            self._end(FRAME_TIMEOUT, unfinished_frame(now - self._frame_since))
            self._half_close(transport)

    def abort(self, cause: str, reason: str) -> None:
        self._end(cause, reason)
        if self._transport is not None:
            connection = self._transport.get_extra_info("socket")
            # A closed TLS transport has no socket, even before `connection_lost`.
            if cause != ERROR and connection is not None:
                reset_on_close(connection)
            self._transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def _end(self, cause: str, reason: str) -> None:
        """Call `OnClosed`, once; the last answers may still be sent."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._channels.on_closed(self._session, cause, reason)
        except Exception:
            log_error_of_ours(self._session)

    def _half_close(self, transport: asyncio.Transport) -> None:
        """Close the server's side after the last answer, and drop input."""
        if not self._channels.is_draining:  # else the server aborts the channel
            asyncio.get_running_loop().call_later(LINGER, transport.abort)
        if transport.can_write_eof():
            try:
                transport.write_eof()
            except OSError:  # reset by the client meanwhile
                transport.abort()
            else:
                transport.resume_reading()
        else:  # TLS knows no half-closed connections
            transport.close()
