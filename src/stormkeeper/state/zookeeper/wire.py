"""What kazoo writes to and reads from a server, many requests at a time, and how it begins.

kazoo's connection writes one request and reads one answer per turn of its loop, at several system
calls each. `Wire` takes its place:

- One write takes all requests that are queued, up to `WRITE_REQUESTS` or `WRITE_BYTES`, and one
  read all answers that have arrived, up to `READ_BYTES`. Many requests are queued at once
  (`Wire.submit`), with one object for all their answers in place of one for each.
- Requests are queued only while there is a connection, and fail when it breaks. kazoo queues them
  between two connections too, and sends them in the next one, however long ago their callers gave
  up. What waits to be sent can be withdrawn (`Wire.withdraw`).
- A connection counts as made only when its client has been authenticated; with kazoo alone,
  requests are sent before. SASL is spoken with the mechanisms of `stormkeeper.sasl`.
- The answer to an authentication overtakes others, and goes to whom it belongs.
- A server that is silent is noticed while requests keep coming; kazoo notices it only when there
  are none, since each of them puts off its next ping.
- Why the last connection was not made is kept, for messages, and logged once when no server could
  be reached; kazoo says nothing, or all of it with every attempt.
- An answer to another request than the one that was asked, while the connection is made, breaks
  the connection; kazoo's thread would end of it.

It is a subclass that knows kazoo's own: ``tests/state/zookeeper/test_kazoo.py`` says what of, and
pyproject.toml has the version up to which that is known.
All but `Wire.submit` and `Wire.withdraw` runs on kazoo's thread.
"""

import contextlib
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    MarshallingError,
)
from kazoo.protocol.connection import (
    _CONNECTION_DROP,
    _SESSION_EXPIRED,
    AUTH_XID,
    CLOSE_RESPONSE,
    ConnectionHandler,
)
from kazoo.protocol.serialization import SASL, Auth, Close, Connect, int_int_struct, int_struct
from kazoo.protocol.states import KeeperState
from kazoo.retry import ForceRetryError

from stormkeeper.errors import AuthenticationError
from stormkeeper.sasl import Mechanism
from stormkeeper.state.zookeeper.answers import Answer, Answers
from stormkeeper.state.zookeeper.errors import (
    Failure,
    NotSentError,
    failure_to_connect,
    failure_to_resolve,
)

log = logging.getLogger(__name__)

#: What one write takes at most. A server reads on while its answers wait, so that more would not
#: block, but answers should be read meanwhile; this many fill a round trip already.
WRITE_REQUESTS: Final = 256
WRITE_BYTES: Final = 256 * 1024

#: What one read takes at most, and so what is served before requests are looked at again.
READ_BYTES: Final = 64 * 1024

#: How much of a server's share of the session's time it has for its first answer.
FIRST_ANSWER_SHARE: Final = 0.5

#: What is said of a server that ends a connection without TLS in place of its first answer.
_WITHOUT_TLS: Final = (
    "when it was first spoken to, as one does that is no ZooKeeper, that has TLS on this port (set"
    " storm.zookeeper.ssl.enable), or that is not ready to serve"
)

#: How many wake-up bytes are taken at once; there are fewer in the pair of sockets.
_WAKE_UPS: Final = 4096

_LARGEST_XID: Final = 2**31 - 1

#: When requests are sent.
_CONNECTED: Final = (KeeperState.CONNECTED, KeeperState.CONNECTED_RO)


