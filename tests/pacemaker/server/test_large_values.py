"""Large values come back whole, in their order, to whoever takes his time; with both engines."""

import asyncio
import gc
import random
import socket
import sys

import pytest

from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.engines import ENGINES, Rig, on_each

SIZES = (0, 10, 8_191, 8_192, 8_193, 29_696, 300_000)


def send(path, details, message_id=1):
    return encode(Message(MessageType.SEND_PULSE, message_id, pulse=Pulse(path, details)))


def get(path, message_id=1):
    return encode(Message(MessageType.GET_PULSE, message_id, path=path))


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


async def answers(client, count):
    return [await client.answer() for _ in range(count)]


@on_each
async def test_values_of_any_size_come_back_among_each_other(engine):
    values = {f"/v/{size}": random.Random(size).randbytes(size) for size in SIZES}
    async with (rig := Rig(engine)):
        client = rig.connect()
        for path, value in values.items():
            await client.send(send(path, value))
            await client.answer()
        order = random.Random(1).choices(list(values), k=60)
        asked = asyncio.create_task(
            client.send(b"".join(get(path, n) for n, path in enumerate(order)))
        )
        for n, (path, answer) in enumerate(zip(order, await answers(client, 60), strict=True)):
            assert (answer.message_id, answer.pulse) == (n, Pulse(path, values[path]))
        await asked


@on_each
async def test_answer_is_the_value_at_the_time_of_the_request(engine):
    old, new = b"o" * 20_000, b"n" * 20_000
    async with (rig := Rig(engine)):
        client = rig.connect()
        await client.send(send("/v", old, 1) + get("/v", 2) + send("/v", new, 3) + get("/v", 4))
        found = [answer.pulse and answer.pulse.details for answer in await answers(client, 4)]
        assert found == [None, old, None, new]


@on_each
async def test_slow_reader_gets_every_byte(engine):
    async with (rig := Rig(engine)):
        client = rig.connect()
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
        value = random.Random(7).randbytes(29_696)
        await client.send(send("/v", value))
        await client.answer()
        asked = b"".join(get("/v", n) for n in range(50))
        # Overwritten before most of it is read.
        asking = asyncio.create_task(client.send(asked + send("/v", bytes(29_696), 50)))
        splitter, taken = PacemakerFrameSplitter(), []
        rng = random.Random(3)
        while len(taken) < 51:
            taking = asyncio.get_running_loop().sock_recv(client.socket, rng.randrange(1, 7_000))
            taken += splitter.feed(await asyncio.wait_for(taking, 20))
        await asking
        for n in range(50):
            assert decode(taken[n]).pulse.details == value
        assert decode(taken[50]) == Message(MessageType.SEND_PULSE_RESPONSE, 50)


@on_each
async def test_leaving_client_frees_values_of_unread_answers(engine):
    async with (rig := Rig(engine)):
        first = rig.connect()
        await first.send(send("/v", bytes(100_000)))
        await first.answer()
        held = rig.index.get(b"/v")
        gc.collect()
        before = sys.getrefcount(held)
        for _ in range(20):
            client = rig.connect()
            await client.send(get("/v") * 30)
            await client.receive(10)
            client.socket.close()
        await rig.until(lambda: len(rig.channels) == 1)
        gc.collect()
        await first.send(get("/never"))
        await first.answer()
        assert sys.getrefcount(held) == before
