"""A client whose last value was large, and what comes next: as much, or anything else."""

import asyncio
import logging
import socket
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.engines import ENGINES, Rig, on_each
from support.pulse_frames import get, send

SIZE = 20_000
#: A little more or less than is foreseen.
SPARE = SIZE // 32
#: Bytes of a frame of `send("/v", ..., bytes(SIZE))` before its value, and after it.
BEFORE, AFTER = 33, 10


def value(n, size=SIZE):
    return bytes([n % 256]) * size


async def foresee(rig, client):
    """Let a client send values of one size until the next one is foreseen."""
    for n in range(3):
        await client.send(send("/v", n, value(n)))
        await client.answer()
    assert rig.index.get(b"/v") == value(2)


async def send_piece(rig, client, piece):
    """Send, and wait until the server has read it, or has ended the connection."""
    read = rig.channels.counters()["bytes_in"] + len(piece)
    await client.send(piece)
    await rig.until(lambda: rig.channels.counters()["bytes_in"] >= read or rig.ended)


def entries(rig):
    return {entry.path: entry.details for entry in rig.index.since(0, 100)}


def test_the_parts_of_a_frame_are_so_long():
    frame = send("/v", 1, value(7))
    assert frame.index(value(7)) == BEFORE
    assert len(frame) == BEFORE + SIZE + AFTER


