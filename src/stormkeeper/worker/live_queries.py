"""The queries that run in any session of this process, whoever has started them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stormkeeper.worker.deadlines import DRAIN_SECS, STOP_SECS
from stormkeeper.worker.query_events import QueryEvents, Run
from stormkeeper.worker.session import check_jvm, is_running
from stormkeeper.worker.stopping import BatchGate, Countdown, stop_queries

_LOOK_SECS = 0.2


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

    def wait(self) -> list[Run]:
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
            self._events.wait(lambda: not self._events.running(), _LOOK_SECS)
        return left

    def _active(self) -> Iterator[StreamingQuery]:
        for session in self._events.sessions:
            yield from _active(session)


def _active(session: SparkSession) -> list[StreamingQuery]:
    try:
        return session.streams.active if is_running(session) else []
    except (Py4JError, PySparkException):  # it is being stopped at this moment
        return []
