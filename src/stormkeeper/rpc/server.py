"""The Thrift server: one thread for all sockets, a limited number of threads for calls.

The sockets belong to an asyncio loop, in which thousands of idle or slow clients cost little.
Handlers are synchronous, as everything on ZooKeeper is here, and may wait for seconds in threads of
their own.

A client's calls are carried out one at a time. A call whose client is gone before it began is
dropped, unless it is one-way.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final

from stormkeeper.daemon.logs import LineBudget, counted
from stormkeeper.daemon.sockets import Acceptor, Places
from stormkeeper.rpc.connection import (
    DRAIN,
    READ_BYTES,
    CallStream,
    Channel,
    ConnectionCounts,
    Handshake,
    ServerLimits,
)
from stormkeeper.rpc.dispatcher import Caller, Dispatcher
from stormkeeper.rpc.message_frames import ThriftMessage
from stormkeeper.thrift.idl import Service

_log = logging.getLogger(__name__)

#: Seconds between checks of the time limits.
_TICK: Final = 1.0
#: Seconds for the loop's thread to start and to stop.
_PATIENCE: Final = 10.0
#: Most log lines about one matter, such as an address, in so many seconds.
_LINES: Final = 10
_LINES_SECONDS: Final = 10.0


class ThriftServer:
    """Serves a Thrift service, from `start` to `stop`.

    `authenticate` returns the handshake of a client, if there is one. A handler's method finds its
    caller by `dispatcher.caller`. Raises `TypeError` if the handler lacks a method.
    """

    def __init__(
        self,
        service: Service,
        handler: object,
        limits: ServerLimits,
        *,
        name: str = "rpc",
        authenticate: Callable[[Caller], Handshake] | None = None,
    ) -> None:
        self.limits = limits
        self.counts = ConnectionCounts()
        self.dispatcher = Dispatcher(service, handler)
        self._service = service
        self._authenticate = authenticate
        self.workers = CallThreads(limits.threads, limits.max_waiting, f"{name}-call")
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.held = 0
        self.is_draining = False

        self.loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._places: Places[Channel] = Places(
            limits.max_connections, limits.max_connections_per_address
        )
        self._lines = LineBudget(_LINES, _LINES_SECONDS)
        self._channels: set[Channel] = set()
        #: Connections cut at the end.
        self._cut = 0
        self._connecting: set[asyncio.Task[object]] = set()
        self._has_begun = threading.Event()
        self._is_empty = threading.Event()

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._channels)

    def start(self, listener: socket.socket) -> None:
        """Serve the clients of a listening socket, which is closed at the end; once."""
        self.loop = asyncio.new_event_loop()
        self.loop.call_soon(self._begin, listener)
        self._thread.start()
        self._has_begun.wait(_PATIENCE)

    def stop(self, timeout: float) -> int:
        """Accept no more, answer the received calls, and close all connections.

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

    def carry_out(self, channel: Channel, message: ThriftMessage) -> str | None:
        """Start a call and report its answer to `channel`; return the reason of a refusal."""
        if self.workers.submit(partial(self._work, channel, message), len(message.body)):
            return None
        return f"{counted(self.workers.waiting, 'call')} waiting already; try again later"

    def warn(self, line: str, matter: Hashable) -> None:
        """Log a line, unless there were many about that matter."""
        if (left_out := self._lines.spend(matter, time.monotonic())) is not None:
            more = f" (and {left_out} more such lines)" if left_out else ""
            _log.warning("%s%s", line, more)

    def used(self, channel: Channel) -> None:
        """Record an answered call."""
        self._places.used(channel, channel.caller.address)

    def forget(self, channel: Channel) -> None:
        """Record a closed connection."""
        if channel in self._channels:
            self._channels.discard(channel)
            self._places.leave(channel, channel.caller.address)
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
        """Let aborted connections close."""
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
        caller = Caller(address, port)
        authentication = None if self._authenticate is None else self._authenticate(caller)
        methods, max_frame = self._service.methods, self.limits.max_frame
        channel = Channel(self, caller, CallStream(methods, max_frame, authentication))
        self._channels.add(channel)
        self._places.take(channel, address)
        self.counts.accepted += 1
        task = self.loop.create_task(self.loop.connect_accepted_socket(lambda: channel, connection))
        self._connecting.add(task)
        task.add_done_callback(partial(self._connected, channel, connection))

    def _make_room(self, address: str) -> tuple[str, str] | None:
        """End an idle connection for a new one if needed; return why it is refused anyway."""
        refusal = self._places.refuses(address, len(self._channels))
        if refusal is not None:
            idle = self._places.given_up(address, len(self._channels), lambda each: each.is_idle)
            if idle is not None:
                idle.make_room(f"another one needs its place: {refusal[1]}")
                refusal = self._places.refuses(address, len(self._channels))
        return refusal

    def _connected(
        self, channel: Channel, connection: socket.socket, task: asyncio.Task[object]
    ) -> None:
        self._connecting.discard(task)
        if task.cancelled() or task.exception() is not None:
            connection.close()
            self.forget(channel)

    def _work(self, channel: Channel, message: ThriftMessage) -> None:
        """Carry out a call, in a thread of the workers."""
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


