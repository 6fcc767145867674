"""Clients that do not read their answers, over TCP and TLS: what is given up, and what is left."""

import asyncio
import contextlib
import socket
import ssl

import pytest

from stormkeeper.conf import defaults
from stormkeeper.pacemaker.server import server_tls
from stormkeeper.pacemaker.wire.decoder import decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.certificates import certificates, tls_conf
from support.engines import ENGINES, OpenSession, Rig

GET = encode(Message(MessageType.GET_PULSE, 1, path="/a"))


class TcpPair:
    """A connection on which the system holds as little as it lets itself be told."""

    def __init__(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            self.ours = socket.socket()
            self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            self.ours.connect(listener.getsockname())
            self.theirs, _ = listener.accept()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.ours.close()


async def adopt(rig, pair, session=None, *, over_tls):
    """Serve a pair's other end; return ours."""
    session = session or OpenSession(rig.index)
    if not over_tls:
        rig.channels.adopt(pair.theirs, session, rig.now)
        return pair.ours
    context = server_tls.server_context(defaults().with_values(tls_conf()))
    rig.channels.adopt(pair.theirs, session, rig.now, tls=context)
    client = ssl.create_default_context(cafile=certificates().server.authority)
    pair.ours = await asyncio.to_thread(client.wrap_socket, pair.ours, server_hostname="localhost")
    return pair.ours


async def ask_and_be_given_up(rig, ours):
    """Ask, and read nothing for longer than a client may."""
    await asyncio.to_thread(ours.sendall, GET)
    await rig.until(lambda: rig.channels.counters()["gets"])
    rig.channels.sweep(rig.now)
    rig.now += 70
    rig.channels.sweep(rig.now)
    assert [cause for cause, _ in rig.told()] == ["output-timeout"]


def drain(ours):
    """Read to the end, whatever kind it is of; return the number of bytes."""
    size = 0
    ours.settimeout(20)
    with contextlib.suppress(ConnectionResetError):
        while piece := ours.recv(1 << 16):
            size += len(piece)
    return size


def each_way(test):
    @pytest.mark.parametrize("way", [*ENGINES, "interpreted, over TLS"])
    def on_one(way):
        engine, _, tls_or_not = way.partition(", ")
        asyncio.run(test(engine, bool(tls_or_not)))

    on_one.__name__ = test.__name__
    return on_one


@each_way
async def test_aborted_connection_leaves_no_unsent_bytes(engine, over_tls):
    with TcpPair() as pair:
        async with Rig(engine) as rig:
            rig.index.add(b"/a", bytes(8_000_000), 0.0)
            ours = await adopt(rig, pair, over_tls=over_tls)
            await ask_and_be_given_up(rig, ours)
            await rig.until(lambda: len(rig.channels) == 0)
            # Of megabytes that it had of them.
            assert await asyncio.to_thread(drain, ours) < 500_000


@each_way
async def test_end_of_an_answer_has_the_same_timeout_as_the_rest(engine, over_tls):
    with TcpPair() as pair:
        pair.theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        async with Rig(engine) as rig:
            # As much as asyncio's TLS hands down without being told that it is not taken.
            rig.index.add(b"/a", bytes(50_000), 0.0)
            ours = await adopt(rig, pair, over_tls=over_tls)
            await ask_and_be_given_up(rig, ours)


@each_way
async def test_client_that_reads_again_is_served_on(engine, over_tls):
    with TcpPair() as pair:
        async with Rig(engine) as rig:
            rig.index.add(b"/a", bytes(1_000_000), 0.0)
            ours = await adopt(rig, pair, over_tls=over_tls)

            def read(size):
                ours.settimeout(20)
                while size > 0:
                    piece = ours.recv(min(size, 1 << 16))
                    assert piece
                    size -= len(piece)

            await asyncio.to_thread(ours.sendall, GET)
            await rig.until(lambda: rig.channels.counters()["gets"])
            answer = len(encode(Message(1, 1, pulse=Pulse("/a", bytes(1_000_000)))))
            for _ in range(4):
                rig.channels.sweep(rig.now)
                rig.now += 40
                await asyncio.to_thread(read, answer // 4)
            await asyncio.to_thread(read, answer - 4 * (answer // 4))
            rig.channels.sweep(rig.now)
            rig.now += 500
            rig.channels.sweep(rig.now)
            await asyncio.to_thread(ours.sendall, GET)
            await asyncio.to_thread(read, answer)
            assert not rig.ended


def test_writes_before_the_end_over_tls_are_carried_out():
    class ClientSession(OpenSession):
        def answer(self, payload):
            kind = decode(payload).type
            done.append(kind)
            if kind == MessageType.DELETE_PATH and done.count(kind) < 3:
                return None  # it takes three turns
            return encode(Message(kind + 1, 1))

    async def run():
        with TcpPair() as pair:
            async with Rig("interpreted") as rig:
                ours = await adopt(rig, pair, ClientSession(rig.index), over_tls=True)

                # Requests and end come at once.
                ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ours.sendall(
                    encode(Message(MessageType.DELETE_PATH, 1, path="/a"))
                    + encode(Message(MessageType.SEND_PULSE, 1, pulse=Pulse("/a/b", b"v")))
                )
                ours.setblocking(False)
                with contextlib.suppress(ssl.SSLWantReadError):
                    ours.unwrap()
                await rig.until(lambda: len(rig.channels) == 0 and len(done) == 4)
                assert rig.told() == [("", "closed by the client")]
                counters = rig.channels.counters()
                assert (counters["sends"], counters["others"]) == (1, 1)

    done = []
    asyncio.run(run())
    assert done == [MessageType.DELETE_PATH] * 3 + [MessageType.SEND_PULSE]


def test_just_ended_tls_connection_is_aborted():
    async def run():
        with TcpPair() as pair:
            async with Rig("interpreted") as rig:
                ours = await adopt(rig, pair, over_tls=True)
                await asyncio.to_thread(ours.sendall, GET)
                await rig.until(lambda: rig.channels.counters()["gets"])
                [channel] = rig.channels._channels
                # In the round in which TLS learns of its end, and before we are told.
                channel._below.abort()
                await asyncio.sleep(0)
                rig.channels.abort()
                assert [cause for cause, _ in rig.told()] == ["drain"]

    asyncio.run(run())
