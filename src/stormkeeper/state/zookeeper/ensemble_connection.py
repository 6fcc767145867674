"""A session with a ZooKeeper ensemble: calls with deadlines, and only our own exceptions.

kazoo keeps the connection. This module and `kazoo_client` change four habits of kazoo:

- kazoo sends a call however late. Our calls wait for a connection until their deadline, and only
  then go to kazoo; the deadline withdraws an unsent call.
- kazoo gives one server the whole session timeout to accept a connection; here each has a share, as
  in the Java client.
- kazoo's attempts to reconnect come an hour apart in the end; ours come every second.
- kazoo's thread ends for good when a server refuses the user; here it is started again.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kazoo.exceptions import AuthFailedError, ConnectionLoss
from kazoo.protocol.serialization import SASL, Auth, Watch
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from stormkeeper.errors import (
    OutcomeUnknownError,
    StateAuthenticationError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import ConnectionState, Operation, Result
from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings
from stormkeeper.state.zookeeper.kazoo_client import (
    KazooHandler,
    SentRequest,
    ServerConnection,
    SingleQueueClient,
)
from stormkeeper.state.zookeeper.requests import (
    AccessLists,
    ConnectionLostError,
    Request,
    identities_text,
    is_outcome_unknown,
    results,
    transaction,
    translated,
)

log = logging.getLogger(__name__)

# kazoo warns about every attempt to connect.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.CRITICAL)


def _hide_credentials(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(
            f"{type(one).__name__}(***)" if isinstance(one, Auth | SASL) else one
            for one in record.args
        )
    return True


_kazoo_log.addFilter(_hide_credentials)

T = TypeVar("T")

#: For the server's answer in `EnsembleConnection.close`.
CLOSE_SECS: Final = 10.0

#: If no server is reached; the session then expires.
UNREACHED_CLOSE_SECS: Final = 1.0

#: First and longest pause.
_RECONNECT_SECS: Final = (0.1, 1.0)

#: Requests under way at once in `EnsembleConnection.gather`, added in halves, so that other
#: threads' calls wait only briefly.
WINDOW: Final = 2000
_STEP: Final = WINDOW // 2

_NOT_SENT_SECS: Final = 0.01

#: Of a server's share of the session timeout, for each of its first answers.
FIRST_ANSWER_SHARE: Final = 0.5


class EnsembleConnection:
    """A session with an ensemble, renewed when lost. Safe for many threads.

    `on_state` gets every change, `on_event` every event of a watch; kazoo's thread calls both, and
    neither may block.
    """

    def __init__(
        self,
        settings: EnsembleSettings,
        on_state: Callable[[ConnectionState], None],
        on_event: Callable[[Watch], None] = lambda _event: None,
    ) -> None:
        self.ensemble = ",".join(map(str, settings.servers))
        self._settings = settings
        self._on_state = on_state
        self._changed = threading.Condition()
        self._state = ConnectionState.LOST
        self._session_id: int | None = None
        #: Watches left before the last connection are gone.
        self.times_made = 0
        self.session_ids: set[int] = set()
        self._closed = False
        # Held while kazoo is restarted or ended.
        self._starting = threading.Lock()
        #: Why the servers refuse our credentials, and when to ask again (monotonic).
        self._refused: StateAuthenticationError | None = None
        self._retry_at = 0.0
        security = settings.security
        self.identities = security.identities
        self._handler = KazooHandler(settings)
        self.session_timeout_secs: float | None = None
        first, longest = _RECONNECT_SECS
        retry = KazooRetry(max_tries=-1, delay=first, max_delay=longest)
        self._client = SingleQueueClient(
            hosts=self.ensemble,
            timeout=settings.session_timeout_secs,
            handler=self._handler,
            connection_retry=retry,
            auth_data=security.digests,
            logger=_kazoo_log,
        )
        share_secs = settings.session_timeout_secs / len(settings.servers)
        self._server = ServerConnection(
            self._client,
            # kazoo made the client's copy interruptible.
            retry.copy(),
            security.mechanism,
            answer_secs=share_secs * FIRST_ANSWER_SHARE,
            on_made=self._on_made,
            on_refused=self._on_refused,
            on_event=on_event,
        )
        self._client._connection = self._server
        self._client.add_listener(self._on_kazoo_state)

    @property
    def state(self) -> ConnectionState:
        return self._state

    @property
    def session_id(self) -> int | None:
        return self._session_id

    @property
    def call_timeout_secs(self) -> float:
        return self._settings.call_timeout_secs

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def needs_restart(self) -> bool:
        """Whether kazoo has given up and `restart` is due."""
        loop = self._handler.loop
        return (
            loop is not None
            and not loop.is_alive()
            and not self._closed
            and time.monotonic() >= self._retry_at
        )

    def start(self) -> None:
        """Connect within the call timeout; after an error nothing is left running.

        Raises `StateAuthenticationError` if a server refuses our credentials, else
        `StateUnavailableError`.
        """
        timeout = self._settings.call_timeout_secs
        self._client.start_async()
        with self._changed:
            decided = self._changed.wait_for(
                lambda: self._state is ConnectionState.CONNECTED or self._refused is not None,
                timeout,
            )
            refused = self._refused
        if decided and refused is None:
            return
        why = self._server.last_failure
        self.close()
        if refused is not None:
            raise refused
        if why is not None and why.advice is not None:
            raise StateUnavailableError(
                f"no session with ZooKeeper at {self.ensemble} within {timeout:g} s: {why}"
            )
        raise StateUnavailableError(
            f"no ZooKeeper server answered at {self.ensemble} within {timeout:g} s"
            + ("" if why is None else f" (the last attempt: {why})")
            + ": check that one runs there, and storm.zookeeper.servers and storm.zookeeper.port"
        )

    def restart(self) -> None:
        """Connect again, as a new session, after kazoo gave up; does not wait.

        Raises `StateError` if kazoo cannot start now.
        """
        refused = self._refused
        with self._starting:
            if self._closed:
                return
            try:
                self._client.start_async()
            except Exception as error:
                raise StateError(
                    f"the ZooKeeper client ended and cannot be started again yet: {error!r}"
                ) from error
        if refused is None:
            log.error("the ZooKeeper client ended by a defect and is started again")
        else:
            log.warning("%s; it is tried again", refused)

    def close(self) -> None:
        """End the session within ten seconds; calls under way fail."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        # kazoo waits without a deadline for its thread, perhaps in a name look-up.
        is_reached = self._state is ConnectionState.CONNECTED
        closer = threading.Thread(target=self._close_client, name="zookeeper close", daemon=True)
        closer.start()
        closer.join(CLOSE_SECS if is_reached else UNREACHED_CLOSE_SECS)
        if closer.is_alive():
            log.warning(
                "ZooKeeper did not confirm the end of session %s; its ephemeral nodes stay"
                " until it expires",
                self._session_name(),
            )

    def deadline(self, requests: int = 1) -> float:
        """Return the deadline of a call that starts now (monotonic), with time for each window."""
        times = 1 + requests // WINDOW
        return time.monotonic() + times * self._settings.call_timeout_secs

    def call(self, request: Request, deadline: float) -> Any:
        """Send one request once connected, and wait for the answer until `deadline`.

        Raises `OutcomeUnknownError` without an answer (`ConnectionLostError` if the connection
        broke), `StateUnavailableError` or `StateClosedError` if the request never was and never
        will be sent, `StateError` if refused.
        """
        (call,) = self._answered([request], deadline)
        error = call.exception
        if error is not None:
            raise self.translated(error, request.what, request.path, request.size) from error
        return call.value

    def commit(
        self, operations: Sequence[Operation], acl: AccessLists, deadline: float
    ) -> list[Result]:
        """Apply operations with whole paths, all or none; not repeated.

        Raises `TransactionError` if one was refused; else as `call`.
        """
        answers = self.call(transaction(operations, acl), deadline)
        return results(operations, answers, self.translated)

    def gather(self, requests: Sequence[Request], deadline: float) -> list[Any]:
        """Send many requests in about one round trip; return the answers in order.

        A refusal is a `StateError` among the answers. Raises other errors as `call`.
        """
        if not requests:
            return []
        return [
            call.value
            if call.exception is None
            else self.translated(call.exception, request.what, request.path)
            for request, call in zip(requests, self._answered(requests, deadline), strict=True)
        ]

    def repeated(self, operation: Callable[[], T], deadline: float) -> T:
        """Run `operation`, and again after a lost connection, as the settings allow.

        Raises `OutcomeUnknownError` if any attempt may have had an effect.
        """
        pause = self._settings.retry_interval_secs
        lost: ConnectionLostError | None = None
        for repetition in range(self._settings.retry_times + 1):
            try:
                return operation()
            except ConnectionLostError as error:
                lost = error
                last = repetition == self._settings.retry_times
                if last or self._closed or time.monotonic() + pause >= deadline:
                    raise
                log.debug("%s; trying again in %s s", error, pause)
                self._sleep(pause)
                pause = min(2 * pause, self._settings.retry_ceiling_secs)
            except (StateUnavailableError, StateClosedError) as error:
                if lost is None or isinstance(error, OutcomeUnknownError):
                    raise
                raise OutcomeUnknownError(f"{error}; an earlier attempt: {lost}") from error
        raise AssertionError("the last repetition returns or raises")

    def translated(self, error: Exception, what: str, path: str, size: int = 0) -> StateError:
        if self._closed and is_outcome_unknown(error):
            return OutcomeUnknownError(
                f"cannot {what} {path}: this session with ZooKeeper was closed meanwhile; it may"
                " have been done or not"
            )
        return translated(error, what, path, self.ensemble, identities=self.identities, size=size)

    def _answered(self, requests: Sequence[Request], deadline: float) -> list[SentRequest]:
        first = requests[0]
        while True:
            self._await_connection(first, deadline)
            calls: list[SentRequest] = []
            try:
                if self._hand_over(requests, calls, deadline):
                    return calls
            finally:
                # The caller stops waiting: the rest must not happen later.
                sent = [call for call in calls if not call.withdraw()]
            if sent:
                sent[-1].is_answered_by(deadline)
            losses = [loss for call in calls if (loss := _loss(call)) is not None]
            if sent and not losses and time.monotonic() >= deadline:
                raise self._timed_out(first)
            if sent or any(isinstance(loss, AuthFailedError) for loss in losses):
                loss = losses[0] if losses else ConnectionLoss()
                raise self.translated(loss, first.what, first.path, first.size) from loss
            # None was sent, so all can be sent again.
            self._sleep(_NOT_SENT_SECS)

    def _hand_over(
        self, requests: Sequence[Request], calls: list[SentRequest], deadline: float
    ) -> bool:
        """Give requests to kazoo, into `calls`; return whether all were answered."""
        client = self._client
        for begin in range(0, len(requests), _STEP):
            for request in requests[begin : begin + _STEP]:
                # One by one: Ctrl-C may come between, and then withdraws queued requests.
                calls.append(request.send(client))
            is_last = begin + _STEP >= len(requests)
            awaited = calls[-1] if is_last else calls[begin - 1] if begin else None
            if awaited is not None and (
                not awaited.is_answered_by(deadline) or _loss(awaited) is not None
            ):
                return False
        return all(_loss(call) is None for call in calls)

    def _await_connection(self, request: Request, deadline: float) -> None:
        what, path = request.what, request.path
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._state is ConnectionState.CONNECTED,
                max(0.0, deadline - time.monotonic()),
            )
            if self._closed:
                raise self._closed_error(what, path)
            if self._state is not ConnectionState.CONNECTED:
                raise StateUnavailableError(
                    f"cannot {what} {path}: ZooKeeper at {self.ensemble} is not reached (the"
                    f" connection is {self._state.name}) and the call's time is up: {self._why()}"
                )
            if time.monotonic() >= deadline:
                # A request sent now could only have an unknown outcome.
                raise StateUnavailableError(
                    f"cannot {what} {path}: the call's time was up before ZooKeeper at"
                    f" {self.ensemble} could be asked"
                )

    def _why(self) -> str:
        why = self._server.last_failure
        if self._refused is not None:
            return str(self._refused)
        if why is not None and why.advice is not None:
            return str(why)
        last = "" if why is None else f" (the last attempt to connect: {why})"
        return f"check that a majority of the servers runs{last}"

    def _timed_out(self, request: Request) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"cannot {request.what} {request.path}: ZooKeeper at {self.ensemble} did not answer in"
            f" time (the connection is {self._state.name}); it may still do what it was asked"
        )

    def _closed_error(self, what: str, path: str) -> StateClosedError:
        return StateClosedError(f"cannot {what} {path}: this session with ZooKeeper was closed")

    def _sleep(self, secs: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, secs)

    def _close_client(self) -> None:
        with self._starting:
            try:
                self._client.stop()
                self._client.close()
            except Exception as error:
                log.warning("closing the ZooKeeper session failed: %s", error)

    # Called on kazoo's thread.

    def _on_made(self, session_timeout_secs: float) -> None:
        with self._changed:
            self._refused = None
            self.times_made += 1
            self._session_id, _ = self._client.client_id
            self.session_ids.add(self._session_id)
            self.session_timeout_secs = session_timeout_secs
        self._become(ConnectionState.CONNECTED)

    def _on_refused(self, reason: str) -> None:
        with self._changed:
            self._refused = StateAuthenticationError(
                f"ZooKeeper at {self.ensemble} refuses the credentials of this client"
                f" {identities_text(self.identities)}: {reason}"
            )
            self._retry_at = time.monotonic() + self._settings.retry_ceiling_secs
            self._changed.notify_all()

    def _on_kazoo_state(self, kazoo_state: str) -> None:
        # kazoo reports CONNECTED before it has authenticated: see `_on_made`.
        if kazoo_state == KazooState.LOST and self._state is not ConnectionState.LOST:
            self._become(ConnectionState.LOST)
        elif kazoo_state == KazooState.SUSPENDED and self._state is ConnectionState.CONNECTED:
            self._become(ConnectionState.SUSPENDED)

    def _become(self, state: ConnectionState) -> None:
        with self._changed:
            self._state = state
            self._changed.notify_all()
        if self._closed:
            log.debug("ZooKeeper session %s closed", self._session_name())
            return
        level = logging.INFO if state is ConnectionState.CONNECTED else logging.WARNING
        log.log(
            level,
            "ZooKeeper at %s: %s, session %s",
            self.ensemble,
            state.value,
            self._session_name(),
        )
        self._on_state(state)

    def _session_name(self) -> str:
        return "none" if self._session_id is None else f"{self._session_id:#x}"


def _loss(call: SentRequest) -> Exception | None:
    error: Exception | None = call.exception
    if error is not None and (is_outcome_unknown(error) or isinstance(error, AuthFailedError)):
        return error
    return None
