"""kazoo's client, and its connection to a server, with what had to be overridden of them.

Everything else of kazoo is used through its public interface. These are private to it, so its
version is capped (pyproject.toml), and ``tests/state/zookeeper/test_kazoo.py`` fails when one of
them changes. What each is overridden for:

- `_send_request`: a request whose caller has given up is not sent; kazoo sends it whenever it can,
  however late. A request that does not fit into ZooKeeper's protocol fails alone; kazoo's thread
  would end of it. And a server that has gone silent is noticed while requests keep coming: kazoo
  notices it only by a ping that has no answer, and each request puts off the next ping.
- `_read_socket`: an answer that nobody asked for, or that cannot be read, costs the connection;
  kazoo's thread would end of it.
- `_connect`: the same while the connection is made. It tells when the connection has been made
  *and* authenticated (kazoo tells it before), with the session's timeout; and it keeps why it could
  not be made.
- `_authenticate_with_sasl`: SASL is spoken with the mechanisms of `stormkeeper.sasl`; kazoo wants
  another library for it, and sees in any broken connection a refusal.
- `_expand_client_hosts`: a name that does not resolve is in the error, not only in kazoo's log; and
  one that cannot even be asked for does not end kazoo's thread.
- `_queue`, the client's: it is one for all sessions. kazoo empties it when a session ends, and
  takes another; nobody would look at what a caller adds in between.

Nothing is ever authenticated after requests: nothing here calls kazoo's ``add_auth``, whose answer
kazoo would take for that of the oldest request. All methods run on kazoo's thread.
"""

import logging
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    MarshallingError,
    SessionExpiredError,
)
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import SASL

from stormkeeper.errors import AuthenticationError
from stormkeeper.names import host_port
from stormkeeper.sasl import Mechanism
from stormkeeper.state.zookeeper.errors import Failure, failure_to_connect, failure_to_resolve
from stormkeeper.state.zookeeper.handler import Call

log = logging.getLogger(__name__)

#: What is said of a server that ends a connection without TLS in place of its first answer.
_WITHOUT_TLS: Final = (
    "the server hung up when it was first spoken to, as one does that is no ZooKeeper, that has TLS"
    " on this port (set storm.zookeeper.ssl.enable), or that is not ready to serve"
)

#: What kazoo says of a server that ends a connection.
_KAZOOS_HUNG_UP: Final = "socket connection broken"


class Client(KazooClient):  # type: ignore[misc]
    """kazoo's client, with one queue of requests for all its sessions."""

    @property
    def _queue(self) -> deque[tuple[Any, Any]]:
        return self._requests

    @_queue.setter
    def _queue(self, queue: deque[tuple[Any, Any]]) -> None:
        if not hasattr(self, "_requests"):
            self._requests = queue


class ServerConnection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection to a server.

    Parameters
    ----------
    client
        Whose connection it becomes (``client._connection``).
    retry
        kazoo's pauses between attempts to connect.
    mechanism
        Makes the client's half of SASL, one for each connection; None: no SASL.
    answer_secs
        Longest wait for each answer while the connection is made.
    on_made
        Told that the connection is made, and authenticated, with the session's timeout in seconds
        as the server has granted it.
    on_refused
        Told why a server did not take the client for who it says it is; kazoo then ends. Neither of
        them may block.
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
    ) -> None:
        # Any options that are not None have kazoo call `_authenticate_with_sasl`.
        super().__init__(
            client, retry, logger=client.logger, sasl_options=None if mechanism is None else {}
        )
        #: What ends a connection or a session in kazoo, and not its thread.
        self._ends = (ConnectionDropped, SessionExpiredError, self.handler.timeout_exception)
        self._mechanism = mechanism
        self._answer_secs = answer_secs
        self._on_made = on_made
        self._on_refused = on_refused
        #: Why the last attempt to connect failed; None after one that did not.
        self.last_failure: Failure | None = None
        # Why each server was not reached since a connection was made, and whether it was logged.
        self._failures: dict[str, Failure] = {}
        self._is_told = False
        # The request that was sent last, the answers there were when it was looked last whether
        # there are more, and since when there are none, on the monotonic clock.
        self._last_sent: Call | None = None
        self._answers_seen = 0
        self._silent_since = 0.0

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        self._look_for_silence(read_timeout)
        queue = self.client._queue
        # What is no call ends the connection: kazoo's own wish to.
        call = queue[0][1] if queue else None
        if isinstance(call, Call):
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
            # It cannot be put into bytes, so nothing of it was sent.
            queue.popleft()
            self._read_sock.recv(1)
            call.set_exception(_unwritable(error))

    def _look_for_silence(self, read_timeout: float) -> None:
        """Break the connection if the server owes answers, and has given none for too long."""
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
                # kazoo has forgotten it, and tells it nothing more.
                call.set_exception(error)
            raise ConnectionDropped("an answer cannot be read") from error

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        self._last_sent = None
        # kazoo waits for each answer as long as the session has to live. A server that starts never
        # answers whom it let in too early (the NullPointerException in the `removeCnxn` of
        # ZooKeeper 3.9); there should be time for another attempt.
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
        self._is_told = False
        read_timeout_ms, _ = timeouts
        # kazoo's is two thirds of what the server has granted.
        self._on_made(read_timeout_ms * 1.5 / 1000)
        return timeouts

    def _why(self, error: Exception) -> Failure:
        if str(error) != _KAZOOS_HUNG_UP:
            return failure_to_connect(error)
        # kazoo counts as connected from the first answer on.
        if self.client.connected or isinstance(self._socket, ssl.SSLSocket):
            return Failure("the server hung up")
        return Failure(_WITHOUT_TLS)

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        """Return host, address and port of all servers, in any order; a round begins."""
        self._tell_last_round()
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

    def _tell_last_round(self) -> None:
        if self._failures and not self._is_told:
            self._is_told = True
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


def _unwritable(error: Exception) -> MarshallingError:
    failure = MarshallingError()
    failure.__cause__ = error
    return failure
