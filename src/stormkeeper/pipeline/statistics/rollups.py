"""What components counted minute by minute, and in longer buckets.

While a bucket is open it is a row of sums, `OPEN`, to which those of the next reading are added.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.pipeline import rows
from stormkeeper.pipeline.statistics.grouping import grouped
from stormkeeper.pipeline.statistics.increments import TIMES
from stormkeeper.pipeline.statistics.sums import COUNTED, WEIGHTS, average, doubles, held

_KEYS: Final = {
    "bucket": rows.TIMESTAMP,
    **dict.fromkeys(("storm_id", "topology", "component", "kind"), pa.string()),
}
_SIZES: Final = ("workers", "executors", "tasks")
_COUNTS: Final = (*COUNTED, "restarts", "readings", "skipped")

#: The columns of a roll-up, in their order.
ROLLUP: Final = pa.schema(
    [
        *_KEYS.items(),
        *((name, pa.int64()) for name in (*_SIZES, *COUNTED)),
        *((f"{name}_ms_avg", pa.float64()) for name in WEIGHTS),
        *((name, pa.float64()) for name in ("capacity", "capacity_mean")),
        ("restarts", pa.int64()),
        ("heartbeat_bytes", pa.float64()),
        *((name, pa.int64()) for name in ("readings", "skipped")),
        *((name, pa.float64()) for name in ("interval_secs", "largest_share", "executed_cv")),
    ]
)

#: What of the sums adds up, besides what is counted, and what is the largest.
_ADDED: Final = (*TIMES, "capacities", "work", "squares")
_LARGEST: Final = ("capacity", "interval_secs", "largest")

#: The sums of an open bucket. ``work`` is what is compared between executors: what a spout emitted,
#: or else was executed; ``squares`` are of each executor's.
OPEN: Final = pa.schema(
    [
        *_KEYS.items(),
        *((name, pa.int64()) for name in (*_SIZES, *_COUNTS, "executor_readings", "bytes")),
        *((name, pa.float64()) for name in (*_ADDED, *_LARGEST)),
    ]
)

#: Sums that may be more than 64 bits hold.
_EXACT: Final = (*_SIZES, *_COUNTS, "executor_readings", "bytes")


def summed(changes: pa.Table) -> pa.Table:
    """Sum up what executors counted by component and bucket.

    Parameters
    ----------
    changes
        Rows of `increments.increments`, one per executor, with the ``bucket`` of each; ``done``,
        the executor's work in it so far, null if it was not read in it before; ``worker``, a
        number; and ``bytes`` and ``skipped``, the size of its worker's heartbeat and how many
        before it were not read.

    Returns
    -------
    Rows of `OPEN`.
    """
    is_first = pc.is_null(changes["done"])
    done = pc.fill_null(changes["done"], 0.0)
    work = work_of(changes)
    now = pc.add(done, work)
    tasks = pc.add(pc.subtract(_longs(changes["task_end"]), _longs(changes["task_start"])), 1)
    # Numbers take less memory than the names that they stand for, and are grouped more quickly.
    whose = pc.binary_join_element_wise(
        *(changes[name] for name in ("storm_id", "kind", "component")),
        "/",
        null_handling="replace",
    )
    numbers = rows.one_array(whose).dictionary_encode()
    placed = {"bucket": changes["bucket"], "whose": numbers.indices}
    executors = {name: changes[name] for name in (*COUNTED, *TIMES, "capacity")}
    executors |= {
        "executors": _longs(is_first),
        "tasks": pc.if_else(is_first, tasks, 0),
        "executor_readings": pa.repeat(1, changes.num_rows),
        "capacities": changes["capacity"],
        "work": work,
        "squares": pc.subtract(pc.multiply(now, now), pc.multiply(done, done)),
        "interval_secs": changes["secs"],
        "largest": now,
    }
    # Executors of one worker are read and restarted together, whose heartbeat is one.
    workers = {name: changes[name] for name in ("worker", "bytes", "skipped")}
    workers |= {"restarts": _longs(changes["restarted"]), "workers": _longs(is_first)}
    by_worker = grouped(
        pa.table(placed | workers),
        [*placed, "worker"],
        others={"workers": "min", **dict.fromkeys(("restarts", "skipped", "bytes"), "max")},
    )
    by_worker = by_worker.append_column("readings", pa.repeat(1, by_worker.num_rows))
    found, of_workers = (
        _added(part, list(placed)).sort_by([(name, "ascending") for name in placed])
        for part in (pa.table(placed | executors), by_worker.drop_columns(["worker"]))
    )
    for name in of_workers.column_names[len(placed) :]:
        found = found.append_column(name, of_workers[name])
    first = pc.index_in(numbers.dictionary, whose)
    names = changes.select([name for name in _KEYS if name != "bucket"])
    names = names.take(first.take(found["whose"]))
    columns = {name: found[name] for name in found.column_names if name != "whose"}
    columns |= {name: names[name] for name in names.column_names}
    return pa.table({name: columns[name] for name in OPEN.names}, schema=OPEN)


def work_of(changes: pa.Table) -> Any:
    """Return what executors are compared by: what a spout emitted, or else was executed."""
    is_spout = pc.fill_null(pc.equal(changes["kind"], "spout"), False)
    return doubles(pc.if_else(is_spout, changes["emitted"], changes["executed"]))


def together(one: pa.Table, other: pa.Table) -> pa.Table:
    """Add up the sums of buckets, each of `OPEN`."""
    found = _added(pa.concat_tables([one, other]), list(_KEYS))
    return found.select(OPEN.names).cast(OPEN)


def _added(parts: pa.Table, keys: list[str]) -> pa.Table:
    """Add up what `OPEN` has of sums, as far as it is there."""
    exact, added, largest = (
        [name for name in names if name in parts.column_names]
        for names in (_EXACT, _ADDED, _LARGEST)
    )
    others = dict.fromkeys(added, "sum") | dict.fromkeys(largest, "max")
    found = grouped(parts, keys, counts=exact, others=others)
    columns = {name: found[name] for name in found.column_names}
    return pa.table(columns | {name: held(found[name]) for name in exact})


def rollup(open_: pa.Table) -> pa.Table:
    """Return rows of `ROLLUP` of the sums of buckets, of `OPEN`."""
    columns: dict[str, Any] = {name: open_[name] for name in OPEN.names if name in ROLLUP.names}
    for name, weight in WEIGHTS.items():
        latency = average(open_[f"{name}_ms"], open_[weight])
        columns[f"{name}_ms_avg"] = _of_kind(open_, name, latency)
    columns["capacity_mean"] = average(open_["capacities"], open_["executor_readings"])
    columns["capacity_mean"] = _where(pc.is_valid(open_["capacities"]), columns["capacity_mean"])
    columns["heartbeat_bytes"] = average(doubles(open_["bytes"]), open_["readings"])
    columns["largest_share"] = pc.divide(open_["largest"], _positive(open_["work"]))
    work = open_["work"]
    spread = pc.subtract(
        pc.multiply(doubles(open_["executors"]), open_["squares"]), pc.multiply(work, work)
    )
    spread = pc.sqrt(pc.max_element_wise(spread, 0.0))
    columns["executed_cv"] = _of_kind(open_, "execute", pc.divide(spread, _positive(work)))
    return pa.table({name: columns[name] for name in ROLLUP.names}, schema=ROLLUP)


def coarser(df: DataFrame, minutes: int) -> DataFrame:
    """Put the buckets of a roll-up together to longer ones: `longer` on Spark.

    Parameters
    ----------
    df
        Rows of a roll-up's table.
    minutes
        Length of the new buckets: a multiple of that of the old ones.
    """

    def longer_of(finer: pa.Table) -> pa.Table:
        columns = {name: finer[name].cast(ROLLUP.field(name).type) for name in ROLLUP.names}
        return longer(pa.table(columns), minutes)

    return df.groupBy("storm_id").applyInArrow(longer_of, from_arrow_schema(ROLLUP))


def longer(finer: pa.Table, minutes: int) -> pa.Table:
    """Put the buckets of a roll-up together to longer ones.

    Parameters
    ----------
    finer
        Rows of `ROLLUP`. Several rows of one bucket become one, too.
    minutes
        Length of the new buckets: a multiple of that of the old ones.

    Returns
    -------
    Rows of `ROLLUP`. Counts, ``restarts``, ``readings`` and ``skipped`` are sums; averages weigh by
    their counts, ``capacity_mean`` and ``heartbeat_bytes`` by readings. ``workers``, ``executors``,
    ``tasks``, ``capacity`` and ``interval_secs`` are the largest. ``largest_share`` and
    ``executed_cv`` are means over the old buckets, weighed by what was counted.
    """
    weights = {f"{name}_ms_avg": doubles(finer[weight]) for name, weight in WEIGHTS.items()}
    weights |= dict.fromkeys(("capacity_mean", "heartbeat_bytes"), doubles(finer["readings"]))
    weights |= {"largest_share": work_of(finer), "executed_cv": doubles(finer["executed"])}
    columns = {name: finer[name] for name in ROLLUP.names if name not in weights}
    columns["bucket"] = floored(finer["bucket"], minutes)
    for name, weight in weights.items():
        columns[name] = pc.multiply(finer[name], weight)
        columns[f"{name} weight"] = _where(pc.is_valid(finer[name]), weight)
    largest = (*_SIZES, "capacity", "interval_secs")
    added = [each for name in weights for each in (name, f"{name} weight")]
    found = grouped(
        pa.table(columns),
        list(_KEYS),
        counts=_COUNTS,
        others=dict.fromkeys(largest, "max") | dict.fromkeys(added, "sum"),
    )
    columns = {name: found[name] for name in ROLLUP.names}
    columns |= {name: held(found[name]) for name in _COUNTS}
    columns |= {name: average(found[name], found[f"{name} weight"]) for name in weights}
    return pa.table(columns, schema=ROLLUP)


def floored(at: pa.ChunkedArray, minutes: int) -> Any:
    """Return the starts of the buckets of so many minutes that times are in."""
    micros = at.cast(pa.int64())
    length = 60_000_000 * minutes
    return pc.multiply(pc.divide(micros, length), length).cast(rows.TIMESTAMP)


def _of_kind(table: pa.Table, latency: str, values: Any) -> Any:
    kind = "spout" if latency == "complete" else "bolt"
    return _where(pc.equal(table["kind"], kind), values)


def _positive(values: Any) -> Any:
    return _where(pc.greater(values, 0.0), values)


def _longs(values: pa.ChunkedArray) -> Any:
    return values.cast(pa.int64())


def _where(wanted: Any, values: Any) -> Any:
    return pc.if_else(wanted, values, pa.scalar(None, values.type))
