"""Who is told what happens to the cluster's state, and the one thread that tells them.

The store's own threads only queue what happened; they are never held up by a callback, and a
callback may use the store.
"""

import itertools
import logging
import queue
import threading
from collections.abc import Callable

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
    """Registered callbacks and listeners, told one at a time on a thread named `name`."""

    def __init__(self, name: str) -> None:
        self._registrations: dict[int, EventCallback] = {}
        self._listeners: list[ConnectionListener] = []
        self._ids = itertools.count(1)
        self._closed = False
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
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

    def close(self) -> None:
        """Tell nobody anything more, and end the thread, unless this is called on it."""
        self._closed = True
        self._queue.put(None)
        if self._thread is not threading.current_thread():
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
                try:
                    callback(event, path)
                except Exception:
                    log.exception("a callback failed on %s %s", path, event.value)

    def _tell_connection(self, state: ConnectionState) -> None:
        for listener in list(self._listeners):
            if listener in self._listeners and not self._closed:
                try:
                    listener(state)
                except Exception:
                    log.exception("a connection listener failed on %s", state.value)
