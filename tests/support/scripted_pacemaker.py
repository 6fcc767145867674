"""A Pacemaker that misbehaves as a test says, for faults that a real one does not show on demand.

::

    def cut(connection):
        connection.request()
        connection.reset()

    with ScriptedPacemaker(cut, honest) as peer:
        PacemakerClient(peer.address)

The first connection gets the first script, and so on; the last script serves all further ones.
"""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Self

from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import encode
from stormkeeper.pacemaker.wire.messages import Message, MessageType, Pulse
from support.waiting import DEADLINE_SECS

#: Of a script that nothing ends: longer than anybody waits for what comes of it.
_LIFE_SECS = 2 * DEADLINE_SECS


class ConnectionEndedError(Exception):
    """The client ended the connection."""


class ScriptedConnection:
    """What a script does with one connection."""

    def __init__(self, sock: socket.socket, ended: threading.Event) -> None:
        self._socket = sock
        self._ended = ended
        self._splitter = PacemakerFrameSplitter()
        self._requests: list[Message] = []

    def request(self) -> Message:
        """Return the next request."""
        while not self._requests:
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionEndedError
            self._requests += map(decode, self._splitter.feed(data))
        return self._requests.pop(0)

    def answer(self, message: Message) -> None:
        self.send(encode(message))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def wait(self, seconds: float = _LIFE_SECS) -> None:
        """Do nothing, until the test or the time is over."""
        self._ended.wait(seconds)

    def wait_for_end(self) -> None:
        """Wait until the client ends the connection."""
        while self._socket.recv(65_536):
            pass

    def announce_end(self) -> None:
        """Say over TLS that nothing more comes, and wait until the client ends the connection."""
        assert isinstance(self._socket, ssl.SSLSocket)
        self._socket.unwrap()

    def reset(self) -> None:
        """End the connection without a word, as a killed process does."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


Script = Callable[[ScriptedConnection], None]


def hang(connection: ScriptedConnection) -> None:
    """Take a request, and answer nothing."""
    connection.request()
    connection.wait()


def honest(connection: ScriptedConnection) -> None:
    """Answer everything as a Java Pacemaker does, with a store of this connection alone."""
    store: dict[str, bytes | None] = {}
    while True:
        connection.answer(answered(store, connection.request()))


def answered(store: dict[str, bytes | None], request: Message) -> Message:
    """Do what `request` asks for with `store` and return the answer."""
    kind = request.type
    assert kind is not None
    assert kind < 100, f"type {kind} would have ended a Java Pacemaker"
    answer = Message(kind + 1, request.message_id)
    if request.pulse is not None:
        store[request.pulse.id] = request.pulse.details
        return answer
    path = request.path
    assert path is not None
    below = [held for held in store if held == path or held.startswith(path.rstrip("/") + "/")]
    if kind == MessageType.GET_PULSE:
        answer.pulse = Pulse(path, store.get(path))
    elif kind == MessageType.EXISTS:
        answer.boolval = path in store
    elif kind == MessageType.GET_ALL_NODES_FOR_PATH:
        rests = [held[len(path.rstrip("/")) + 1 :] for held in below if held != path]
        answer.nodes = sorted({rest.split("/")[0] for rest in rests})
    elif kind in (MessageType.DELETE_PATH, MessageType.DELETE_PULSE_ID):
        for held in below:
            if held == path or kind == MessageType.DELETE_PATH:
                del store[held]
    return answer


class JavaPacemaker:
    """A script of its own store, which outlives connections: like `honest`, but remembering."""

    def __init__(self) -> None:
        self.store: dict[str, bytes | None] = {}
        #: Types of the requests that came.
        self.asked: list[int | None] = []

    def __call__(self, connection: ScriptedConnection) -> None:
        while True:
            request = connection.request()
            self.asked.append(request.type)
            connection.answer(answered(self.store, request))


def refusing(connection: ScriptedConnection) -> None:
    """Answer every request with NOT_AUTHORIZED."""
    while True:
        connection.answer(Message(MessageType.NOT_AUTHORIZED, connection.request().message_id))


class ScriptedPacemaker:
    """Listens on a loopback port and plays a script on each connection, over TLS if it has any."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts = scripts
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, name="scripted-pacemaker")
        self._playing: list[threading.Thread] = []
        #: Connections made until now.
        self.connections = 0
        #: What went wrong in scripts, other than that connections ended.
        self.errors: list[BaseException] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # It ends first: no connection comes to the others after that.
        self._join(self._accepting)
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._playing:
            self._join(thread)
        assert not self.errors, self.errors

    @staticmethod
    def _join(thread: threading.Thread) -> None:
        thread.join(DEADLINE_SECS)
        assert not thread.is_alive(), f"{thread.name} goes on after {DEADLINE_SECS} s"

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(_LIFE_SECS)
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._sockets.append(sock)
            thread = threading.Thread(target=self._play, args=(script, sock), name="script")
            thread.start()
            self._playing.append(thread)

    def _wrapped(self, tls: ssl.SSLContext, sock: socket.socket) -> ssl.SSLSocket:
        # Known before the handshake, as that takes as long as the client likes.
        wrapped = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._sockets.append(wrapped)
        return wrapped

    def _play(self, script: Script, sock: socket.socket) -> None:
        with contextlib.ExitStack() as stack:
            stack.enter_context(sock)
            try:
                if self._tls is not None:
                    wrapped = stack.enter_context(self._wrapped(self._tls, sock))
                    wrapped.do_handshake()
                    sock = wrapped
                script(ScriptedConnection(sock, self._ended))
            except (ConnectionEndedError, OSError):
                pass
            except BaseException as error:
                self.errors.append(error)


def cut_at_the_request(connection: ScriptedConnection) -> None:
    """Reset the connection after a request."""
    connection.request()
    connection.reset()
