"""What each analysis is asked with in the pipeline: its table, and as few rows of it as will do.

A question to Spark costs a third of a second to plan, whatever it is about, and the rows of 72,000
workers cost its JVM 100 MB. So the rows are read with Arrow, those that cannot lead to a finding
are left out, and workers that are alike are counted; if nothing is left, Spark is not asked. That
never changes what is found. A day of a large cluster would take gigabytes: so a table is gone
through file by file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from stormkeeper.conf import Conf
from stormkeeper.history.table_reader import Tables
from stormkeeper.pipeline import tables
from stormkeeper.pipeline.analyses import flapping, growth, saturation, skew, throughput, together

_MINUTE: Final = 60.0
_TEN_MINUTES: Final = 600.0

#: Of so many ten minutes, the newest ones and their past tell what counter they are of.
_LATELY: Final = 2 * (throughput.RECENT + throughput.PAST) + 6

#: Heartbeats of which the largest is so many times the least, or less, show no trend that is found.
#: Half of the pairs of n buckets have at least the trend's slope, and so cannot be further apart
#: than the whole change R divided by it; no more than n pairs are so many buckets apart. So for 24
#: of 36 buckets, the slope is at most R / 5.75, and the whole growth 1.23, of 1.25.
_ALIKE: Final = 1.03

#: A throughput whose least bucket is more than this part of its largest is not unusual.
_STEADY: Final = max(throughput.FALLEN, 1 / throughput.RISEN)

#: Reads the rows of a table in pieces, each time that it is called.
Pieces = Callable[[], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class Question:
    """An analysis, and what it is asked with.

    Parameters
    ----------
    rule
        What its findings are called.
    ask
        The analysis.
    query, table, columns
        What it reads: of which query, and which columns.
    narrowed
        Returns the rows that can lead to a finding.
    past_secs
        How far back, by the table's time; None: the table has no past.
    every_secs
        It is asked again when the table has newer rows, or after this time. 0: each time.
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
        """Return what it is to be asked with; without rows, it finds nothing."""
        since = until = None
        if self.past_secs is not None:
            since = now - timedelta(seconds=self.past_secs)
            until = now + timedelta.resolution  # no analysis counts what is yet to come
        return self.narrowed(partial(found.pieces, self.table, since, until, self.columns))


def chosen(conf: Conf) -> list[Question]:
    """Return the questions that ``pipeline.analyses`` names."""
    rules = set(conf["pipeline.analyses"])
    return [question for question in _questions(conf) if question.rule in rules]


def _questions(conf: Conf) -> Iterator[Question]:
    together_ = partial(Question, query=tables.LIVENESS, table=tables.WORKER_LIVENESS)
    yield together_(
        "node_late",
        together.late_nodes,
        columns=("updated_at", "node", "status"),
        narrowed=partial(_counts_if_many_are_late, "node"),
    )
    yield together_(
        "pacemaker_late",
        together.late_pacemakers,
        columns=("updated_at", "server", "status"),
        narrowed=partial(_counts_if_many_are_late, "server"),
    )
    yield Question(
        "flapping",
        flapping.flapping_workers,
        tables.LIVENESS,
        tables.WORKER_EVENTS,
        ("at", "storm_id", "topology", "node", "port", "event"),
        past_secs=flapping.WITHIN_SECS,
        narrowed=_of_restless_workers,
    )
    yield Question(
        "skew",
        skew.skewed_components,
        tables.STATISTICS,
        tables.ROLLUP_1M,
        (
            *("bucket", "storm_id", "topology", "component", "executors", "executed", "emitted"),
            *("capacity", "largest_share", "executed_cv"),
        ),
        past_secs=(skew.BUCKETS + 2) * _MINUTE,
        every_secs=_MINUTE,
        narrowed=_uneven_in_many_buckets,
    )
    of_hours = partial(
        Question, query=tables.STATISTICS, table=tables.ROLLUP_10M, every_secs=_TEN_MINUTES
    )
    yield of_hours(
        "throughput",
        throughput.unusual_throughput,
        columns=("bucket", "storm_id", "topology", "kind", "executed", "emitted", "acked"),
        past_secs=throughput.DAY_SECS + (throughput.RECENT + throughput.PAST + 2) * _TEN_MINUTES,
        narrowed=_sums_of_unsteady_topologies,
    )
    yield of_hours(
        "saturation",
        saturation.saturating_components,
        columns=("bucket", "storm_id", "topology", "component", "capacity_mean"),
        past_secs=(saturation.BUCKETS + saturation.CONFIRMED + 2) * _TEN_MINUTES,
        narrowed=_of_busy_components,
    )
    limit = float(conf["pacemaker.thrift.message.size.max"])
    yield of_hours(
        "growth",
        partial(growth.growing_heartbeats, limit_bytes=limit),
        columns=("bucket", "storm_id", "topology", "heartbeat_bytes"),
        past_secs=(growth.BUCKETS + 2) * _TEN_MINUTES,
        narrowed=_largest_of_growing_topologies,
    )


