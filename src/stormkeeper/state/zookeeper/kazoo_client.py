"""kazoo's client, with our handler (kazoo's public `IHandler`) and private methods overridden.

So kazoo's version is capped (pyproject.toml), and ``tests/state/zookeeper/test_kazoo.py`` fails
when an overridden name changes. Reasons:

- `_send_request`: kazoo would send a request after its caller gave up; its thread ends at a request
  that does not fit into the protocol; and each request puts off the ping that notices a silent
  server.
- `_read_socket`: an unreadable answer would end kazoo's thread; here it costs the connection.
- `_read`: kazoo makes four calls even for bytes that are there.
- `_read_watch_event`: kazoo drops the events of persistent watches, and reads the event again.
- `_connect`: the same while connecting. kazoo reports a connection before authentication, and
  forgets why an attempt failed.
- `_authenticate_with_sasl`: kazoo needs another library, and takes any broken connection for a
  refusal.
- `_expand_client_hosts`: kazoo's thread ends at an invalid name.
- `_queue`, of the client: kazoo replaces it at the end of a session, and would lose requests.

kazoo's ``add_auth`` is not used: kazoo would take its answer for that of the oldest request. All
methods run on kazoo's thread.
"""

import contextlib
import fcntl
import io
import logging
import math
import os
import random
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    KazooException,
    SessionExpiredError,
)
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL, Watch

from stormkeeper.errors import AuthenticationError
from stormkeeper.names import host_port
from stormkeeper.sasl import Mechanism
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings

log = logging.getLogger(__name__)

#: Most requests in kazoo's queue: a pipe's capacity in bytes.
_MOST_WAKE_UPS = 1_048_576

#: Most bytes received at once.
_RECEIVED_BYTES: Final = 65_536

#: Errors of a socket that takes no more bytes now.
_NO_ROOM: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

#: A server ended a connection without TLS before its first answer.
_WITHOUT_TLS: Final = (
    "the server hung up when it was first spoken to, as one does that is no ZooKeeper, that has TLS"
    " on this port (set storm.zookeeper.ssl.enable), or that is not ready to serve"
)

#: ``ZooDefs.AddWatchModes``.
_PERSISTENT_RECURSIVE: Final = 1

_KAZOOS_HUNG_UP: Final = "socket connection broken"


@dataclass(frozen=True)
class WatchTree:
    """ZooKeeper's request ``addWatch`` for a persistent recursive watch, which kazoo lacks."""

    path: str

    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        path = self.path.encode()
        return struct.pack(f"!i{len(path)}si", len(path), path, _PERSISTENT_RECURSIVE)

    @staticmethod
    def deserialize(_answer: bytes, _offset: int) -> bool:
        return True


class UnwritableRequestError(KazooException):  # type: ignore[misc]
    """A request that does not fit into ZooKeeper's protocol."""


class SentRequest(AsyncResult):  # type: ignore[misc]
    """A request that was given to kazoo, and the answer.

    kazoo's thread claims it before sending; the caller withdraws it at the deadline. A withdrawn
    request never happens.
    """

    def __init__(self, handler: "KazooHandler") -> None:
        super().__init__(handler)
        self._own_handler = handler
        # The caller was handling this exception before.
        self._handled = id(sys.exception())
        # Acquired once, by `claim` or `withdraw`.
        self._decision = threading.Lock()
        self._is_withdrawn = False

    def claim(self) -> bool:
        """Claim for sending; return whether sending is allowed."""
        return self._decision.acquire(blocking=False)

    def withdraw(self) -> bool:
        """Withdraw; return whether the request was not sent, and so never will be."""
        if self._decision.acquire(blocking=False):
            self._is_withdrawn = True
        return self._is_withdrawn

    def set(self, value: Any = None) -> None:
        self._own_handler.answers += 1
        super().set(value)

    def set_exception(self, exception: Exception) -> None:
        """Take the exception that kazoo raises.

        Raises Ctrl-C further: kazoo would take it for the end of the connection.
        """
        cause = sys.exception()
        is_new = id(cause) != self._handled
        if is_new and cause is not None and not isinstance(cause, Exception):
            self.withdraw()
            raise cause
        self._own_handler.answers += 1
        super().set_exception(exception)

    def is_answered_by(self, deadline: float) -> bool:
        while not self.ready():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True


