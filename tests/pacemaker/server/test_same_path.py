"""A worker that asks for the same path again, as what is there goes and comes in between."""

import pytest

from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.engines import Rig, on_each

PATH = b"/workerbeats/a/1"


def send(details):
    return encode(Message(MessageType.SEND_PULSE, 1, pulse=Pulse(PATH.decode(), details)))


GET = encode(Message(MessageType.GET_PULSE, 2, path=PATH.decode()))


async def read(client):
    await client.send(GET)
    return (await client.answer()).pulse.details


async def write(client, details):
    await client.send(send(details))
    assert (await client.answer()).type == MessageType.SEND_PULSE_RESPONSE


@pytest.mark.parametrize("is_forgotten", [False, True])
@on_each
async def test_a_pulse_that_was_deleted_stays_deleted(engine, is_forgotten):
    async with Rig(engine) as rig:
        client, other = rig.connect(), rig.connect()
        await write(client, b"first")
        assert await read(client) == b"first"
        entry = rig.index.entry(PATH)
        rig.index.bury(entry, 1.0)
        if is_forgotten:
            rig.index.forget(entry)
        assert await read(client) is None
        await write(other, b"of another")
        assert await read(client) == b"of another"
        await write(client, b"second")
        assert await read(other) == b"second"
        assert rig.index.get(PATH) == b"second"
        assert rig.index.keys == 1
        assert rig.index.bytes_held == len(PATH) + len(b"second")


@on_each
async def test_every_path_has_its_own(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        for n in (1, 2, 1, 12, 2, 1):
            path = f"/workerbeats/a/{n}"
            frame = encode(Message(MessageType.SEND_PULSE, n, pulse=Pulse(path, bytes([n]))))
            await client.send(frame)
            assert (await client.answer()).message_id == n
        for n in (1, 2, 12):
            assert rig.index.get(b"/workerbeats/a/%d" % n) == bytes([n])