@on_each
async def test_foreseen_value_replaces_while_readers_keep_old_one(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        await foresee(rig, client)
        seen = []
        for n in range(3, 40):
            seen.append(rig.index.get(b"/v"))
            await client.send(send("/v", n, value(n)))
            assert (await client.answer()).message_id == n
            assert rig.index.get(b"/v") == value(n)
        assert seen == [value(n) for n in range(2, 39)]
        assert rig.channels.counters()["sends"] == 40
        assert rig.index.bytes_held == len(b"/v") + SIZE


@on_each
async def test_sizes_that_grow_and_shrink(engine):
    sizes = [16_384, 16_384, 16_383, 16_384, 16_400, 250_000, 250_001, 261_900, 262_000, 262_144]
    sizes += [SIZE + step for step in (0, 1, SPARE, -SPARE, 2 * SPARE, 0, -1, SPARE + 5, SPARE)]
    async with Rig(engine) as rig:
        client = rig.connect()
        # So that the largest go at once too.
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        for n, size in enumerate(sizes + sizes[::-1]):
            sending = asyncio.create_task(client.send(send("/v", n, value(n, size))))
            assert (await client.answer()).message_id == n
            await sending
            held = rig.index.get(b"/v")
            assert held == value(n, size)
            assert len(held) == rig.index.bytes_held - len(b"/v") == size


@on_each
async def test_stored_value_has_no_other_references(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        await client.send(send("/v", 0, value(0)))
        await client.answer()
        held = [sys.getrefcount(rig.index.get(b"/v"))]
        for n in range(1, 9):
            await client.send(send("/v", n, value(n, SIZE + n)))
            await client.answer()
            held.append(sys.getrefcount(rig.index.get(b"/v")))
        assert len(set(held)) == 1


@on_each
async def test_foreseen_value_beyond_store_limit_is_refused(engine):
    async with Rig(engine) as rig:
        client, other = rig.connect(), rig.connect()
        await foresee(rig, client)
        await other.send(send("/v", 8, b"short"))
        await other.answer()
        rig.index.max_bytes = SIZE
        asked = []
        client.session.answer = lambda payload: (
            asked.append(payload) or encode(Message(MessageType.NOT_AUTHORIZED, 9))
        )
        frame = send("/v", 9, bytes(range(250)) * (SIZE // 250))
        await client.send(frame)
        assert (await client.answer()).type == MessageType.NOT_AUTHORIZED
        assert entries(rig) == {b"/v": b"short"}
        assert asked == [frame[4:]]


@pytest.mark.parametrize(
    "frame",
    [
        send("/v", 9, value(9, SIZE - 1)),
        send("/v", 9, value(9, SIZE + 1)),
        send("/v", 9, value(9, SIZE + SPARE)),
        send("/v", 9, value(9, SIZE + SPARE + 1)),
        send("/v", 9, value(9, SIZE + SPARE + AFTER)),
        send("/v", 9, value(9, SIZE + SPARE + AFTER + 1)),
        send("/v", 9, value(9, 16_384)),
        send("/v", 9, value(9, 16_383)),
        send("/v", 9, value(9, 3)),
        send("/v", 9, value(9, 300_000)),
        send("/w", 9, value(9)),
        send("/a/longer/path", 9, value(9)),
        send("/a/longer/path", 9, value(9, SIZE - 12)),
        get("/v", 9),
        get("/" + "w" * 30_000, 9),
        encode(Message(MessageType.EXISTS, 9, path="/v")),
        encode(Message(MessageType.SEND_PULSE, None, pulse=Pulse("/v", value(9, SIZE + 7)))),
    ],
    ids=range(17),
)
@on_each
async def test_other_frames_at_a_foreseen_place_are_read(engine, frame):
    request = decode(frame[4:])
    async with Rig(engine) as rig:
        client = rig.connect()
        await foresee(rig, client)
        await client.send(frame)
        answer = await client.answer()
        assert (answer.type, answer.message_id) == (request.type + 1, request.message_id)
        expected = {b"/v": value(2)}
        if request.pulse:
            expected[request.pulse.id.encode()] = request.pulse.details
        assert entries(rig) == expected


@on_each
async def test_input_of_another_client_is_not_stored(engine):
    long = "/a/longer/path"
    size = SIZE - len(long) + len("/v")
    async with Rig(engine) as rig:
        client, other = rig.connect(), rig.connect()
        await foresee(rig, client)
        for n in (9, 10):  # as long as the foreseen frame, which ends elsewhere
            await other.send(send(long, n, value(n, size)))
            await other.answer()
        await client.send(send(long, 11, value(11, size)))
        await client.answer()
        assert entries(rig) == {b"/v": value(2), long.encode(): value(11, size)}


@pytest.mark.parametrize(
    "cut",
    [1, 4, 5, BEFORE - 1, BEFORE, BEFORE + 1, BEFORE + SIZE - 1, BEFORE + SIZE, -AFTER + 1, -1],
)
@on_each
async def test_a_value_that_comes_in_pieces_is_stored_when_it_is_whole(engine, cut):
    async with Rig(engine) as rig:
        client = rig.connect()
        await foresee(rig, client)
        for n in (9, 10):
            frame = send("/v", n, value(n))
            before = rig.index.get(b"/v")
            await send_piece(rig, client, frame[:cut])
            assert rig.index.get(b"/v") == before
            await client.send(frame[cut:])
            assert (await client.answer()).message_id == n
            assert rig.index.get(b"/v") == value(n)
            await foresee(rig, client)


@on_each
async def test_a_client_that_leaves_within_its_value_stores_nothing(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        await foresee(rig, client)
        await client.send(send("/v", 9, value(9))[:-1])
        client.socket.close()
        await rig.until(lambda: len(rig.channels) == 0)
        assert entries(rig) == {b"/v": value(2)}


@on_each
async def test_client_that_lost_its_permission_writes_nothing(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        await foresee(rig, client)
        client.session.writes_unasked = False
        client.session.answer = lambda payload: encode(
            Message(MessageType.NOT_AUTHORIZED, decode(payload).message_id)
        )
        rig.channels.sweep(rig.now)
        await client.send(send("/v", 9, value(9)))
        assert (await client.answer()).type == MessageType.NOT_AUTHORIZED
        assert rig.index.get(b"/v") == value(2)


@on_each
async def test_a_path_that_was_deleted_meanwhile_is_new(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        await foresee(rig, client)
        rig.index.bury(rig.index.entry(b"/v"), 1.0)
        await client.send(send("/v", 9, value(9)))
        assert (await client.answer()).message_id == 9
        assert entries(rig) == {b"/v": value(9)}
        assert rig.index.keys == 1


#: What a client sends: (path, size); a get if there is no size.
requests = st.tuples(
    st.sampled_from(["/v", "/v", "/v", "/w", "/longer"]),
    st.sampled_from([None, 5, SIZE - 1, SIZE, SIZE, SIZE, SIZE + 1, SIZE + SPARE, 30_000]),
)


@settings(max_examples=150, deadline=None)
@given(
    asked=st.lists(requests, min_size=1, max_size=12),
    sizes=st.lists(
        st.sampled_from([1, 30, BEFORE, BEFORE + SIZE, SIZE, BEFORE + SIZE + AFTER, 50_000]),
        max_size=20,
    ),
)
@example(asked=[("/v", SIZE)] * 6, sizes=[BEFORE + SIZE + AFTER] * 6)
@pytest.mark.parametrize("name", ENGINES)
def test_values_in_any_order_and_any_pieces(name, asked, sizes):
    frames, expected, held = [], [], {}
    for n, (path, size) in enumerate(asked):
        if size is None:
            frames.append(get(path, n))
            pulse = Pulse(path, held.get(path.encode()))
            expected.append(Message(MessageType.GET_PULSE_RESPONSE, n, pulse=pulse))
        else:
            held[path.encode()] = value(n, size)
            frames.append(send(path, n, value(n, size)))
            expected.append(Message(MessageType.SEND_PULSE_RESPONSE, n))

    async def run():
        stream = b"".join(frames)
        async with Rig(name) as rig:
            client = rig.connect()
            answering = asyncio.create_task(client.receive(sum(map(len, map(encode, expected)))))
            for size in [*sizes, len(stream)]:
                piece, stream = stream[:size], stream[size:]
                await send_piece(rig, client, piece)
            assert await answering == b"".join(map(encode, expected))
            assert entries(rig) == held

    asyncio.run(run())


async def after_what_was_foreseen(name, data):
    """Return what can be seen from outside of bytes that come instead of the foreseen ones."""
    async with Rig(name) as rig:
        client = rig.connect()
        await foresee(rig, client)
        await client.send(data)
        client.socket.shutdown(socket.SHUT_WR)
        return await client.receive_all(), entries(rig), rig.told()


@pytest.mark.skipif(len(ENGINES) < 2, reason="no compiled engine was built here")
def test_every_byte_around_a_foreseen_value_counts():
    frame = send("/v", 9, value(9))
    seen = set()
    logging.disable(logging.CRITICAL)
    try:
        for place in (*range(BEFORE), *range(BEFORE + SIZE, len(frame))):
            for byte in {0, 1, 127, 255, frame[place] ^ 1}:
                bent = frame[:place] + bytes([byte]) + frame[place + 1 :]
                for data in (bent, bent + get("/v")):
                    one, two = (
                        asyncio.run(after_what_was_foreseen(name, data)) for name in ENGINES
                    )
                    assert one == two, (place, byte, len(data))
                    seen.add(one[0])
    finally:
        logging.disable(logging.NOTSET)
    assert len(seen) > 10
