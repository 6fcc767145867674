"""kazoo's threads and sockets: with names, with shares of the time, with our TLS."""

import math
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from stormkeeper.state.zookeeper.settings import Settings


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """What kazoo asks of the system, done our way.

    - Threads have names.
    - Watches run on the thread that reads them, in the order of the wire.
    - Every server has its share of the time there is to connect; kazoo gives each all of it.
    - TLS is spoken with a context made once, and its errors are kept whole.
    - Waiting for a socket takes one system call; kazoo's takes five.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        #: The thread of the connection, once there is one.
        self.loop: threading.Thread | None = None
        longest = min(settings.session_timeout_secs, settings.call_timeout_secs)
        self._connect_secs = longest / len(settings.servers)
        self._contexts: Callable[[], ssl.SSLContext] | None = settings.security.contexts

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        """Start a thread that is named after what it runs."""
        name = f"zookeeper {func.__name__.strip('_').replace('_', ' ')}"
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=name, daemon=True)
        if func.__name__ == "zk_loop":
            self.loop = thread
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        """Run a watch, here and now."""
        callback.func(*callback.args)

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str | None = None,
        timeout: float = math.inf,
        **_its_tls: Any,
    ) -> socket.socket:
        """Connect to a server; raises what sockets and TLS raise, all of it `OSError`."""
        connection = socket.create_connection(address, min(timeout, self._connect_secs))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._contexts is None:
                return connection
            return self._contexts().wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise

    def select(
        self,
        reading: Sequence[Any],
        writing: Sequence[Any],
        _exceptional: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return which of some sockets, each in one list only, are ready; as `select.select`."""
        poll = select.poll()
        by_number = {}
        for side, waiting_for in ((reading, select.POLLIN), (writing, select.POLLOUT)):
            for one in side:
                poll.register(one, waiting_for)
                by_number[one.fileno()] = one
        wait_ms = None if timeout is None else math.ceil(max(0.0, timeout) * 1000)
        # One that is broken is ready: whoever uses it is told how.
        ready = [by_number[number] for number, _ in poll.poll(wait_ms)]
        return (
            [one for one in ready if one in reading],
            [one for one in ready if one in writing],
            [],
        )
