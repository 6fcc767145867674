"""The schedule of the analyses, and the rows on which each analysis runs.

Spark takes a third of a second to plan any question, and 100 MB for the rows of 72,000 workers. So
Arrow drops rows that cannot lead to a finding; without rows Spark is not asked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from stormkeeper.conf import Conf
from stormkeeper.history.table_reader import Tables
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses import trends, worker_health, workload
from stormkeeper.pipeline.analyses.alerts import as_alert_rows, next_alerts, without_killed
from stormkeeper.pipeline.rows import replace_column
from stormkeeper.pipeline.table_columns import ALERT_ROWS

_MINUTE: Final = 60.0
_TEN_MINUTES: Final = 600.0

#: Ten-minute buckets that tell which counter the newest buckets and the past have.
_LATELY: Final = 2 * (workload.RECENT + workload.PAST) + 6

#: Up to this ratio of largest to least heartbeat, no trend is found: half of the pairs of n buckets
#: have at least the trend's slope, and no more than n pairs are a given number of buckets apart, so
#: for 24 of 36 buckets the growth is at most 1.23, less than 1.25.
_ALIKE: Final = 1.03

#: Throughput is not unusual if the least bucket is more than this part of the largest.
_STEADY: Final = max(workload.FALLEN, 1 / workload.RISEN)

#: Reads the rows of a table in pieces; can be called again.
Pieces = Callable[[], Iterator[pa.Table]]

#: A ``current`` table is fresh for this many intervals, and at least this many seconds.
_INTERVALS: Final = 5
_LEAST_SECS: Final = 60.0

#: Rows at once for Spark: with more, the heap grows and stays large.
_ROWS_AT_ONCE: Final = 25_000


@dataclass(frozen=True, slots=True)
class Question:
    """An analysis, and the columns and rows of the table that are analysed.

    `narrowed` returns the rows that can lead to a finding. The analysis reads back `past_secs`
    (None: a ``current`` table), and runs again after `every_secs`, or for newer rows.
    """

    rule: str
    ask: Callable[[DataFrame, datetime], DataFrame]
    query: str
    table: str
    columns: tuple[str, ...]
    narrowed: Callable[[Pieces], pa.Table]
    past_secs: float | None = None
    every_secs: float = 0.0

    def rows(self, found: Tables, now: datetime) -> pa.Table:
        since = until = None
        if self.past_secs is not None:
            since = now - timedelta(seconds=self.past_secs)
            until = now + timedelta.resolution  # analyses ignore later rows
        return self.narrowed(partial(found.pieces, self.table, since, until, self.columns))


def chosen_questions(conf: Conf) -> list[Question]:
    rules = set(conf["pipeline.analyses"])
    return [question for question in _questions(conf) if question.rule in rules]


def _questions(conf: Conf) -> Iterator[Question]:
    together_ = partial(Question, query=tables.LIVENESS, table=tables.WORKER_LIVENESS)
    yield together_(
        "node_late",
        worker_health.late_nodes,
        columns=("updated_at", "node", "status"),
        narrowed=partial(_counts_if_many_are_late, "node"),
    )
    yield together_(
        "pacemaker_late",
        worker_health.late_pacemakers,
        columns=("updated_at", "server", "status"),
        narrowed=partial(_counts_if_many_are_late, "server"),
    )
    yield Question(
        "flapping",
        worker_health.flapping_workers,
        tables.LIVENESS,
        tables.WORKER_EVENTS,
        ("at", "storm_id", "topology", "node", "port", "event"),
        past_secs=worker_health.WITHIN_SECS,
        narrowed=_of_restless_workers,
    )
    yield Question(
        "skew",
        workload.skewed_components,
        tables.STATISTICS,
        tables.ROLLUP_1M,
        (
            *("bucket", "storm_id", "topology", "component", "executors", "executed", "emitted"),
            *("capacity", "largest_share", "executed_cv"),
        ),
        past_secs=(workload.BUCKETS + 2) * _MINUTE,
        every_secs=_MINUTE,
        narrowed=_uneven_in_many_buckets,
    )
    of_hours = partial(
        Question, query=tables.STATISTICS, table=tables.ROLLUP_10M, every_secs=_TEN_MINUTES
    )
    yield of_hours(
        "throughput",
        workload.unusual_throughput,
        columns=("bucket", "storm_id", "topology", "kind", "executed", "emitted", "acked"),
        past_secs=workload.DAY_SECS + (workload.RECENT + workload.PAST + 2) * _TEN_MINUTES,
        narrowed=_sums_of_unsteady_topologies,
    )
    yield of_hours(
        "saturation",
        trends.saturating_components,
        columns=("bucket", "storm_id", "topology", "component", "capacity_mean"),
        past_secs=(trends.SATURATION_BUCKETS + trends.CONFIRMED + 2) * _TEN_MINUTES,
        narrowed=_of_busy_components,
    )
    limit = float(conf["pacemaker.thrift.message.size.max"])
    yield of_hours(
        "growth",
        partial(trends.growing_heartbeats, limit_bytes=limit),
        columns=("bucket", "storm_id", "topology", "heartbeat_bytes"),
        past_secs=(trends.GROWTH_BUCKETS + 2) * _TEN_MINUTES,
        narrowed=_largest_of_growing_topologies,
    )


def _counts_if_many_are_late(by: str, pieces: Pieces) -> pa.Table:
    rows = pa.concat_tables(pieces())  # a table of the present
    alike = rows.group_by(["updated_at", by, "status"]).aggregate([([], "count_all")])
    counts = alike.rename_columns({"count_all": worker_health.WORKERS})
    of_all = counts.filter(pc.is_in(counts["status"], pa.array(worker_health.STATUSES)))
    is_late = pc.cast(pc.not_equal(of_all["status"], "alive"), pa.int64())
    of_all = of_all.append_column("late", pc.multiply(of_all[worker_health.WORKERS], is_late))
    each = of_all.group_by(by).aggregate([(worker_health.WORKERS, "sum"), ("late", "sum")])
    share = pc.divide(pc.cast(each["late_sum"], pa.float64()), each[f"{worker_health.WORKERS}_sum"])
    is_many = pc.and_(
        pc.greater_equal(each["late_sum"], worker_health.LEAST_LATE),
        pc.greater_equal(share, worker_health.LEAST_SHARE),
    )
    # All counts, as a node is compared with the rest of the cluster.
    return counts if pc.any(is_many).as_py() else counts.slice(0, 0)


def _of_restless_workers(pieces: Pieces) -> pa.Table:
    kinds = pa.array(["restarted", "dead", "late"])
    rows = pa.concat_tables(some.filter(pc.is_in(some["event"], kinds)) for some in pieces())
    least = min(worker_health.ENDS, worker_health.SILENCES)
    return _of_frequent(rows, ["storm_id", "node", "port"], least)


def _uneven_in_many_buckets(pieces: Pieces) -> pa.Table:
    rows = pa.concat_tables(some.filter(_is_uneven(some)) for some in pieces())
    return _of_frequent(rows, ["storm_id", "component"], workload.NEEDED)


def _is_uneven(rows: pa.Table) -> pa.ChunkedArray:
    # Shares and variations up to these limits are never found uneven.
    share = pc.multiply(rows["largest_share"], pc.cast(rows["executors"], pa.float64()))
    return pc.or_kleene(
        pc.greater(share, 1 + workload.KEYS_CV),
        pc.greater(rows["executed_cv"], 1.5 * workload.KEYS_CV),
    )


def _of_busy_components(pieces: Pieces) -> pa.Table:
    keys = ["storm_id", "component"]

    def busy(rows: pa.Table) -> pa.Table:
        is_busy = pc.greater_equal(rows["capacity_mean"], trends.LEAST_CAPACITY)
        return rows.filter(is_busy).group_by(keys).aggregate([])

    found = pa.concat_tables(map(busy, pieces()))
    return pa.concat_tables(_of(rows, found, keys) for rows in pieces())


def _sums_of_unsteady_topologies(pieces: Pieces) -> pa.Table:
    keys = ["storm_id", "bucket", "kind"]
    sums = dict.fromkeys(("acked", "emitted", "executed"), "sum") | {"topology": "max"}
    times = [some["bucket"] for some in pieces()]
    newest = max(filter(None, (pc.max(some).as_py() for some in times)), default=None)
    if newest is None:
        return _grouped(pieces(), keys, sums)
    since = pa.scalar(newest - timedelta(seconds=_LATELY * _TEN_MINUTES), times[0].type)
    lately = (some.filter(pc.greater(some["bucket"], since)) for some in pieces())
    unsteady = _unsteady(_grouped(lately, keys, sums))
    some = pieces() if unsteady.num_rows else itertools.islice(pieces(), 1)
    return _grouped((_of(rows, unsteady, ["storm_id"]) for rows in some), keys, sums)


def _unsteady(rows: pa.Table) -> pa.Table:
    """Return topologies with perhaps unusual throughput, by the first counter with counts."""
    is_spout, is_bolt = (pc.equal(rows["kind"], kind) for kind in ("spout", "bolt"))
    counted = [("bucket", "count_distinct")]
    for name in ("acked", "emitted", "executed"):
        is_counter = is_bolt if name == "executed" else is_spout
        done = pc.if_else(is_counter, pc.fill_null(rows[name], 0), pa.scalar(None, pa.int64()))
        rows = replace_column(rows, name, done)
        counted += [(name, how) for how in ("count", "min", "max")]
    found = rows.group_by("storm_id").aggregate(counted)
    is_unsteady = pa.scalar(False)
    for name in ("executed", "emitted", "acked"):  # the last one has precedence
        least, most = (pc.fill_null(found[f"{name}_{how}"], 0) for how in ("min", "max"))
        lacks = pc.less(found[f"{name}_count"], found["bucket_count_distinct"])
        varies = pc.less_equal(least, pc.multiply(pc.cast(most, pa.float64()), _STEADY))
        is_unsteady = pc.if_else(pc.greater(most, 0), pc.or_(lacks, varies), is_unsteady)
    return found.filter(is_unsteady)


def _largest_of_growing_topologies(pieces: Pieces) -> pa.Table:
    largest = {"heartbeat_bytes": "max", "topology": "max"}
    known = (rows.filter(pc.is_finite(rows["heartbeat_bytes"])) for rows in pieces())
    rows = _grouped(known, ["storm_id", "bucket"], largest)
    found = rows.group_by("storm_id").aggregate(
        [("heartbeat_bytes", "min"), ("heartbeat_bytes", "max")]
    )
    least, most = (found[f"heartbeat_bytes_{how}"] for how in ("min", "max"))
    return _of(rows, found.filter(pc.greater(most, pc.multiply(least, _ALIKE))), ["storm_id"])


def _grouped(pieces: Iterator[pa.Table], keys: list[str], how: dict[str, str]) -> pa.Table:
    """Group each piece, and then all groups."""

    def grouped(rows: pa.Table) -> pa.Table:
        found = rows.group_by(keys).aggregate(list(how.items()))
        return found.rename_columns({f"{name}_{which}": name for name, which in how.items()})

    return grouped(pa.concat_tables(map(grouped, pieces)))


def _of_frequent(rows: pa.Table, keys: list[str], least: int) -> pa.Table:
    counted = rows.group_by(keys).aggregate([([], "count_all")])
    return _of(rows, counted.filter(pc.greater_equal(counted["count_all"], least)), keys)


def _of(rows: pa.Table, whose: pa.Table, keys: list[str]) -> pa.Table:
    return rows.join(whose.select(keys), keys, join_type="left semi")


@dataclass(frozen=True, slots=True)
class Asked:
    """When a question was asked, and the time of the newest row then."""

    at: datetime
    latest: datetime | None


def due(
    question: Question, found: Tables | None, before: Asked | None, now: datetime
) -> Asked | None:
    """Return the note of a question that is due, else None; `found` are the query's tables."""
    if found is None or question.table not in found.manifest.tables:
        return None
    if question.past_secs is None:
        age = (now - found.manifest.written_at).total_seconds()
        # An old table says nothing about the present.
        is_new = abs(age) <= max(_LEAST_SECS, _INTERVALS * found.manifest.interval_secs)
        return Asked(now, None) if is_new else None
    times = [file.latest for file in found.manifest.tables[question.table].files]
    latest = max((time for time in times if time is not None), default=None)
    if before is not None and before.latest == latest:
        waited = (now - before.at).total_seconds()
        if 0 <= waited < question.every_secs:
            return None
    return Asked(now, latest)


