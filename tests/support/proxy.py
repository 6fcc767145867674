"""A TCP proxy on the loopback address that a test can cut, stall and corrupt."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

from stormkeeper.conf import Address
from stormkeeper.local import reservations
from support.waiting import DEADLINE_SECS

Pair = tuple[socket.socket, socket.socket]


class Proxy:
    """Passes bytes between clients and a server until it is told not to.

    Parameters
    ----------
    target
        Where the server listens.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._pairs: set[Pair] = set()
        self._flowing = threading.Event()
        self._flowing.set()
        self._answering = threading.Event()
        self._answering.set()
        #: None while it is cut.
        self._listener: socket.socket | None = None
        self.address = Address("127.0.0.1", reservations.reserve())
        self.mend()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self.flow()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            listener, self._listener = self._listener, None
            pairs, self._pairs = self._pairs, set()
        if listener is not None:
            # An accept that waits in another thread ends by this, not by close.
            self._shut(listener)
        for pair in pairs:
            self._shut(*pair)

    def mend(self) -> None:
        """Take connections again."""
        listener = socket.create_server((self.address.host, self.address.port))
        self._listener = listener
        self._start(self._serve, listener)

    def stall(self) -> None:
        """Keep connections open, and pass nothing on until `flow`."""
        self._flowing.clear()

    def hold_answers(self) -> None:
        """Pass on what clients send, and nothing that the server does, until `flow`."""
        self._answering.clear()

    def flow(self) -> None:
        """Pass on what was held up, and all that comes."""
        self._flowing.set()
        self._answering.set()

    def inject(self, data: bytes) -> None:
        """Send bytes to every client, as if the server had."""
        with self._lock:
            for client, _server in self._pairs:
                client.sendall(data)

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=run, args=arguments, name="proxy", daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while listener is self._listener:
            try:
                client, _ = listener.accept()
            except OSError:
                continue
            try:
                server = socket.create_connection(
                    (self._target.host, self._target.port), DEADLINE_SECS
                )
            except OSError:
                # Nobody is there, and the client must not take that for somebody who is slow.
                self._shut(client)
                continue
            server.settimeout(None)
            pair = (client, server)
            with self._lock:
                # Whoever cuts sees the pairs that there are, and no others.
                is_there = listener is self._listener
                if is_there:
                    self._pairs.add(pair)
            if not is_there:
                self._shut(*pair)
                return
            self._start(self._pass, pair, client, server, self._flowing)
            self._start(self._pass, pair, server, client, self._answering)

    def _pass(
        self, pair: Pair, source: socket.socket, sink: socket.socket, gate: threading.Event
    ) -> None:
        try:
            while data := source.recv(65536):
                self._flowing.wait()
                gate.wait()
                sink.sendall(data)
        except OSError:
            pass
        with self._lock:
            self._pairs.discard(pair)
        self._shut(*pair)

    @staticmethod
    def _shut(*sides: socket.socket) -> None:
        for side in sides:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()
