"""A stand-in for Storm's own Pacemaker, which ends where the Java daemon ends.

It serves what the Java daemon serves (no extensions, no ages, GET_ALL_PULSE without data), with
its three methods of authentication, and has its weak spots, by the same construction: a connection
has a SASL handler, unless the method is NONE; the first plain message takes it away, and so does
success. What is wrong while it is there closes the connection; what is wrong without it ends the
daemon. So these end it:

- NONE: any control message or token, any frame that is not right.
- DIGEST, KERBEROS: the same after a plain message on the same connection, authenticated or not.
- KERBEROS: a control message in any case, as its handler knows none.
- All: a GET_ALL_NODES whose path is no regular expression, if anything is stored.

It runs in a thread, and tells what ended it::

    with StormPacemaker("DIGEST", jaas) as storm:
        ...
    assert storm.ended_by is None
"""

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self

from stormkeeper import conf as configuration
from stormkeeper.errors import AuthenticationError, StormkeeperError
from stormkeeper.local import reservations
from stormkeeper.pacemaker.wire.decoder import decode, read_control, read_token
from stormkeeper.pacemaker.wire.encoder import control_frame, encode, token_frame
from stormkeeper.pacemaker.wire.messages import Control, Message, MessageType, Pulse
from stormkeeper.sasl import Mechanism, methods
from support.waiting import DEADLINE_SECS

_MAX_FRAME = 10_485_760

#: In a regular expression an error to Java, and not to Python.
_LONE_BRACE = re.compile(r"(?<!\\)\{(?!\d+(,\d*)?\})")

#: Requests that are answered only where somebody has authenticated.
_READS = (
    MessageType.EXISTS,
    MessageType.GET_PULSE,
    MessageType.GET_ALL_PULSE_FOR_PATH,
    MessageType.GET_ALL_NODES_FOR_PATH,
)

Answer = tuple[MessageType, dict[str, Any]]


class DaemonEndedError(Exception):
    """Something came at which the Java daemon ends."""


class ConnectionClosedError(Exception):
    """Something came at which the Java daemon closes the connection."""


class Store:
    """The pulses of one daemon, and what it was asked."""

    def __init__(self) -> None:
        self.pulses: dict[str, bytes | None] = {}
        #: How often each type of request came.
        self.asked: Counter[int] = Counter()

    def answer(self, request: Message, *, may_read: bool) -> Message:
        """Do what a plain message asks for."""
        kind = request.type
        if kind is None or kind not in _ANSWERS:
            raise DaemonEndedError(f"a request of type {kind}")
        self.asked[kind] += 1
        if kind in _READS and not may_read:
            return Message(MessageType.NOT_AUTHORIZED, _message_id(request))
        if (request.pulse if kind == MessageType.SEND_PULSE else request.path) is None:
            raise DaemonEndedError(f"a request of type {kind} without what it is about")
        answer, data = _ANSWERS[MessageType(kind)](self.pulses, request)
        return Message(answer, _message_id(request), **data)


def _message_id(request: Message) -> int:
    return -1 if request.message_id is None else request.message_id


def _send(pulses: dict[str, bytes | None], request: Message) -> Answer:
    pulse = request.pulse
    assert pulse is not None
    if pulse.details is None:
        raise DaemonEndedError("a pulse without details")
    pulses[pulse.id] = pulse.details
    return MessageType.SEND_PULSE_RESPONSE, {}


def _pulse(pulses: dict[str, bytes | None], request: Message) -> Answer:
    path = str(request.path)
    return MessageType.GET_PULSE_RESPONSE, {"pulse": Pulse(path, pulses.get(path))}


def _nodes(pulses: dict[str, bytes | None], request: Message) -> Answer:
    path = str(request.path)
    names = set()
    try:
        pattern = re.compile(path)
    except re.error:
        pattern = None
    if pulses and (pattern is None or _LONE_BRACE.search(path)):
        raise DaemonEndedError(f"{path} is no regular expression")
    for key in pulses:
        assert pattern is not None
        rest = pattern.sub("", key, count=1)
        first = next((name for name in rest.split("/") if name), None)
        if first is not None and key.startswith(path):
            names.add(first)
    return MessageType.GET_ALL_NODES_FOR_PATH_RESPONSE, {"nodes": list(names)}


def _delete(pulses: dict[str, bytes | None], request: Message) -> Answer:
    prefix = str(request.path).rstrip("/") + "/"
    for key in [key for key in pulses if f"{key}/".startswith(prefix)]:
        del pulses[key]
    return MessageType.DELETE_PATH_RESPONSE, {}


def _delete_pulse(pulses: dict[str, bytes | None], request: Message) -> Answer:
    pulses.pop(str(request.path), None)
    return MessageType.DELETE_PULSE_ID_RESPONSE, {}


def _exists(pulses: dict[str, bytes | None], request: Message) -> Answer:
    return MessageType.EXISTS_RESPONSE, {"boolval": request.path in pulses}


_ANSWERS: dict[MessageType, Callable[[dict[str, bytes | None], Message], Answer]] = {
    MessageType.CREATE_PATH: lambda *_: (MessageType.CREATE_PATH_RESPONSE, {}),
    MessageType.EXISTS: _exists,
    MessageType.SEND_PULSE: _send,
    MessageType.GET_ALL_PULSE_FOR_PATH: lambda *_: (
        MessageType.GET_ALL_PULSE_FOR_PATH_RESPONSE,
        {},
    ),
    MessageType.GET_ALL_NODES_FOR_PATH: _nodes,
    MessageType.GET_PULSE: _pulse,
    MessageType.DELETE_PATH: _delete,
    MessageType.DELETE_PULSE_ID: _delete_pulse,
}


