"""Channels on asyncio: in plain Python, and for TLS whatever the engine; see `channels`."""

import asyncio
import socket
import ssl
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.channels import (
    AN_ERROR_OF_OURS,
    ANSWER_BYTES,
    AUTHENTICATION,
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
    PROTOCOL,
    READ_BYTES,
    RESET_BY_CLIENT,
    SHORT,
    SHORT_BYTES,
    STOPPING,
    TLS,
    TURN_ROUNDS,
    TURN_SECONDS,
    OnClosed,
    OnFreed,
    let_others_run,
    log_error_of_ours,
    prepare,
    reset_on_close,
    too_much_held,
    unfinished_frame,
    unread_answers,
)
from stormkeeper.pacemaker.server.client_session import ClientSession
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.server_tls import TLS_BYTES, fault_of, secure
from stormkeeper.pacemaker.wire import MessageType, PacemakerFrameSplitter

_SEND_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x04"


_GET_PULSE: Final = b"\x08\x00\x01\x00\x00\x00\x0a"


_WRITES: Final = tuple(
    b"\x08\x00\x01\x00\x00\x00" + bytes([kind])
    for kind in (MessageType.SEND_PULSE, MessageType.DELETE_PATH, MessageType.DELETE_PULSE_ID)
)


class RequestStream:
    """Turns a client's bytes into the bytes of the answers.

    Parameters
    ----------
    session
        Answers the requests.
    max_size
        The largest payload that is accepted, in bytes.
    """

    __slots__ = (
        "_payloads",
        "_session",
        "_splitter",
        "_whole_bytes",
        "ending",
        "gets",
        "has_long",
        "others",
        "sends",
    )

    def __init__(self, session: ClientSession, max_size: int) -> None:
        #: Why the channel must end, as (cause, reason), once the turn of what is bad has come.
        self.ending: tuple[str, str] | None = None
        #: Whether the request that is next may be long, or has begun and needs another turn.
        self.has_long = False
        # Requests answered.
        self.sends = self.gets = self.others = 0
        self._session = session
        self._splitter = PacemakerFrameSplitter(max_size)
        self._payloads: deque[bytes] = deque()
        #: The sum of their sizes.
        self._whole_bytes = 0

    @property
    def has_unanswered(self) -> bool:
        """Whether whole requests wait for `next_answers`."""
        return bool(self._payloads)

    @property
    def has_partial(self) -> bool:
        """Whether a request has begun and is not whole."""
        return self._splitter.has_partial

    @property
    def held_bytes(self) -> int:
        """How much is held of requests that are not answered, whole or not."""
        return self._whole_bytes + self._splitter.partial_bytes

    def receive(self, data: bytes) -> bool:
        """Take bytes that the client sent; after a bad frame they are ignored.

        Returns
        -------
        bool
            Whether they completed a request, so that a partial one is new.
        """
        whole: list[bytes] = []
        if self._splitter.fault is None and self.ending is None:
            # The splitter keeps the fault until the frames before it are answered.
            with suppress(RemoteProtocolError):
                whole = self._splitter.feed(data)
        self._payloads.extend(whole)
        self._whole_bytes += sum(map(len, whole))
        return bool(whole)

    def next_answers(
        self,
        max_bytes: int = ANSWER_BYTES,
        is_time_up: Callable[[], bool] = lambda: False,
        *,
        may_be_long: bool = True,
    ) -> bytes:
        """Carry out requests until their answers have `max_bytes` or the time is up.

        Parameters
        ----------
        max_bytes
            What the answers may have; one larger answer is made whole.
        is_time_up
            Asked after every request.
        may_be_long
            Whether to go on when a request comes that is not among `SHORT`. If not, or if a
            request needs another turn, `has_long` is set.

        Returns
        -------
        bytes
            Whole frames; none if no request waits, or none of those that did has an answer. If
            what comes next ends the channel, `ending` is set.
        """
        payloads, session = self._payloads, self._session
        answers: list[bytes] = []
        size = 0
        self.has_long = False
        while payloads and size < max_bytes:
            payload = payloads[0]
            if not may_be_long and payload[:SHORT_BYTES] not in SHORT:
                self.has_long = True
                break
            try:
                answer = session.answer(payload)
            except RemoteProtocolError as fault:
                self._count(payload)
                self._end(PROTOCOL, str(fault))
                break
            if answer is None:
                self.has_long = True
                break
            self._count(payload)
            del payloads[0]
            self._whole_bytes -= len(payload)
            size += len(answer)
            answers.append(answer)
            if session.fault is not None:
                self._end(AUTHENTICATION, session.fault)
                break
            if is_time_up():
                break
        if not payloads and self.ending is None and self._splitter.fault is not None:
            self._end(PROTOCOL, str(self._splitter.fault))
        return answers[0] if len(answers) == 1 else b"".join(answers)

    def take_last_writes(self) -> bool:
        """Carry out what waits and writes or deletes, as nobody is there to read answers.

        Returns
        -------
        bool
            Whether that is done; if not, this is to be called again.
        """
        payloads, session = self._payloads, self._session
        while payloads:
            payload = payloads[0]
            if payload.startswith(_WRITES):
                try:
                    if session.answer(payload) is None:
                        return False
                except RemoteProtocolError:
                    self._drop_all()
                    break
                self._count(payload)
            del payloads[0]
            self._whole_bytes -= len(payload)
        return True

    def _drop_all(self) -> None:
        self._payloads.clear()
        self._whole_bytes = 0

    def _count(self, payload: bytes) -> None:
        if payload.startswith(_SEND_PULSE):
            self.sends += 1
        elif payload.startswith(_GET_PULSE):
            self.gets += 1
        else:
            self.others += 1

    def _end(self, cause: str, reason: str) -> None:
        self.ending = cause, reason
        self._drop_all()


