"""What one client may take of time and memory, and all together; with both engines."""

import asyncio
import itertools
import time
from contextlib import suppress

import psutil
import pytest

from stormkeeper.pacemaker.server.channels import ANSWER_BYTES
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType
from support.engines import ENGINES, OpenSession, Rig, on_each
from support.pulse_frames import ANSWERS, STREAM, get, ids, send


@on_each
async def test_a_client_that_does_not_read_is_not_served_without_end(engine):
    rig = Rig(engine)
    async with rig:
        rig.index.add(b"/large", bytes(500_000), 0.0)
        client, other = rig.connect(), rig.connect()
        wanted = 40_000  # 20 GB of answers
        before = psutil.Process().memory_info().rss
        feeding = asyncio.create_task(client.send(get("/large") * wanted + send("/last")))
        for _ in range(20):
            await other.send(STREAM)
            assert ids(await other.receive(len(ANSWERS)))[0] == 1
        assert psutil.Process().memory_info().rss < before + 20_000_000
        made = rig.channels.counters()["gets"]
        await asyncio.sleep(0.05)
        assert rig.channels.counters()["gets"] == made
        assert rig.index.get(b"/last") is None
        frame = 41 + len("/large") + 500_000
        for _ in range(100):
            assert (await client.receive(frame))[-500_010:-10] == bytes(500_000)
        rig.channels.abort()
        with pytest.raises(OSError):  # noqa: PT011
            await feeding


@on_each
async def test_many_small_answers_stop_at_the_bound_too(engine):
    async with Rig(engine) as rig:
        rig.index.add(b"/a", bytes(3_000), 0.0)
        client = rig.connect()
        await client.send(get("/a") * 5_000)  # 15 MB of answers to 170 KB
        await asyncio.sleep(0.1)
        made = rig.channels.counters()["gets"] * 3_043
        assert made < rig.channels.counters()["bytes_out"] + ANSWER_BYTES + 3_043
        assert made < 5_000 * 3_043
        assert len(await client.receive(5_000 * 3_043)) == 5_000 * 3_043


@on_each
async def test_unfinished_frame_has_a_time_limit(engine):
    async with Rig(engine) as rig:
        client, idle = rig.connect(), rig.connect()
        await client.send(STREAM + send("/slow")[:-1])
        assert await client.receive(len(ANSWERS)) == ANSWERS
        rig.now += 20
        rig.channels.sweep(rig.now)
        await client.send(send("/slow")[-1:] + send("/slow", 9)[:5])
        await client.receive(19)
        rig.now += 20
        rig.channels.sweep(rig.now)
        await client.send(send("/slow", 9)[5:7])  # a drip does not help
        await asyncio.sleep(0.01)
        assert not rig.ended
        rig.now += 20
        rig.channels.sweep(rig.now)
        [(session, cause, reason)] = rig.ended
        assert (session, cause) == (client.session, "frame-timeout")
        assert "40 s" in reason
        assert await client.receive_all() == b""
        await idle.send(get("/a", 5))
        assert (await idle.answer()).message_id == 5


@on_each
async def test_unread_answers_have_their_time(engine):
    async with Rig(engine) as rig:
        rig.index.add(b"/a", bytes(2_000_000), 0.0)
        client = rig.connect()
        # With a frame behind them that could not be finished meanwhile.
        await client.send(get("/a") * 5 + send("/x")[:9])
        await rig.until(lambda: rig.channels.counters()["gets"])
        await asyncio.sleep(0.05)
        for _ in range(3):
            rig.channels.sweep(rig.now)
            rig.now += 50
            assert len(await client.receive(1_000_000)) == 1_000_000
            await asyncio.sleep(0.05)
        rig.channels.sweep(rig.now)
        assert not rig.ended
        rig.now += 70
        rig.channels.sweep(rig.now)
        [(cause, reason)] = rig.told()
        assert cause == "output-timeout"
        assert "pacemaker.output.timeout.secs" in reason
        await rig.until(lambda: len(rig.channels) == 0)


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
def test_input_during_a_stop_of_the_process_counts():
    # (asyncio looks at its sockets before it calls what is due.)
    async def run():
        async with Rig("compiled") as rig:
            client, other = rig.connect(), rig.connect()
            await client.send(send("/x")[:9])
            await other.send(send("/x")[:9])
            await rig.until(lambda: rig.channels.counters()["bytes_in"] == 18)
            rig.now += 1_000
            client.socket.send(send("/x")[9:])
            rig.channels.sweep(rig.now)
            assert [session for session, _, _ in rig.ended] == [other.session]
            assert (await client.answer()).message_id == 1

    asyncio.run(run())


