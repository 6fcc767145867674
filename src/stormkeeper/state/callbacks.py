"""The callbacks of a session, and the one thread that calls them.

The store's own threads only queue what happened. So no callback holds them up, and a callback may
use the store. In a simulation there is no thread: it says itself when callbacks run.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stormkeeper.state.storage import (
    ConnectionListener,
    ConnectionState,
    EventCallback,
    EventType,
)

log = logging.getLogger(__name__)

#: How long `Callbacks.close` waits for a callback that runs, in seconds.
CLOSE_SECS = 5.0


class Callbacks:
    """Registered callbacks and listeners, told one at a time.

    Parameters
    ----------
    name
        Of the thread that tells them.
    inline
        Have no thread; what is queued waits for `run_pending`.
    """

    def __init__(self, name: str, *, inline: bool = False) -> None:
        self._registrations: dict[int, EventCallback] = {}
        self._listeners: list[ConnectionListener] = []
        self._ids = itertools.count(1)
        self._closed = False
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running_pending = False
        self._thread: threading.Thread | None = None
        if not inline:
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def register(self, callback: EventCallback) -> int:
        """See `ClusterState.register`."""
        registration = next(self._ids)
        self._registrations[registration] = callback
        return registration

    def unregister(self, registration: int) -> None:
        """See `ClusterState.unregister`."""
        self._registrations.pop(registration, None)

    def add_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.add_listener`."""
        self._listeners.append(listener)

    def remove_listener(self, listener: ConnectionListener) -> None:
        """See `ClusterState.remove_listener`."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def tell_event(self, event: EventType, path: str) -> None:
        """Queue an event for everyone who is registered when its turn comes; does not block."""
        self._queue.put(lambda: self._tell_event(event, path))

    def tell_connection(self, state: ConnectionState) -> None:
        """Queue a connection state for every listener; does not block."""
        self._queue.put(lambda: self._tell_connection(state))

    def run_pending(self) -> bool:
        """Tell what is queued, here and now, and what that queues; inline only.

        Returns
        -------
        bool
            Whether anything was; False when a callback calls this: they run one at a time.
        """
        if self._running_pending or self._queue.empty():
            return False
        self._running_pending = True
        try:
            while not self._queue.empty():
                telling = self._queue.get()
                if telling is not None:
                    telling()
        finally:
            self._running_pending = False
        return True

    def close(self) -> None:
        """Tell nobody anything more, and end the thread, unless this is called on it."""
        self._closed = True
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECS)
            if self._thread.is_alive():
                log.warning("a callback still runs %s s after its store was closed", CLOSE_SECS)

    def _run(self) -> None:
        while (telling := self._queue.get()) is not None:
            telling()

    def _tell_event(self, event: EventType, path: str) -> None:
        # A copy, as callbacks register and unregister; asked again, as one may unregister another.
        for registration, callback in list(self._registrations.items()):
            if registration in self._registrations and not self._closed:
                with self._logged(f"a callback failed on {path} {event.value}"):
                    callback(event, path)

    def _tell_connection(self, state: ConnectionState) -> None:
        for listener in list(self._listeners):
            if listener in self._listeners and not self._closed:
                with self._logged(f"a connection listener failed on {state.value}"):
                    listener(state)

    @contextmanager
    def _logged(self, failure: str) -> Iterator[None]:
        """Log what is raised, for the others to be told all the same."""
        try:
            yield
        except BaseException as error:
            # On a thread of their own nobody is there to be ended by a SystemExit.
            if self._thread is None and not isinstance(error, Exception):
                raise
            log.exception("%s", failure)
