"""What is under way in several calls, such as an upload: it has an id, and ends when left idle."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from stormkeeper.errors import CodeError, TransferEndedError

T = TypeVar("T")

#: How many are under way at once: each keeps a file open, and anybody may begin one.
MOST: Final = 256


class _Session(Generic[T]):
    def __init__(self, what: T, now: float) -> None:
        self.what = what
        #: When a call last ended.
        self.used = now
        #: Held by the call that is at it.
        self.lock = threading.Lock()
        self.ended = False


class Sessions(Generic[T]):
    """What is under way, by id. Safe for many threads; calls for the same one wait for each other.

    Parameters
    ----------
    name
        What it is, for messages: "upload".
    idle_secs
        After how long without a call one ends.
    end
        Called with each that ends before it is taken.
    most
        How many there may be at once.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        name: str,
        idle_secs: float,
        end: Callable[[T], None],
        *,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._idle_secs = idle_secs
        self._end = end
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session[T]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, make: Callable[[], T]) -> str:
        """Make what is to be under way, and return its id, which nobody can guess.

        Those that are idle end first.

        Raises
        ------
        CodeError
            There are as many as there may be.
        """
        self.expire()
        with self._lock:
            if len(self._sessions) >= self._most:
                raise CodeError(
                    f"{self._most} {self._name}s are under way, and no more are allowed: try again"
                    f" when some have ended; one that is idle ends after {self._idle_secs:g} s"
                )
            session_id = str(uuid.uuid4())
            self._sessions[session_id] = _Session(make(), self._clock())
            return session_id

    @contextmanager
    def using(self, session_id: str, *, last: bool = False) -> Iterator[T]:
        """Have one for a call, alone; it is idle from the end of the call.

        Parameters
        ----------
        session_id
            Which.
        last
            Whether the call ends it. It ends, too, if the call raises.

        Raises
        ------
        TransferEndedError
            There is none of that id, or none any more.
        """
        with self._lock:
            session = self._sessions.get(session_id)
        if session is None:
            raise self._unknown(session_id)
        with session.lock:
            if session.ended:
                raise self._unknown(session_id)
            try:
                yield session.what
            except BaseException:
                self._finish(session_id, session)
                raise
            session.used = self._clock()
            if last:
                self._finish(session_id, session)

    def end(self, session_id: str) -> None:
        """End one; one that has ended raises as `using`."""
        with self.using(session_id, last=True):
            pass

    def expire(self) -> int:
        """End those that are idle; returns how many."""
        with self._lock:
            found = list(self._sessions.items())
        ended = 0
        for session_id, session in found:
            # One that a call is at is not idle.
            if session.lock.acquire(blocking=False):
                try:
                    idle = self._clock() - session.used > self._idle_secs
                    if idle and not session.ended:
                        self._finish(session_id, session)
                        ended += 1
                finally:
                    session.lock.release()
        return ended

    def close(self) -> None:
        """End all, each when the call that is at it has ended."""
        with self._lock:
            found = list(self._sessions.items())
        for session_id, session in found:
            with session.lock:
                if not session.ended:
                    self._finish(session_id, session)

    def _finish(self, session_id: str, session: _Session[T]) -> None:
        session.ended = True
        with self._lock:
            self._sessions.pop(session_id, None)
        self._end(session.what)

    def _unknown(self, session_id: str) -> TransferEndedError:
        return TransferEndedError(
            f"no {self._name} {session_id!r} is under way: it was finished or cancelled, has"
            f" failed, or was idle for more than {self._idle_secs:g} s; begin again"
        )
