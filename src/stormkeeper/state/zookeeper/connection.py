"""A session with a ZooKeeper ensemble: calls with deadlines, and no exception of kazoo's.

kazoo keeps the connection. What it leaves to its user is done here and in two parts of kazoo that
are replaced, `stormkeeper.state.zookeeper.wire` and `stormkeeper.state.zookeeper.handler`:

- Its calls wait for ever while there is no connection, and are sent once there is one, however
  late. Ours wait for the connection first, until their deadline, and are only then handed to it;
  what it had no time to send when the deadline comes, or when it breaks, is taken back.
- It waits a whole session timeout for one server to accept a connection, so that the session dies
  before a second server is tried. Ours is divided by the number of servers, as in the Java client.
- Its reconnection attempts come hours apart in the end; ours a second.
- Its thread ends for good at an answer that it cannot read, or that refuses the user. It is
  started again, as a new session.
- It runs watches on a thread of its own, behind the answers that came after them. Ours run where
  they are read, in the order of the wire, and only queue what happened.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from stormkeeper.errors import (
    OutcomeUnknownError,
    StateAuthenticationError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.zookeeper.answers import Answers
from stormkeeper.state.zookeeper.errors import (
    ConnectionLostError,
    is_outcome_unknown,
    translated,
    who,
)
from stormkeeper.state.zookeeper.handler import Handler
from stormkeeper.state.zookeeper.settings import Settings
from stormkeeper.state.zookeeper.wire import Wire

log = logging.getLogger(__name__)

# kazoo warns about every attempt to connect, one a second for as long as a server is away. What
# an operator needs of that is said by this module; set this logger's level to see the rest.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.CRITICAL)

T = TypeVar("T")

#: How long `Connection.close` waits for the server to take leave, in seconds.
CLOSE_SECS: Final = 10.0

#: Waits between attempts to connect, in seconds: the first, and the longest.
_RECONNECT_SECS: Final = (0.1, 1.0)

#: Requests under way at once in `Connection.gather`, and how many are added at a time: so many take
#: one round trip, and a call of another thread that comes behind them does not wait long.
WINDOW: Final = 2000
_STEP: Final = WINDOW // 2

#: How long to wait before a request that was not sent is handed over again, in seconds: that a
#: connection is gone is told at once, so that this hardly ever counts.
_NOT_SENT_SECS: Final = 0.01

_STATES: Final = {
    KazooState.CONNECTED: ConnectionState.CONNECTED,
    KazooState.SUSPENDED: ConnectionState.SUSPENDED,
    KazooState.LOST: ConnectionState.LOST,
}


class Connection:
    """A session with an ensemble, renewed when it is lost. Safe for many threads.

    Parameters
    ----------
    settings
        How to reach it.
    on_state
        Told every change of the connection, on kazoo's thread: it must not block.
    """

    def __init__(self, settings: Settings, on_state: Callable[[ConnectionState], None]) -> None:
        self.ensemble = ",".join(map(str, settings.servers))
        self._settings = settings
        self._on_state = on_state
        self._changed = threading.Condition()
        self._state = ConnectionState.LOST
        self._session_id: int | None = None
        #: How often a connection was made: watches that were left before the last time are gone.
        self.times_made = 0
        #: The ids of all sessions that this connection has had.
        self.session_ids: set[int] = set()
        self._closed = False
        # Held by who starts kazoo again, or ends it.
        self._starting = threading.Lock()
        #: Why the servers do not take us, and when they are asked again, on the monotonic clock.
        self._refused: StateAuthenticationError | None = None
        self._retry_at = 0.0
        security = settings.security
        self.identities = security.identities
        self._handler = Handler(settings)
        first, longest = _RECONNECT_SECS
        self._client = KazooClient(
            hosts=self.ensemble,
            timeout=settings.session_timeout_secs,
            handler=self._handler,
            connection_retry=KazooRetry(max_tries=-1, delay=first, max_delay=longest),
            auth_data=security.digests,
            logger=_kazoo_log,
        )
        self._wire = Wire(self._client, security.mechanism, self._on_refused)
        self._client._connection = self._wire
        self._client.add_listener(self._on_kazoo_state)

    @property
    def state(self) -> ConnectionState:
        """How the session stands now."""
        return self._state

    @property
    def session_id(self) -> int | None:
        """The id of the newest session; None before the first."""
        return self._session_id

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def dead(self) -> bool:
        """Whether kazoo has given up, so that only `restart` helps, and it is time for it."""
        loop = self._handler.loop
        return (
            loop is not None
            and not loop.is_alive()
            and not self._closed
            and time.monotonic() >= self._retry_at
        )

    def start(self) -> None:
        """Connect.

        Raises
        ------
        StateAuthenticationError
            A server does not take us for who we say we are; nothing is left running.
        StateUnavailableError
            No server answered within the call timeout; nothing is left running.
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
            # Whether the connection has been lost since is for calls to find out.
            return
        why = self._wire.last_failure
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
        """Connect again, as a new session, after kazoo has given up; does not wait for it.

        Raises
        ------
        StateError
            It cannot be started now, as there are no more threads, or one of kazoo's does not end.
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
            log.error("the ZooKeeper client ended on its own and is started again")
        else:
            log.warning("%s; it is tried again", refused)

    def close(self) -> None:
        """End the session; calls under way fail. Returns within ten seconds, whatever happens."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        # kazoo waits without a deadline for its thread, which may sit in a name look-up.
        closer = threading.Thread(target=self._close_client, name="zookeeper close", daemon=True)
        closer.start()
        closer.join(CLOSE_SECS)
        if closer.is_alive():
            log.warning(
                "ZooKeeper did not take leave of session %s; its ephemeral nodes stay until it"
                " expires",
                self._session_name(),
            )

    def deadline(self) -> float:
        """Return when a call that starts now must end, on the monotonic clock."""
        return time.monotonic() + self._settings.call_timeout_secs

    def wait_changed(self, timeout_secs: float | None) -> None:
        """Wait for the next change of the connection, or for `close`."""
        with self._changed:
            if not self._closed:
                self._changed.wait(timeout_secs)

    def call(self, what: str, path: str, request: Any, deadline: float, *, size: int = 0) -> Any:
        """Make one request once there is a connection, and wait for its answer.

        Parameters
        ----------
        what, path
            For messages: "read", "/storm/assignments".
        request
            kazoo's request object (`kazoo.protocol.serialization.GetData` and the like).
        deadline
            When to give up, on the monotonic clock.
        size
            Bytes of the value that is sent; too many of them can be why a connection is lost.

        Raises
        ------
        ConnectionLostError
            The connection broke meanwhile; nobody knows whether the request was carried out.
        OutcomeUnknownError
            There was no answer before the deadline; nobody knows either.
        StateUnavailableError
            There was no connection before the deadline, or no time left to send the request: it is
            not made, and never will be.
        StateClosedError
            The session was closed.
        StateError
            The server refused.
        """
        while not self._ask(what, path, answers := Answers([request]), deadline, size=size):
            self._sleep(_NOT_SENT_SECS)
        (answer,) = answers.all()
        if isinstance(answer, Exception):
            raise self.translated(answer, what, path, size) from answer
        return answer

    def gather(self, what: str, requests: Sequence[Any], deadline: float) -> list[Any]:
        """Make many requests at the price of one round trip.

        Parameters
        ----------
        what
            For messages: "read".
        requests
            kazoo's request objects.
        deadline
            When to give up, on the monotonic clock.

        Returns
        -------
        list
            An answer for each request, in order; a `StateError` where the server refused it.

        Raises
        ------
        StateUnavailableError, StateClosedError
            As `call`; some of the requests may have been carried out.
        """
        answers = Answers(requests)
        first = 0
        while first < len(requests):
            if self._ask(what, requests[first].path, answers, deadline, first):
                first += _STEP
            else:
                answers = Answers(requests)
                self._sleep(_NOT_SENT_SECS)
        return [
            self.translated(answer, what, request.path) if isinstance(answer, Exception) else answer
            for request, answer in zip(requests, answers.all(), strict=True)
        ]

    def repeated(self, operation: Callable[[], T], deadline: float) -> T:
        """Run `operation`, which makes calls, and again after a lost connection.

        Raises
        ------
        StateUnavailableError
            It failed as often as the settings allow, or the deadline came; `OutcomeUnknownError`
            if any of the times may have done something.
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
            except StateUnavailableError as error:
                if lost is None or isinstance(error, OutcomeUnknownError):
                    raise
                raise OutcomeUnknownError(f"{error}; an earlier attempt: {lost}") from error
        raise AssertionError("the last repetition returns or raises")

    def translated(self, error: Exception, what: str, path: str, size: int = 0) -> StateError:
        """Return our error for one of kazoo's; parameters as in `call`."""
        if self._closed and is_outcome_unknown(error):
            return self._closed_error(what, path)
        return translated(error, what, path, self.ensemble, identities=self.identities, size=size)

    def _ask(
        self,
        what: str,
        path: str,
        answers: Answers,
        deadline: float,
        first: int = 0,
        *,
        size: int = 0,
    ) -> bool:
        """Make a step of some requests, and wait until those before it, or all, are answered.

        Returns False where the connection was gone before any of them was sent: all are to be made
        anew.
        """
        self._await_connection(what, path, deadline)
        step = list(answers.requests(first, first + _STEP))
        self._wire.submit(step)
        is_last = first + _STEP >= answers.count
        in_time = answers.wait(answers.count if is_last else first, deadline)
        failure = answers.failure
        if in_time and failure is None:
            return True
        none_sent = first == 0 and answers.none_sent
        # Nobody waits for the rest any more, so it must not happen later.
        withdrawn = self._wire.withdraw(answers)
        if failure is None:
            if first == 0 and withdrawn == len(step):
                raise self._not_asked(what, path)
            raise self._timed_out(what, path)
        if none_sent:
            return False
        raise self.translated(failure, what, path, size) from failure

    def _await_connection(self, what: str, path: str, deadline: float) -> None:
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
                # What is sent after the last moment could only have an unknown outcome.
                raise self._not_asked(what, path)

    def _why(self) -> str:
        """Return why there is no connection, and what to do about it."""
        why = self._wire.last_failure
        if self._refused is not None:
            return str(self._refused)
        if why is not None and why.advice is not None:
            return str(why)
        last = "" if why is None else f" (the last attempt to connect: {why})"
        return f"check that a majority of the servers runs{last}"

    def _not_asked(self, what: str, path: str) -> StateUnavailableError:
        return StateUnavailableError(
            f"cannot {what} {path}: the call's time was up before ZooKeeper at {self.ensemble}"
            f" could be asked"
        )

    def _timed_out(self, what: str, path: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"cannot {what} {path}: ZooKeeper at {self.ensemble} did not answer in time (the"
            f" connection is {self._state.name}); it may still do what it was asked"
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

    # kazoo's thread calls these two.

    def _on_refused(self, reason: str) -> None:
        with self._changed:
            self._refused = StateAuthenticationError(
                f"ZooKeeper at {self.ensemble} does not take this client for who it says it is"
                f" {who(self.identities)}: {reason}"
            )
            self._retry_at = time.monotonic() + self._settings.retry_ceiling_secs
            self._changed.notify_all()

    def _on_kazoo_state(self, kazoo_state: str) -> None:
        state = _STATES[kazoo_state]
        with self._changed:
            self._state = state
            if state is ConnectionState.CONNECTED:
                self._refused = None
                self.times_made += 1
                self._session_id = self._client.client_id[0]
                self.session_ids.add(self._session_id)
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