class WakeUps:
    """Both ends of the pipe that wakes kazoo's thread, a byte for each request.

    Neither end ever waits; kazoo's socket pair blocks its writer while full, past any deadline.
    """

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self._reading, self._writing = io.FileIO(reading), io.FileIO(writing, "w")
        for end in (reading, writing):
            os.set_blocking(end, False)
        # If forbidden, there is room for 65,536.
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _MOST_WAKE_UPS)
        #: In C: Ctrl-C in Python code within kazoo would end the connection.
        self.send = self._writing.write

    def recv(self, size: int) -> bytes:
        return self._reading.read(size) or b""

    def fileno(self) -> int:
        return self._reading.fileno()

    def close(self) -> None:
        self._writing.close()
        self._reading.close()


class BufferedSocket:
    """A connected socket that receives many answers at once, with what kazoo uses of a socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.is_tls = isinstance(connected, ssl.SSLSocket)
        self.fileno = connected.fileno
        self.send = connected.send
        self.close = connected.close
        self.setblocking = connected.setblocking
        self.connected: Any = connected
        self._received = b""
        self._read = 0

    def pending(self) -> int:
        """Return the number of bytes that can be read without waiting."""
        unread = len(self._received) - self._read
        return unread or (int(self.connected.pending()) if self.is_tls else 0)

    def take(self, size: int) -> bytes | None:
        """Return `size` received bytes, None if fewer are there."""
        end = self._read + size
        if end > len(self._received):
            return None
        piece = self._received[self._read : end]
        self._read = end
        return piece

    def recv(self, size: int) -> bytes:
        if self._read == len(self._received):
            self._received, self._read = self.connected.recv(_RECEIVED_BYTES), 0
        piece = self._received[self._read : self._read + size]
        self._read += len(piece)
        return piece


class KazooHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler: threads, sockets and waiting, with our guarantees.

    - Watches run on the thread that reads them, in the order of the wire.
    - Every server has a share of the time to connect; kazoo gives each all of it.
    - Received but unread bytes count as readable.
    - Waiting for a socket takes one system call; kazoo's takes five.
    """

    def __init__(self, settings: EnsembleSettings) -> None:
        super().__init__()
        self.loop: threading.Thread | None = None
        self.answers = 0
        #: Longest wait for a socket; None: as long as kazoo asks for.
        self.longest_wait_secs: float | None = None
        longest = min(settings.session_timeout_secs, settings.call_timeout_secs)
        self._connect_secs = longest / len(settings.servers)
        self._contexts: Callable[[], ssl.SSLContext] | None = settings.security.contexts

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        """Start a thread, named after the function."""
        name = f"zookeeper {func.__name__.strip('_').replace('_', ' ')}"
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=name, daemon=True)
        if func.__name__ == "zk_loop":
            self.loop = thread
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def async_result(self) -> SentRequest:
        return SentRequest(self)

    def create_socket_pair(self) -> tuple[WakeUps, WakeUps]:
        both = WakeUps()
        return both, both

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str | None = None,
        timeout: float = math.inf,
        **_its_tls: Any,
    ) -> BufferedSocket:
        connection = socket.create_connection(address, min(timeout, self._connect_secs))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._contexts is None:
                return BufferedSocket(connection)
            tls = self._contexts().wrap_socket(connection, server_hostname=hostname)
            return BufferedSocket(tls)
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
        """Wait as `select.select`; the lists are disjoint."""
        if self.longest_wait_secs is not None:
            timeout = min(math.inf if timeout is None else timeout, self.longest_wait_secs)
        poll = select.poll()
        by_number = {}
        received = []
        for side, waiting_for in ((reading, select.POLLIN), (writing, select.POLLOUT)):
            for one in side:
                poll.register(one, waiting_for)
                by_number[one.fileno()] = one
                if side is reading and isinstance(one, BufferedSocket) and one.pending():
                    received.append(one)
                    timeout = 0
        wait_ms = None if timeout is None else math.ceil(max(0.0, timeout) * 1000)
        # A broken socket is ready: its user gets the error.
        ready = [by_number[number] for number, _ in poll.poll(wait_ms)]
        return (
            [one for one in reading if one in ready or one in received],
            [one for one in writing if one in ready],
            [],
        )


class Failure(NamedTuple):
    """Why a connection was not made."""

    reason: str
    #: Advice; None if the server may simply be down.
    advice: str | None = None

    def __str__(self) -> str:
        return self.reason if self.advice is None else f"{self.reason}: {self.advice}"