class Connection:
    """One connection, without I/O.

    Parameters
    ----------
    store
        What the daemon holds.
    method
        How it authenticates.
    mechanism
        Makes the server's half of an authentication; None with the method NONE.
    """

    def __init__(
        self, store: Store, method: str, mechanism: Callable[[], Mechanism] | None
    ) -> None:
        self._store = store
        self._method = method
        self._new_mechanism = mechanism
        self._mechanism: Mechanism | None = None
        self._has_handler = mechanism is not None
        self._is_authenticated = False
        self._unread = b""

    def received(self, data: bytes) -> bytes:
        """Take bytes; return those of the answer.

        Raises
        ------
        ConnectionClosedError, DaemonEndedError
            Where the Java daemon closes the connection, or ends.
        """
        self._unread += data
        answers = []
        while len(self._unread) >= 4:
            length = int.from_bytes(self._unread[:4], "big", signed=True)
            if not 0 <= length <= _MAX_FRAME:
                raise ConnectionClosedError(f"a frame of {length} bytes")
            if len(self._unread) < 4 + length:
                break
            payload, self._unread = self._unread[4 : 4 + length], self._unread[4 + length :]
            answers.append(self._taken(payload))
        return b"".join(answers)

    def _taken(self, payload: bytes) -> bytes:
        try:
            message = decode(payload)
            if message.type == MessageType.CONTROL_MESSAGE:
                return self._control(read_control(message))
            if message.type == MessageType.SASL_MESSAGE_TOKEN:
                return self._token(read_token(message))
        except StormkeeperError as error:
            # The next handler is told: the SASL handler closes, the last one ends the daemon.
            raise self._fault(f"a frame that is not right: {error}") from error
        if not self._is_authenticated:
            self._has_handler = False
        may_read = self._is_authenticated or self._method == "NONE"
        return encode(self._store.answer(message, may_read=may_read))

    def _control(self, code: Control) -> bytes:
        is_asked_for = self._has_handler and self._method == "DIGEST"
        if not is_asked_for or code is not Control.SASL_TOKEN_REQUEST:
            raise DaemonEndedError(f"control message {code.name} is taken for a plain one")
        token = self._begun().start()
        assert token is not None
        return token_frame(token)

    def _token(self, token: bytes) -> bytes:
        if not self._has_handler:
            raise DaemonEndedError("a token is taken for a plain message")
        if self._mechanism is None and self._method == "DIGEST":
            raise ConnectionClosedError("a token that was not asked for")
        mechanism = self._begun()
        try:
            answer = mechanism.step(token)
        except AuthenticationError as error:
            raise ConnectionClosedError(str(error)) from error
        complete = control_frame(Control.SASL_COMPLETE)
        frames = complete if answer is None else token_frame(answer)
        if mechanism.complete:
            self._has_handler, self._is_authenticated = False, True
            frames += complete
        return frames

    def _begun(self) -> Mechanism:
        if self._mechanism is None:
            assert self._new_mechanism is not None
            self._mechanism = self._new_mechanism()
        return self._mechanism

    def _fault(self, reason: str) -> Exception:
        return ConnectionClosedError(reason) if self._has_handler else DaemonEndedError(reason)


class StormPacemaker:
    """The stand-in on a loopback port; a context manager that runs it in a thread.

    Parameters
    ----------
    method
        ``NONE``, ``DIGEST`` or ``KERBEROS``.
    jaas
        The JAAS file with the server's secrets.
    port
        Where it listens; 0 for any free port, which is reserved for it.
    """

    def __init__(self, method: str = "NONE", jaas: Path | None = None, *, port: int = 0) -> None:
        values = {
            "pacemaker.auth.method": method,
            "java.security.auth.login.config": None if jaas is None else str(jaas),
            "nimbus.daemon.user": "nimbus",
        }
        self._mechanism = methods.server_mechanism(configuration.defaults().with_values(values))
        self.method = method
        self.host = "127.0.0.1"
        self.port = port or reservations.reserve()
        self.store = Store()
        #: Connections made until now.
        self.connections = 0
        #: What came at which the Java daemon would have ended; it serves nobody after that.
        self.ended_by: str | None = None
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Event
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Run it in a thread, with nothing stored."""
        self.store = Store()
        self.ended_by = None
        started: Future[None] = Future()

        def run() -> None:
            try:
                asyncio.run(self.serve(lambda: started.set_result(None)))
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

        self._thread = threading.Thread(target=run, name="storm-pacemaker")
        self._thread.start()
        started.result(DEADLINE_SECS)

    def stop(self) -> None:
        """Stop it, if it runs; its port is free then."""
        if self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(DEADLINE_SECS)
            assert not self._thread.is_alive()
            self._thread = None

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until it is stopped, or something ends it."""
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._converse, self.host, self.port)
        ready()
        await self._end.wait()
        server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        connection = Connection(self.store, self.method, self._mechanism)
        try:
            while not self._end.is_set() and (data := await reader.read(65_536)):
                writer.write(connection.received(data))
                await writer.drain()
        except DaemonEndedError as error:
            self.ended_by = self.ended_by or str(error)
            self._end.set()
        except (ConnectionClosedError, OSError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)
