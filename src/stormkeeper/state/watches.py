"""Watches: callbacks, observers of subtrees, and streams that wait for them.

The store's own threads only queue events, so a callback may use the store and delays no answer.
"""

import enum
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, Self, TypeVar

from stormkeeper import paths
from stormkeeper.errors import StateClosedError
from stormkeeper.state.storage import (
    ConnectionListener,
    ConnectionState,
    EventCallback,
    EventType,
    StateReader,
)


class WatchKind(enum.Enum):
    """Part of a node that a watch watches."""

    #: Existence and value.
    NODE = "node"
    CHILDREN = "children"


class NodeWatch(NamedTuple):
    """A watch of a node."""

    watched: WatchKind
    path: str


#: Used up by an event at their path (ZooKeeper's DataTree and WatchManager); a deleted node has
#: lost its children too.
WATCHES_USED_UP: Final = {
    EventType.NODE_CREATED: (WatchKind.NODE,),
    EventType.NODE_DATA_CHANGED: (WatchKind.NODE,),
    EventType.NODE_DELETED: (WatchKind.NODE, WatchKind.CHILDREN),
    EventType.NODE_CHILDREN_CHANGED: (WatchKind.CHILDREN,),
    EventType.EVENTS_MISSED: (),
}


class TreeObservers:
    """Observers of subtrees. Thread-safe."""

    def __init__(self) -> None:
        # Replaced, never changed, so that the store's thread needs no lock.
        self._observers: tuple[tuple[str, EventCallback], ...] = ()
        self._lock = threading.Lock()

    def add(self, path: str, observer: EventCallback) -> None:
        with self._lock:
            if (path, observer) not in self._observers:
                self._observers += ((path, observer),)

    def remove(self, path: str, observer: EventCallback) -> None:
        with self._lock:
            self._observers = tuple(one for one in self._observers if one != (path, observer))

    def notify(self, event: EventType, path: str) -> None:
        for root, observer in self._observers:
            if paths.is_at_or_below(path, root):
                observer(event, path)

    def notify_missed(self) -> None:
        for root, observer in self._observers:
            observer(EventType.EVENTS_MISSED, root)


log = logging.getLogger(__name__)

#: For a running callback, in `Callbacks.close`.
CLOSE_SECS = 5.0


class Callbacks:
    """Calls callbacks and listeners one after another, on one thread."""

    def __init__(self, name: str) -> None:
        self._registrations: dict[int, EventCallback] = {}
        self._listeners: list[ConnectionListener] = []
        self._ids = itertools.count(1)
        self._closed = False
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._start()

    def register(self, callback: EventCallback) -> int:
        registration = next(self._ids)
        self._registrations[registration] = callback
        return registration

    def unregister(self, registration: int) -> None:
        self._registrations.pop(registration, None)

    def add_listener(self, listener: ConnectionListener) -> None:
        self._listeners.append(listener)

    def remove_listener(self, listener: ConnectionListener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def queue_event(self, event: EventType, path: str) -> None:
        """Queue for all callbacks; does not block."""
        self._queue.put(lambda: self._deliver_event(event, path))

    def queue_connection(self, state: ConnectionState) -> None:
        """Queue for all listeners; does not block."""
        self._queue.put(lambda: self._deliver_connection(state))

    def close(self) -> None:
        """Deliver nothing more, and end the thread."""
        self._closed = True
        self._queue.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECS)
            if self._thread.is_alive():
                log.warning("a callback still runs %s s after its store was closed", CLOSE_SECS)

    def _start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while (deliver := self._queue.get()) is not None:
            deliver()

    def _deliver_event(self, event: EventType, path: str) -> None:
        # Copied and checked again, as callbacks register and unregister callbacks.
        for registration, callback in list(self._registrations.items()):
            if registration in self._registrations and not self._closed:
                with self._logged(f"a callback failed on {path} {event.value}"):
                    callback(event, path)

    def _deliver_connection(self, state: ConnectionState) -> None:
        for listener in list(self._listeners):
            if listener in self._listeners and not self._closed:
                with self._logged(f"a connection listener failed on {state.value}"):
                    listener(state)

    @contextmanager
    def _logged(self, failure: str) -> Iterator[None]:
        try:
            yield
        except BaseException:  # SystemExit would end only this thread
            log.exception("%s", failure)


Callback = Callable[[], None]

_DONE: Final = object()


