"""A read that those who wait for it at the same moment share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")

#: How long a caller waits for the reads of others, in seconds: longer than a read's own deadlines.
_PATIENCE_SECS: Final = 60.0


class SharedRead(Generic[Value]):
    """Reads something, once for all who ask while one read is under way. Safe for many threads.

    No caller gets a read that began before its call, so that it sees all that was written until
    then. Whoever comes while one is under way waits for its end, and shares the next one with all
    who have come meanwhile. What a read raises is raised to all who share it.

    Parameters
    ----------
    read
        Reads it. What it returns is shared, and nobody changes it.
    patience_secs
        How long a caller waits for the reads of others, before it reads for itself.
    """

    def __init__(self, read: Callable[[], Value], *, patience_secs: float = _PATIENCE_SECS) -> None:
        self._read = read
        self._patience_secs = patience_secs
        self._turn = threading.Condition()
        self._is_reading = False
        #: How many reads have begun.
        self._begun = 0
        #: The newest one that has ended.
        self._ended: _Ended | None = None

    def __call__(self) -> Value:
        """Return what is read from now on, by whomever."""
        with self._turn:
            ended = self._others(self._begun + 1)
            is_shared = ended is None and not self._is_reading
            if is_shared:
                self._is_reading = True
                self._begun += 1
            number = self._begun
        if ended is None:
            ended = self._outcome(number)
            if is_shared:
                with self._turn:
                    self._is_reading, self._ended = False, ended
                    self._turn.notify_all()
        if ended.error is not None:
            raise ended.error
        value: Value = ended.value
        return value

    def _others(self, wanted: int) -> _Ended | None:
        """Return the read of that number, or a later one, once it has ended.

        None where the caller is to read: nobody else does, or for too long.
        """
        until = time.monotonic() + self._patience_secs
        while self._is_reading and self._turn.wait(until - time.monotonic()):
            if self._ended is not None and self._ended.number >= wanted:
                return self._ended
        return None

    def _outcome(self, number: int) -> _Ended:
        try:
            return _Ended(number, self._read())
        except BaseException as error:
            return _Ended(number, error=error)


class _Ended(NamedTuple):
    """A read that has ended."""

    number: int
    value: Any = None
    error: BaseException | None = None
