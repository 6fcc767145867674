"""TLS with small buffers: what is made of it, and that nobody else in the process is touched."""

import asyncio
import socket
import ssl
from asyncio import sslproto

import pytest

from stormkeeper.conf import defaults
from stormkeeper.pacemaker.server import server_tls
from stormkeeper.pacemaker.server.asyncio_channels import AsyncioChannels
from stormkeeper.pacemaker.server.pulse_index import PulseIndex
from stormkeeper.pacemaker.server.server_tls import TLS_BYTES, secure
from support.certificates import certificates, tls_conf
from support.engines import OpenSession
from support.pulse_frames import ids, send

#: What asyncio gives to whoever does not ask for less.
THEIRS = 262_144


class Echo(asyncio.BufferedProtocol):
    def __init__(self):
        self.buffer = memoryview(bytearray(1_000_000))
        self.transport = None
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, _):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.transport.write(bytes(self.buffer[:nbytes]))

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class Quiet(asyncio.Protocol):
    def connection_made(self, transport):
        transport.pause_reading()


def context():
    return server_tls.server_context(defaults().with_values(tls_conf()))


def trusting():
    return ssl.create_default_context(cafile=certificates().server.authority)


async def secured(connection, protocol, handshake_timeout=10.0):
    loop = asyncio.get_running_loop()
    below, _ = await loop.connect_accepted_socket(Quiet, connection)
    await secure(
        below, protocol, context(), handshake_timeout=handshake_timeout, shutdown_timeout=1
    )
    return below


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_tls_buffer_is_one_record_only_here(ends):
    async def talk():
        echo = Echo()
        serving = asyncio.create_task(secured(ends[0], echo))
        reader, writer = await asyncio.open_connection(
            sock=ends[1], ssl=trusting(), server_hostname="localhost"
        )
        below = await serving
        assert echo.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        large = bytes(range(256)) * 1_000
        writer.write(large)
        assert await reader.readexactly(len(large)) == large
        ours = below.get_protocol()
        assert isinstance(ours, sslproto.SSLProtocol)
        assert len(ours.get_buffer(-1)) == TLS_BYTES
        assert sslproto.SSLProtocol.max_size == THEIRS, "changed for the whole process"
        theirs = sslproto.SSLProtocol(
            asyncio.get_running_loop(), asyncio.Protocol(), trusting(), None
        )
        assert len(theirs.get_buffer(-1)) == THEIRS
        writer.close()
        assert await asyncio.wait_for(echo.lost, 10) is None

    asyncio.run(talk())


def test_tls_channel_leaves_asyncio_unchanged():
    async def talk():
        index = PulseIndex()
        told = []
        channels = AsyncioChannels(
            index,
            max_size=1_000,
            clock=lambda: 0.0,
            frame_timeout=10.0,
            output_timeout=10.0,
            on_closed=lambda *how: told.append(how),
            on_freed=lambda _: None,
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            calling = asyncio.create_task(
                asyncio.open_connection(
                    *listener.getsockname(), ssl=trusting(), server_hostname="localhost"
                )
            )
            connection = await asyncio.to_thread(lambda: listener.accept()[0])
        channels.adopt(connection, OpenSession(index), 0.0, context())
        reader, writer = await calling
        writer.write(send("/a", 7, b"x"))
        assert ids(await reader.readexactly(19)) == [7]
        assert sslproto.SSLProtocol.max_size == THEIRS, "changed for the whole process"
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(10):
            while len(channels):
                await asyncio.sleep(0.001)
        assert len(told) == 1

    asyncio.run(talk())


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x00"])
def test_plain_client_of_tls_port_is_an_error(ends, said):
    async def talk():
        echo = Echo()
        ends[1].sendall(said)
        ends[1].shutdown(socket.SHUT_WR)
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await asyncio.wait_for(secured(ends[0], echo), 10)
        assert echo.transport is None
        assert not echo.lost.done()

    asyncio.run(talk())


def test_slow_tls_handshake_ends(ends):
    async def talk():
        with pytest.raises(ConnectionAbortedError):
            await asyncio.wait_for(secured(ends[0], Echo(), handshake_timeout=0.01), 10)

    asyncio.run(talk())