def failure_to_connect(error: Exception) -> Failure:
    # kazoo wraps the socket's error, and keeps only a part of the message.
    cause = error.__context__ if isinstance(error.__context__, OSError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Failure(
            f"the server's certificate is not trusted: {cause.verify_message.rstrip('.')}",
            "check storm.zookeeper.ssl.truststore.path and"
            " storm.zookeeper.ssl.hostnameVerification",
        )
    if isinstance(cause, ssl.SSLError):
        reason = getattr(cause, "reason", None) or cause
        return Failure(
            f"no TLS with the server: {reason}",
            "check that its port is the one for TLS, and storm.zookeeper.ssl.keystore.path",
        )
    if isinstance(cause, OSError):
        return Failure(cause.strerror or str(cause) or type(cause).__name__)
    if isinstance(cause, KazooTimeoutError):
        return Failure("the server accepted the connection and did not answer")
    return Failure(str(cause) or type(cause).__name__)


def failure_to_resolve(host: str, error: Exception) -> Failure:
    reason = getattr(error, "strerror", None) or error
    return Failure(
        f"the name {host} does not resolve ({reason})", "check storm.zookeeper.servers and the DNS"
    )


class SingleQueueClient(KazooClient):  # type: ignore[misc]
    """kazoo's client, with one queue of requests for all sessions."""

    @property
    def _queue(self) -> deque[tuple[Any, Any]]:
        return self._requests

    @_queue.setter
    def _queue(self, queue: deque[tuple[Any, Any]]) -> None:
        if not hasattr(self, "_requests"):
            self._requests = queue


class ServerConnection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection to a server.

    `answer_secs` limits each answer while connecting. `on_made` gets the granted session timeout
    after authentication, `on_refused` the reason when a server refuses our credentials; kazoo's
    thread then ends; `on_event` each event of a watch. None may block.
    """

    def __init__(
        self,
        client: Any,
        retry: Any,
        mechanism: Callable[[], Mechanism] | None,
        *,
        answer_secs: float,
        on_made: Callable[[float], None],
        on_refused: Callable[[str], None],
        on_event: Callable[[Watch], None],
    ) -> None:
        # Options other than None: kazoo calls `_authenticate_with_sasl`.
        super().__init__(
            client, retry, logger=client.logger, sasl_options=None if mechanism is None else {}
        )
        #: These end a connection or a session in kazoo, and not its thread.
        self._ends = (ConnectionDropped, SessionExpiredError, self.handler.timeout_exception)
        self._mechanism = mechanism
        self._answer_secs = answer_secs
        self._on_made = on_made
        self._on_refused = on_refused
        self._on_event = on_event
        #: None after a success.
        self.last_failure: Failure | None = None
        # Failures by server since the last connection.
        self._failures: dict[str, Failure] = {}
        self._is_logged = False
        self._last_sent: SentRequest | None = None
        self._answers_seen = 0
        self._silent_since = 0.0

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        self._look_for_silence(read_timeout)
        queue = self.client._queue
        # Other entries are kazoo's own requests to end the connection.
        call = queue[0][1] if queue else None
        if isinstance(call, SentRequest):
            if not call.claim():
                queue.popleft()
                self._read_sock.recv(1)
                return
            self._last_sent = call
        try:
            super()._send_request(read_timeout, connect_timeout)
        except self._ends:
            raise
        except Exception as error:
            if not queue or queue[0][1] is not call:
                raise ConnectionDropped("a request could not be sent") from error
            # It could not be encoded.
            queue.popleft()
            self._read_sock.recv(1)
            call.set_exception(UnwritableRequestError(repr(error)))

    def _write(self, msg: bytes, timeout: float) -> None:
        # There is nearly always room, for which kazoo waits before each message.
        with self._socket_error_handling(), contextlib.suppress(*_NO_ROOM):
            msg = msg[self._socket.send(msg) :]
        if msg:
            super()._write(msg, timeout)

    def _look_for_silence(self, read_timeout: float) -> None:
        """Break the connection if the server owes answers for too long."""
        now = time.monotonic()
        answers = self.handler.answers
        owes_none = self._last_sent is None or self._last_sent.ready()
        if owes_none or answers != self._answers_seen:
            self._answers_seen, self._silent_since = answers, now
        elif now - self._silent_since > read_timeout:
            raise ConnectionDropped(f"the server has answered nothing for {read_timeout:g} s")

    def _read_socket(self, read_timeout: float) -> Any:
        pending = self.client._pending
        call = pending[0][1] if pending else None
        try:
            return super()._read_socket(read_timeout)
        except self._ends:
            raise
        except Exception as error:
            log.warning(
                "an answer of ZooKeeper cannot be read (%r): the connection is made anew", error
            )
            is_taken_out = not pending or pending[0][1] is not call
            if call is not None and is_taken_out and not call.ready():
                # kazoo has removed the request, and leaves it without an answer.
                call.set_exception(error)
            raise ConnectionDropped("an answer cannot be read") from error

    def _read(self, length: int, timeout: float) -> bytes:
        taken: bytes | None = self._socket.take(length)
        if taken is None:
            taken = super()._read(length, timeout)
        return taken

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self._on_event(event)
        client = self.client
        if event.path in client._data_watchers or event.path in client._child_watchers:
            super()._read_watch_event(buffer, offset)

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._last_sent = None
        # A starting server never answers clients let in too early (NullPointerException in
        # `removeCnxn` of ZooKeeper 3.9): leave time for another attempt.
        self.handler.longest_wait_secs = self._answer_secs
        try:
            timeouts = super()._connect(host, hostip, port)
        except AuthFailedError as error:
            self.last_failure = Failure(str(error) or "ZooKeeper refused the credentials")
            self._on_refused(self.last_failure.reason)
            raise
        except Exception as error:
            self.last_failure = self._failures[host_port(host, port)] = self._why(error)
            if isinstance(error, self._ends):
                raise
            raise ConnectionDropped("an answer cannot be read") from error
        finally:
            self.handler.longest_wait_secs = None
        self.last_failure = None
        self._failures.clear()
        self._is_logged = False
        read_timeout_ms, _ = timeouts
        # kazoo's read timeout is two thirds of the session timeout.
        self._on_made(read_timeout_ms * 1.5 / 1000)
        return timeouts

    def _why(self, error: Exception) -> Failure:
        if str(error) != _KAZOOS_HUNG_UP:
            return failure_to_connect(error)
        # kazoo is connected from the first answer on.
        if self.client.connected or self._socket.is_tls:
            return Failure("the server hung up")
        return Failure(_WITHOUT_TLS)

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        self._log_last_round()
        addresses = []
        for host, port in self.client.hosts:
            try:
                found = socket.getaddrinfo(host, port, 0, 0, socket.IPPROTO_TCP)
            except (OSError, UnicodeError) as error:
                self.last_failure = self._failures[host] = failure_to_resolve(host, error)
            else:
                addresses += [(host, str(one[4][0]), int(one[4][1])) for one in found]
        random.shuffle(addresses)
        return addresses

    def _log_last_round(self) -> None:
        if self._failures and not self._is_logged:
            self._is_logged = True
            log.warning(
                "no ZooKeeper server is reached, and it is tried again: %s",
                "; ".join(f"{at}: {why}" for at, why in sorted(self._failures.items())),
            )

    def _authenticate_with_sasl(self, _host: str, timeout: float) -> None:
        assert self._mechanism is not None
        try:
            mechanism = self._mechanism()
            token = mechanism.start() or b""
            xid = 0
            while True:
                xid += 1
                challenge = self._exchange_tokens(token, xid, timeout)
                answer = mechanism.step(challenge)
                if answer is None:
                    break
                token = answer
        except AuthenticationError as error:
            raise AuthFailedError(str(error)) from error
        if not mechanism.complete:
            raise AuthFailedError("the server did not end the SASL authentication as it should")

    def _exchange_tokens(self, token: bytes, xid: int, timeout: float) -> bytes:
        self._submit(SASL(token), timeout, xid)
        try:
            header, buffer, offset = self._read_header(timeout)
        except ConnectionDropped as error:
            # Servers refuse with an answer, so any broken connection is no refusal.
            raise ConnectionDropped("the server hung up during SASL authentication") from error
        if header.xid != xid:
            raise ConnectionDropped(f"the server answered {header.xid} to SASL request {xid}")
        if header.zxid > 0:
            self.client.last_zxid = header.zxid
        if header.err:
            raise AuthFailedError("the server refused the SASL user or password")
        challenge: bytes | None = SASL.deserialize(buffer, offset)[0]
        if challenge is None:
            raise AuthFailedError("the server has no SASL set up")
        return challenge
