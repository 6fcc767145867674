"""A ZooKeeper server that misbehaves as a test says, for what a real one does not show on demand.

::

    def hang_up_at_once(peer):
        peer.greet()

    with ScriptedZooKeeper(hang_up_at_once, ScriptedPeer.serve) as server:
        KazooClient(str(server.address))

The first connection gets the first script, and so on; the last script serves all further ones. The
connection is closed when its script returns.
"""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple, Self

from stormkeeper.conf import Address
from support.waiting import DEADLINE_SECS

PING, AUTH, CLOSE, SASL = 11, 100, -11, 102
CREATE, MULTI = 1, 14

#: Before each operation of a transaction, each of its answers, and the end of both.
_OPERATION = struct.Struct("!iBi")

_STAT = struct.pack("!qqqqiiiqiiq", 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1)


class Asked(NamedTuple):
    """A request."""

    xid: int
    type: int
    body: bytes

    @property
    def path(self) -> str:
        (length,) = struct.unpack_from("!i", self.body)
        return self.body[4 : 4 + length].decode()

    @property
    def token(self) -> bytes:
        return self.body[4:]

    def alone(self) -> "Asked":
        """Return the first operation of a transaction; what is none, as it is."""
        if self.type != MULTI:
            return self
        kind, _, _ = _OPERATION.unpack_from(self.body)
        return self._replace(type=kind, body=self.body[_OPERATION.size :])


class ScriptedPeer:
    """What a script does with one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._received = bytearray()
        self._has_greeted = False
        #: How many bytes each read brought, and every request of the connection.
        self.reads: list[int] = []
        self.asked: list[Asked] = []

    def greet(self, session: int = 0x5E55, timeout_ms: int = 10_000) -> None:
        """Take the first frame, and tell the client that it has a session; with 0 ms, no more."""
        self._has_greeted = True
        self.next_frame()
        granted = struct.pack("!iiq", 0, timeout_ms, session) + _buffer(bytes(16)) + b"\0"
        self.send(self.frame(granted))

    def next(self) -> Asked:
        """Return the next request; pings are answered by the way."""
        while True:
            frame = self.next_frame()
            asked = Asked(*struct.unpack_from("!ii", frame), frame[8:])
            if asked.type != PING:
                self.asked.append(asked)
                return asked
            self.send(self.answer(asked))

    def serve(self) -> None:
        """Answer every request with its own path as the value, until the client goes."""
        if not self._has_greeted:
            self.greet()
        while True:
            asked = self.next()
            self.send(self.value(asked))
            if asked.type == CLOSE:
                return

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def frame(body: bytes) -> bytes:
        return struct.pack("!i", len(body)) + body

    @classmethod
    def answer(cls, asked: Asked, body: bytes = b"", error: int = 0) -> bytes:
        return cls.frame(struct.pack("!iqi", asked.xid, 1, error) + body)

    @classmethod
    def value(cls, asked: Asked) -> bytes:
        """Return the answer to a read: the path is the value."""
        body = b"" if asked.type == CLOSE else _buffer(asked.path.encode()) + _STAT
        return cls.answer(asked, body)

    @classmethod
    def results(cls, asked: Asked, *codes: int, made: str = "") -> bytes:
        """Return the answer to a transaction: a code for each operation, or that `made` was."""
        parts = [_OPERATION.pack(-1, 0, code) + struct.pack("!i", code) for code in codes]
        if made:
            parts.append(_OPERATION.pack(CREATE, 0, 0) + _buffer(made.encode()))
        return cls.answer(asked, b"".join(parts) + _OPERATION.pack(-1, 1, -1))

    @classmethod
    def token(cls, asked: Asked, token: bytes | None) -> bytes:
        """Return the answer to a SASL token."""
        return cls.answer(asked, struct.pack("!i", -1) if token is None else _buffer(token))

    def next_frame(self) -> bytes:
        (length,) = struct.unpack("!i", self._take(4))
        return self._take(length)

    def _take(self, length: int) -> bytes:
        while len(self._received) < length:
            data = self._socket.recv(1_000_000)
            if not data:
                raise ConnectionError("the client ended the connection")
            self.reads.append(len(data))
            self._received += data
        taken = bytes(self._received[:length])
        del self._received[:length]
        return taken


class ScriptedZooKeeper:
    """Listens on a port of its own, and runs scripts.

    Parameters
    ----------
    scripts
        One for each connection.
    context
        How it speaks TLS.
    """

    def __init__(
        self, *scripts: Callable[[ScriptedPeer], None], context: ssl.SSLContext | None = None
    ) -> None:
        self._scripts = scripts
        self._context = context
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        #: One for each connection, in their order.
        self.peers: list[ScriptedPeer] = []
        #: What scripts failed of, other than that the client went.
        self.failures: list[BaseException] = []
        self._playing: list[threading.Thread] = []
        self._listening = self._start(self._listen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shut(self._listener)
        # It ends first: no connection comes to the others after that.
        self._join(self._listening)
        for sock in self._sockets:
            self._shut(sock)
        for thread in self._playing:
            self._join(thread)
        assert not self.failures, self.failures

    @staticmethod
    def _shut(sock: socket.socket) -> None:
        # Without the first the end would wait for what the client has still to say.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    @staticmethod
    def _start(run: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=args, name="scripted zookeeper", daemon=True)
        thread.start()
        return thread

    @staticmethod
    def _join(thread: threading.Thread) -> None:
        thread.join(DEADLINE_SECS)
        assert not thread.is_alive(), f"{thread.name} goes on after {DEADLINE_SECS} s"

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._sockets.append(sock)
                script = self._scripts[min(len(self._playing), len(self._scripts) - 1)]
                self._playing.append(self._start(self._run, sock, script))

    def _run(self, sock: socket.socket, script: Callable[[ScriptedPeer], None]) -> None:
        try:
            if self._context is not None:
                # Known before the handshake, as that takes as long as the client likes.
                wrapped = self._context.wrap_socket(
                    sock, server_side=True, do_handshake_on_connect=False
                )
                self._sockets.append(wrapped)
                sock = wrapped
                wrapped.do_handshake()
            peer = ScriptedPeer(sock)
            self.peers.append(peer)
            script(peer)
        except OSError:
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            self._shut(sock)


def _buffer(data: bytes) -> bytes:
    return struct.pack("!i", len(data)) + data