@on_each
async def test_answers_that_only_the_system_holds_have_their_time_too(engine):
    class ClientSession(OpenSession):
        def answer(self, payload):  # so long that every answer is a turn
            ends = time.perf_counter() + 0.002
            while time.perf_counter() < ends:
                pass
            return super().answer(payload) * 1_000

    rig = Rig(engine, lambda: ClientSession(rig.index))
    async with rig:
        client = rig.connect()
        # The system takes some whole answers of 30 KB, and then says that it takes no more.
        await client.send(get("/absent") * 40)
        for _ in range(100):  # turns of the loop, however long they take
            await asyncio.sleep(0.002)
        rig.channels.sweep(rig.now)
        assert len(client.session.payloads) < 40
        rig.now += 50
        rig.channels.sweep(rig.now)
        assert not rig.ended
        rig.now += 50
        rig.channels.sweep(rig.now)
        assert [cause for cause, _ in rig.told()] == ["output-timeout"]


@on_each
async def test_a_flood_does_not_starve_others(engine):
    class ClientSession(OpenSession):
        def answer(self, payload):
            ends = time.perf_counter() + 0.0005
            while time.perf_counter() < ends:
                pass
            return super().answer(payload)

    rig = Rig(engine, lambda: ClientSession(rig.index))
    async with rig:
        flooding, other = rig.connect(), rig.connect()
        await flooding.send(get("/x") * 4_000)  # two seconds of work
        await rig.until(lambda: rig.channels.counters()["gets"] > 10)
        for n in range(20):
            await other.send(get("/x", n))
            assert (await other.answer()).message_id == n
        assert rig.channels.counters()["gets"] < 1_000


@on_each
async def test_long_requests_leave_time_for_the_loop(engine):
    class ClientSession(OpenSession):
        def answer(self, payload):
            time.sleep(0.005)
            return super().answer(payload)

    rig = Rig(engine)
    rig._make_session = lambda: ClientSession(rig.index)
    async with rig:
        clients = [rig.connect() for _ in range(100)]
        for client in clients:
            client.socket.send(get("/x", 3) + get("/x", 4))
        late = rig.connect()
        late.socket.send(b"\xff" * 4)
        # As all take the same time, their number tells that of a round.
        rounds = [0]
        while rounds[-1] < 200:
            await asyncio.sleep(0.001)
            rounds.append(sum(len(client.session.payloads) for client in clients))
        longest = max(after - before for before, after in itertools.pairwise(rounds))
        assert longest < rounds[-1] / 5
        for client in clients:
            assert [(await client.answer()).message_id for _ in range(2)] == [3, 4]
        assert await late.receive_all() == b""
        assert [cause for cause, _ in rig.told()] == ["protocol"]


@on_each
async def test_memory_is_for_received_not_announced_bytes(engine):
    async with Rig(engine) as rig:
        before = psutil.Process().memory_info().rss
        for _ in range(100):
            client = rig.connect()
            await client.send(send("/x", 1, bytes(1_000_000))[:100])
            await asyncio.sleep(0)
        await rig.until(lambda: rig.channels.counters()["bytes_in"] == 10_000)
        assert psutil.Process().memory_info().rss < before + 10_000_000


@on_each
async def test_memory_of_all_channels_is_bounded(engine):
    async with Rig(engine) as rig:
        rig.channels.max_buffered = 3_000_000
        patient = rig.connect()
        await patient.send(send("/patient")[:-1])
        clients = [rig.connect() for _ in range(6)]
        for client in clients:
            with suppress(OSError):  # some are ended while they send
                await client.send(send("/x", 1, bytes(2_000_000))[:1_000_000])
        await rig.until(lambda: len(rig.ended) >= 3)
        assert {cause for cause, _ in rig.told()} == {"memory"}
        assert all("bytes" in reason for _, reason in rig.told())
        # Who holds little is left alone, and so is who comes when there is room again.
        await patient.send(send("/patient")[-1:])
        assert (await patient.answer()).type == 5
        for client in clients:
            client.socket.close()
        await rig.until(lambda: len(rig.channels) == 1)
        late = rig.connect()
        await late.send(send("/late", 1, bytes(2_000_000)))
        assert (await late.answer()).type == 5