class WaitingCallbacks:
    """Registers once, and calls only callbacks that wait for an event."""

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self._lock = threading.Lock()
        # In the order of registration, with reads that are under way or have left the watch:
        # several threads may read with the same callback.
        self._waiting: dict[NodeWatch, dict[Callback, set[object]]] = {}
        self._closed = False
        self._unknown_events = 0
        self._registration = state.register(self._on_event)

    @property
    def unknown_events(self) -> int:
        """Events at paths outside Storm's layout."""
        return self._unknown_events

    @contextmanager
    def once(self, watched: WatchKind, path: str, callback: Callback | None) -> Iterator[bool]:
        """Call `callback` once, at the next event of a watch that the body leaves.

        Also when events may have been missed, perhaps before the body ends; not if the body raises.
        One callback waits once for one watch. Yields whether to leave a watch: not without a
        callback.
        """
        # Before the read: the event may come before the read returns.
        watch, read = NodeWatch(watched, path), object()
        if callback is None:
            yield False
            return
        self._add(watch, callback, read)
        try:
            yield True
        except BaseException:
            self._end(watch, callback, read, None)
            raise
        self._end(watch, callback, read, _DONE)

    def forget(self, watched: WatchKind, path: str, callback: Callback) -> None:
        watch = NodeWatch(watched, path)
        with self._lock:
            waiting = self._waiting.get(watch, {})
            waiting.pop(callback, None)
            if not waiting:
                self._waiting.pop(watch, None)

    def forget_all(self, callback: Callback) -> None:
        with self._lock:
            watches = [watch for watch, waiting in self._waiting.items() if callback in waiting]
        for watch in watches:
            self.forget(*watch, callback)

    def close(self) -> None:
        self._state.unregister(self._registration)
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def _add(self, watch: NodeWatch, callback: Callback, read: object) -> None:
        with self._lock:
            if self._closed:
                raise StateClosedError(f"cannot watch {watch.path}: this was disconnected")
            self._waiting.setdefault(watch, {}).setdefault(callback, set()).add(read)

    def _end(
        self, watch: NodeWatch, callback: Callback, read: object, result: object | None
    ) -> None:
        with self._lock:
            waiting = self._waiting.get(watch, {})
            reads = waiting.get(callback, set())
            if read not in reads:
                return
            reads.remove(read)
            if result is not None:
                reads.add(result)
            elif not reads:
                del waiting[callback]
                if not waiting:
                    del self._waiting[watch]

    def _on_event(self, event: EventType, path: str) -> None:
        if event is EventType.EVENTS_MISSED:
            with self._lock:
                watches = list(self._waiting)
        elif path != "/" and paths.first_level(path) not in paths.FIRST_LEVEL:
            self._unknown_events += 1
            log.warning("%s %s: no part of Storm's layout, ignored", path, event.value)
            return
        else:
            watches = [NodeWatch(watched, path) for watched in WATCHES_USED_UP[event]]
        ending: BaseException | None = None
        for callback in self._taken(watches):
            try:
                callback()
            except Exception:
                log.exception("a callback failed on %s %s", path, event.value)
            except BaseException as error:
                # The other callbacks wait no more either: call them first.
                ending = ending or error
        if ending is not None:
            raise ending

    def _taken(self, watches: list[NodeWatch]) -> dict[Callback, None]:
        with self._lock:
            return {
                callback: None for watch in watches for callback in self._waiting.pop(watch, {})
            }


Value = TypeVar("Value")


class Stream(Generic[Value]):
    """Iterator over the value of a read, at once and after every change. For one thread.

    Quick changes are merged. After a failed read, which raises, the next call reads again at once.
    """

    def __init__(
        self, read: Callable[[Callback], Value], forget: Callable[[Callback], None]
    ) -> None:
        self._read = read
        self._forget = forget
        self._closed = False
        self._woken = threading.Event()
        self._woken.set()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Value:
        self._woken.wait()
        if self._closed:
            raise StopIteration
        return self._again()

    def next(self, timeout_secs: float) -> Value:
        """Return the next value.

        Raises `TimeoutError` if nothing changes in time, `StateClosedError` if closed.
        """
        if not self._woken.wait(timeout_secs):
            raise TimeoutError(f"nothing has changed within {timeout_secs:g} s")
        if self._closed:
            raise StateClosedError("the stream was closed: there are no more values")
        return self._again()

    def close(self) -> None:
        self._closed = True
        self._woken.set()
        self._forget(self._wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _again(self) -> Value:
        # Cleared before the read: a change from now on is another change.
        self._woken.clear()
        try:
            return self._read(self._wake)
        except BaseException:
            self._woken.set()
            raise
        finally:
            if self._closed:  # meanwhile, by another thread
                self.close()

    def _wake(self) -> None:
        self._woken.set()
