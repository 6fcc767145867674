"""Threads that repeat a step, and the back-off and log of failing steps.

A failing step is retried for ever; the log has the first failure, then each power of two.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, TypeVar

from stormkeeper.errors import NotLeaderError, StateClosedError, StormkeeperError

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Errors that end a thread quietly.
_ENDS: Final = (NotLeaderError, StateClosedError)


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Run work in a daemon thread, which the process's end does not await.

    Raises `RuntimeError` if no thread starts.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # not cancellable any more

    def run(done: Future[T]) -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
        finally:
            del done  # of the error's traceback, which the future has

    threading.Thread(target=run, args=(done,), name=name, daemon=True).start()
    return done


@dataclass(eq=False)
class FailureStreak:
    """Counts failures in a row: the pause before the next attempt, and whether to log.

    Pauses double from `first_secs` to `longest_secs`. `jitter` is their random share, drawn from
    `source`, so that clients which failed together do not retry together.
    """

    first_secs: float = 0.25
    longest_secs: float = 10.0
    _: KW_ONLY
    jitter: float = 0.0
    source: random.Random | None = None
    #: Failures since the last success.
    count: int = field(default=0, init=False)

    def record(self) -> float:
        """Count a failure; return the pause before the next attempt, in seconds."""
        pause = min(self.longest_secs, self.first_secs * 2.0 ** min(self.count, 30))
        self.count += 1
        uniform = random.uniform if self.source is None else self.source.uniform
        return pause * uniform(1.0 - self.jitter, 1.0)

    @property
    def should_log(self) -> bool:
        """Whether the newest failure is the first, second, fourth, and so on."""
        return self.count & (self.count - 1) == 0

    def reset(self) -> None:
        self.count = 0


class PeriodicThread:
    """A thread that repeats a step from `start` to `close`: at intervals, and when woken.

    `step` returns the longest pause before the next step, in seconds; None: `period_secs`.
    `NotLeaderError`, `StateClosedError` and errors that are not `retried` end the thread.
    `first_secs` is the pause before the first step; infinite: until `wake`.

    `settle_secs` is the pause after a `wake`, for changes that come in groups. A step then also
    waits as long as the last step took: a thread that is always woken uses half the time.

    `failure` and `recovery` are log lines of a failing step and of the next success; the default
    logs no success.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        *,
        period_secs: float = math.inf,
        first_secs: float = 0.0,
        settle_secs: float = 0.0,
        retried: type[Exception] | tuple[type[Exception], ...] = Exception,
        streak: FailureStreak | None = None,
        failure: str = "",
        recovery: str = "",
        logger: logging.Logger = _log,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step = step
        self._period_secs = period_secs
        self._first_secs = first_secs
        self._settle_secs = settle_secs
        self._retried = retried
        self._streak = streak or FailureStreak()
        self._failure = failure or f"{name} failed"
        self._recovery = recovery
        self._log = logger
        self._clock = clock
        self._woken = threading.Event()
        self._closing = threading.Event()
        #: Whether `wake` began the present step.
        self.was_woken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_woken(self) -> bool:
        """Whether a `wake` waits for its step to begin."""
        return self._woken.is_set()

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called; a long step polls this."""
        return self._closing.is_set()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Begin a step as soon as possible; calls during a step cause a single further step."""
        self._woken.set()

    def close(self, timeout_secs: float | None = None) -> bool:
        """End the thread after the present step; return whether that was in time.

        A step that calls this does not wait.
        """
        self._closing.set()
        self._woken.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_secs)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.was_woken = self._wait(self._first_secs)
        while not self._closing.is_set():
            self._woken.clear()
            began = self._clock()
            try:
                wait = self._step()
            except _ENDS as error:
                self._log.info("%s ends: %s", self._thread.name, error)
                return
            except self._retried as error:
                wait = self._record_failure(error)
            else:
                self._record_success()
            took = self._clock() - began
            self.was_woken = self._wait(self._period_secs if wait is None else wait)
            if self.was_woken and self._settle_secs:
                self._closing.wait(max(self._settle_secs, took))

    def _wait(self, secs: float) -> bool:
        return self._woken.wait(None if math.isinf(secs) else secs)

    def _record_success(self) -> None:
        if self._streak.count and self._recovery:
            self._log.info("%s", self._recovery)
        self._streak.reset()

    def _record_failure(self, error: Exception) -> float:
        if self._closing.is_set():
            return 0.0
        pause = self._streak.record()
        if self._streak.should_log:
            is_defect = not isinstance(error, StormkeeperError | OSError)
            self._log.warning(
                "%s; next attempt in %.3g s: %s",
                *(self._failure, pause, error),
                exc_info=error if is_defect else None,
            )
        return pause
