"""Runs the queries of a topology until they end, one of them fails, or the worker stops."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from stormkeeper.daemon.spark import Starts
from stormkeeper.errors import ClaimedError, WorkerError
from stormkeeper.worker.building import Built
from stormkeeper.worker.claims import Claims
from stormkeeper.worker.failure import readable, readable_text
from stormkeeper.worker.query_events import QueryEvents, Run
from stormkeeper.worker.session import check_jvm

log = logging.getLogger(__name__)

#: How long the next query waits for this one's first batch. Several queries with Python workers
#: that start at once bring about the transient failure.
_SETTLE_SECS = 60.0

_LOOK_SECS = 0.1


@dataclass
class _Running:
    built: Built
    query: StreamingQuery
    #: Spark's id of the run: the query itself would have to ask the JVM for it.
    run_id: str
    #: Starts since a batch was last seen.
    starts: Starts


class TopologyRun:
    """The running queries of a topology.

    Parameters
    ----------
    built
        The queries.
    events
        What Spark tells of them.
    stopping
        Whether the worker is asked to stop.
    claims
        Those of the queries.
    on_end
        Told of each query that has ended by itself, well.
    """

    def __init__(
        self,
        built: Sequence[Built],
        events: QueryEvents,
        stopping: Callable[[], bool],
        claims: Claims,
        on_end: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._built = built
        self._events = events
        self._stopping = stopping
        self._claims = claims
        self._on_end = on_end
        self._running: list[_Running] = []

    def run(self) -> list[str]:
        """Start the queries one after another; return when all have ended, or on a stop.

        A query that a later launch has claimed is not started, or has ended when that is seen.

        Returns
        -------
        list of str
            The ids of those that a stop has kept from their end, or from their start.

        Raises
        ------
        WorkerError
            When a query failed; the others still run. When the JVM has ended, and all with it.
        """
        for position, built in enumerate(self._built):
            if self._stopping():
                return [one.query.id for one in (*self._started, *self._built[position:])]
            try:
                self._claims.take(built.query.id)
            except ClaimedError:  # the log has it
                continue
            query = self._start(built)
            running = _Running(built, query, str(query.runId), Starts())
            self._running.append(running)
            log.info("the query %s runs", built.query.id)
            self._settle(running)
        while self._running and not self._stopping():
            self._events.wait(self._any_ended, _LOOK_SECS)
            check_jvm(self._events.sessions)
            for running in [r for r in self._running if self._has_ended(r)]:
                self._ended(running)
        return [built.query.id for built in self._started]

    @property
    def _started(self) -> list[Built]:
        return [running.built for running in self._running]

    def _start(self, built: Built) -> StreamingQuery:
        try:
            return built.writer.start()
        except (PySparkException, Py4JError) as error:
            raise WorkerError(
                f"the query {built.query.id!r} did not start:\n{readable(error)}", built.query.id
            ) from error

    def _settle(self, running: _Running) -> None:
        deadline = time.monotonic() + _SETTLE_SECS
        while time.monotonic() < deadline and not self._stopping():
            run = self._run(running)
            if self._has_ended(running) or (run is not None and run.batches):
                return
            if running.query.status["message"].startswith("Waiting"):
                return
            self._events.wait(self._any_ended, _LOOK_SECS)

    def _ended(self, running: _Running) -> None:
        run = self._run(running)
        error = run.error if run is not None else None
        id_ = running.built.query.id
        if not self._claims.look(id_):  # Spark refuses the older one of two, with an error
            self._running.remove(running)
            return
        if error is None:
            if not self._stopping():
                log.info("the query %s has ended", id_)
                self._running.remove(running)
                self._on_end(id_)
            return
        if self._stopping():
            return
        pause = running.starts.next_pause(error, has_batch=run is not None and bool(run.batches))
        if pause is None:
            raise WorkerError(f"the query {id_!r} failed:\n{readable_text(error)}", id_)
        log.warning(
            "the query %s lost a Python worker that was slow to start; starting it again", id_
        )
        time.sleep(pause)
        running.query = self._start(running.built)
        running.run_id = str(running.query.runId)
        self._settle(running)

    def _run(self, running: _Running) -> Run | None:
        return self._events.run(running.run_id)

    def _has_ended(self, running: _Running) -> bool:
        run = self._run(running)
        return run is not None and run.ended

    def _any_ended(self) -> bool:
        return any(self._has_ended(running) for running in self._running)