@on_each
async def test_unread_answers_are_bounded_over_all(engine):
    async with Rig(engine) as rig:
        rig.index.add(b"/a", bytes(8_000_000), 0.0)
        rig.channels.max_buffered = 10_000_000
        clients = [rig.connect() for _ in range(6)]
        for client in clients:
            await client.send(get("/a"))
        await rig.until(lambda: len(rig.ended) >= 3)
        assert {cause for cause, _ in rig.told()} == {"memory"}


@on_each
async def test_requests_that_wait_for_their_turns_are_bounded_over_all(engine):
    class ClientSession(OpenSession):
        turns = 0

        def answer(self, payload):
            if len(payload) < 1_000:
                return super().answer(payload)
            self.turns += 1
            return None  # it is never done

    message = Message(MessageType.GET_ALL_NODES_FOR_PATH, 1, path="/" + 1_000_000 * "x")
    long_request = encode(message)
    rig = Rig(engine)
    rig._make_session = lambda: ClientSession(rig.index)
    async with rig:
        rig.channels.max_buffered = 3_000_000
        patient = rig.connect()
        await patient.send(send("/patient")[:-1])
        clients = [rig.connect() for _ in range(4)]
        for client in clients:
            with suppress(OSError):  # some are ended while they send
                await client.send(long_request)
        await rig.until(lambda: rig.ended)
        assert {cause for cause, _ in rig.told()} == {"memory"}
        assert any(client.session.turns for client in clients)
        await patient.send(send("/patient")[-1:])
        assert (await patient.answer()).type == 5


@on_each
async def test_client_that_does_not_read_is_not_read_from(engine):
    async with Rig(engine) as rig:
        rig.index.add(b"/a", bytes(4_000_000), 0.0)
        client, other = rig.connect(), rig.connect()
        await client.send(get("/a"))
        await rig.until(lambda: rig.channels.counters()["gets"])
        feeding = asyncio.create_task(client.send(send("/x", 2, bytes(4_000_000))))
        for n in range(200):  # rounds in which all of it could be read
            await other.send(get("/b", n))
            assert (await other.answer()).message_id == n
        assert rig.channels.counters()["bytes_in"] < 1_000_000
        assert len((await client.answer()).pulse.details) == 4_000_000
        await feeding
        assert (await client.answer()).message_id == 2
        assert not rig.ended


@pytest.mark.skipif("compiled" not in ENGINES, reason="no compiled engine was built here")
def test_an_answer_counts_until_its_last_byte_is_taken():
    # (asyncio gives back what it has sent, a part at a time.)
    async def run():
        async with Rig("compiled") as rig:
            rig.index.add(b"/a", bytes(8_000_000), 0.0)
            rig.channels.max_buffered = 12_000_000
            first, second = rig.connect(), rig.connect()
            await first.send(get("/a"))
            await first.receive(7_000_000)
            await second.send(get("/a"))
            await rig.until(lambda: rig.ended)
            assert [(told[0], told[1]) for told in rig.ended] == [(second.session, "memory")]
            assert len(await first.receive(1_000_000)) == 1_000_000

    asyncio.run(run())


@on_each
async def test_a_large_frame_in_small_pieces_costs_its_length(engine):
    async with Rig(engine) as rig:

        async def seconds(size):
            client = rig.connect()
            frame = send("/large", 1, bytes(size))
            started = time.process_time()
            for pos in range(0, len(frame), 4_096):
                await client.send(frame[pos : pos + 4_096])
                await asyncio.sleep(0)
            assert ids(await client.receive(19)) == [1]
            return time.process_time() - started

        small = min(await seconds(1_000_000), await seconds(1_000_000))
        large = min(await seconds(8_000_000), await seconds(8_000_000))
        assert large < 8 * small * 2.5
        assert rig.index.get(b"/large") == bytes(8_000_000)