#: Most bytes of messages in progress, beyond the first: a decoded message may take forty times its
#: bytes.
MAX_COST: Final = 8 * 1024 * 1024

#: A message of fewer bytes does not wait for that: handlers may occupy all of the above for
#: minutes, such as submissions that wait for copies.
CHEAP: Final = 16 * 1024

#: Most bytes of waiting messages, beyond the first, as their clients may be gone.
MAX_WAITING_COST: Final = 64 * 1024 * 1024


class CallThreads:
    """Runs calls in a limited number of threads, which are started when needed.

    Calls start in order, except that an expensive call lets others pass until there is room. The
    threads are daemons: a handler that never returns does not keep the process alive.
    """

    def __init__(self, threads: int, most_waiting: int, name: str) -> None:
        self._most = threads
        self._most_waiting = most_waiting
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._threads: list[threading.Thread] = []
        self._is_stopped = False
        #: Busy threads, and the message bytes of calls in progress and of waiting ones.
        self.busy = 0
        self._cost = 0
        self._waiting_cost = 0

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return len(self._waiting)

    def submit(self, work: Callable[[], None], cost: int) -> bool:
        """Queue a call, which must not raise; return False if it is refused.

        `cost` is the size of its message in bytes.
        """
        with self._changed:
            if self._is_stopped or len(self._waiting) >= self._most_waiting:
                return False
            if self._waiting and self._waiting_cost + cost > MAX_WAITING_COST:
                return False
            if self.busy + len(self._waiting) >= len(self._threads) and not self._start_one():
                return False
            self._waiting.append((cost, work))
            self._waiting_cost += cost
            self._changed.notify()
            return True

    def stop(self) -> None:
        """Start no further call; calls in progress continue."""
        with self._changed:
            self._is_stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def _start_one(self) -> bool:
        """Start another thread if allowed; return whether there is any."""
        if len(self._threads) < self._most:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system's limit
                _log.error("cannot start a thread for calls: %s", error)
            else:
                self._threads.append(thread)
        return bool(self._threads)

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            cost, work = taken
            try:
                work()
            except BaseException:  # the thread stays for the next call
                _log.exception("a call failed: this is a defect of Stormkeeper")
            # Free its memory before the next call.
            del work, taken
            with self._changed:
                self.busy -= 1
                self._cost -= cost
                if self._waiting:
                    # An expensive call may fit now.
                    self._changed.notify_all()

    def _take(self) -> tuple[int, Callable[[], None]] | None:
        with self._changed:
            while not self._is_stopped:
                for place, (cost, work) in enumerate(self._waiting):
                    if cost <= CHEAP or not self._cost or self._cost + cost <= MAX_COST:
                        del self._waiting[place]
                        self._waiting_cost -= cost
                        self.busy += 1
                        self._cost += cost
                        return cost, work
                self._changed.wait()
            return None
