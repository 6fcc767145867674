"""Values that follow what was read: a stream reads again whenever its last read is outdated.

::

    for ids in storm.watch(storm.assignments):
        ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from stormkeeper.errors import StateClosedError
from stormkeeper.state.storm.dispatch import Callback

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
