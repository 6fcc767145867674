import asyncio
import itertools
import time
from contextlib import asynccontextmanager
from random import Random

import pytest

from stormkeeper.conf import Address
from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType
from stormkeeper.simulation.process import Link
from support.pacemaker import nobody
from support.simulations import BEGIN, PERIOD_SECS, simulation
from support.waiting import DEADLINE_SECS


class Server:
    """Answers heartbeats as a test says, and keeps their paths."""

    def __init__(self, answer):
        self.answer = answer
        self.paths = []
        self.ids = []

    async def serve(self, reader, writer):
        splitter = PacemakerFrameSplitter()
        while data := await reader.read(65536):
            for payload in splitter.feed(data):
                message = decode(payload)
                self.paths.append(message.pulse.id)
                self.ids.append(message.message_id)
                answer = self.answer(message)
                if answer is None:
                    writer.close()
                    return
                writer.write(answer)


def taken(message):
    return encode(Message(MessageType.SEND_PULSE_RESPONSE, message.message_id))


def refused(message):
    return encode(Message(MessageType.NOT_AUTHORIZED, message.message_id))


class World:
    """A link, what became of its heartbeats, and some heartbeats to send."""

    def __init__(self, addresses):
        made, _ = simulation(nodes=2, workers_per_node=3, topologies=1)
        self.beats = list(made.due(BEGIN + PERIOD_SECS - 0.001))
        now = time.time()
        for beat in self.beats:
            beat.sent_at = now
        self.taken, self.failed = [], []
        self.link = Link(
            addresses,
            Random(1),
            clock=time.time,
            taken=lambda beat, server: self.taken.append((beat.worker.path, server)),
            failed=lambda beat, reason: self.failed.append((beat.worker.path, reason)),
        )

    async def settled(self, count=None):
        count = len(self.beats) if count is None else count
        async with asyncio.timeout(DEADLINE_SECS):
            while len(self.taken) + len(self.failed) < count:
                self.link.look(time.time())
                await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(answer):
    kept = Server(answer)
    server = await asyncio.start_server(kept.serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname()), kept
    finally:
        server.close()


def test_answers_belong_to_heartbeats_in_their_order():
    async def run():
        async with listening(taken) as (address, server):
            world = World([address])
            for _ in range(40):
                for beat in world.beats:
                    world.link.send(beat)
                world.link.flush()
            await world.settled(240)
            world.link.close()
            paths = [beat.worker.path for beat in world.beats] * 40
            assert server.paths == paths
            assert server.ids == [*itertools.islice(itertools.cycle(range(100)), 240)]
            assert world.taken == [(path, str(address)) for path in paths]
            assert not world.failed

    asyncio.run(run())


def test_heartbeats_go_to_another_server_while_one_is_away():
    async def run():
        away = nobody()
        async with listening(taken) as (address, _):
            for _ in range(3):  # some begin with the one that is away
                world = World([away, address])
                for beat in world.beats:
                    world.link.send(beat)
                await world.settled()
                world.link.close()
                assert {server for _, server in world.taken} == {str(address)}
                assert len(world.taken) == 6

    asyncio.run(run())


def test_what_a_server_leaves_unanswered_goes_to_another_one():
    async def run():
        async with listening(lambda _: None) as (bad, _), listening(taken) as (good, _):
            for seed in range(3):
                world = World([bad, good] if seed % 2 else [good, bad])
                for beat in world.beats:
                    world.link.send(beat)
                await world.settled()
                world.link.close()
                assert sorted(world.taken) == sorted(
                    (b.worker.path, str(good)) for b in world.beats
                )

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "reason"), [(refused, "refused it"), (lambda _: b"\0\0\0\1\0", "")]
)
def test_a_heartbeat_that_no_server_takes_has_failed(answer, reason):
    async def run():
        async with listening(answer) as (address, _):
            world = World([address])
            for beat in world.beats:
                beat.sent_at -= 4.8  # it has tried for so long
                world.link.send(beat)
            await world.settled()
            world.link.close()
            assert not world.taken
            assert len(world.failed) == 6
            assert all(reason in why for _, why in world.failed)

    asyncio.run(run())


def test_the_end_leaves_no_heartbeat_unsettled():
    async def run():
        async with listening(lambda _: b"") as (address, server):
            world = World([address])
            for beat in world.beats:
                world.link.send(beat)
            world.link.look(time.time())
            async with asyncio.timeout(DEADLINE_SECS):
                while len(server.paths) < 6:
                    await asyncio.sleep(0.005)
            world.link.close()
            assert len(world.failed) == 6

    asyncio.run(run())