class Wire(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection to a server.

    Parameters
    ----------
    client
        Whose connection it becomes (``client._connection``).
    mechanism
        Makes the client's half of SASL, one for each connection; None: no SASL.
    on_refused
        Told why a server did not take the client for who it says it is; kazoo then ends. It must
        not block.
    """

    def __init__(
        self,
        client: Any,
        mechanism: Callable[[], Mechanism] | None,
        on_refused: Callable[[str], None],
    ) -> None:
        super().__init__(
            client,
            client._conn_retry.copy(),
            logger=client.logger,
            sasl_options=None if mechanism is None else {},
        )
        self._mechanism = mechanism
        self._on_refused = on_refused
        # Held by who queues, withdraws or takes requests, and while the connection's state changes,
        # so that nothing is queued while there is none. Nothing else is done under it that waits.
        self._queueing = threading.Lock()
        # States of a connection that is being made, to be told when it is.
        self._held: list[KeeperState] | None = None
        self._become_kazoos = client._session_callback
        client._session_callback = self._become
        self._xid: int
        #: Why the last attempt to connect failed; None after one that did not.
        self.last_failure: Failure | None = None
        # Why each server was not reached in this round, and whether it was logged since a
        # connection was made.
        self._failures: dict[str, Failure] = {}
        self._is_told = False
        # What was read of the socket and not yet served.
        self._received = b""
        self._served = 0
        # Since when the server has owed an answer and sent nothing, on the monotonic clock.
        self._owing_since = 0.0

    def submit(self, requests: Sequence[tuple[Any, Answer]]) -> None:
        """Queue requests, for kazoo's thread to send; each has an answer in the end.

        That is `NotSentError` where there is no connection, or none any more before they were sent.
        Does not wait for a server, and may be called from any thread but kazoo's.
        """
        with self._queueing:
            client = self.client
            is_queued = client._state in _CONNECTED
            if is_queued:
                client._queue.extend(requests)
        # Not under the lock: kazoo's thread would wake up to wait for it.
        if not is_queued:
            _were_not_sent(requests)
        elif not self._wake():
            # Nobody looks into the queue any more.
            _were_not_sent(self._take_back())

    def _take_back(self) -> list[tuple[Any, Any]]:
        with self._queueing:
            queue = self.client._queue
            return [queue.popleft() for _ in range(len(queue))]

    def withdraw(self, answers: Answers) -> int:
        """Have those of some requests not sent that still wait for it; returns how many did."""
        with self._queueing:
            queue = self.client._queue
            unsent: list[tuple[Any, Any]] = []
            # One by one, as kazoo itself appends to it at any time.
            for _ in range(len(queue)):
                queued = queue.popleft()
                mine = isinstance(queued[1], Answer) and queued[1].belongs_to(answers)
                (unsent if mine else queue).append(queued)
        _were_not_sent(unsent)
        return len(unsent)

    def _become(self, state: KeeperState) -> None:
        """Take a state of the connection, and fail what was not sent in one that is lost."""
        if self._held is not None:
            self._held.append(state)
            return
        unsent = []
        with self._queueing:
            # Who was refused is told so, sent or not: that is kazoo's to say.
            if state not in (*_CONNECTED, KeeperState.AUTH_FAILED):
                queue = self.client._queue
                unsent = [queue.popleft() for _ in range(len(queue))]
            # It fails what was sent.
            self._become_kazoos(state)
        _were_not_sent(unsent)

    def _wake(self) -> bool:
        """Have kazoo's thread look into the queue; returns whether there is one to look."""
        try:
            self._write_sock.send(b"\0", socket.MSG_DONTWAIT)
        except BlockingIOError:
            # It has more than enough reason to look.
            pass
        except (OSError, AttributeError):
            return False
        return True

    # What kazoo's loop calls.

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        # First the bytes, then the queue: a request that is not seen here has its byte still to
        # come. A byte too many is harmless.
        with contextlib.suppress(BlockingIOError):
            self._read_sock.recv(_WAKE_UPS, socket.MSG_DONTWAIT)
        client = self.client
        now = time.monotonic()
        if not client._pending:
            self._owing_since = now
        elif now - self._owing_since > read_timeout:
            raise ConnectionDropped(f"the server has sent nothing for {read_timeout:g} s")
        if client._pending and client._pending[-1][0].type == Close.type:
            # The server hangs up; whatever is queued behind the end is kazoo's to fail.
            return
        with self._queueing:
            queue = client._queue
            is_order = queue and _is_order(queue[0][0])
            frames = bytearray() if is_order else self._take_queued()
        if is_order:
            super()._send_request(read_timeout, connect_timeout)
        elif frames:
            self._write(frames, connect_timeout)

    def _take_queued(self) -> bytearray:
        """Take as much of what is queued as one write takes; it waits for its answers from now on.

        Whatever becomes of the write: a part of it may be sent.
        """
        client = self.client
        queue = client._queue
        frames = bytearray()
        taken = 0
        while queue and taken < WRITE_REQUESTS and len(frames) < WRITE_BYTES:
            request, answer = queue[0]
            if _is_order(request):
                break
            queue.popleft()
            try:
                body = request.serialize()
            except Exception as error:
                # It fails alone: raised here, it would end the thread, and all others with it.
                answer.set_exception(_unwritable(error))
                continue
            if request.type == Auth.type:
                xid = AUTH_XID
            else:
                xid = self._xid % _LARGEST_XID + 1
                self._xid = xid
            frames += int_struct.pack(int_int_struct.size + len(body))
            frames += int_int_struct.pack(xid, request.type)
            frames += body
            client._pending.append((request, answer, xid))
            taken += 1
            if request.type == Close.type:
                break
        if queue:
            # Their bytes have been taken.
            self._wake()
        return frames

    def _read_socket(self, read_timeout: float) -> Any:
        while True:
            response = super()._read_socket(read_timeout)
            # What has been read already is announced by no socket any more.
            if response == CLOSE_RESPONSE or not self._has_more():
                return response

    def _read_header(self, timeout: float) -> Any:
        header, buffer, offset = super()._read_header(timeout)
        if header.xid == AUTH_XID and self.client.connected:
            self._next_is_authentication()
        return header, buffer, offset

    def _next_is_authentication(self) -> None:
        """Have the answer go to the oldest authentication that waits for one.

        A server answers it when it is read, before requests that came earlier and are still
        worked on (ZooKeeperServer.processPacket); kazoo gives the answer to the oldest request.
        """
        pending = self.client._pending
        for index, waiting in enumerate(pending):
            if waiting[2] == AUTH_XID:
                del pending[index]
                pending.appendleft(waiting)
                return
        raise ConnectionDropped("the server answered an authentication, where none was asked for")

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        # A server may answer what another client of the same session has asked, as one has that
        # takes it over. Raised by kazoo, that would end its thread.
        pending = self.client._pending
        if not pending or pending[0][2] != header.xid:
            expected = f"request {pending[0][2]} was due" if pending else "nothing was asked"
            raise ConnectionDropped(f"the server answered request {header.xid}, where {expected}")
        return super()._read_response(header, buffer, offset)

    def _has_more(self) -> bool:
        """Return whether there is a whole frame, or bytes that only TLS knows of."""
        left = len(self._received) - self._served
        if left >= int_struct.size:
            (length,) = int_struct.unpack_from(self._received, self._served)
            if left >= int_struct.size + length:
                return True
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _read(self, length: int, timeout: float) -> bytes:
        if length < 0:
            raise ConnectionDropped(f"the server announced a frame of {length} bytes")
        if len(self._received) - self._served < length:
            self._receive(length, timeout)
        begin, self._served = self._served, self._served + length
        return self._received[begin : self._served]

    def _receive(self, length: int, timeout: float) -> None:
        """Read from the socket until `length` bytes are there to be served."""
        parts = [self._received[self._served :]]
        missing = length - len(parts[0])
        with self._socket_error_handling():
            while missing > 0:
                try:
                    part = self._socket.recv(READ_BYTES)
                except (BlockingIOError, ssl.SSLWantReadError):
                    self._await(timeout, reading=True)
                except ssl.SSLWantWriteError:
                    self._await(timeout, reading=False)
                else:
                    if not part:
                        raise ConnectionDropped("the server hung up")
                    parts.append(part)
                    missing -= len(part)
        self._received, self._served = b"".join(parts), 0
        self._owing_since = time.monotonic()

    def _await(self, timeout: float, *, reading: bool) -> None:
        sockets = [self._socket]
        ready = self.handler.select(
            sockets if reading else [], [] if reading else sockets, [], timeout
        )
        if not any(ready):
            raise self.handler.timeout_exception("the server did not answer in time")

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Return host, address and port of all servers, in any order."""
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

    def _connect_loop(self, retry: Any) -> Any:
        self._failures.clear()
        try:
            return super()._connect_loop(retry)
        except ForceRetryError:
            if self._failures and not self._is_told and not self.client._stopped.is_set():
                self._is_told = True
                log.warning(
                    "no ZooKeeper server is reached, and it is tried again: %s",
                    "; ".join(f"{at}: {why}" for at, why in sorted(self._failures.items())),
                )
            raise

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._received, self._served = b"", 0
        # kazoo calls the connection made before it has authenticated.
        held = self._held = []
        try:
            timeouts = super()._connect(host, hostip, port)
        except AuthFailedError as error:
            self.last_failure = Failure(str(error) or "ZooKeeper refused the credentials")
            self._on_refused(self.last_failure.reason)
            raise
        except Exception as error:
            self.last_failure = failure_to_connect(error)
            self._failures[f"{host}:{port}"] = self.last_failure
            raise
        finally:
            self._held = None
        self.last_failure = None
        self._failures.clear()
        self._is_told = False
        for state in held:
            self._become(state)
        return timeouts

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        # kazoo waits for the first answer as long as the session has to live. A server that starts
        # never answers whom it let in too early (the NullPointerException in the `removeCnxn` of
        # ZooKeeper 3.9); there should be time for another attempt.
        if not isinstance(request, Connect):
            try:
                return super()._invoke(timeout, request, xid)
            except RuntimeError as error:
                # Raised by kazoo, it would end its thread.
                raise ConnectionDropped("the server answered what was not asked") from error
        try:
            return super()._invoke(timeout * FIRST_ANSWER_SHARE, request, xid)
        except ConnectionDropped as error:
            if isinstance(self._socket, ssl.SSLSocket):
                raise
            raise ConnectionDropped(f"{error} {_WITHOUT_TLS}") from error

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        # kazoo logs what it sends.
        if isinstance(request, Auth | SASL):
            request = _Unlogged(request)
        super()._submit(request, timeout, xid)

    def _authenticate_with_sasl(self, _host: str, timeout: float) -> None:
        assert self._mechanism is not None
        try:
            mechanism = self._mechanism()
            token = mechanism.start() or b""
            xid = 0
            while True:
                xid += 1
                challenge = self._exchange(token, xid, timeout)
                answer = mechanism.step(challenge)
                if answer is None:
                    break
                token = answer
        except AuthenticationError as error:
            raise AuthFailedError(str(error)) from error
        if not mechanism.complete:
            raise AuthFailedError("the server did not end the SASL authentication as it should")

    def _exchange(self, token: bytes, xid: int, timeout: float) -> bytes:
        """Send a token, and return the server's; the first of an authentication may be empty."""
        self._submit(SASL(token), timeout, xid)
        try:
            header, buffer, offset = self._read_header(timeout)
        except ConnectionDropped as error:
            # Servers that refuse say so first; this may be any broken connection.
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


class _Unlogged:
    """A request that proves who we are, and does not say how where it is logged."""

    def __init__(self, request: Any) -> None:
        self.type: int = request.type
        self.serialize: Callable[[], bytes] = request.serialize
        self._name = type(request).__name__

    def __repr__(self) -> str:
        return f"{self._name}(***)"


def _were_not_sent(queued: Sequence[tuple[Any, Any]]) -> None:
    for _, answer in queued:
        if answer is not None:
            answer.set_exception(NotSentError())


def _unwritable(error: Exception) -> MarshallingError:
    failure = MarshallingError()
    failure.__cause__ = error
    return failure


def _is_order(request: Any) -> bool:
    """Return whether it is no request, but has kazoo's loop fail on purpose (its test harness)."""
    return request is _SESSION_EXPIRED or request is _CONNECTION_DROP
