"""A proxy that makes the network slow, and counts the requests that go through."""

import contextlib
import queue
import socket
import struct
import threading
import time

_LENGTH = struct.Struct(">i")


class SlowProxy:
    """Passes bytes on after `delay_secs`, each way; use it as a context manager.

    ZooKeeper and Pacemaker alike send four bytes of length, then as many: so requests are counted.
    """

    def __init__(self, host, port, delay_secs):
        self._target = (host, port)
        self._delay_secs = delay_secs
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = []
        self._requests = 0
        self.port = self._listener.getsockname()[1]
        _start(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    @property
    def requests(self):
        """How many requests have come in until now, opening a connection among them."""
        return self._requests

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                self._join(client, server, self._count)
                self._join(server, client, lambda _: None)

    def _join(self, source, sink, count):
        held = queue.SimpleQueue()
        _start(self._read, source, held, count)
        _start(self._write, sink, held)

    def _read(self, source, held, count):
        counting = _Counting(count)
        data = b"begin"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            counting.take(data)
            held.put((time.monotonic() + self._delay_secs, data))

    def _write(self, sink, held):
        while True:
            due, data = held.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return

    def _count(self, requests):
        self._requests += requests


class _Counting:
    """Counts frames in pieces of a stream."""

    def __init__(self, told):
        self._told = told
        self._left = 0
        self._head = b""

    def take(self, data):
        pos = 0
        while pos < len(data):
            if self._left:
                step = min(self._left, len(data) - pos)
                self._left -= step
            else:
                step = _LENGTH.size - len(self._head)
                self._head += data[pos : pos + step]
                if len(self._head) == _LENGTH.size:
                    (self._left,) = _LENGTH.unpack(self._head)
                    self._head = b""
                    self._told(1)
            pos += step


def _start(work, *arguments):
    threading.Thread(target=work, args=arguments, daemon=True).start()
