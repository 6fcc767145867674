"""Stops streaming queries between two micro-batches, so that what was done is also counted.

Spark can only interrupt a query. It does the interrupted batch again at the next start. But rows
that a ``foreachBatch`` function has written by then are not counted. So a stop waits for the
running batch, and a `BatchGate` keeps the next one from reaching the function.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.spark_callbacks import BatchFunction
from stormkeeper.worker.running_queries import QueryEvents, QueryRun, StoppingError, is_stop
from stormkeeper.worker.spark_session import check_jvm, is_running

log = logging.getLogger(__name__)

#: What Spark says a query is doing from the first look at a batch's rows until its commit.
_IN_BATCH = "Processing new data"

#: How long an interrupted query may take to end.
INTERRUPT_SECS = 1.0

_LOOK_SECS = 0.005


class Countdown:
    """The time for a stop, which all of its steps share; it runs from the first question on.

    Parameters
    ----------
    clock
        Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None

    def left(self, until_secs: float) -> float:
        """Return the seconds until the stop is `until_secs` old, 0 when it is older."""
        now = self._clock()
        if self._began is None:
            self._began = now
        return max(0.0, self._began + until_secs - now)


class BatchGate:
    """Lets the batches of ``foreachBatch`` functions in until it is closed.

    Parameters
    ----------
    admits
        Whether a batch may run: asked of each one that comes to the open gate.
    """

    def __init__(self, admits: Callable[[Any], bool] = lambda _: True) -> None:
        self._admits = admits
        self._closed = False

    def close(self) -> None:
        """Let no further batch in; one that is in goes on."""
        self._closed = True

    def open(self) -> None:
        """Let batches in again."""
        self._closed = False

    def guard(self, function: BatchFunction) -> BatchFunction:
        """Return `function` behind the gate."""

        @functools.wraps(function)
        def guarded(batch: Any, number: int) -> Any:
            if self._closed or not self._admits(batch):
                raise StoppingError
            return function(batch, number)

        return guarded

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Put every ``foreachBatch`` function of this process behind the gate.

        If a query ends at the gate, whoever waits for it sees it end as any stopped query does.
        """
        waits: list[tuple[type, str, Callable[..., bool | None]]] = [
            (StreamingQuery, "awaitTermination", StreamingQuery.awaitTermination),
            (
                StreamingQueryManager,
                "awaitAnyTermination",
                StreamingQueryManager.awaitAnyTermination,
            ),
        ]
        for cls, name, wait in waits:
            setattr(cls, name, _ending_in_peace(wait))
        try:
            with spark_callbacks.wrapped(self.guard):
                yield
        finally:
            for cls, name, wait in waits:
                setattr(cls, name, wait)


def _ending_in_peace(wait: Callable[..., bool | None]) -> Callable[..., bool | None]:
    @functools.wraps(wait)
    def waiting(*args: Any, **kwargs: Any) -> bool | None:
        try:
            return wait(*args, **kwargs)
        except StreamingQueryException as error:
            if not is_stop(str(error)):
                raise
            # What the call returns on an end in time; without a limit it returns nothing.
            return True if len(args) > 1 or kwargs else None

    return waiting


def stop_queries(queries: Sequence[StreamingQuery], timeout_secs: float) -> None:
    """Stop all of `queries` at once, each after its running batch, within `timeout_secs`.

    A batch that takes longer is interrupted. Errors are of no more interest.
    """
    deadline = time.monotonic() + timeout_secs
    threads = [
        threading.Thread(target=_stop_one, args=(query, deadline), name="worker-stop", daemon=True)
        for query in queries
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        # Spark has its own limit on how long an interrupted query may take to notice.
        thread.join(max(0.0, deadline + INTERRUPT_SECS - time.monotonic()))


def _stop_one(query: StreamingQuery, deadline: float) -> None:
    try:
        while query.isActive and query.status["message"] == _IN_BATCH:
            if time.monotonic() > deadline:
                log.warning("a micro-batch of %s takes too long; interrupted it", query.name)
                break
            time.sleep(_LOOK_SECS)
        query.stop()
    except (PySparkException, Py4JError) as error:
        log.debug("stopping %s: %s", query.name, error)


#: The batches that run when the worker is asked to stop.
STOP_SECS: Final = 15.0

#: What Spark tells of the last batches.
DRAIN_SECS: Final = 18.0

#: The script, which goes on once its queries have been stopped.
SCRIPT_SECS: Final = 21.0

#: The last heartbeat.
LAST_BEAT_SECS: Final = 24.0

#: The JVM.
END_SECS: Final = 27.0

# And for how long each may take at most, however much of that is left.

#: A script after its queries.
AFTER_SECS: Final = 6.0

#: A heartbeat.
BEAT_SECS: Final = 4.0

#: The JVM.
JVM_SECS: Final = 12.0

# What is no part of a stop.

#: The batches that run when a topology is deactivated: there is no hurry.
PAUSE_SECS: Final = 600.0

#: What is to be reported to the cluster's state when the worker ends by itself.
REPORT_SECS: Final = 5.0

#: The first read of the topology's status.
STATUS_SECS: Final = 15.0

#: The end of the session with the cluster's state.
CLOSE_SECS: Final = 1.0


#: A query was left to a later launch.
CLAIMED: Final = 3

#: A plain script was ended as its topology is not active: to be started again at once, and to wait.
INACTIVE: Final = 4

#: A worker of a supervisor was ended by a signal, by whomever: its queries have not ended. It is
#: what a shell says of a program that SIGTERM has ended.
STOPPED: Final = 143


class StopRequest:
    """Why a worker ends, if it is to. Safe for many threads.

    Parameters
    ----------
    signalled
        Whether a signal asks it to.
    stopped_code
        Its exit code then.
    say
        Called with `INACTIVE` when the worker is asked to end with that code, which counts for the
        supervisor only if the worker says so.
    """

    def __init__(
        self,
        signalled: Callable[[], bool],
        stopped_code: int,
        say: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._say = say
        self._signalled = signalled
        self._stopped_code = stopped_code
        self._code: int | None = None

    @property
    def is_asked(self) -> bool:
        """Whether it is to end."""
        return self._code is not None or self._signalled()

    @property
    def code(self) -> int:
        """The exit code of one that is to end; 0 where it is not to."""
        if self._signalled():
            return self._stopped_code
        return self._code or 0

    def ask(self, code: int) -> None:
        """Have it end with an exit code; the first one counts."""
        if self._code is None:
            if code == INACTIVE:
                self._say(code)
            self._code = code


_ENDED_LOOK_SECS = 0.2


class LiveQueries:
    """Ends queries, and waits for their end.

    Parameters
    ----------
    events
        What Spark tells of them.
    gate
        What their batches have to pass.
    stopping
        Whether the worker is to end.
    """

    def __init__(self, events: QueryEvents, gate: BatchGate, stopping: Callable[[], bool]) -> None:
        self._events = events
        self._gate = gate
        self._stopping = stopping

    def stop(self, countdown: Countdown, batch_secs: float = STOP_SECS) -> None:
        """Stop all, each after its running batch, and wait until Spark has told all of them.

        Parameters
        ----------
        countdown
            The time for it.
        batch_secs
            What of it the batches may take; one that takes longer is interrupted.
        """
        self._gate.close()
        try:
            if not any(is_running(session) for session in self._events.sessions):
                return  # nobody is left to tell of an end
            if not countdown.left(batch_secs):
                return  # all that there was to wait for has been waited for
            stop_queries([*self._active()], countdown.left(batch_secs))
            told_secs = countdown.left(batch_secs + DRAIN_SECS - STOP_SECS)
            self._events.wait(lambda: not self._events.running(), told_secs)
        finally:
            if not self._stopping():
                self._gate.open()

    def interrupt(self, name: str | None = None) -> None:
        """End the query of that name, or all, with the batches that run."""
        for query in self._active():
            if name is None or query.name == name:
                with contextlib.suppress(Py4JError, PySparkException):
                    query.stop()

    def wait(self) -> list[QueryRun]:
        """Wait until all that run now have ended, or the worker is to end; return what ran.

        Raises
        ------
        WorkerError
            The JVM has ended, and all with it.
        """
        left = self._events.running()
        while self._events.running() and not self._stopping():
            check_jvm(self._events.sessions)
            if not any(is_running(session) for session in self._events.sessions):
                return []
            self._events.wait(lambda: not self._events.running(), _ENDED_LOOK_SECS)
        return left

    def _active(self) -> Iterator[StreamingQuery]:
        for session in self._events.sessions:
            yield from _active(session)


def _active(session: SparkSession) -> list[StreamingQuery]:
    try:
        return session.streams.active if is_running(session) else []
    except (Py4JError, PySparkException):  # it is being stopped at this moment
        return []
