"""The same bytes through both engines: the same answers, the same store, the same ends."""

import asyncio
import logging
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stormkeeper.pacemaker.server.client_session import ClientSessions, Policy
from stormkeeper.pacemaker.server.pulse_store import PulseStore
from stormkeeper.pacemaker.server.request_handler import RequestHandler, ServerDescription
from stormkeeper.pacemaker.server.server_status import EventCounts
from stormkeeper.pacemaker.server.store_limits import StoreLimits
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import (
    RESERVED_PATH,
    ChangesRequest,
    Message,
    MessageType,
    Pulse,
)
from support.engines import ENGINES, Rig
from support.messages import golden_frames

pytestmark = pytest.mark.skipif(len(ENGINES) < 2, reason="no compiled engine was built here")

#: Of the requests, in bytes: small, so that answers can be too large.
MAX_SIZE = 2_000

paths = st.sampled_from(
    ["/a", "/a", "/a/b", "/a/c", "", "/", "/\u00f6/\u6e2c", RESERVED_PATH, "/x\x01", "LONG"]
).map(lambda path: path.replace("LONG", "/y" * 600))
values = st.one_of(st.binary(max_size=30), st.integers(1_000, 1_900).map(bytes))
message_ids = st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))
revisions = st.integers(-1, 30)

sends = st.builds(
    lambda n, path, details: Message(MessageType.SEND_PULSE, n, pulse=Pulse(path, details)),
    message_ids,
    paths,
    values,
)
by_path = st.builds(
    lambda kind, n, path: Message(kind, n, path=path),
    st.sampled_from([0, 2, 6, 8, 10, 10, 10, 10, 12, 14, 14]),
    message_ids,
    paths,
)
bulk = st.one_of(
    st.builds(
        lambda n, path, after, limit: Message(
            MessageType.CHANGES, n, changes_request=ChangesRequest(path, after, limit, None)
        ),
        message_ids,
        paths,
        revisions,
        st.integers(-1, 5),
    ),
)


def weighted(*strategies):
    """Draw from one of them; `one_of` would take the same one, named twice, for one."""
    return st.sampled_from(strategies).flatmap(lambda strategy: strategy)


good = weighted(sends, sends, by_path, by_path, bulk).map(encode)


@st.composite
def bent(draw):
    """Make a frame of a good one's bytes, with one of them changed, or some more or less."""
    payload = bytearray(draw(good)[4:])
    place = draw(st.integers(0, len(payload) - 1))
    how = draw(st.integers(0, 3))
    if how == 0:
        payload[place] = draw(st.sampled_from([0, 1, 8, 11, 12, 127, 128, 255]))
    elif how == 1:
        del payload[place:]
    elif how == 2:
        payload += draw(st.binary(min_size=1, max_size=9))
    else:
        number = draw(st.sampled_from([-1, -(2**31), 2**31 - 1, 0, 1]))
        payload[place : place + 4] = number.to_bytes(4, "big", signed=True)
    return len(payload).to_bytes(4, "big") + bytes(payload)


rarely_bad = st.one_of(
    bent(),
    st.sampled_from([golden.frame for golden in golden_frames()]),
    st.sampled_from([b"\0\0\0\0", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"GET / "]),
    st.binary(max_size=20),
)
streams = st.lists(weighted(good, good, good, good, good, rarely_bad), max_size=25).map(b"".join)


async def converse(name, stream, sizes, limits):
    """Send a stream in pieces; return all that can be seen from outside."""
    clock = [5.0]
    rig = Rig(name, lambda: sessions.open("client", 1), max_size=MAX_SIZE)
    store = PulseStore(rig.index, "instance", lambda: clock[0], limits)
    describe = ServerDescription("instance", 1, 1, "0", 0, 0, 0, 0)
    events = EventCounts()
    handler = RequestHandler(store, lambda: describe, max_size=MAX_SIZE)
    sessions = ClientSessions(handler, Policy(), events, lambda: clock[0])
    rig.now = clock[0]
    async with rig:
        client = rig.connect()
        for size in [*sizes, len(stream)]:
            piece, stream = stream[:size], stream[size:]
            await client.send(piece)
            await asyncio.sleep(0)
        client.socket.shutdown(socket.SHUT_WR)
        answers = await client.receive_all()
        await rig.until(lambda: len(rig.channels) == 0)
        counts = rig.channels.counters()
        del counts["bytes_in"]  # what comes after a bad frame may be read or not
        entries = [
            (entry.path, entry.details, entry.revision, entry.changed)
            for entry in rig.index.since(0, 1_000)
        ]
        numbers = (rig.index.keys, rig.index.tombstones, rig.index.bytes_held)
        return answers, rig.told(), counts, entries, numbers, events.refusals


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    stream=streams,
    sizes=st.lists(st.integers(1, 200), max_size=60),
    store_bytes=st.sampled_from([0, 0, 3_000]),
)
def test_both_engines_say_the_same(stream, sizes, store_bytes):
    logging.disable(logging.CRITICAL)
    try:
        limits = StoreLimits(store_bytes=store_bytes)
        one, other = (asyncio.run(converse(name, stream, sizes, limits)) for name in ENGINES)
    finally:
        logging.disable(logging.NOTSET)
    assert one == other


def test_storms_own_requests_at_every_split():
    stream = b"".join(g.frame for g in golden_frames() if g.name.startswith("request."))
    seen = {
        repr(asyncio.run(converse(name, stream, [cut], StoreLimits())))
        for cut in range(1, len(stream), 3)
        for name in ENGINES
    }
    assert len(seen) == 1


@pytest.mark.parametrize("kind", [MessageType.SEND_PULSE, MessageType.GET_PULSE])
def test_every_byte_of_the_exact_shapes_counts(kind):
    store = encode(Message(MessageType.SEND_PULSE, 1, pulse=Pulse("/a", b"stored")))
    fetch = encode(Message(MessageType.GET_PULSE, 3, path="/a"))
    if kind == MessageType.SEND_PULSE:
        payload = encode(Message(kind, 2, pulse=Pulse("/a", b"new")))[4:]
    else:
        payload = fetch[4:]
    answers = set()
    for place in range(len(payload)):
        for value in {0, 1, 127, 128, 255, payload[place] ^ 1}:
            other = payload[:place] + bytes([value]) + payload[place + 1 :]
            stream = store + len(other).to_bytes(4, "big") + other + fetch
            logging.disable(logging.CRITICAL)
            try:
                one, two = (
                    asyncio.run(converse(name, stream, [], StoreLimits())) for name in ENGINES
                )
            finally:
                logging.disable(logging.NOTSET)
            assert one == two, (place, value)
            answers.add(one[0])
    assert len(answers) > 10
