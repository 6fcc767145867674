"""Both engines of a Pacemaker, and a server of nothing but channels to try them with."""

import asyncio
import functools
import socket
import ssl
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, Self

from stormkeeper.errors import RemoteProtocolError
from stormkeeper.pacemaker.server import pacemaker_server
from stormkeeper.pacemaker.wire.decoder import decode, decode_request
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import DEFAULT_MAX_SIZE, Message, MessageType, Pulse
from support.waiting import DEADLINE_SECS

#: The engines that can be run here.
ENGINES = ["interpreted"]
if find_spec("stormkeeper.pacemaker.server._compiled") is not None:
    ENGINES.append("compiled")


def on_each(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        asyncio.run(test(**arguments))

    return run


class OpenSession:
    """Answers sends, gets and EXISTS out of an index, to anyone."""

    def __init__(self, index: Any) -> None:
        self.peer = "somebody"
        self.reads_unasked = self.writes_unasked = True
        self.fault: str | None = None
        self.due: str | None = None
        self.payloads: list[bytes] = []
        self._index = index

    def answer(self, payload: bytes) -> bytes:
        self.payloads.append(payload)
        request = decode_request(payload)
        answer = Message((request.type or 0) + 1, request.message_id)
        if request.pulse is not None:
            path, details = request.pulse
            if not self._index.replace(path.encode(), details, 0.0):
                self._index.add(path.encode(), details, 0.0)
        elif request.type == MessageType.GET_PULSE:
            path = request.path or ""
            answer.pulse = Pulse(path, self._index.get(path.encode()))
        elif request.type == MessageType.EXISTS:
            answer.boolval = self._index.get((request.path or "").encode()) is not None
        else:
            raise RemoteProtocolError(f"not here: {request.type}")
        return encode(answer)

    def handshake_due(self, now: float) -> str | None:  # noqa: ARG002
        return self.due

    def secured(self, connection: ssl.SSLObject) -> None:
        pass


class Client:
    """The other end of a channel; its methods fail rather than wait for ever."""

    def __init__(self, connection: socket.socket, session: Any) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.session = session

    async def send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.sock_sendall(self.socket, data), DEADLINE_SECS)

    async def receive(self, size: int) -> bytes:
        """Receive `size` bytes, or what comes before the end."""
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < size:
            piece = await asyncio.wait_for(
                loop.sock_recv(self.socket, min(size - len(data), 1 << 20)), DEADLINE_SECS
            )
            if not piece:
                break
            data += piece
        return data

    async def answer(self) -> Message:
        """Receive one frame."""
        length = await self.receive(4)
        assert len(length) == 4, f"the end of the stream, after {length!r}"
        return decode(await self.receive(int.from_bytes(length, "big")))

    async def receive_all(self) -> bytes:
        """Receive everything up to the end."""
        return await self.receive(1 << 40)


class Rig:
    """Channels of one engine on the running loop, and their clients."""

    def __init__(self, name: str, make_session: Any = None, **limits: Any) -> None:
        chosen = pacemaker_server.load_engine(name)
        self.index = chosen.pulse_index()
        self.now = 1_000.0
        #: What the channels told: (session, cause, reason) each.
        self.ended: list[tuple[Any, str, str]] = []
        #: The sessions whose descriptors are closed.
        self.freed: list[Any] = []
        self.channels: Any = chosen.channels(
            self.index,
            **{
                "max_size": DEFAULT_MAX_SIZE,
                "clock": lambda: self.now,
                "frame_timeout": 30.0,
                "output_timeout": 60.0,
                "on_closed": lambda *told: self.ended.append(told),
                "on_freed": self.freed.append,
                **limits,
            },
        )
        self._make_session = make_session or (lambda: OpenSession(self.index))
        self._clients: list[Client] = []

    async def __aenter__(self) -> Self:
        self.channels.attach(asyncio.get_running_loop())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.channels.abort()
        await self.until(lambda: len(self.channels) == 0)
        self.channels.detach(asyncio.get_running_loop())
        for client in self._clients:
            client.socket.close()

    def connect(self) -> Client:
        ours, theirs = socket.socketpair()
        session = self._make_session()
        self.channels.adopt(theirs, session, self.now)
        client = Client(ours, session)
        self._clients.append(client)
        return client

    async def until(self, condition: Any) -> None:
        """Let the loop run until a condition holds."""
        async with asyncio.timeout(DEADLINE_SECS):
            while not condition():
                await asyncio.sleep(0.001)

    def told(self) -> list[tuple[str, str]]:
        """Return the causes and reasons of the sessions that ended."""
        return [(cause, reason) for _, cause, reason in self.ended]
