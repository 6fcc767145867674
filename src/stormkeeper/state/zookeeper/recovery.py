"""What a session had, put back after each reconnection: its registrations, then its watches.

The server keeps ephemeral nodes for as long as the session, and watches for as long as one
connection. So registrations are made again in a new session, and watches are left again in every
new connection, after what they missed has been told.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from kazoo.protocol.states import ZnodeStat

from stormkeeper.errors import NoNodeError, StateClosedError, StateError
from stormkeeper.state.storage import ConnectionState, EventType
from stormkeeper.state.watches import ArmedWatches, Seen, Watch, Watched
from stormkeeper.state.zookeeper import requests
from stormkeeper.state.zookeeper.connection import Connection
from stormkeeper.state.zookeeper.registrations import Failures, Registrations
from stormkeeper.state.zookeeper.requests import Request, Watcher

log = logging.getLogger(__name__)

#: How often it is looked whether a connection that is away has to be started again, in seconds.
LOOK_SECS: Final = 1.0

#: What the watcher of something is told that may not be looked at any more.
_DENIED: Final = {
    Watched.NODE: EventType.NODE_DATA_CHANGED,
    Watched.CHILDREN: EventType.NODE_CHILDREN_CHANGED,
}


class Recovery:
    """The thread that puts back a session's registrations and armed watches.

    Nothing ends it but the end of the connection: what it fails of is logged and tried again.

    Parameters
    ----------
    connection
        Whose reconnections are followed.
    registrations
        Which this has made again.
    node
        Returns the whole path in ZooKeeper.
    armed
        The watches, which this leaves again.
    watcher
        What kazoo tells events of them.
    tell
        Takes the events that they missed, and ``EVENTS_MISSED``.
    """

    def __init__(
        self,
        connection: Connection,
        registrations: Registrations,
        node: Callable[[str], str],
        *,
        armed: ArmedWatches,
        watcher: Watcher,
        tell: Callable[[EventType, str], None],
    ) -> None:
        self._connection = connection
        self._registrations = registrations
        self._node = node
        self._armed = armed
        self._watcher = watcher
        self._tell = tell
        #: How often it failed of what it should never fail of.
        self.defects = 0
        self._failures = Failures()
        # The newest session whose predecessor's end was told.
        self._told_in: int | None = None
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zookeeper recovery", daemon=True)

    def start(self) -> None:
        """Follow the connection, which has its first session now."""
        self._registrations.begin()
        self._told_in = self._registrations.made_in
        self._thread.start()

    def wake(self) -> None:
        """Look at the connection; does not wait for it."""
        self._wake.set()

    def join(self) -> None:
        """Wait a little for the thread to end, after the connection was closed."""
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(LOOK_SECS)

    def _run(self) -> None:
        connection = self._connection
        while not connection.closed:
            is_news = self._wake.wait(self._idle_secs())
            if is_news:
                # Not where the time was up: news may have come since, and nobody has looked.
                self._wake.clear()
            try:
                if connection.dead:
                    connection.restart()
                elif connection.state is ConnectionState.CONNECTED:
                    self._put_back(is_news)
            except StateClosedError:
                pass
            except BaseException as error:
                self._failed(error)
            else:
                self._failures.forget()

    def _failed(self, error: BaseException) -> None:
        """Say what was not put back, and wait a little; it is all tried again."""
        if self._connection.closed:
            return
        is_defect = not isinstance(error, StateError)
        self.defects += is_defect
        pause = self._failures.failed()
        if self._failures.is_told:
            log.log(
                logging.ERROR if is_defect else logging.WARNING,
                "what the ZooKeeper session had is not back yet%s: %s",
                ", by a defect of Stormkeeper" * is_defect,
                repr(error) if is_defect else error,
                exc_info=error if is_defect else None,
            )
        self._connection.wait_changed(pause)
        self._wake.set()

    def _idle_secs(self) -> float | None:
        """Return how long there is nothing to do; None: until something happens."""
        if self._connection.state is not ConnectionState.CONNECTED:
            return LOOK_SECS
        return self._registrations.due_secs()

    def _put_back(self, is_news: bool) -> None:
        """Put back what is not there; only registrations where nothing has happened."""
        self._registrations.make_again()
        self._tell_new_session()
        if is_news:
            self._look_again()

    def _tell_new_session(self) -> None:
        made_in = self._registrations.made_in
        if made_in != self._told_in:
            self._told_in = made_in
            self._tell(EventType.EVENTS_MISSED, "/")

    def _look_again(self) -> None:
        """Tell what the armed watches missed, and arm those again that missed nothing.

        Not those that were left in this connection: such a watch may fire at any moment, and if it
        did so just before it is left again, it would fire twice.
        """
        made = self._connection.times_made
        # First without arming: what a watch missed must not leave it armed for a second time.
        for arm in (False, True):
            watches = self._armed.left_before(made)
            answers = self._connection.gather(
                [self._look(watch, arm) for watch in watches], self._connection.deadline()
            )
            for watch, answer in zip(watches, answers, strict=True):
                if isinstance(answer, StateError) and not isinstance(answer, NoNodeError):
                    # Whoever looks again is told the same.
                    log.warning("the watch of %s could not be left again: %s", watch.path, answer)
                    event: EventType | None = _DENIED[watch.watched]
                else:
                    event = self._armed.missed(watch, _seen(answer))
                if event is not None:
                    self._tell(event, watch.path)
                elif arm:
                    self._armed.left_again(watch, made)

    def _look(self, watch: Watch, arm: bool) -> Request:
        node = self._node(watch.path)
        if arm and watch.watched is Watched.CHILDREN:
            return requests.children_and_stat(node, self._watcher)
        return requests.exists(node, self._watcher if arm else None)


def _seen(answer: Any) -> Seen | None:
    """Read what kazoo answers: a stat, names of children with a stat, or that there is none."""
    if answer is None or isinstance(answer, NoNodeError):
        return None
    return seen(answer if isinstance(answer, ZnodeStat) else answer[1])


def seen(stat: ZnodeStat) -> Seen:
    """Return what a watch that is left with a read of ZooKeeper's has seen."""
    return Seen(stat.czxid, stat.mzxid, stat.pzxid)
