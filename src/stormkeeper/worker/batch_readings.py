"""Rows that ``foreachBatch`` functions read of their batches: the fullest reading counts.

Each action of such a function computes the batch again and counts its rows again, and Spark's
progress reports only the last action. So the counts of all actions are taken from Spark's
accumulators. An action such as ``show(1)`` stops early, which its plan tells; if no action reads
the whole batch, the count is marked as partial. The names are those of Spark 4.3, without a public
interface; if they change, the progress counts.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from stormkeeper.daemon import spark_callbacks
from stormkeeper.daemon.spark_callbacks import BatchFunction

log = logging.getLogger(__name__)

_STOPPING = frozenset({"CollectLimit", "CollectTail", "GlobalLimit", "LocalLimit"})

_EXHAUSTING = (
    "BroadcastExchange",
    "Exchange",
    "HashAggregate",
    "ObjectHashAggregate",
    "ShuffleQueryStage",
    "Sort",
    "TakeOrderedAndProject",
    "Window",
)

_BATCH = "Scan ExistingRDD"
_OPERATOR = re.compile(r"^(?P<indent>[ :+-]*)(?:\* )?(?P<name>[A-Z].*?)(?: \(\d+\)|,|$)")

_READING = re.compile(
    r"rddId=(\d+),.*?lastSqlExecutionId=(?:Some\((\d+)\)|None),"
    r"\s*partitionPartialVals=\[(.*?)\],\s*stageIds",
    re.DOTALL,
)
_RDDS = "org$apache$spark$util$LastAttemptAccumulator$$lastAttemptRddsMap"

_OBSERVES = "CollectMetrics"
_EXECUTION_ID = "spark.sql.execution.id"

#: Longest wait for the plan of a finished action, which Spark stores from another thread.
_PLAN_SECS = 0.1
_LOOK_SECS = 0.02

_KEPT = 100


@dataclass(frozen=True)
class BatchReading:
    """One pass over a batch or a part."""

    rows: tuple[int, ...]
    #: Spark's number of the reading action, if the action may have stopped early; None in front of
    #: a shuffle.
    action: int | None = None


@dataclass(frozen=True)
class BatchRows:
    """Rows of a batch by observation, and the observations that counted only a part."""

    rows: Mapping[str, int] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()

    def with_last(self, observed: Mapping[str, int]) -> BatchRows:
        """Return these rows merged with the last reading, from Spark's progress."""
        names = {**self.rows, **observed}
        rows = {name: max(self.rows.get(name, 0), observed.get(name, 0)) for name in names}
        return BatchRows(rows, self.partial)


def fullest(readings: Iterable[BatchReading]) -> int:
    """Return the rows of the fullest reading.

    Each partition of a persisted batch is computed once, by the first action that needs it. So
    readings of equally many partitions are combined, partition by partition.
    """
    by_size: dict[int, list[BatchReading]] = {}
    for reading in readings:
        by_size.setdefault(len(reading.rows), []).append(reading)
    return max(
        (
            sum(map(max, zip(*(reading.rows for reading in alike), strict=True)))
            for alike in by_size.values()
        ),
        default=0,
    )


def stops_early(plan: str) -> bool:
    """Return whether an action with this plan (Spark's formatted text) may leave rows unread.

    That is so with a limit above the batch, unless an operator between reads all of its input
    first.
    """
    above: list[tuple[int, str]] = []
    for line in plan.split("\n\n", 1)[0].splitlines():
        found = _OPERATOR.match(line)
        if found is None:
            continue
        depth = len(found["indent"])
        above = [operator for operator in above if operator[0] < depth]
        if found["name"].startswith(_BATCH) and _stopped(name for _, name in reversed(above)):
            return True
        above.append((depth, found["name"]))
    return False


def _stopped(operators: Iterable[str]) -> bool:
    for name in operators:
        if name in _STOPPING:
            return True
        if name.startswith(_EXHAUSTING):
            return False
    return False


def parsed(text: str, batch_rdd: int, own_action: int | None) -> list[BatchReading]:
    """Parse the readings in an accumulator's text (Spark 4.3).

    Readings of RDDs older than `batch_rdd` are of stages in front of the batch; readings with
    `own_action`, the micro-batch itself, have no plan.
    """
    readings = []
    for rdd, action, partitions in _READING.findall(text):
        rows = tuple(
            int(value.strip("[]") or 0) for value in partitions.replace("null", "").split(",")
        )
        number = int(action) if action and int(rdd) > batch_rdd else None
        readings.append(BatchReading(rows, number if number != own_action else None))
    return readings


