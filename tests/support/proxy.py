"""A TCP proxy on the loopback address that a test can cut, stall and corrupt."""

import contextlib
import socket
import threading
from typing import Self

from stormkeeper.conf import Address
from stormkeeper.local import ports


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
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._answering = threading.Event()
        self._answering.set()
        self._listener = socket.create_server(("127.0.0.1", ports.reserve()))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._is_cut = False
        self._accept(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self.flow()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            self._is_cut = True
            pairs, self._pairs = self._pairs, []
        # An accept that waits in another thread ends by this, not by close.
        self._shut(self._listener)
        for pair in pairs:
            for side in pair:
                self._shut(side)

    def mend(self) -> None:
        """Take connections again."""
        self._is_cut = False
        self._listener = socket.create_server(("127.0.0.1", self.address.port))
        self._accept(self._listener)

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

    def _accept(self, listener: socket.socket) -> None:
        threading.Thread(target=self._serve, args=(listener,), name="proxy", daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection((self._target.host, self._target.port), 10)
                server.settimeout(None)
            except OSError:
                if self._is_cut or listener is not self._listener:
                    return
                continue
            with self._lock:
                if not self._is_cut:
                    self._pairs.append((client, server))
            for pair in ((client, server, self._flowing), (server, client, self._answering)):
                threading.Thread(target=self._pass, args=pair, name="proxy", daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        try:
            while data := source.recv(65536):
                self._flowing.wait()
                gate.wait()
                sink.sendall(data)
        except OSError:
            pass
        self._shut(source)
        self._shut(sink)

    @staticmethod
    def _shut(side: socket.socket) -> None:
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
        side.close()
