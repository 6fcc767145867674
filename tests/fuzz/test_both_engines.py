"""Several clients in turns, large values and bent frames, cut anywhere: both engines do the same.

A piece is sent when the one before has been read and answered, so that what happens depends on
nothing but the engine.
"""

import asyncio
import logging
import random
import socket
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.mutations import EXAMPLES, payloads
from stormkeeper.pacemaker.server.client_session import ClientSessions, Policy
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.request_handler import RequestHandler, ServerDescription
from stormkeeper.pacemaker.server.server_status import EventCounts
from stormkeeper.pacemaker.server.store_limits import StoreLimits
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import (
    DEFAULT_MAX_SIZE,
    ChangesRequest,
    Message,
    MessageType,
)
from support.engines import ENGINES, Client, Rig
from support.messages import i32
from support.pulse_frames import send

pytestmark = pytest.mark.skipif(len(ENGINES) < 2, reason="no compiled engine was built here")

CLIENTS: Final = 3
#: Of which every value is a part that begins elsewhere, so that no byte passes for another one.
NOISE: Final = random.Random(1).randbytes(400_000)
#: Where values begin to be sent and to be stored without copies, and what is read at a time.
THRESHOLDS: Final = (8_192, 16_384, 262_144)
OWN, SHARED, DEEPER = "/w/{}", "/w/everybody", "/w/{}/a/path/that/is/longer"
DEADLINE_SECS: Final = 10.0


class Beat(NamedTuple):
    """As many pulses as it says, of about the client's size or its own, each by `more` larger."""

    path: str
    size: int | None
    more: int
    times: int
    #: Changes the last one's frame there, if it is not None.
    bent_at: int | None
    byte: int


class Request(NamedTuple):
    kind: int
    path: str
    after: int


class Nearly(NamedTuple):
    payload: bytes


class Leave(NamedTuple):
    """The client goes, perhaps within a frame, and another one comes in its place."""


class Step(NamedTuple):
    client: int
    what: Beat | Request | Nearly | Leave
    #: Where what the client has to send is cut, from its begin or its end.
    cuts: list[int]
    #: Whether the last piece waits for the client's next step.
    is_kept: bool


