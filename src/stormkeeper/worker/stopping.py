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
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery, StreamingQueryManager

from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.spark_callbacks import BatchFunction

log = logging.getLogger(__name__)

#: What Spark says a query is doing from the first look at a batch's rows until its commit.
_IN_BATCH = "Processing new data"

#: How long an interrupted query may take to end.
INTERRUPT_SECS = 1.0

_LOOK_SECS = 0.005


class StoppingError(Exception):
    """The worker is stopping; the batch that this is raised in will be done after the restart."""


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


def is_stop(text: str) -> bool:
    """Return whether the text of a query's exception says that it ended at a gate."""
    return StoppingError.__name__ in text


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