class BatchReadings:
    """Readings of ``foreachBatch`` functions, kept until Spark reports their batches' ends."""

    def __init__(self, sessions: Callable[[], Sequence[SparkSession]]) -> None:
        self._sessions = sessions
        self._lock = threading.Lock()
        self._batches: dict[tuple[str, int], dict[str, list[BatchReading]]] = {}
        self._places: dict[str, dict[str, int]] = {}
        self._failed = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch every ``foreachBatch`` function of this process."""
        with spark_callbacks.wrapped(self._watched):
            yield

    def take(self, query_id: str, number: int) -> BatchRows:
        """Return the rows of a batch, and forget the batch."""
        with self._lock:
            readings = self._batches.pop((query_id, number), {})
            for key in [k for k in self._batches if k[0] == query_id and k[1] < number]:
                del self._batches[key]
        rows = {name: fullest(of_it) for name, of_it in readings.items()}
        known: dict[int, bool] = {}

        def whole(reading: BatchReading) -> bool:
            if reading.action is None:
                return True
            if reading.action not in known:
                known[reading.action] = self._stopped_early(reading.action)
            return not known[reading.action]

        partial = {name for name, of_it in readings.items() if of_it and not any(map(whole, of_it))}
        return BatchRows(rows, frozenset(partial))

    def _watched(self, function: BatchFunction) -> BatchFunction:
        @functools.wraps(function)
        def watched(batch: Any, number: int) -> Any:
            returned = function(batch, number)
            self._gather(batch, number)
            return returned

        return watched

    def _gather(self, batch: Any, number: int) -> None:
        try:
            context = batch.sparkSession.sparkContext
            query_id = spark_callbacks.query_id(batch)
            own = context.getLocalProperty(_EXECUTION_ID)
            if query_id is None:
                return
            execution = self._execution(query_id)
            if execution is None:
                return
            readings = self._read(context, query_id, execution, int(own) if own else None)
        except (
            Py4JError,
            PySparkException,
            AttributeError,
            OSError,
            TypeError,
            ValueError,
        ) as error:
            # The user's batch is done and must not fail for an inexact count.
            if not self._failed:
                self._failed = True
                log.warning(
                    "rows that foreachBatch functions read cannot be counted exactly: %s", error
                )
            return
        with self._lock:
            self._batches[query_id, number] = readings
            while len(self._batches) > _KEPT:
                del self._batches[next(iter(self._batches))]

    def _execution(self, query_id: str) -> Any:
        for session in self._sessions():
            query = session._jsparkSession.streams().get(query_id)
            if query is not None:
                return query.streamingQuery().lastExecution()
        return None

    def _read(
        self, context: Any, query_id: str, execution: Any, own: int | None
    ) -> dict[str, list[BatchReading]]:
        plan, batch_rdd = execution.executedPlan(), execution.toRdd().id()
        accumulators = context._jvm.org.apache.spark.util.AccumulatorContext
        readings: dict[str, list[BatchReading]] = {}
        # If a name occurs twice in the plan, Spark reports one of them.
        for name, operator in self._observations(query_id, plan).items():
            accumulator = accumulators.get(operator.accumulatorId()).get()
            text = getattr(accumulator, _RDDS)().toString()
            readings[name] = parsed(text, batch_rdd, own)
        return readings

    def _observations(self, query_id: str, plan: Any) -> dict[str, Any]:
        """Return the observations' operators by name.

        Their positions are remembered, as a walk through a large plan takes long.
        """
        known = self._places.get(query_id, {})
        found = {name: plan.apply(place) for name, place in known.items()}
        if known and all(_is(operator, name) for name, operator in found.items()):
            return found
        found, places, place = {}, {}, 0
        while (operator := plan.apply(place)) is not None:
            if operator.nodeName() == _OBSERVES:
                name = operator.name()
                found[name], places[name] = operator, place
            place += 1
        self._places[query_id] = places
        return found

    def _stopped_early(self, action: int) -> bool:
        deadline = time.monotonic() + _PLAN_SECS
        while True:
            for session in self._sessions():
                store = session._jsparkSession.sharedState().statusStore()
                known = store.execution(action)
                if known.isDefined():
                    return stops_early(known.get().physicalPlanDescription())
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECS)


def _is(operator: Any, name: str) -> bool:
    try:
        return operator is not None and bool(operator.name() == name)
    except Py4JError:  # an operator of another kind has no name
        return False