def _counts_if_many_are_late(by: str, pieces: Pieces) -> pa.Table:
    rows = pa.concat_tables(pieces())  # a table of the present
    alike = rows.group_by(["updated_at", by, "status"]).aggregate([([], "count_all")])
    counts = alike.rename_columns({"count_all": together.WORKERS})
    of_all = counts.filter(pc.is_in(counts["status"], pa.array(together.STATUSES)))
    is_late = pc.cast(pc.not_equal(of_all["status"], "alive"), pa.int64())
    of_all = of_all.append_column("late", pc.multiply(of_all[together.WORKERS], is_late))
    each = of_all.group_by(by).aggregate([(together.WORKERS, "sum"), ("late", "sum")])
    share = pc.divide(pc.cast(each["late_sum"], pa.float64()), each[f"{together.WORKERS}_sum"])
    is_many = pc.and_(
        pc.greater_equal(each["late_sum"], together.LEAST_LATE),
        pc.greater_equal(share, together.LEAST_SHARE),
    )
    # All of them else: a node is judged beside the rest of the cluster.
    return counts if pc.any(is_many).as_py() else counts.slice(0, 0)


def _of_restless_workers(pieces: Pieces) -> pa.Table:
    kinds = pa.array(["restarted", "dead", "late"])
    rows = pa.concat_tables(some.filter(pc.is_in(some["event"], kinds)) for some in pieces())
    least = min(flapping.ENDS, flapping.SILENCES)
    return _of_frequent(rows, ["storm_id", "node", "port"], least)


def _uneven_in_many_buckets(pieces: Pieces) -> pa.Table:
    rows = pa.concat_tables(some.filter(_is_uneven(some)) for some in pieces())
    return _of_frequent(rows, ["storm_id", "component"], skew.NEEDED)


def _is_uneven(rows: pa.Table) -> pa.ChunkedArray:
    # Fewer than this of n executors' work is never too much of it for one, nor is this variation.
    share = pc.multiply(rows["largest_share"], pc.cast(rows["executors"], pa.float64()))
    return pc.or_kleene(
        pc.greater(share, 1 + skew.KEYS_CV), pc.greater(rows["executed_cv"], 1.5 * skew.KEYS_CV)
    )


def _of_busy_components(pieces: Pieces) -> pa.Table:
    keys = ["storm_id", "component"]

    def busy(rows: pa.Table) -> pa.Table:
        is_busy = pc.greater_equal(rows["capacity_mean"], saturation.LEAST_CAPACITY)
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
    """Return the topologies whose throughput may have fallen or risen by much within `rows`.

    Their throughput is that of the first counter that has counted anything.
    """
    is_spout, is_bolt = (pc.equal(rows["kind"], kind) for kind in ("spout", "bolt"))
    counted = [("bucket", "count_distinct")]
    for name in ("acked", "emitted", "executed"):
        is_counter = is_bolt if name == "executed" else is_spout
        done = pc.if_else(is_counter, pc.fill_null(rows[name], 0), pa.scalar(None, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), name, done)
        counted += [(name, how) for how in ("count", "min", "max")]
    found = rows.group_by("storm_id").aggregate(counted)
    is_unsteady = pa.scalar(False)
    for name in ("executed", "emitted", "acked"):  # whichever comes last is asked first
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
    """Group the rows of each piece, and then those groups."""

    def grouped(rows: pa.Table) -> pa.Table:
        found = rows.group_by(keys).aggregate(list(how.items()))
        return found.rename_columns({f"{name}_{which}": name for name, which in how.items()})

    return grouped(pa.concat_tables(map(grouped, pieces)))


def _of_frequent(rows: pa.Table, keys: list[str], least: int) -> pa.Table:
    """Return the rows of whom there are so many."""
    counted = rows.group_by(keys).aggregate([([], "count_all")])
    return _of(rows, counted.filter(pc.greater_equal(counted["count_all"], least)), keys)


def _of(rows: pa.Table, whose: pa.Table, keys: list[str]) -> pa.Table:
    return rows.join(whose.select(keys), keys, join_type="left semi")
