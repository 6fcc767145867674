"""A session with a ZooKeeper ensemble: calls with deadlines, and no exception of kazoo's.

kazoo keeps the connection. What it leaves to its user is done here:

- Its calls wait for ever while there is no connection, and are sent once there is one. Ours wait
  for the connection first, until their deadline, and are only then handed to it.
- It waits a whole session timeout for one server to accept a connection, so that the session dies
  before a second server is tried. Ours is divided by the number of servers, as in the Java client.
- Its reconnection attempts come hours apart in the end; ours a second.
- Its thread ends for good at an answer that it cannot read. It is started again, as a new session.
- It runs watches on a thread of its own, behind the answers that came after them. Ours run where
  they are read, in the order of the wire, and only queue what happened.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from stormkeeper.conf import Address
from stormkeeper.errors import (
    BadVersionError,
    ConfigError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    StateClosedError,
    StateError,
    StateUnavailableError,
)
from stormkeeper.state.storage import ConnectionState

log = logging.getLogger(__name__)

# kazoo warns about every attempt to connect, one a second for as long as a server is away. What
# an operator needs of that is said by this module; set this logger's level to see the rest.
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.CRITICAL)

T = TypeVar("T")

#: Starts a request and returns kazoo's future for its result.
Request = Callable[[KazooClient], Any]

#: How long `Connection.close` waits for the server to take leave, in seconds.
CLOSE_SECS = 10.0

#: Waits between attempts to connect, in seconds: the first, and the longest.
_RECONNECT_SECS = (0.1, 1.0)

#: Requests under way at once in `Connection.gather`: enough to fill the connection's round trip.
_WINDOW = 500

#: A ZooKeeper server hangs up on a request above jute.maxbuffer, by default 1 MiB less one byte.
_LARGE_VALUE = 1_000_000

_STATES = {
    KazooState.CONNECTED: ConnectionState.CONNECTED,
    KazooState.SUSPENDED: ConnectionState.SUSPENDED,
    KazooState.LOST: ConnectionState.LOST,
}

#: After these nobody knows whether the request was carried out.
_UNKNOWN_OUTCOME = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.SessionMovedError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.ThrottledOpError,
)


#: What a server refuses, our error for it, and why in words.
_REFUSALS: tuple[tuple[type[Exception], type[StateError], str], ...] = (
    (kazoo_errors.NoNodeError, NoNodeError, "there is no such node"),
    (kazoo_errors.NodeExistsError, NodeExistsError, "there is such a node already"),
    (kazoo_errors.BadVersionError, BadVersionError, "it has changed meanwhile"),
    (kazoo_errors.NotEmptyError, NotEmptyError, "it has children"),
    (
        kazoo_errors.NoChildrenForEphemeralsError,
        StateError,
        "its parent is ephemeral and can have no children",
    ),
    (kazoo_errors.NoAuthError, StateError, "the node's ACL does not allow it to this client"),
)


class ConnectionLostError(StateUnavailableError):
    """The connection broke while a call was under way; the call may be repeated if that is safe."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach an ensemble, and how long to try; times in seconds."""

    servers: tuple[Address, ...]
    #: Everything is kept below this path.
    root: str = "/"
    session_timeout_secs: float = 20.0
    #: Longest that a call, or connecting, may take.
    call_timeout_secs: float = 15.0
    #: How often a call that may be repeated is, after a lost connection, and the waits between:
    #: each twice the one before, up to the ceiling.
    retry_times: int = 5
    retry_interval_secs: float = 1.0
    retry_ceiling_secs: float = 30.0

    @classmethod
    def from_conf(cls, conf: Mapping[str, Any]) -> Self:
        """Read ``storm.zookeeper.*``; an entry of ``servers`` may be ``host`` or ``host:port``.

        Raises
        ------
        ConfigError
            An entry of ``storm.zookeeper.servers`` is no address, or has no port while
            ``storm.zookeeper.port`` is 0.
        """
        port = conf["storm.zookeeper.port"]
        servers = tuple(Address.parse(entry, port) for entry in conf["storm.zookeeper.servers"])
        for server in servers:
            if server.port == 0:
                raise ConfigError(
                    f"the ZooKeeper server {server.host} has no port and storm.zookeeper.port is 0"
                )
        return cls(
            servers=servers,
            root=conf["storm.zookeeper.root"],
            session_timeout_secs=conf["storm.zookeeper.session.timeout"] / 1000,
            call_timeout_secs=conf["storm.zookeeper.connection.timeout"] / 1000,
            retry_times=conf["storm.zookeeper.retry.times"],
            retry_interval_secs=conf["storm.zookeeper.retry.interval"] / 1000,
            retry_ceiling_secs=conf["storm.zookeeper.retry.intervalceiling.millis"] / 1000,
        )


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
        #: The ids of all sessions that this connection has had.
        self.session_ids: set[int] = set()
        self._closed = False
        self._handler = _Handler(settings)
        first, longest = _RECONNECT_SECS
        self._client = KazooClient(
            hosts=self.ensemble,
            timeout=settings.session_timeout_secs,
            handler=self._handler,
            connection_retry=KazooRetry(max_tries=-1, delay=first, max_delay=longest),
            logger=_kazoo_log,
        )
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
        """Whether kazoo has given up, so that only `restart` helps."""
        loop = self._handler.loop
        return loop is not None and not loop.is_alive() and not self._closed

    def start(self) -> None:
        """Connect.

        Raises
        ------
        StateUnavailableError
            No server answered within the call timeout; nothing is left running.
        """
        timeout = self._settings.call_timeout_secs
        self._client.start_async()
        with self._changed:
            self._changed.wait_for(lambda: self._state is ConnectionState.CONNECTED, timeout)
        if self._state is not ConnectionState.CONNECTED:
            self.close()
            raise StateUnavailableError(
                f"no ZooKeeper server answered at {self.ensemble} within {timeout:g} s: check that"
                " one runs there, and storm.zookeeper.servers and storm.zookeeper.port"
            )

    def restart(self) -> None:
        """Connect again, as a new session, after kazoo has given up; does not wait for it."""
        log.error("the ZooKeeper client ended on its own and is started again")
        try:
            self._client.start_async()
        except Exception:
            # Such as a thread of kazoo's that does not end; it is tried again later.
            log.exception("the ZooKeeper client cannot be started again")

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

    def call(
        self, what: str, path: str, request: Request, deadline: float, *, size: int = 0
    ) -> Any:
        """Make one request once there is a connection, and wait for its answer.

        Parameters
        ----------
        what, path
            For messages: "read", "/storm/assignments".
        request
            Starts it.
        deadline
            When to give up, on the monotonic clock.
        size
            Bytes of the value that is sent; too many of them can be why a connection is lost.

        Raises
        ------
        ConnectionLostError
            The connection broke meanwhile; nobody knows whether the request was carried out.
        StateUnavailableError
            There was no connection, or no answer, before the deadline.
        StateClosedError
            The session was closed.
        StateError
            The server refused.
        """
        self._await_connection(what, path, deadline)
        return self._answer(what, path, request(self._client), deadline, size)

    def gather(
        self, what: str, requests: Iterable[tuple[str, Request]], deadline: float
    ) -> list[Any]:
        """Make many requests at the price of one round trip; as `call`, for each (path, request).

        Returns
        -------
        list
            An answer for each request, in order; a `StateError` where the server refused it.

        Raises
        ------
        StateUnavailableError, StateClosedError
            As `call`; some of the requests may have been carried out.
        """
        answers: list[Any] = []
        under_way: list[tuple[str, Any]] = []
        for path, request in requests:
            if not under_way:
                self._await_connection(what, path, deadline)
            under_way.append((path, request(self._client)))
            if len(under_way) >= _WINDOW:
                answers += self._answers(what, under_way, deadline)
                under_way = []
        return answers + self._answers(what, under_way, deadline)

    def repeated(self, operation: Callable[[], T], deadline: float) -> T:
        """Run `operation`, which makes calls, and again after a lost connection.

        Raises
        ------
        StateUnavailableError
            It failed as often as the settings allow, or the deadline came.
        """
        pause = self._settings.retry_interval_secs
        for _ in range(self._settings.retry_times):
            try:
                return operation()
            except ConnectionLostError as error:
                if self._closed or time.monotonic() + pause >= deadline:
                    raise
                log.debug("%s; trying again in %s s", error, pause)
                self._sleep(pause)
                pause = min(2 * pause, self._settings.retry_ceiling_secs)
        return operation()

    def _answers(self, what: str, under_way: list[tuple[str, Any]], deadline: float) -> list[Any]:
        answers = []
        for path, result in under_way:
            try:
                answers.append(self._answer(what, path, result, deadline))
            except (StateUnavailableError, StateClosedError):
                raise
            except StateError as error:
                answers.append(error)
        return answers

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
                    f" connection is {self._state.name}) and the call's time is up: check that a"
                    " majority of the servers runs"
                )

    def _answer(self, what: str, path: str, result: Any, deadline: float, size: int = 0) -> Any:
        try:
            answer = result.get(timeout=max(0.0, deadline - time.monotonic()))
            if isinstance(answer, list):
                _raise_failure(answer)
        except KazooTimeoutError as error:
            raise StateUnavailableError(
                f"cannot {what} {path}: ZooKeeper at {self.ensemble} did not answer in time (the"
                f" connection is {self._state.name}); it may still do what it was asked"
            ) from error
        except kazoo_errors.KazooException as error:
            raise self._translated(error, what, path, size) from error
        return answer

    def _translated(self, error: Exception, what: str, path: str, size: int) -> StateError:
        for refusal, ours, reason in _REFUSALS:
            if isinstance(error, refusal):
                return ours(f"cannot {what} {path}: {reason}")
        if isinstance(error, _UNKNOWN_OUTCOME):
            if self._closed:
                return self._closed_error(what, path)
            return ConnectionLostError(
                f"cannot {what} {path}: the connection to ZooKeeper at {self.ensemble} was lost"
                f" meanwhile ({type(error).__name__}); it may have been done or not"
                + _size_hint(size)
            )
        return StateError(f"cannot {what} {path}: ZooKeeper refused ({type(error).__name__})")

    def _closed_error(self, what: str, path: str) -> StateClosedError:
        return StateClosedError(f"cannot {what} {path}: this session with ZooKeeper was closed")

    def _sleep(self, secs: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, secs)

    def _close_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except Exception as error:
            log.warning("closing the ZooKeeper session failed: %s", error)

    def _on_kazoo_state(self, kazoo_state: str) -> None:
        state = _STATES[kazoo_state]
        with self._changed:
            self._state = state
            if state is ConnectionState.CONNECTED:
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


def _raise_failure(results: list[Any]) -> None:
    """Raise why a transaction failed: kazoo returns it among the results of its parts."""
    for result in results:
        # These two mark the parts before and behind the one that failed.
        if isinstance(result, kazoo_errors.KazooException) and not isinstance(
            result, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency
        ):
            raise result


def _size_hint(size: int) -> str:
    if size < _LARGE_VALUE:
        return ""
    return (
        f"; the value has {size} bytes, and a server hangs up on more than its jute.maxbuffer"
        " (1 MiB unless set otherwise)"
    )


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with names, and its watches on the thread that reads them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        #: The thread of the connection, once there is one.
        self.loop: threading.Thread | None = None
        longest = min(settings.session_timeout_secs, settings.call_timeout_secs)
        self._connect_secs = longest / len(settings.servers)

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        name = f"zookeeper {func.__name__.strip('_').replace('_', ' ')}"
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=name, daemon=True)
        if func.__name__ == "zk_loop":
            self.loop = thread
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs["timeout"], self._connect_secs)
        return super().create_connection(*args, **kwargs)
