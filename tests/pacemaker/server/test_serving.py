"""One server in a loop of the test's own."""

import asyncio
import socket

from stormkeeper.conf import defaults
from stormkeeper.pacemaker.server import serving
from stormkeeper.pacemaker.server.serving import PacemakerServer
from stormkeeper.pacemaker.server.store.horizon import clock


def test_it_vouches_from_when_it_can_be_heard():
    async def serve():
        server = PacemakerServer(defaults())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            began = clock()
            server.start(listener)
            assert server.vouched() <= clock() - began
            await server.stop()

    asyncio.run(asyncio.wait_for(serve(), 20))


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

        monkeypatch.setattr(server.store, "expire", expire)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            server.start(listener)
            await again.wait()
            await server.stop()

    failures = []
    monkeypatch.setattr(serving, "_TICK", 0.02)
    asyncio.run(asyncio.wait_for(serve(), 20))
    assert [str(failure) for failure in failures] == ["on purpose"]