def ask(session: SparkSession, question: Question, found: Tables, now: datetime) -> pa.Table:
    """Return findings as `ALERT_ROWS`."""
    rows = question.rows(found, now)
    if not rows.num_rows:
        return ALERT_ROWS.empty_table()
    moment = now
    if question.past_secs is None:
        # The table describes the moment of its batch.
        moment = min(now, found.manifest.written_at)

    def answered(some: pa.Table) -> pa.Table:
        # One piece is one partition, which needs no exchange.
        given = session.createDataFrame(some.combine_chunks())
        return as_alert_rows(question.ask(given, moment).toArrow())

    return pa.concat_tables(map(answered, _by_topologies(rows)))


def _by_topologies(rows: pa.Table) -> Iterator[pa.Table]:
    times = math.ceil(rows.num_rows / _ROWS_AT_ONCE)
    if times == 1 or "storm_id" not in rows.column_names:
        yield rows
        return
    topologies = pc.unique(rows["storm_id"])
    step = math.ceil(len(topologies) / times)
    for start in range(0, len(topologies), step):
        yield rows.filter(pc.is_in(rows["storm_id"], topologies.slice(start, step)))


@dataclass(eq=False)
class Rounds:
    """Runs the analyses that are due, round after round; a failing analysis is skipped."""

    session: SparkSession
    questions: Sequence[Question]
    clear_secs: Mapping[str, float]
    look: Callable[[str], Tables | None]
    _asked: dict[str, Asked] = field(default_factory=dict, init=False)
    #: Errors of the last round, by rule.
    failures: dict[str, Exception] = field(default_factory=dict, init=False)

    def next(self, previous: pa.Table, now: datetime, killed: Mapping[str, datetime]) -> pa.Table:
        """Return the alerts that follow; alerts of `killed` topologies, by id, end at that time."""
        answers = dict(self._answers(now))
        found = {rule: rows for rule, rows in answers.items() if isinstance(rows, pa.Table)}
        self.failures = {
            rule: error for rule, error in answers.items() if isinstance(error, Exception)
        }
        previous, ended = without_killed(previous, killed)
        news, _ = without_killed(
            pa.concat_tables([ALERT_ROWS.empty_table(), *found.values()]), killed
        )
        followed = next_alerts(
            previous,
            news,
            known=[question.rule for question in self.questions],
            asked=found.keys(),
            now=now,
            clear_secs=self.clear_secs,
        )
        return pa.concat_tables([followed, ended])

    def _answers(self, now: datetime) -> Iterator[tuple[str, pa.Table | Exception]]:
        for question in self.questions:
            try:
                # Read the manifest anew: replaced files are removed after some minutes.
                found = self.look(question.query)
                asked = due(question, found, self._asked.get(question.rule), now)
                if found is None or asked is None:
                    continue
                answer = ask(self.session, question, found, now)
                self._asked[question.rule] = asked
            except Exception as error:
                yield question.rule, error
            else:
                yield question.rule, answer
