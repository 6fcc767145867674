"""The Thrift server: one thread for all sockets, a limited number of threads for calls.

Thousands of idle clients cost little. Handlers are synchronous, and may wait for ZooKeeper.

- A client has one call in progress; the next begins when the answer is read. A whole waiting call
  stops the reading.
- A call whose client is gone is not begun, unless one-way.
- Every state has a time limit, and every cause of an end a counter.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from stormkeeper.conf import Conf
from stormkeeper.daemon.logs import LineBudget, counted
from stormkeeper.daemon.sockets import Acceptor, Places, reset_on_close
from stormkeeper.names import host_port
from stormkeeper.rpc.connection import READ_BYTES, CallStream
from stormkeeper.rpc.dispatcher import CallThreads, Dispatcher
from stormkeeper.rpc.message_frames import FaultKind, Kind, ThriftMessage, fault_frame
from stormkeeper.thrift.idl import Service

_log = logging.getLogger(__name__)

_TICK: Final = 1.0
_PATIENCE: Final = 10.0
#: For a client to read the last bytes.
_LINGER: Final = 1.0

BY_CLIENT: Final = "client"
PROTOCOL: Final = "protocol"
FRAME_TIMEOUT: Final = "frame-timeout"
ANSWER_TIMEOUT: Final = "answer-timeout"
UNREAD_TIMEOUT: Final = "unread-timeout"
IDLE: Final = "idle"
CROWDED: Final = "crowded"
MEMORY: Final = "memory"
DRAIN: Final = "drain"

#: Descriptors for files, ZooKeeper and other services.
_OWN_DESCRIPTORS: Final = 128
#: A supervisor has one or two, a command one for a moment.
MAX_CONNECTIONS: Final = 2_000


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a server's clients, in bytes and seconds.

    Storm has keys for the first three. The others protect against a broken or malicious client.
    """

    max_frame: int = 1024 * 1024
    threads: int = 64
    max_waiting: int = 100_000
    max_connections: int = MAX_CONNECTIONS
    #: From one address, against a machine that keeps the others out; a proxy may need many.
    max_connections_per_address: int = 500
    #: Bytes of unanswered calls and unread answers of all connections. Above, a connection with
    #: more than `READ_BYTES` ends.
    max_held: int = 128 * 1024 * 1024
    frame_timeout: float = 30.0
    #: Seconds for a call, with waiting: Storm's clients wait as long.
    answer_timeout: float = 600.0
    #: Seconds for a client to read some of an answer.
    unread_timeout: float = 60.0
    idle_timeout: float = 900.0

    @classmethod
    def of(cls, conf: Conf) -> Self:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_DESCRIPTORS
        return cls(
            max_frame=conf["nimbus.thrift.max_buffer_size"],
            # A submission in one thread waits for Nimbuses that fetch copies through another.
            threads=max(2, conf["nimbus.thrift.threads"]),
            max_waiting=conf["nimbus.queue.size"],
            max_connections=max(1, min(MAX_CONNECTIONS, descriptors)),
        )