#: Rounds of the loop in which a channel reads before it ends with the server: enough to read what a
#: client could send at a time, over TLS too.
_LAST_LOOKS: Final = READ_BYTES // TLS_BYTES + 1

#: Seconds for a client to finish TLS.
_HANDSHAKE_SECONDS: Final = 10.0


class AsyncioChannels:
    """Moves bytes with asyncio's transports; its methods are called in the loop's thread."""

    def __init__(
        self,
        index: PulseIndex,  # noqa: ARG002 - every answer is the session's
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
        #: What the channels hold of unanswered requests and unread answers.
        self.buffered = 0
        self.clock = clock
        self.on_closed = on_closed
        self._on_freed = on_freed
        self.is_draining = False
        #: What comes from a socket, until it is taken from here at once: one buffer for all, where
        #: asyncio would make and cut one for every reading.
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.bytes_in = self.bytes_out = 0
        self.sends = self.gets = self.others = 0
        self._buckets = [0] * (len(LATENCY_BOUNDS) + 1)
        self._seconds = 0.0
        self._channels: dict[_Channel, ClientSession] = {}
        #: When the loop's round has had enough turns; None before its first.
        self._round_ends: float | None = None
        #: Whether a turn of the round was over before its requests were answered.
        self.is_cut = False
        #: Those whose next request may be long.
        self._long: deque[_Channel] = deque()

    def __len__(self) -> int:
        return len(self._channels)

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: asyncio watches the sockets itself."""

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
        """Serve a connection from now on, over TLS if there is a context for it.

        When a client has finished TLS, its session is told (`ClientSession.secured`).

        Raises
        ------
        OSError
            If the system does not take it; it is closed, and its session ends untold.
        """
        prepare(connection)
        channel = _Channel(self, session)
        self._channels[channel] = session
        channel.task = asyncio.get_running_loop().create_task(
            channel.connect(connection, tls, handshake_timeout)
        )
        channel.task.add_done_callback(lambda task: channel.connected(task, connection))

    def sweep(self, now: float) -> None:
        """End the channels that exceed a time limit; to be called about once a second."""
        for channel in list(self._channels):
            channel.sweep(now)

    def drain(self) -> None:
        """Answer what has come, read no more, and half-close every channel when that is sent."""
        self.is_draining = True
        for channel in list(self._channels):
            channel.move()

    def abort(self) -> None:
        """End all channels at once."""
        for channel in list(self._channels):
            channel.abort(DRAIN, STOPPING)

    def counters(self) -> dict[str, int]:
        """Return the requests by verb (sends, gets, others), bytes_in and bytes_out."""
        return {
            "sends": self.sends,
            "gets": self.gets,
            "others": self.others,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }

    def latency(self) -> tuple[tuple[float, ...], list[int], float]:
        """Return `LATENCY_BOUNDS`, the requests in each bucket, and the sum of their times (s)."""
        return LATENCY_BOUNDS, list(self._buckets), self._seconds

    def count(self, requests: RequestStream, seconds: float) -> None:
        """Add a turn's requests to the counters, and take them from the stream."""
        count = requests.sends + requests.gets + requests.others
        if count:
            self.sends += requests.sends
            self.gets += requests.gets
            self.others += requests.others
            requests.sends = requests.gets = requests.others = 0
            self._buckets[bisect_left(LATENCY_BOUNDS, seconds)] += count
            self._seconds += count * seconds

    def is_round_over(self, now: float) -> bool:
        """Whether the turns of this round of the event loop took `BATCH_SECONDS` until `now`."""
        if self._round_ends is None:
            self._round_ends = now + BATCH_SECONDS
            asyncio.get_running_loop().call_soon(self._begin_round)
        return now > self._round_ends

    def _begin_round(self) -> None:
        self._round_ends = None
        if self.is_cut:
            self.is_cut = False
            let_others_run()

    def await_long_turn(self, channel: "_Channel") -> None:
        """Give a channel its turn for a long request, when all that is short has been served."""
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
            let_others_run()
            asyncio.get_running_loop().call_soon(self._give_long_turns)

    def forget(self, channel: "_Channel") -> None:
        """Take note that a channel's descriptor is closed."""
        session = self._channels.pop(channel, None)
        if session is not None:
            self._on_freed(session)


class _Unread(asyncio.Protocol):
    """Reads nothing, so that all of it is there for whoever takes the transport over."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()


class _Channel(asyncio.BufferedProtocol):
    """One connection.

    A client's end of stream is seen only when all that it sent is answered, as nothing is read
    while requests wait; so closing then, which asyncio does after the last answer, loses nothing.
    Over TLS it may be seen before: what waits then and writes or deletes is carried out all the
    same.
    """

    def __init__(self, channels: AsyncioChannels, session: ClientSession) -> None:
        self.task: asyncio.Task[None] | None = None
        self._channels = channels
        self._session = session
        self._requests = RequestStream(session, channels.max_size)
        self._transport: asyncio.Transport | None = None
        #: What holds the bytes that the system did not take, TLS or not.
        self._below: asyncio.Transport | None = None
        #: Whether answers wait for the client to read.
        self._is_full = False
        #: Whether the session is over; what follows is sending its last answers, and closing.
        self._is_over = False
        #: Whether a turn is due though nothing happens; and whether it is one for a long request.
        self._is_due = False
        self._is_due_long = False
        #: Rounds of the loop in which the channel still reads once the server drains.
        self._looks = _LAST_LOOKS
        #: The monotonic time since when requests wait for another turn, if they do.
        self._waits_since: float | None = None
        # Clock seconds: since when a frame is unfinished and answers are unread, if they are.
        self._frame_since: float | None = None
        self._unsent_since: float | None = None
        self._unsent = 0
        self._held = 0

    async def connect(
        self, connection: socket.socket, tls: ssl.SSLContext | None, handshake_timeout: float
    ) -> None:
        """Make the transport; with TLS, when the client has done its part."""
        loop = asyncio.get_running_loop()
        try:
            if tls is None:
                await loop.connect_accepted_socket(lambda: self, connection)
                return
            # In two steps, as only so the transport below is known: it may hold unread answers too.
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
        """Close the descriptor of a connection that has no transport for us yet."""
        if self._below is None:
            connection.close()
        else:
            self._below.abort()

    def connected(self, task: asyncio.Task[None], connection: socket.socket) -> None:
        """Take note of how `connect` ended: perhaps before it began."""
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
        # So that whatever the system does not take at once stops the making of more. (asyncio's TLS
        # pauses at the limit, other transports above it: at 0 it would pause with nothing to send.)
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
            # Over TLS more is read than was asked for, and the end with it.
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
        """Answer until all is answered, the client has enough to read, or the turn is over."""
        transport, requests = self._transport, self._requests
        if transport is None or self._is_over:
            return
        began = monotonic()
        ends = began + TURN_SECONDS
        # The requests wait then, and the turn is due in the next round. (A round begins with what
        # is short: it would never have its time if long requests took it.)
        must_wait = (
            not may_be_long
            and requests.has_unanswered
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
                if requests.has_long or not requests.has_unanswered:
                    break
                rounds = TURN_ROUNDS if monotonic() > ends else rounds + 1
            self._channels.count(requests, monotonic() - (self._waits_since or began))
            if not requests.has_unanswered or self._is_full:
                # A client that does not read waits for itself.
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
        elif requests.has_unanswered or self._is_full:
            transport.pause_reading()
            if self._is_full and self._channels.is_draining:
                self._looks = 0  # a client that does not read may send for ever
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
        """Count the bytes of answers that the system has not taken."""
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
        """Have the turn that was asked for with `AsyncioChannels.await_long_turn`."""
        self._is_due_long = False
        self.move(may_be_long=True)

    def sweep(self, now: float) -> None:
        """End the channel if it exceeds a time limit."""
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
        """End the channel at once."""
        self._end(cause, reason)
        if self._transport is not None:
            connection = self._transport.get_extra_info("socket")
            # Over TLS there is none any more when it is closed and we are not told yet.
            if cause != ERROR and connection is not None:
                reset_on_close(connection)
            self._transport.abort()
        elif self.task is not None:
            self.task.cancel()

    def _end(self, cause: str, reason: str) -> None:
        """Tell, once, that the session is over; its last answers may still be sent."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._channels.on_closed(self._session, cause, reason)
        except Exception:
            log_error_of_ours(self._session)

    def _half_close(self, transport: asyncio.Transport) -> None:
        """End our side after the last answer, and drop what the client still sends."""
        if not self._channels.is_draining:  # then it is the server that ends this
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
