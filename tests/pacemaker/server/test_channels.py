"""The rules of channels, with both engines, over real sockets: what comes is answered."""

import asyncio
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.channels import LATENCY_BOUNDS
from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType
from support.engines import ENGINES, OpenSession, Rig, on_each
from support.pulse_frames import ANSWERS, STREAM, get, ids, send

SERVER = Path(__file__).parents[3] / "src/stormkeeper/pacemaker/server"


@on_each
async def test_every_split_of_the_requests_gives_the_same_answers(engine):
    async with Rig(engine) as rig:
        for cut in range(len(STREAM) + 1):
            client = rig.connect()
            await client.send(STREAM[:cut])
            await asyncio.sleep(0)
            await client.send(STREAM[cut:])
            assert await client.receive(len(ANSWERS)) == ANSWERS
            rig.channels.abort()
            rig.index.bury(rig.index.entry(b"/a"), 0.0)


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), max_size=200))
@pytest.mark.parametrize("name", ENGINES)
def test_random_chunks_give_the_same_answers(name, sizes):
    async def run():
        async with Rig(name) as rig:
            client = rig.connect()
            rest = STREAM
            for size in [*sizes, len(STREAM)]:
                await client.send(rest[:size])
                rest = rest[size:]
                await asyncio.sleep(0)
            assert await client.receive(len(ANSWERS)) == ANSWERS

    asyncio.run(run())


@pytest.mark.parametrize("length", [2**31 - 1, 2**31 - 4, 2**31 - 5])
@on_each
async def test_the_longest_frame_there_can_be_is_waited_for(engine, length):
    async with Rig(engine, max_size=2**31 - 1) as rig:
        for cut in (1, 4):
            client = rig.connect()
            header = length.to_bytes(4, "big")
            for piece in (header[:cut], header[cut:] + b"abc", b"def"):
                before = rig.channels.counters()["bytes_in"]
                await client.send(piece)
                await rig.until(
                    lambda: rig.channels.counters()["bytes_in"] == before + len(piece)  # noqa: B023
                )
        assert rig.told() == []
        other = rig.connect()
        await other.send(send("/a", 7, b"x"))
        assert ids(await other.receive(19)) == [7]


def test_no_length_is_a_c_int():
    # Sums of them would overflow where messages may have as many bytes as an int can count.
    source = (SERVER / "_compiled.pyx").read_text()
    assert "Py_ssize_t read_i32(" in source
    assert not re.findall(r"\bint32_t \w+", source)


@on_each
async def test_stored_value_equals_the_sent_value(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        for n, details in enumerate([b"", b"x", bytes(100_000), b"\xff" * 3]):
            rig.now += 1
            await client.send(send("/a", n, details) + send("/b", n, details))
            assert ids(await client.receive(38)) == [n, n]
            entries = rig.index.since(0, 10)
            assert [(entry.path, entry.details) for entry in entries] == [
                (b"/a", details),
                (b"/b", details),
            ]
            assert entries[1].revision == 2 * n + 2
        assert rig.index.pulses_received == 8
        assert rig.index.bytes_held == 2 * (2 + 3)


@on_each
async def test_a_pulse_for_which_there_is_no_room_is_the_sessions(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        rig.index.add(b"/a", bytes(100), 0.0)
        rig.index.max_bytes = 110
        for size, is_stored in [(100, True), (108, True), (109, False), (0, True), (109, False)]:
            client.session.payloads.clear()
            await client.send(send("/a", 1, b"x" * size))
            if is_stored:
                assert (await client.answer()).message_id == 1
                assert rig.index.get(b"/a") == b"x" * size
            else:  # this test's session knows no limit, and fails
                await rig.until(lambda: rig.ended)
                assert rig.index.get(b"/a") != b"x" * size
                assert len(client.session.payloads) == 1
                rig.ended.clear()
                client = rig.connect()


@on_each
async def test_session_may_answer_with_no_or_several_frames(engine):
    class ClientSession(OpenSession):
        def answer(self, payload):
            return super().answer(payload) * (2, 0, 1, 0)[len(self.payloads) - 1]

    rig = Rig(engine, lambda: ClientSession(rig.index))
    async with rig:
        client = rig.connect()
        for n in range(4):
            await client.send(get("/x", n))
        client.socket.shutdown(socket.SHUT_WR)
        assert ids(await client.receive_all()) == [0, 0, 2]


@on_each
async def test_session_is_asked_while_permissions_are_missing(engine):
    class ClientSession(OpenSession):
        def __init__(self, index):
            super().__init__(index)
            self.reads_unasked = self.writes_unasked = False

        def answer(self, payload):
            self.reads_unasked = len(self.payloads) >= 3
            return super().answer(payload)

    rig = Rig(engine, lambda: ClientSession(rig.index))
    async with rig:
        rig.index.add(b"/a", b"v", 0.0)
        client = rig.connect()
        await client.send(get("/a") * 4 + send("/a") * 3 + get("/a") * 2)
        for _ in range(9):
            await client.answer()
        # All that it may not do; from the fourth on an engine may answer what it reads by itself.
        types = [decode(payload).type for payload in client.session.payloads]
        assert types[:4] == [MessageType.GET_PULSE] * 4
        assert types.count(MessageType.SEND_PULSE) == 3


@on_each
async def test_counters_of_requests_and_bytes(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        exists = encode(Message(MessageType.EXISTS, 1, path="/a"))
        await client.send(STREAM + exists)
        answer = encode(Message(MessageType.EXISTS_RESPONSE, 1, boolval=True))
        assert await client.receive(len(ANSWERS + answer)) == ANSWERS + answer
        await rig.until(lambda: sum(rig.channels.latency()[1]) == 6)
        assert rig.channels.counters() == {
            "sends": 2,
            "gets": 3,
            "others": 1,
            "bytes_in": len(STREAM + exists),
            "bytes_out": len(ANSWERS + answer),
        }
        bounds, counts, total = rig.channels.latency()
        assert bounds == LATENCY_BOUNDS
        assert len(counts) == len(bounds) + 1
        assert 0 < total < 60


def test_protocol_error_of_the_session_ends_the_channel():
    # What these tests' session raises is what the server's raises.
    with pytest.raises(RemoteProtocolError):
        OpenSession(None).answer(b"")