def weighted(*choices: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Choose as often as it says; `one_of` takes a strategy that is there twice for one."""
    return st.sampled_from(choices).flatmap(lambda chosen: chosen)


paths = st.sampled_from([OWN, OWN, OWN, SHARED, DEEPER])
near_thresholds = st.builds(int.__add__, st.sampled_from(THRESHOLDS), st.integers(-120, 20))
large = weighted(near_thresholds, st.integers(16_384, 200_000))
sizes = weighted(large, large, st.integers(0, 60))
beats = st.builds(
    Beat,
    path=paths,
    size=weighted(*[st.none()] * 3, sizes),
    more=st.sampled_from([0, 0, 0, 1, -1, 3, 40, -40, 500, -2_000]),
    times=st.sampled_from([1, 2, 4, 7]),
    bent_at=weighted(*[st.none()] * 11, st.integers(-12, 60)),
    byte=st.sampled_from([0, 1, 8, 11, 12, 127, 128, 255]),
)
requests = st.builds(
    Request,
    st.sampled_from(
        [
            *[MessageType.GET_PULSE] * 3,
            MessageType.EXISTS,
            MessageType.DELETE_PULSE_ID,
            MessageType.DELETE_PATH,
            MessageType.GET_ALL_PULSE_FOR_PATH,
            MessageType.CHANGES,
        ]
    ),
    st.one_of(paths, st.just("/w")),
    st.integers(0, 20),
)
nearly = st.builds(Nearly, payloads())
cuts = weighted(st.integers(-12, -1), st.integers(1, 60), st.integers(0, 300_000))
steps = st.builds(
    Step,
    st.integers(0, CLIENTS - 1),
    weighted(*[beats] * 10, *[requests] * 4, nearly, st.just(Leave())),
    weighted(st.just([]), st.lists(cuts, min_size=1, max_size=3)),
    st.sampled_from([False, False, False, True]),
)


def frames_of(step: Step, size: int, number: int) -> Iterator[bytes]:
    """Make the frames of a step; `number` is unlike that of any other one."""
    what = step.what
    if isinstance(what, Nearly):
        yield i32(len(what.payload)) + what.payload
    elif isinstance(what, Request):
        path = what.path.format(step.client)
        if what.kind == MessageType.CHANGES:
            page = ChangesRequest(path, what.after, 0, None)
            yield encode(Message(what.kind, number, changes_request=page))
        else:
            yield encode(Message(what.kind, number, path=path))
    elif isinstance(what, Beat):
        size = size if what.size is None else what.size
        for n in range(number, number + what.times):
            size = max(0, size + what.more)
            frame = send(what.path.format(step.client), n, NOISE[n : n + size])
            if n == number + what.times - 1 and what.bent_at is not None:
                place = what.bent_at % len(frame)
                frame = frame[:place] + bytes([what.byte]) + frame[place + 1 :]
            yield frame


def short(data: bytes | None) -> str | None:
    """Return what tells data from any other, and can be shown however much it is."""
    return None if data is None else f"{len(data)} bytes: {sha256(data).hexdigest()}"


class Talk:
    """Clients that take steps with one engine."""

    def __init__(self, name: str, client_sizes: list[int], store_bytes: int, max_size: int) -> None:
        self._rig = Rig(name, lambda: sessions.open("client", 1), max_size=max_size)
        limits = StoreLimits(store_bytes=store_bytes)
        store = PulseStore(self._rig.index, "instance", lambda: self._rig.now, limits)
        status = ServerDescription("instance", 1, 1, "0", 0, 0, 0, 0)
        self._events = EventCounts()
        handler = RequestHandler(store, lambda: status, max_size=max_size)
        sessions = ClientSessions(handler, Policy(), self._events, lambda: self._rig.now)
        self._max_size = max_size
        self._sizes = client_sizes
        self._clients: list[Client] = []
        self._reading: list[asyncio.Task[bytes]] = []
        #: Of each client, what it has to send, and the part of a frame that it has sent last.
        self._pending = [b""] * CLIENTS
        self._begun = [b""] * CLIENTS
        self._sessions: list[Any] = []
        self._answers: list[tuple[int, str | None]] = []
        #: What was seen after each piece.
        self._seen: list[tuple[int, ...]] = []

    async def take(self, steps: list[Step]) -> tuple[Any, ...]:
        """Take all steps; return all that can be seen from outside."""
        index = self._rig.index
        async with self._rig:
            for client in range(CLIENTS):
                self._connect(client)
            for number, step in enumerate(steps):
                await self._step(step, 10 * number)
            for client in range(CLIENTS):
                await self._leave(client)
            counts = self._rig.channels.counters()
            del counts["bytes_in"]  # what comes after a bad frame may be read or not
            entries = [
                (
                    entry.path,
                    short(entry.details),
                    entry.revision,
                    entry.changed,
                )
                for entry in index.since(0, 1_000)
            ]
            ends = [(self._sessions.index(session), *told) for session, *told in self._rig.ended]
        return self._seen, self._answers, ends, counts, entries, self._events.refusals

    def _connect(self, client: int) -> None:
        connected = self._rig.connect()
        # So that the system takes a piece at once, and the server finds it whole.
        connected.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._clients[client : client + 1] = [connected]
        self._reading[client : client + 1] = [asyncio.create_task(connected.receive_all())]
        self._sessions.append(connected.session)
        self._pending[client] = self._begun[client] = b""

    async def _leave(self, client: int) -> None:
        leaving = self._clients[client]
        leaving.socket.shutdown(socket.SHUT_WR)
        self._answers.append((client, short(await self._reading[client])))
        await self._until(lambda: self._is_over(client))
        leaving.socket.close()

    async def _step(self, step: Step, number: int) -> None:
        client = step.client
        self._rig.now += 0.25
        frames = list(frames_of(step, self._sizes[client], number))
        for frame in frames[:-1]:
            await self._send(client, self._pending[client] + frame)
            self._pending[client] = b""
        data = self._pending[client] + b"".join(frames[-1:])
        places = sorted({cut % len(data) for cut in step.cuts if data})
        pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
        self._pending[client] = pieces.pop() if step.is_kept else b""
        for piece in pieces:
            await self._send(client, piece)
        if isinstance(step.what, Leave) or self._is_over(client):
            await self._leave(client)
            self._connect(client)

    async def _send(self, client: int, piece: bytes) -> None:
        """Send, unless the session is over; wait until it has been read and answered."""
        if self._is_over(client):
            return
        index, counters = self._rig.index, self._rig.channels.counters
        read = counters()["bytes_in"] + len(piece)
        answered = self._requests() + self._wholes(client, piece)
        await self._clients[client].send(piece)
        await self._until(
            lambda: (
                self._is_over(client)
                or (counters()["bytes_in"] >= read and self._requests() >= answered)
            )
        )
        self._seen.append((self._requests(), index.revision, index.keys, index.bytes_held))

    def _wholes(self, client: int, piece: bytes) -> int:
        """Count the frames that a piece makes whole, up to one that ends the connection."""
        data, at, count = self._begun[client] + piece, 0, 0
        while len(data) - at >= 4:
            length = int.from_bytes(data[at : at + 4], "big", signed=True)
            if not 0 <= length <= self._max_size:
                count += 1  # never answered: the session ends
                break
            if len(data) - at - 4 < length:
                break
            at += 4 + length
            count += 1
        self._begun[client] = data[at:]
        return count

    def _requests(self) -> int:
        counts = self._rig.channels.counters()
        return int(counts["sends"] + counts["gets"] + counts["others"])

    def _is_over(self, client: int) -> bool:
        session = self._clients[client].session
        return any(told[0] is session for told in self._rig.ended)

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(DEADLINE_SECS):
            while not condition():
                await asyncio.sleep(0)


@settings(
    max_examples=max(1, EXAMPLES // 10),  # each is some dozens of frames, twice
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    taken=st.lists(steps, min_size=8, max_size=30),
    client_sizes=st.lists(sizes, min_size=CLIENTS, max_size=CLIENTS),
    room=st.sampled_from([None, None, 0, 30, 1_000, 100_000]),
    owners=st.integers(1, CLIENTS),
    max_size=st.sampled_from([DEFAULT_MAX_SIZE, DEFAULT_MAX_SIZE, 150_000]),
)
def test_both_engines_do_the_same(
    taken: list[Step], client_sizes: list[int], room: int | None, owners: int, max_size: int
) -> None:
    # For the pulses of so many clients, and what is left they may fight for.
    store_bytes = 0 if room is None else sum(client_sizes[:owners]) + owners * len("/w/0") + room
    logging.disable(logging.CRITICAL)
    try:
        one, other = (
            asyncio.run(Talk(name, client_sizes, store_bytes, max_size).take(taken))
            for name in ENGINES
        )
    finally:
        logging.disable(logging.NOTSET)
    assert one == other
