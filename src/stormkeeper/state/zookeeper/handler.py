"""What kazoo lets its user bring: threads, sockets, the wait for them, and results of requests.

All of it is kazoo's public interface (`kazoo.interfaces.IHandler`).
"""

import contextlib
import fcntl
import io
import math
import os
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler

from stormkeeper.state.zookeeper.settings import Settings

#: Requests that may wait in kazoo's queue: what a pipe may hold, in bytes.
_MOST_WAKE_UPS = 1_048_576


class Call(AsyncResult):  # type: ignore[misc]
    """A request that was given to kazoo, and the answer to it.

    It is sent or withdrawn, and never both: kazoo's thread claims it before it sends it, and
    whoever has made it withdraws it when its time is up. What is withdrawn never happens, however
    long it stays in kazoo's queue.
    """

    def __init__(self, handler: "Handler") -> None:
        super().__init__(handler)
        self._own_handler = handler
        # What its caller was handling already is nothing that came while this was queued.
        self._handled = id(sys.exception())
        # Who acquires it first has decided; it is never released.
        self._decision = threading.Lock()
        self._is_withdrawn = False

    def claim(self) -> bool:
        """Have it sent; returns whether it may be."""
        return self._decision.acquire(blocking=False)

    def withdraw(self) -> bool:
        """Have it not sent any more; returns whether it was not sent, and so never will be."""
        if self._decision.acquire(blocking=False):
            self._is_withdrawn = True
        return self._is_withdrawn

    def set(self, value: Any = None) -> None:
        """Take what kazoo read."""
        self._own_handler.answers += 1
        super().set(value)

    def set_exception(self, exception: Exception) -> None:
        """Take what kazoo raises.

        Ctrl-C goes on: kazoo takes it for the end of the connection, if it comes while a request
        is queued.
        """
        cause = sys.exception()
        is_new = id(cause) != self._handled
        if is_new and cause is not None and not isinstance(cause, Exception):
            self.withdraw()
            raise cause
        self._own_handler.answers += 1
        super().set_exception(exception)

    def is_answered_by(self, deadline: float) -> bool:
        """Wait for the answer; returns False when there is none by then, on the monotonic clock."""
        while not self.ready():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True


class WakeUps:
    """Both ends of the pipe by which callers wake kazoo's thread: one byte for each request.

    kazoo's own is a pair of sockets, and holds up whoever writes to it while it is full, past any
    deadline. This one has room for a million requests, and neither end ever waits.

    A caller puts its request into kazoo's queue, and then wakes the thread. The thread may be awake
    already, and take the request before its byte is there. The byte then wakes it once in vain.
    """

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self._reading, self._writing = io.FileIO(reading), io.FileIO(writing, "w")
        for end in (reading, writing):
            os.set_blocking(end, False)
        # Where the system does not allow it, there is room for 65,536.
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _MOST_WAKE_UPS)
        #: Adds bytes. Nothing of it is Python's: there Ctrl-C would be raised within kazoo, which
        #: takes any error of this for the end of the connection.
        self.send = self._writing.write

    def recv(self, size: int) -> bytes:
        """Take a byte if there is one."""
        return self._reading.read(size) or b""

    def fileno(self) -> int:
        """Return what is readable while there are bytes."""
        return self._reading.fileno()

    def close(self) -> None:
        """Close it; a second time does nothing. Adding bytes is a `ValueError` then."""
        self._writing.close()
        self._reading.close()


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """What kazoo asks of the system, done our way.

    - Threads have names.
    - Watches run on the thread that reads them, in the order of the wire.
    - Every server has its share of the time there is to connect; kazoo gives each all of it.
    - TLS is spoken with a context made once, and its errors are kept whole. What TLS has decrypted
      and nobody has read counts as readable; kazoo would wait for the next bytes of the network.
    - Waiting for a socket takes one system call; kazoo's takes five.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        #: The thread of the connection, once there is one.
        self.loop: threading.Thread | None = None
        #: How many requests have had their answer.
        self.answers = 0
        #: The longest wait for a socket, in seconds; None: as long as kazoo asks for.
        self.longest_wait_secs: float | None = None
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

    def async_result(self) -> Call:
        """Return what will have the answer to a request."""
        return Call(self)

    def create_socket_pair(self) -> tuple[WakeUps, WakeUps]:
        """Return the two ends of the pipe that wakes kazoo's thread."""
        both = WakeUps()
        return both, both

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
        if self.longest_wait_secs is not None:
            timeout = min(math.inf if timeout is None else timeout, self.longest_wait_secs)
        poll = select.poll()
        by_number = {}
        decrypted = []
        for side, waiting_for in ((reading, select.POLLIN), (writing, select.POLLOUT)):
            for one in side:
                poll.register(one, waiting_for)
                by_number[one.fileno()] = one
                if side is reading and isinstance(one, ssl.SSLSocket) and one.pending():
                    decrypted.append(one)
                    timeout = 0
        wait_ms = None if timeout is None else math.ceil(max(0.0, timeout) * 1000)
        # One that is broken is ready: whoever uses it is told how.
        ready = [by_number[number] for number, _ in poll.poll(wait_ms)]
        return (
            [one for one in reading if one in ready or one in decrypted],
            [one for one in writing if one in ready],
            [],
        )
