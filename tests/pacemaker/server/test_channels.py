"""The rules of channels, with both engines, over real sockets."""

import asyncio
import functools
import gc
import itertools
import logging
import os
import resource
import socket
import struct
import time
from contextlib import suppress

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server.channels import ANSWER_BYTES, LATENCY_BOUNDS, LINGER
from stormkeeper.pacemaker.wire import FrameSplitter, Message, MessageType, Pulse, decode, encode
from support.engines import ENGINES, OpenSession, Rig

MAX_SIZE = 10_485_760


def send(path, message_id=1, details=b"v"):
    return encode(Message(MessageType.SEND_PULSE, message_id, pulse=Pulse(path, details)))


def get(path, message_id=1):
    return encode(Message(MessageType.GET_PULSE, message_id, path=path))


def ids(stream):
    return [decode(payload).message_id for payload in FrameSplitter().feed(stream)]


STREAM = send("/a", 1) + get("/a", 2) + send("/a", 3, b"new") + get("/a", 4) + get("/b", 5)
ANSWERS = b"".join(
    encode(message)
    for message in (
        Message(MessageType.SEND_PULSE_RESPONSE, 1),
        Message(MessageType.GET_PULSE_RESPONSE, 2, pulse=Pulse("/a", b"v")),
        Message(MessageType.SEND_PULSE_RESPONSE, 3),
        Message(MessageType.GET_PULSE_RESPONSE, 4, pulse=Pulse("/a", b"new")),
        Message(MessageType.GET_PULSE_RESPONSE, 5, pulse=Pulse("/b", None)),
    )
)


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


def on_each(test):
    """Run a coroutine function as a test."""

    @functools.wraps(test)
    def run(**arguments):
        asyncio.run(test(**arguments))

    return run


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


@on_each
async def test_what_is_stored_is_what_was_sent(engine):
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
        rig.index.add(b"/a", bytes(100), 0.0, None)
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


BAD = {
    "zero length": (b"\0\0\0\0", "empty frame"),
    "negative length": (b"\xff\xff\xff\xffxxxx", "frame of -1 bytes"),
    "most negative length": (b"\x80\0\0\0", "frame of -2147483648 bytes"),
    "largest length": (b"\x7f\xff\xff\xff", "frame of 2147483647 bytes"),
    "a byte too long": ((MAX_SIZE + 1).to_bytes(4, "big"), f"frame of {MAX_SIZE + 1} bytes"),
    "garbage": (b"\0\0\0\4GET ", "garbage"),
    "truncated": (b"\0\0\0\2\x08\0", "truncated"),
    "unknown type": (encode(Message(99, 1, path="/a")), "unknown message type"),
}


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("is_one_chunk", [True, False])
@on_each
async def test_a_bad_frame_ends_the_channel_after_the_good_ones(engine, fault, is_one_chunk):
    frame, reason = BAD[fault]
    async with Rig(engine) as rig:
        client, other = rig.connect(), rig.connect()
        stream = send("/a", 1) + get("/a", 2) + frame
        for chunk in [stream] if is_one_chunk else [bytes([byte]) for byte in stream]:
            await client.send(chunk)
            await asyncio.sleep(0)
        assert ids(await client.receive_all()) == [1, 2]
        [(session, cause, told)] = rig.ended
        assert session is client.session
        assert cause == "protocol"
        assert reason in told
        await client.send(send("/never"))  # still open that way, and dropped
        await other.send(STREAM)
        assert await other.receive(len(ANSWERS)) == ANSWERS
        assert rig.index.get(b"/never") is None
        # Closed from that side or, in the end, from ours.
        client.socket.shutdown(socket.SHUT_WR)
        await rig.until(lambda: len(rig.channels) == 1)
        assert len(rig.ended) == 1


@on_each
async def test_a_reset_right_after_a_bad_frame_is_no_error_of_ours(engine, caplog):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with Rig(engine) as rig:
            for _ in range(3):
                ours = socket.create_connection(listener.getsockname())
                theirs, _ = listener.accept()
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                ours.sendall(b"\xff" * 4)
                ours.close()
                rig.channels.adopt(theirs, OpenSession(rig.index), rig.now)
            await rig.until(lambda: len(rig.channels) == 0)
    assert {cause for cause, _ in rig.told()} <= {"protocol", ""}
    assert not caplog.records


