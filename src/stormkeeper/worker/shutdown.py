"""The end of a worker: exit codes, the time for each step, and the stop of queries.

Spark can only interrupt a query, whose batch is repeated later; rows that a ``foreachBatch``
function has written by then are not counted. So a stop waits for the running batch, and a
`BatchGate` keeps the next from the function.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.spark_callbacks import BatchFunction
from stormkeeper.worker.query_events import QueryEvents, QueryRun, StoppingError, is_stop
from stormkeeper.worker.spark_watch import check_jvm, is_running

log = logging.getLogger(__name__)

#: Exit code: a later worker has claimed a query.
CLAIMED: Final = 3

#: Exit code: a plain script's topology is inactive; the script, started again, waits.
INACTIVE: Final = 4

#: Exit code: a signal ended a supervisor's worker before its queries; a shell's code for SIGTERM.
STOPPED: Final = 143

# Deadlines of a stop's steps, in seconds from its beginning. A supervisor waits little longer than
# the last deadline.

#: The running batches.
STOP_SECS: Final = 15.0
#: Spark's events of the last batches.
DRAIN_SECS: Final = 18.0
#: The script, which goes on after its queries.
SCRIPT_SECS: Final = 21.0
LAST_BEAT_SECS: Final = 24.0
#: The JVM.
END_SECS: Final = 27.0

# Timeouts of single steps, within these deadlines.

#: A script after its queries.
AFTER_SECS: Final = 6.0
BEAT_SECS: Final = 4.0
JVM_SECS: Final = 12.0

# Timeouts of other waits.

#: The running batches of a deactivated topology.
PAUSE_SECS: Final = 600.0
#: Reports when the worker ends by itself.
REPORT_SECS: Final = 5.0
STATUS_SECS: Final = 15.0
CLOSE_SECS: Final = 1.0

INTERRUPT_SECS = 1.0

#: Spark's status from the first look at a batch's rows until the commit.
_IN_BATCH = "Processing new data"

_BATCH_LOOK_SECS = 0.005
_END_LOOK_SECS = 0.2


@dataclass(eq=False, repr=False)
class StopRequest:
    """Whether the worker is asked to end early, and with which exit code. Thread-safe.

    `stopped_code` applies after a signal. `write_code` writes `INACTIVE`, which the supervisor
    accepts only in writing.
    """

    signalled: Callable[[], bool]
    stopped_code: int
    write_code: Callable[[int], None] = lambda _: None
    _code: int | None = field(default=None, init=False)

    @property
    def is_asked(self) -> bool:
        return self._code is not None or self.signalled()

    @property
    def code(self) -> int:
        """The exit code; 0 without a request."""
        if self.signalled():
            return self.stopped_code
        return self._code or 0

    def ask(self, code: int) -> None:
        """Ask the worker to end; the first code counts."""
        if self._code is None:
            if code == INACTIVE:
                self.write_code(code)
            self._code = code


class Countdown:
    """The time that all steps of a stop share, from the first call of `left` on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None

    def left(self, until_secs: float) -> float:
        """Return the seconds until the stop is `until_secs` old, at least 0."""
        now = self._clock()
        if self._began is None:
            self._began = now
        return max(0.0, self._began + until_secs - now)


class BatchGate:
    """Keeps batches from ``foreachBatch`` functions while closed, or if `admits` refuses."""

    def __init__(self, admits: Callable[[Any], bool] = lambda _: True) -> None:
        self._admits = admits
        self._closed = False

    def close(self) -> None:
        """Admit no further batch; a batch inside goes on."""
        self._closed = True

    def open(self) -> None:
        self._closed = False

    def guard(self, function: BatchFunction) -> BatchFunction:
        @functools.wraps(function)
        def guarded(batch: Any, number: int) -> Any:
            if self._closed or not self._admits(batch):
                raise StoppingError
            return function(batch, number)

        return guarded

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Put every ``foreachBatch`` function of this process behind the gate.

        To a waiting caller, a query that ends at the gate looks like any stopped query.
        """
        one = _without_stop_error(StreamingQuery.awaitTermination)
        any_ = _without_stop_error(StreamingQueryManager.awaitAnyTermination)
        with (
            spark_callbacks.wrapped(self.guard),
            spark_callbacks.replaced(StreamingQuery, awaitTermination=one),
            spark_callbacks.replaced(StreamingQueryManager, awaitAnyTermination=any_),
        ):
            yield


def _without_stop_error(wait: Callable[..., bool | None]) -> Callable[..., bool | None]:
    @functools.wraps(wait)
    def waiting(*args: Any, **kwargs: Any) -> bool | None:
        try:
            return wait(*args, **kwargs)
        except StreamingQueryException as error:
            if not is_stop(str(error)):
                raise
            # The result in time; without a timeout the call returns nothing.
            return True if len(args) > 1 or kwargs else None

    return waiting


def stop_queries(queries: Sequence[StreamingQuery], timeout_secs: float) -> None:
    """Stop `queries` in parallel; running batches get `timeout_secs`."""
    deadline = time.monotonic() + timeout_secs
    threads = [
        threading.Thread(target=_stop_one, args=(query, deadline), name="worker-stop", daemon=True)
        for query in queries
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        # Spark's own timeout for an interrupted query may be longer.
        thread.join(max(0.0, deadline + INTERRUPT_SECS - time.monotonic()))


def _stop_one(query: StreamingQuery, deadline: float) -> None:
    try:
        while query.isActive and query.status["message"] == _IN_BATCH:
            if time.monotonic() > deadline:
                log.warning("interrupted a micro-batch of %s, which took too long", query.name)
                break
            time.sleep(_BATCH_LOOK_SECS)
        query.stop()
    except (PySparkException, Py4JError) as error:
        log.debug("stopping %s: %s", query.name, error)


class LiveQueries:
    """Stops this process's running queries, or waits until all have ended."""

    def __init__(self, events: QueryEvents, gate: BatchGate, stopping: Callable[[], bool]) -> None:
        self._events = events
        self._gate = gate
        self._stopping = stopping

    def stop(self, countdown: Countdown, batch_secs: float = STOP_SECS) -> None:
        """Stop all queries after the running batches, and wait for Spark's events.

        Interrupts batches when the stop is `batch_secs` old.
        """
        self._gate.close()
        try:
            if not any(is_running(session) for session in self._events.sessions):
                return  # no JVM is left to report an end
            if not countdown.left(batch_secs):
                return  # an earlier call has waited
            stop_queries([*self._active()], countdown.left(batch_secs))
            drain_secs = countdown.left(batch_secs + DRAIN_SECS - STOP_SECS)
            self._events.wait(lambda: not self._events.running(), drain_secs)
        finally:
            if not self._stopping():
                self._gate.open()

    def interrupt(self, name: str | None = None) -> None:
        """Interrupt a query within the batch; None: all."""
        for query in self._active():
            if name is None or query.name == name:
                with contextlib.suppress(Py4JError, PySparkException):
                    query.stop()

    def wait(self) -> list[QueryRun]:
        """Wait until all queries have ended, or a stop is asked; return the runs.

        Raises `WorkerError` if the JVM has ended.
        """
        left = self._events.running()
        while self._events.running() and not self._stopping():
            check_jvm(self._events.sessions)
            if not any(is_running(session) for session in self._events.sessions):
                return []
            self._events.wait(lambda: not self._events.running(), _END_LOOK_SECS)
        return left

    def _active(self) -> Iterator[StreamingQuery]:
        for session in self._events.sessions:
            with contextlib.suppress(Py4JError, PySparkException):  # it is just being stopped
                if is_running(session):
                    yield from session.streams.active
