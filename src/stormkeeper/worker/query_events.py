"""What Spark reports of the running queries: starts, micro-batches that are done, ends.

Spark calls from a thread of its own, one event after the other, and keeps each query's order. So
the end of a query is reported after all of its micro-batches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from stormkeeper.worker.batch_readings import BatchReadings, Seen
from stormkeeper.worker.stopping import is_stop

log = logging.getLogger(__name__)

#: Column of an observation that holds the number of rows.
ROWS = "rows"


@dataclass
class Run:
    """One run of a query, from a start to its end."""

    run_id: str
    query_id: str
    name: str | None
    batches: int = 0
    last_batch: int = -1
    #: When the last batch was reported, in seconds of a monotonic clock; None before the first.
    last_at: float | None = None
    ended: bool = False
    #: Text of the exception that ended it, pages of it; None where there was none.
    error: str | None = None


class Counter(Protocol):
    """Takes what there is to count."""

    def started(self, run: Run) -> None:
        """Take in that a query starts."""

    def batch(self, run: Run, seen: Seen, took_ms: float) -> None:
        """Take in a committed micro-batch."""

    def ended(self, run: Run) -> None:
        """Take in the end of a query's run."""


class QueryEvents:
    """Keeps account of the runs of all queries of the sessions that it is attached to."""

    def __init__(self, counter: Counter) -> None:
        #: Takes the counts from the next event on.
        self.counter = counter
        self._changed = threading.Condition()
        self._runs: dict[str, Run] = {}
        self._listener = _Listener(self)
        self._sessions: list[SparkSession] = []
        #: What ``foreachBatch`` functions read; they are watched once it is installed.
        self.readings = BatchReadings(lambda: self._sessions)

    def attach(self, session: SparkSession) -> None:
        """Listen to the queries of `session` from now on; a second time does nothing."""
        with self._changed:
            if any(known._jsparkSession == session._jsparkSession for known in self._sessions):
                return
            self._sessions.append(session)
        session.streams.addListener(self._listener)

    @property
    def sessions(self) -> list[SparkSession]:
        """The sessions that are listened to."""
        return list(self._sessions)

    def run(self, run_id: str) -> Run | None:
        """Return a run by its id, None before its start was told."""
        return self._runs.get(run_id)

    def running_as(self, query_id: str | None) -> Run | None:
        """Return the run of a query that has not ended, by Spark's id of the query."""
        return next((run for run in self.running() if run.query_id == query_id), None)

    def running(self) -> list[Run]:
        """Return the runs that have not ended; without a lock, as heartbeats ask for them."""
        return [run for run in list(self._runs.values()) if not run.ended]

    def wait(self, condition: Callable[[], bool], timeout_secs: float) -> bool:
        """Wait until `condition` holds, looking at every event; return whether it does.

        `condition` must not call the JVM: events would wait for the answer as well.
        """
        with self._changed:
            return self._changed.wait_for(condition, timeout_secs)

    def _started(self, run: Run) -> None:
        with self._changed:
            self._runs[run.run_id] = run
            self._changed.notify_all()
        self.counter.started(run)

    def _batch(self, run_id: str, number: int, observed: Mapping[str, int], took_ms: float) -> None:
        with self._changed:
            run = self._runs.get(run_id)
            if run is None or number <= run.last_batch:
                return
            run.last_batch, run.last_at = number, time.monotonic()
        seen = self.readings.take(run.query_id, number).with_last(observed)
        self.counter.batch(run, seen, took_ms)
        with self._changed:
            run.batches += 1
            self._changed.notify_all()

    def _ended(self, run_id: str, error: str | None) -> None:
        run = self._runs.get(run_id)
        if run is None:
            return
        if error is not None and not is_stop(error):
            run.error = error
        self.counter.ended(run)
        with self._changed:
            run.ended = True
            self._changed.notify_all()


class _Listener(StreamingQueryListener):
    """Turns Spark's events into calls, none of which may raise into the JVM."""

    def __init__(self, events: QueryEvents) -> None:
        super().__init__()
        self._events = events

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802  (Spark's name)
        _safely(self._events._started, Run(str(event.runId), str(event.id), event.name))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        observed = {
            name: row[ROWS] or 0
            for name, row in progress.observedMetrics.items()
            if row is not None and ROWS in row
        }
        took_ms = float(progress.durationMs.get("triggerExecution", 0))
        _safely(self._events._batch, str(progress.runId), progress.batchId, observed, took_ms)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        _safely(self._events._ended, str(event.runId), event.exception)


def _safely(call: Callable[..., None], *arguments: Any) -> None:
    try:
        call(*arguments)
    except Exception:
        log.exception("an event of a query was not taken in")
