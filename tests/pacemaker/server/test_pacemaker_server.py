"""One server in a loop of the test's own."""

import asyncio
import socket
from types import SimpleNamespace

from stormkeeper.conf import defaults
from stormkeeper.pacemaker.server import asyncio_channels, pacemaker_server
from stormkeeper.pacemaker.server.pacemaker_server import PacemakerServer
from stormkeeper.pacemaker.server.server_status import clock
from support.waiting import DEADLINE_SECS


def test_horizon_begins_when_the_server_listens():
    async def serve():
        server = PacemakerServer(defaults())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            began = clock()
            server.start(listener)
            assert server.vouched() <= clock() - began
            await server.stop()

    asyncio.run(asyncio.wait_for(serve(), 20))


def test_connection_counts_until_its_descriptor_is_closed(engine, monkeypatch):
    monkeypatch.setattr(pacemaker_server, "_TICK", 600.0)
    monkeypatch.setattr(asyncio_channels, "LINGER", 600.0)

    async def serve():
        conf = {"pacemaker.engine": engine, "pacemaker.max.connections.per.address": 1}
        server = PacemakerServer(defaults().with_values(conf))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            server.start(listener)
            lingering, writer = await asyncio.open_connection(*address)
            writer.write(b"\xff\xff\xff\xff")
            assert await lingering.read() == b""
            assert server.events.closed["protocol"] == 1
            too_many, second = await asyncio.open_connection(*address)
            assert await too_many.read() == b""
            assert server.events.turned_away == {"address": 1}
            second.close()
            writer.close()
            while len(server.channels):
                await asyncio.sleep(0.001)
            _, third = await asyncio.open_connection(*address)
            while server.events.accepted < 2:
                await asyncio.sleep(0.001)
            third.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(serve(), DEADLINE_SECS))


def test_an_expiry_that_fails_half_way_is_begun_anew(monkeypatch):
    async def serve():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
        server = PacemakerServer(defaults())
        asked, again = [], asyncio.Event()

        def expire(_ttl):
            asked.append(None)
            if len(asked) == 2:
                raise ValueError("on purpose")
            if len(asked) == 3:
                again.set()
            return len(asked) == 1

        monkeypatch.setattr(server.store, "expiry", SimpleNamespace(expire=expire))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            server.start(listener)
            await again.wait()
            await server.stop()

    failures = []
    monkeypatch.setattr(pacemaker_server, "_TICK", 0.02)
    asyncio.run(asyncio.wait_for(serve(), 20))
    assert [str(failure) for failure in failures] == ["on purpose"]