@on_each
async def test_who_lingers_after_a_bad_frame_is_cut_off(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        await client.send(b"\xff" * 4)
        assert await client.receive_all() == b""
        rig.channels.sweep(rig.now)
        assert len(rig.channels) == 1
        rig.now += LINGER
        started = time.monotonic()
        while len(rig.channels):
            rig.channels.sweep(rig.now)
            await asyncio.sleep(0.01)
            assert time.monotonic() - started < 10
        with pytest.raises(OSError):  # noqa: PT011
            await client.send(bytes(1 << 22))


@on_each
async def test_a_session_may_answer_with_nothing_and_with_several_frames(engine):
    class Session(OpenSession):
        def answer(self, payload):
            return super().answer(payload) * (2, 0, 1, 0)[len(self.payloads) - 1]

    rig = Rig(engine, lambda: Session(rig.index))
    async with rig:
        client = rig.connect()
        for n in range(4):
            await client.send(get("/x", n))
        client.socket.shutdown(socket.SHUT_WR)
        assert ids(await client.receive_all()) == [0, 0, 2]


@on_each
async def test_a_sessions_fault_ends_the_channel_after_its_answer(engine):
    class Session(OpenSession):
        def answer(self, payload):
            self.fault = "a wrong password"
            return super().answer(payload)

    rig = Rig(engine, lambda: Session(rig.index))
    async with rig:
        client = rig.connect()
        await client.send(get("/x", 1) + get("/x", 2))
        assert ids(await client.receive_all()) == [1]
        assert rig.told() == [("authentication", "a wrong password")]


@on_each
async def test_who_may_not_is_asked_about_by_the_session(engine):
    class Session(OpenSession):
        def __init__(self, index):
            super().__init__(index)
            self.may_read = self.may_write = False

        def answer(self, payload):
            self.may_read = len(self.payloads) >= 3
            return super().answer(payload)

    rig = Rig(engine, lambda: Session(rig.index))
    async with rig:
        rig.index.add(b"/a", b"v", 0.0, None)
        client = rig.connect()
        await client.send(get("/a") * 4 + send("/a") * 3 + get("/a") * 2)
        for _ in range(9):
            await client.answer()
        # All that it may not do; from the fourth on an engine may answer what it reads by itself.
        types = [decode(payload).type for payload in client.session.payloads]
        assert types[:4] == [MessageType.GET_PULSE] * 4
        assert types.count(MessageType.SEND_PULSE) == 3


@on_each
async def test_a_client_that_does_not_read_is_not_served_without_end(engine):
    rig = Rig(engine)
    async with rig:
        rig.index.add(b"/large", bytes(500_000), 0.0, None)
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
        rig.index.add(b"/a", bytes(3_000), 0.0, None)
        client = rig.connect()
        await client.send(get("/a") * 5_000)  # 15 MB of answers to 170 KB
        await asyncio.sleep(0.1)
        made = rig.channels.counters()["gets"] * 3_043
        assert made < rig.channels.counters()["bytes_out"] + ANSWER_BYTES + 3_043
        assert made < 5_000 * 3_043
        assert len(await client.receive(5_000 * 3_043)) == 5_000 * 3_043


@on_each
async def test_a_client_that_ends_its_side_gets_its_answers(engine):
    async with Rig(engine) as rig:
        rig.index.add(b"/a", bytes(500_000), 0.0, None)
        client = rig.connect()
        await client.send(get("/a") * 10)
        client.socket.shutdown(socket.SHUT_WR)
        assert len(await client.receive_all()) == 10 * (43 + 500_000)
        await rig.until(lambda: len(rig.channels) == 0)
        assert rig.told() == [("", "closed by the client")]


@on_each
async def test_an_end_within_a_message_is_told(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        await client.send(STREAM[:-1])
        assert [(await client.answer()).message_id for _ in range(4)] == [1, 2, 3, 4]
        client.socket.close()
        await rig.until(lambda: rig.ended)
        assert rig.told() == [("", "closed by the client within a message")]


@on_each
async def test_an_error_of_ours_ends_one_channel_with_a_traceback(engine):
    class Session(OpenSession):
        def answer(self, payload):
            if len(self.payloads) == 1:
                raise ZeroDivisionError
            return super().answer(payload)

    rig = Rig(engine, lambda: Session(rig.index))
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("stormkeeper").addHandler(handler)
    try:
        async with rig:
            client, other = rig.connect(), rig.connect()
            await other.send(get("/x", 7))
            assert (await other.answer()).message_id == 7
            await client.send(get("/x", 1) + get("/x", 2) + get("/x", 3))
            await rig.until(lambda: len(rig.channels) == 1)
            assert rig.told() == [("error", "an error of this server")]
            assert len(client.session.payloads) == 1
            # Nothing of what it was to get reaches anyone else.
            for other_client in (other, rig.connect()):
                other_client.session.payloads.clear()
                await other_client.send(get("/x", 8))
                assert (await other_client.answer()).message_id == 8
    finally:
        logging.getLogger("stormkeeper").removeHandler(handler)
    [record] = records
    assert record.exc_info[0] is ZeroDivisionError
    assert "somebody" in record.getMessage()


@on_each
async def test_an_unfinished_frame_has_its_time(engine):
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
        rig.index.add(b"/a", bytes(2_000_000), 0.0, None)
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
def test_what_came_while_this_process_was_stopped_counts():
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
    class Session(OpenSession):
        def answer(self, payload):  # so long that every answer is a turn
            ends = time.perf_counter() + 0.002
            while time.perf_counter() < ends:
                pass
            return super().answer(payload) * 1_000

    rig = Rig(engine, lambda: Session(rig.index))
    async with rig:
        client = rig.connect()
        # The system takes some whole answers of 30 KB, and then says that it takes no more.
        await client.send(get("/absent") * 40)
        await asyncio.sleep(0.2)
        rig.channels.sweep(rig.now)
        assert len(client.session.payloads) < 40
        rig.now += 50
        rig.channels.sweep(rig.now)
        assert not rig.ended
        rig.now += 50
        rig.channels.sweep(rig.now)
        assert [cause for cause, _ in rig.told()] == ["output-timeout"]


@on_each
async def test_a_handshake_that_is_due_ends_the_channel(engine):
    async with Rig(engine) as rig:
        client = rig.connect()
        await client.send(STREAM)
        assert await client.receive(len(ANSWERS)) == ANSWERS
        rig.channels.sweep(rig.now)
        client.session.due = "did not authenticate"
        rig.channels.sweep(rig.now)
        assert rig.told() == [("handshake-timeout", "did not authenticate")]
        assert await client.receive_all() == b""


@on_each
async def test_draining_answers_what_has_come_and_no_more(engine):
    async with Rig(engine) as rig:
        rig.index.add(b"/large", bytes(3_000_000), 0.0, None)
        clients = [rig.connect() for _ in range(3)]
        idle, busy, slow = clients
        await busy.send(send("/a") + get("/a", 2) + get("/a")[:5])
        await slow.send(get("/large") * 2)
        rig.channels.drain()
        assert ids(await busy.receive_all()) == [1, 2]
        assert await idle.receive_all() == b""
        await busy.send(send("/never"))
        await slow.send(send("/never"))
        assert len(await slow.receive_all()) == 2 * (41 + len("/large") + 3_000_000)
        assert {cause for cause, _ in rig.told()} == {"drain"}
        assert len(rig.ended) == 3
        for client in clients:
            client.socket.close()
        await rig.until(lambda: len(rig.channels) == 0)
        assert rig.index.get(b"/never") is None
        late = rig.connect()
        assert await late.receive_all() == b""


@on_each
async def test_aborting_ends_all(engine):
    async with Rig(engine) as rig:
        clients = [rig.connect() for _ in range(5)]
        await clients[0].send(STREAM)
        assert await clients[0].receive(len(ANSWERS)) == ANSWERS
        rig.channels.abort()
        rig.channels.abort()
        await rig.until(lambda: len(rig.channels) == 0)
        assert [cause for cause, _ in rig.told()] == ["drain"] * 5
        assert await clients[1].receive_all() == b""


@on_each
async def test_channels_may_be_ended_by_the_end_of_another_in_the_same_batch(engine):
    rig = Rig(engine, on_closed=lambda *_: rig.channels.abort())
    async with rig:
        clients = [rig.connect() for _ in range(50)]
        await clients[0].send(STREAM)
        assert await clients[0].receive(len(ANSWERS)) == ANSWERS
        for client in clients:
            client.socket.send(STREAM + b"\xff" * 4)
        await rig.until(lambda: len(rig.channels) == 0)
        again = rig.connect()
        await again.send(get("/a", 1))
        assert (await again.answer()).message_id == 1


@on_each
async def test_a_flood_does_not_starve_others(engine):
    class Session(OpenSession):
        def answer(self, payload):
            ends = time.perf_counter() + 0.0005
            while time.perf_counter() < ends:
                pass
            return super().answer(payload)

    rig = Rig(engine, lambda: Session(rig.index))
    async with rig:
        flooding, other = rig.connect(), rig.connect()
        await flooding.send(get("/x") * 4_000)  # two seconds of work
        await rig.until(lambda: rig.channels.counters()["gets"] > 10)
        for n in range(20):
            await other.send(get("/x", n))
            assert (await other.answer()).message_id == n
        assert rig.channels.counters()["gets"] < 1_000


@on_each
async def test_dear_requests_of_many_clients_leave_the_loop_its_time(engine):
    class Session(OpenSession):
        def answer(self, payload):
            time.sleep(0.005)
            return super().answer(payload)

    rig = Rig(engine)
    rig._make_session = lambda: Session(rig.index)
    async with rig:
        clients = [rig.connect() for _ in range(100)]
        for client in clients:
            client.socket.send(get("/x", 3) + get("/x", 4))
        late = rig.connect()
        late.socket.send(b"\xff" * 4)
        began, rounds = time.monotonic(), [0.0]
        while sum(len(client.session.payloads) for client in clients) < 200:
            await asyncio.sleep(0.001)
            rounds.append(time.monotonic() - began)
        longest = max(after - before for before, after in itertools.pairwise(rounds))
        assert longest < rounds[-1] / 5
        for client in clients:
            assert [(await client.answer()).message_id for _ in range(2)] == [3, 4]
        assert await late.receive_all() == b""
        assert [cause for cause, _ in rig.told()] == ["protocol"]


@on_each
async def test_memory_is_for_what_came_and_not_for_what_was_announced(engine):
    async with Rig(engine) as rig:
        before = psutil.Process().memory_info().rss
        for _ in range(100):
            client = rig.connect()
            await client.send(send("/x", 1, bytes(1_000_000))[:100])
            await asyncio.sleep(0)
        await rig.until(lambda: rig.channels.counters()["bytes_in"] == 10_000)
        assert psutil.Process().memory_info().rss < before + 10_000_000


@on_each
async def test_what_all_hold_together_is_bounded(engine):
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
        rig.index.add(b"/a", bytes(8_000_000), 0.0, None)
        rig.channels.max_buffered = 10_000_000
        clients = [rig.connect() for _ in range(6)]
        for client in clients:
            await client.send(get("/a"))
        await rig.until(lambda: len(rig.ended) >= 3)
        assert {cause for cause, _ in rig.told()} == {"memory"}


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
        assert await seconds(8_000_000) < 8 * small * 2.5
        assert rig.index.get(b"/large") == bytes(8_000_000)


@on_each
async def test_what_was_counted(engine):
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


@on_each
async def test_connections_that_come_and_go_leave_nothing(engine):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    at_once = min(200, (limit - 100) // 2)
    descriptors, sizes = set(), []
    rig = Rig(engine)
    async with rig:
        rig.index.add(b"/large", bytes(100_000), 0.0, None)
        for _ in range(4_000 // at_once):
            pairs = [socket.socketpair() for _ in range(at_once)]
            for n, (ours, theirs) in enumerate(pairs):
                rig.channels.adopt(theirs, OpenSession(rig.index), rig.now)
                ours.send((STREAM + STREAM[:9], STREAM[:2], get("/large") * 5, b"\xff" * 4)[n % 4])
            for _ in range(at_once % 3):
                await asyncio.sleep(0)
            for ours, _ in pairs:
                ours.close()
            del pairs, ours, theirs
            await rig.until(lambda: len(rig.channels) == 0)
            assert len(rig.ended) == at_once
            rig.ended.clear()
            gc.collect()
            descriptors.add(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            sizes.append(psutil.Process().memory_info().rss)
        assert len(descriptors) == 1
        assert sizes[-1] - sizes[1] < 4_000_000
        assert not [thing for thing in gc.get_objects() if isinstance(thing, OpenSession)]


def test_a_protocol_error_is_what_the_session_says_it_is():
    # What these tests' session raises is what the server's raises.
    with pytest.raises(RemoteProtocolError):
        OpenSession(None).answer(b"")