@dataclass(slots=True)
class _ConnectionCounts:
    """Counters since the server started."""

    accepted: int = 0
    #: By cause: connections, address; and descriptors, for pauses of accepting.
    turned_away: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class _Channel(asyncio.BufferedProtocol):
    """The socket of a client, in the server's loop."""

    def __init__(
        self, server: ThriftServer, address: str, port: int, connection: CallStream
    ) -> None:
        self.address = address
        #: For the log.
        self.caller = host_port(address, port)
        #: Only sending and closing is left.
        self.is_over = False
        self.method: str | None = None
        self._server = server
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._is_reading = True
        #: The client has shut down sending.
        self._has_ended = False
        self._frames = 0
        self._held = 0
        #: Unread bytes when the client last read something.
        self._unread = 0
        # Monotonic times.
        self._idle_since = self._call_since = time.monotonic()
        self._frame_since: float | None = None
        self._unread_since: float | None = None
        self._lingers_until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # So any unsent byte calls `pause_writing`, which delays the next call.
        transport.set_write_buffer_limits(high=0)
        self.move()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it was lost
        self._over(BY_CLIENT)
        self._transport = None
        self._hold(0)
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._server.counts.bytes_in += nbytes
        if self.is_over:
            return
        answer = self._connection.accept(self._server.buffer[:nbytes].tobytes())
        if answer:
            self._write(answer)
        if self._connection.frames != self._frames:
            self._frames = self._connection.frames
            self._frame_since = None
        self.move()

    def eof_received(self) -> bool:
        """Return whether to keep a half-closed connection for an answer."""
        self._has_ended = True
        return not self.is_over and (self.method is not None or self._connection.has_waiting)

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._unread_since = time.monotonic()
        self._unread = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._unread_since = None
        self._lingers_until = time.monotonic() + _LINGER
        self.move()

    def move(self) -> None:
        connection, server = self._connection, self._server
        if self.is_over or self._transport is None:
            return
        if self.method is None and self._unread_since is None:
            message = connection.next_call()
            if message is not None:
                self._call(message)
            elif connection.fault is not None:
                self._finish(PROTOCOL, str(connection.fault))
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
        """Whether the connection can end without loss."""
        is_quiet = self.method is None and self._unread_since is None
        return is_quiet and self._transport is not None and not self._connection.has_waiting

    def make_room(self, reason: str) -> None:
        self._over(CROWDED, reason)
        if self._transport is not None:
            self._transport.close()
        self._server.forget(self)

    def sweep(self, now: float) -> None:
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
        elif self._frame_since is not None:
            if now - self._frame_since > limits.frame_timeout:
                reason = f"a message was not whole {limits.frame_timeout:g} s after it began"
                self._finish(FRAME_TIMEOUT, reason)
        elif now - self._idle_since > limits.idle_timeout:
            self._finish(IDLE)

    def abort(self, cause: str, reason: str = "") -> None:
        self._over(cause, reason)
        if self._transport is not None:
            reset_on_close(self._transport.get_extra_info("socket"))
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
        assert self._transport is not None
        self._over(cause, reason)
        self._hold(self._transport.get_write_buffer_size())
        if self._has_ended or not (reason or self._connection.has_partial):
            self._transport.close()
            return
        # Closing a socket with unread input resets the connection and loses answers. So further
        # input is dropped for a moment.
        self._lingers_until = time.monotonic() + _LINGER
        self._transport.write_eof()
        self._read_or_not()

    def _read_or_not(self) -> None:
        assert self._transport is not None
        wanted = self.is_over or not self._connection.has_waiting
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
            self._server.warn(f"closing {self.caller}: {reason}", matter=self.address)


