"""Connections of simulated workers to Pacemakers, with failover as in Storm.

The workers of a node share a connection, because a process cannot have 72,000, and so share its
choice of a server, by the rules of real workers (`stormkeeper.pacemaker.client.pool_writes`). They
pipeline heartbeats: answers come in the order of the requests. Without TLS and authentication.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final

from stormkeeper.conf import Address
from stormkeeper.errors import ProtocolError, RemoteProtocolError
from stormkeeper.pacemaker.client.pacemaker_client import TRY_TIMEOUT, make_backoff
from stormkeeper.pacemaker.client.pool import WRITE_DEADLINE
from stormkeeper.pacemaker.client.pool_writes import WriterPlacement
from stormkeeper.pacemaker.wire import MessageType, PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.message_codec import encode_acknowledgement, encode_pulse_around
from stormkeeper.simulation.model import SimulatedBeat

#: Message ids go from 0 to 99, as in Storm's client.
_IDS: Final = 100
_TAKEN: Final = [
    encode_acknowledgement(MessageType.SEND_PULSE_RESPONSE, n)[4:] for n in range(_IDS)
]


class Link:
    """A connection to a chosen server."""

    def __init__(
        self,
        servers: list[Address],
        random: Random,
        *,
        clock: Callable[[], float],
        taken: Callable[[SimulatedBeat, str], None],
        failed: Callable[[SimulatedBeat, str], None],
    ) -> None:
        self.clock = clock
        self.failed = failed
        self._taken = taken
        self._placement = WriterPlacement(servers, random)
        self._backoff = make_backoff(random)
        self._wire: _Wire | None = None
        self._left: set[_Wire] = set()
        self._connecting: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._waiting: deque[SimulatedBeat] = deque()
        self._retry_at = 0.0
        self._failures = 0
        self._reason = "no connection was made"

    def send(self, beat: SimulatedBeat) -> None:
        """Queue a heartbeat for the next `flush`, or until there is a connection."""
        if self._wire is None:
            self._waiting.append(beat)
        else:
            self._wire.send(beat)

    def flush(self) -> None:
        """Write queued heartbeats to the connection."""
        if self._wire is not None:
            self._wire.flush()

    def look(self, now: float) -> None:
        """Connect, time out, or return to the home server; to be called several times a second.

        All answers that arrived by `now` must have been read.
        """
        for wire in (*self._left, *((self._wire,) if self._wire else ())):
            wire.look(now)
        while self._waiting and now - self._waiting[0].sent_at >= WRITE_DEADLINE:
            self.failed(self._waiting.popleft(), self._reason)
        if self._wire is None and self._waiting and self._connecting is None:
            if now >= self._retry_at:
                order = self._placement.order()
                server = order[self._failures % len(order)]
                self._connecting = asyncio.ensure_future(self._connect(server))
            return
        home = self._placement.pop_due_check(now)
        if home is not None and self._looking is None:
            self._looking = asyncio.ensure_future(self._go_home(home))

    def close(self) -> None:
        """End the connections; unanswered heartbeats have failed."""
        for task in (self._connecting, self._looking):
            if task is not None:
                task.cancel()
        wires = [*self._left, *([self._wire] if self._wire else [])]
        beats = [beat for wire in wires for beat in wire.abandon()]
        for beat in (*beats, *self._waiting):
            self.failed(beat, "the simulation ended before it was answered")
        self._waiting.clear()
        self._left.clear()
        self._wire = None

    async def _connect(self, server: Address) -> None:
        try:
            self._wire = await self._dial(server)
        except OSError as error:
            self._note(f"{server}: {error.strerror or str(error) or 'no connection in time'}")
        else:
            waiting, self._waiting = self._waiting, deque()
            for beat in waiting:
                self._wire.send(beat)
            self._wire.flush()
        finally:
            self._connecting = None

    async def _go_home(self, home: Address) -> None:
        try:
            wire = await self._dial(home)
        except OSError:
            return
        finally:
            self._looking = None
        self._placement.return_home(self.clock())
        if self._wire is not None:
            self._left.add(self._wire)
            self._wire.leave()
        self._wire = wire

    async def _dial(self, server: Address) -> _Wire:
        loop = asyncio.get_running_loop()
        connecting = loop.create_connection(
            lambda: _Wire(self, str(server), server), server.host, server.port
        )
        _, wire = await asyncio.wait_for(connecting, TRY_TIMEOUT)
        return wire

    def _note(self, reason: str) -> None:
        self._reason = reason
        self._failures += 1
        self._retry_at = self.clock() + self._backoff.record()

    def took(self, beat: SimulatedBeat, wire: _Wire) -> None:
        """Record an acknowledgement."""
        if self._failures and wire is self._wire:
            self._failures = 0
            self._backoff.reset()
            self._placement.record_taken(wire.address, self._placement.current, self.clock())
        self._taken(beat, wire.server)

    def lost(self, wire: _Wire, beats: list[SimulatedBeat], reason: str) -> None:
        """Record the end of a connection, and send unanswered heartbeats to another server."""
        self._left.discard(wire)
        if wire is self._wire:
            self._wire = None
            self._note(f"{wire.server}: {reason}")
        for beat in beats:
            self.send(beat)
        self.flush()


class _Wire(asyncio.Protocol):
    def __init__(self, link: Link, server: str, address: Address) -> None:
        self.server = server
        self.address = address
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._splitter = PacemakerFrameSplitter()
        self._unanswered: deque[tuple[int, SimulatedBeat]] = deque()
        self._unsent: list[bytes] = []
        self._next_id = 0
        self._alive_at = 0.0
        self._is_left = False
        self._reason = "the server closed the connection"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, beat: SimulatedBeat) -> None:
        id_, self._next_id = self._next_id, (self._next_id + 1) % _IDS
        start, end = beat.start, beat.end
        before, after = encode_pulse_around(id_, beat.path.encode(), len(start) + len(end))
        self._unsent += (before, start, end, after)
        if not self._unanswered:
            self._alive_at = self._link.clock()
        self._unanswered.append((id_, beat))

    def flush(self) -> None:
        if self._unsent and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    def leave(self) -> None:
        self._is_left = True
        if not self._unanswered and self._transport is not None:
            self._transport.close()

    def look(self, now: float) -> None:
        if self._unanswered and now - self._alive_at >= TRY_TIMEOUT:
            self._give_up(f"no answer within {TRY_TIMEOUT:g} s")

    def abandon(self) -> list[SimulatedBeat]:
        beats = [beat for _, beat in self._unanswered]
        self._unanswered.clear()
        if self._transport is not None:
            self._transport.abort()
        return beats

    def data_received(self, data: bytes) -> None:
        self._alive_at = self._link.clock()
        try:
            for payload in self._splitter.feed(data):
                self._answered(payload)
        except ProtocolError as error:
            self._give_up(str(error))
        if self._is_left and not self._unanswered and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        beats = [beat for _, beat in self._unanswered]
        self._unanswered.clear()
        self._link.lost(self, beats, str(exc) if exc else self._reason)

    def _answered(self, payload: bytes) -> None:
        if not self._unanswered:
            raise RemoteProtocolError("an answer came to no request")
        id_, beat = self._unanswered.popleft()
        if payload == _TAKEN[id_]:
            self._link.took(beat, self)
            return
        answer = decode(payload)
        if answer.type != MessageType.NOT_AUTHORIZED:
            self._unanswered.appendleft((id_, beat))
            raise RemoteProtocolError(f"a message of type {answer.type} came as the answer")
        self._link.failed(beat, f"{self.server} refused it; its log has the reason")

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()
