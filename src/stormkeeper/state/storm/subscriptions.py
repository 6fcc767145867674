"""Who is told when something that was read changes: callbacks of one shot, and streams of values.

A store tells every event to whoever is registered with it. `WaitingCallbacks` are registered once,
and tell each event to those that wait for it. A `Stream` reads again whenever its last read is
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
from stormkeeper.state.watches import TOLD, NodeWatch, WatchKind

log = logging.getLogger(__name__)

#: Told that what was read may have changed: look again.
Callback = Callable[[], None]

#: Stands for all reads that have left a watch.
_DONE: Final = object()


class WaitingCallbacks:
    """The callbacks that wait for events of one store. Safe for many threads."""

    def __init__(self, state: StateReader) -> None:
        self._state = state
        self._lock = threading.Lock()
        # Callbacks are told in the order in which they came. Each waits for as long as one of its
        # reads is under way or has left the watch: several threads may read with the same one.
        self._waiting: dict[NodeWatch, dict[Callback, set[object]]] = {}
        self._closed = False
        self._unknown_events = 0
        self._registration = state.register(self._tell)

    @property
    def unknown_events(self) -> int:
        """How many events were told of paths that are no part of Storm's layout."""
        return self._unknown_events

    @contextmanager
    def once(self, watched: WatchKind, path: str, callback: Callback | None) -> Iterator[bool]:
        """Have `callback` told the next event of a watch that the body leaves.

        It is told once: by the store's callback thread, at that event, or when events may have been
        missed, whichever comes first. It can be told before the body has ended. The same callback
        for the same watch waits once, however often it was given. Where the body raises, it is not
        told.

        Parameters
        ----------
        watched
            What of the node the body watches.
        path
            The node's path.
        callback
            None: nobody is told.

        Yields
        ------
        bool
            Whether the body has to leave a watch.

        Raises
        ------
        StateClosedError
            After `close`: the callback would wait for ever.
        """
        # Before the read: the event of a watch may come before the read has returned.
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
        """Have `callback` not told of that watch; one that does not wait for it is fine."""
        watch = NodeWatch(watched, path)
        with self._lock:
            waiting = self._waiting.get(watch, {})
            waiting.pop(callback, None)
            if not waiting:
                self._waiting.pop(watch, None)

    def forget_all(self, callback: Callback) -> None:
        """Have `callback` not told of anything; one that waits for nothing is fine."""
        with self._lock:
            watches = [watch for watch, waiting in self._waiting.items() if callback in waiting]
        for watch in watches:
            self.forget(*watch, callback)

    def close(self) -> None:
        """Tell nobody anything more."""
        self._state.unregister(self._registration)
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def _add(self, watch: NodeWatch, callback: Callback, read: object) -> None:
        with self._lock:
            if self._closed:
                raise StateClosedError(
                    f"nobody can be told what becomes of {watch.path}: this was disconnected"
                )
            self._waiting.setdefault(watch, {}).setdefault(callback, set()).add(read)

    def _end(
        self, watch: NodeWatch, callback: Callback, read: object, result: object | None
    ) -> None:
        """Have `callback` wait for `result` of a read in place of the read, unless it was told."""
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
            watches = [NodeWatch(watched, path) for watched in TOLD[event]]
        ending: BaseException | None = None
        for callback in self._taken(watches):
            try:
                callback()
            except Exception:
                log.exception("a callback failed on %s %s", path, event.value)
            except BaseException as error:
                # None of them waits any more: the others are told before the store is.
                ending = ending or error
        if ending is not None:
            raise ending

    def _taken(self, watches: list[NodeWatch]) -> dict[Callback, None]:
        """Return those who wait for any of these, each once, and let them wait no more."""
        with self._lock:
            return {
                callback: None for watch in watches for callback in self._waiting.pop(watch, {})
            }


Value = TypeVar("Value")


class Stream(Generic[Value]):
    """The value of a read, at once and after every change; an iterator for one thread.

    Changes that follow each other quickly are one: the newest value comes, and not every value. A
    change that was missed while the session was lost is one too. A read that fails raises in
    `__next__` and `next`; the next call reads again at once, so one may go on after it.

    Parameters
    ----------
    read : callable
        Takes a callback of one shot, leaves a watch for it, and returns what there is now: any
        read of `StormClusterState` that has a callback.
    forget : callable
        Takes a callback that is not to be told any more.
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
        """Return the next value; waits for as long as there is none, or until it is closed."""
        self._woken.wait()
        if self._closed:
            raise StopIteration
        return self._again()

    def next(self, timeout_secs: float) -> Value:
        """Return the next value; None, as any other, is what was read.

        Raises
        ------
        TimeoutError
            There was none within `timeout_secs`: nothing has changed. A later call may have one.
        StateClosedError
            The stream was closed, or is while this waits.
        """
        if not self._woken.wait(timeout_secs):
            raise TimeoutError(f"nothing has changed within {timeout_secs:g} s")
        if self._closed:
            raise StateClosedError("the stream was closed: there are no more values")
        return self._again()

    def close(self) -> None:
        """End the stream, also for a thread that waits for its next value."""
        self._closed = True
        self._woken.set()
        self._forget(self._wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _again(self) -> Value:
        # Before the read: what changes from then on is another change.
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
