"""Subscriptions to changes of reads: one-shot callbacks, and streams of values.

A store calls every registered callback with every event. `WaitingCallbacks` registers once, and
calls only the callbacks that wait for the event. A `Stream` reads again when the last read is
outdated::

    for ids in storm.watch(storm.assignments):
        ...
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Self, TypeVar

from stormkeeper import paths
from stormkeeper.errors import StateClosedError
from stormkeeper.state.storage import EventType, StateReader
from stormkeeper.state.watches import WATCHES_USED_UP, NodeWatch, WatchKind

log = logging.getLogger(__name__)

#: Called when the result of a read may have changed.
Callback = Callable[[], None]

#: Stands for all finished reads.
_DONE: Final = object()


class WaitingCallbacks:
    """The callbacks that wait for events of one store. Safe for many threads."""

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self._lock = threading.Lock()
        # In the order of registration. Each callback waits while one of its reads is under way or
        # has left the watch, as several threads may read with the same callback.
        self._waiting: dict[NodeWatch, dict[Callback, set[object]]] = {}
        self._closed = False
        self._unknown_events = 0
        self._registration = state.register(self._tell)

    @property
    def unknown_events(self) -> int:
        """Number of events at paths outside Storm's layout."""
        return self._unknown_events

    @contextmanager
    def once(self, watched: WatchKind, path: str, callback: Callback | None) -> Iterator[bool]:
        """Call `callback` at the next event of a watch that the body leaves.

        It is called once, on the store's callback thread, at the event or when events may have been
        missed, perhaps before the body ends. The same callback for the same watch waits once. If
        the body raises, it is not called. Yields whether the body has to leave a watch: not without
        a callback. Raises `StateClosedError` after `close`.
        """
        # Registered before the read: the event may come before the read returns.
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
        """Stop a callback from waiting for a watch; fine if it does not wait."""
        watch = NodeWatch(watched, path)
        with self._lock:
            waiting = self._waiting.get(watch, {})
            waiting.pop(callback, None)
            if not waiting:
                self._waiting.pop(watch, None)

    def forget_all(self, callback: Callback) -> None:
        """Stop a callback from waiting for anything."""
        with self._lock:
            watches = [watch for watch, waiting in self._waiting.items() if callback in waiting]
        for watch in watches:
            self.forget(*watch, callback)

    def close(self) -> None:
        """Call no callback any more."""
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
        """Replace a callback's read by `result`, unless the callback was called already."""
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

    def _tell(self, event: EventType, path: str) -> None:
        """Take an event from the store."""
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
                # The other callbacks wait no more either, so they are called before this is raised.
                ending = ending or error
        if ending is not None:
            raise ending

    def _taken(self, watches: list[NodeWatch]) -> dict[Callback, None]:
        """Remove and return the callbacks that wait for any of these watches, each once."""
        with self._lock:
            return {
                callback: None for watch in watches for callback in self._waiting.pop(watch, {})
            }


Value = TypeVar("Value")


class Stream(Generic[Value]):
    """The value of a read, at once and after every change; an iterator for one thread.

    Quick changes are merged: the newest value comes, not every value. A change that was missed
    during a lost session counts as a change. A failed read raises in `__next__` and `next`; the
    next call reads again at once.
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
        """Return the next value; waits for a change, or until the stream is closed."""
        self._woken.wait()
        if self._closed:
            raise StopIteration
        return self._again()

    def next(self, timeout_secs: float) -> Value:
        """Return the next value; None is the value of an absent node.

        Raises `TimeoutError` if nothing has changed within `timeout_secs`, and `StateClosedError`
        if the stream is closed.
        """
        if not self._woken.wait(timeout_secs):
            raise TimeoutError(f"nothing has changed within {timeout_secs:g} s")
        if self._closed:
            raise StateClosedError("the stream was closed: there are no more values")
        return self._again()

    def close(self) -> None:
        """End the stream, also for a thread that waits for the next value."""
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