class ThriftServer:
    """Serves a Thrift service, from `start` to `stop`.

    Raises `TypeError` if the handler lacks a method.
    """

    def __init__(
        self, service: Service, handler: object, limits: ServerLimits, *, name: str = "rpc"
    ) -> None:
        self.limits = limits
        self.counts = _ConnectionCounts()
        self.dispatcher = Dispatcher(service, handler)
        self._service = service
        self.workers = CallThreads(limits.threads, limits.max_waiting, f"{name}-call")
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.held = 0
        self.is_draining = False

        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._places: Places[_Channel] = Places(
            limits.max_connections, limits.max_connections_per_address
        )
        self._lines = LineBudget()
        self._channels: set[_Channel] = set()
        self._cut = 0
        self._connecting: set[asyncio.Task[object]] = set()
        self._has_begun = threading.Event()
        self._is_empty = threading.Event()

    @property
    def open(self) -> int:
        return len(self._channels)

    def start(self, listener: socket.socket) -> None:
        """Serve the clients of a listening socket, which is closed at the end; once."""
        self.loop = asyncio.new_event_loop()
        self.loop.call_soon(self._begin, listener)
        self._thread.start()
        self._has_begun.wait(_PATIENCE)

    def stop(self, timeout: float) -> int:
        """Answer the received calls, and close all connections.

        After `timeout` seconds the remaining connections are cut; returns how many.
        """
        if not self._thread.is_alive():
            return 0
        self.loop.call_soon_threadsafe(self._drain)
        self._is_empty.wait(timeout)
        self.loop.call_soon_threadsafe(self._abort)
        self._thread.join(_PATIENCE)
        self.workers.stop()
        return self._cut

    def carry_out(self, channel: _Channel, message: ThriftMessage) -> str | None:
        """Start a call and report the answer to `channel`; return the reason of a refusal."""
        if self.workers.submit(partial(self._work, channel, message), len(message.body)):
            return None
        return f"{counted(self.workers.waiting, 'call')} waiting already; try again later"

    def warn(self, line: str, matter: Hashable) -> None:
        """Log a line, unless there were many about that matter."""
        if (left_out := self._lines.spend(matter, time.monotonic())) is not None:
            more = f" (and {left_out} more such lines)" if left_out else ""
            _log.warning("%s%s", line, more)

    def used(self, channel: _Channel) -> None:
        self._places.used(channel, channel.address)

    def forget(self, channel: _Channel) -> None:
        if channel in self._channels:
            self._channels.discard(channel)
            self._places.leave(channel, channel.address)
        if self.is_draining and not self._channels:
            self._is_empty.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self._end())
        finally:
            self.loop.close()

    async def _end(self) -> None:
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await asyncio.sleep(0)

    def _begin(self, listener: socket.socket) -> None:
        self._acceptor = Acceptor(listener, self._welcome, self._on_shortage)
        self._acceptor.start()
        self.loop.call_later(_TICK, self._tick)
        self._has_begun.set()

    def _on_shortage(self) -> None:
        self.counts.turned_away["descriptors"] += 1

    def _welcome(self, connection: socket.socket, address: str, port: int) -> None:
        refusal = self._make_room(address)
        if refusal is not None:
            cause, reason = refusal
            self.counts.turned_away[cause] += 1
            self.warn(f"turned away {address}: {reason}", matter=cause)
            connection.close()
            return
        connection.setblocking(False)
        # Notices a client whose machine is gone.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        calls = CallStream(self._service.methods, self.limits.max_frame)
        channel = _Channel(self, address, port, calls)
        self._channels.add(channel)
        self._places.take(channel, address)
        self.counts.accepted += 1
        task = self.loop.create_task(self.loop.connect_accepted_socket(lambda: channel, connection))
        self._connecting.add(task)
        task.add_done_callback(partial(self._connected, channel, connection))

    def _make_room(self, address: str) -> tuple[str, str] | None:
        """End an idle connection for a newcomer if needed; return the reason of a refusal."""
        refusal = self._places.refuses(address, len(self._channels))
        if refusal is not None:
            idle = self._places.given_up(address, len(self._channels), lambda each: each.is_idle)
            if idle is not None:
                idle.make_room(f"another one needs its place: {refusal[1]}")
                refusal = self._places.refuses(address, len(self._channels))
        return refusal

    def _connected(
        self, channel: _Channel, connection: socket.socket, task: asyncio.Task[object]
    ) -> None:
        self._connecting.discard(task)
        if task.cancelled() or task.exception() is not None:
            connection.close()
            self.forget(channel)

    def _work(self, channel: _Channel, message: ThriftMessage) -> None:
        method = self._service.methods.get(message.name)
        if channel.is_over and (method is None or method.answer is not None):
            self.dispatcher.drop(message)
            return
        frame = self.dispatcher.carry_out(message, channel.caller)
        try:
            self.loop.call_soon_threadsafe(channel.answered, frame)
        except RuntimeError:  # the loop is closed
            _log.debug("%s of %s is answered too late", message.name, channel.caller)

    def _tick(self) -> None:
        self.loop.call_later(_TICK, self._tick)
        now = time.monotonic()
        for channel in list(self._channels):
            channel.sweep(now)

    def _drain(self) -> None:
        if not self.is_draining:
            self.is_draining = True
            self._acceptor.stop()
            for channel in list(self._channels):
                channel.move()
        if not self._channels:
            self._is_empty.set()

    def _abort(self) -> None:
        self._cut = len(self._channels)
        for channel in list(self._channels):
            if channel.method is not None:
                _log.warning("%s of %s was not finished", channel.method, channel.caller)
            channel.abort(DRAIN)
        for task in self._connecting:
            task.cancel()
        self.loop.call_soon(self.loop.stop)
