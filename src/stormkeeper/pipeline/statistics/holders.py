"""Whose an executor is, where several workers have said that it is theirs.

A worker that is moved leaves its last pulse where it was, and may even beat on there, if its
machine is cut off. Nimbus counts an executor once, as it knows whom it has assigned it to. Here it
is the worker's that was started last.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.judging import columns_of, worker_keys
from stormkeeper.pipeline.statistics.increments import READINGS

#: What is to be known of readings to say whose an executor is.
HELD: Final = pa.schema(
    [
        READINGS.field(name)
        for name in (*WorkerId._fields, "task_start", "task_end", "at", "uptime_secs")
    ]
)

#: Tasks are numbers of 32 bits, with a sign.
_TASK_BITS: Final = 33


def superseded(held: pa.Table) -> pa.Array:
    """Return the keys of workers of whose tasks another one has some that was started later.

    Parameters
    ----------
    held
        Rows of `HELD`, one for each executor of a worker. Executors that are not of a worker's
        newest reading are not its own any more.
    """
    if not len(_disputed(held)):
        return pa.array([], pa.string())
    held = _newest(held)
    disputed = held.take(_disputed(held))
    started = pc.subtract(pc.divide(disputed["at"].cast(pa.int64()), 1e6), disputed["uptime_secs"])
    order = pc.sort_indices(pa.table({"started": started}), [("started", "descending")])
    said = pa.table(
        {
            "worker": worker_keys(disputed),
            "topology": disputed["storm_id"],
            "first": disputed["task_start"],
            "last": pc.max_element_wise(disputed["task_start"], disputed["task_end"]),
        }
    ).take(order)
    executors = defaultdict[str, list[tuple[int, int]]](list)
    whose = {}
    for worker, topology, first, last in columns_of(said, *said.column_names):
        executors[worker].append((first, last))
        whose[worker] = topology
    taken, gone = defaultdict[str, list[tuple[int, int]]](list), []
    for worker, of_worker in executors.items():  # who was started last comes first
        of_others = taken[whose[worker]]
        if any(_meet(one, of_others) for one in of_worker):
            gone.append(worker)
        else:
            for one in of_worker:
                bisect.insort(of_others, one)
    return pa.array(gone, pa.string())


def _newest(held: pa.Table) -> pa.Table:
    """Return the executors of each worker's newest reading."""
    workers = worker_keys(held).dictionary_encode().indices.to_numpy()
    at = held["at"].cast(pa.int64()).to_numpy()
    newest = np.full(workers.max() + 1, at.min())
    np.maximum.at(newest, workers, at)
    return held.filter(pa.array(at == newest[workers]))


def _meet(tasks: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Return whether a range of tasks has some of others', which are in order and apart."""
    first, last = tasks
    place = bisect.bisect_right(others, (last, inf))
    return place > 0 and others[place - 1][1] >= first


def _disputed(held: pa.Table) -> pa.Array:
    """Return the places of executors that share tasks with others of their topology."""
    if not held.num_rows:
        return pa.array([], pa.int64())
    topologies = rows.one_array(held["storm_id"].dictionary_encode()).indices.to_numpy()
    above = topologies.astype(np.int64) << _TASK_BITS
    first, last = (
        pc.fill_null(held[name], 0).to_numpy().astype(np.int64)
        for name in ("task_start", "task_end")
    )
    first, last = above + first, above + np.maximum(first, last)
    order = np.argsort(first, kind="stable")
    furthest = np.maximum.accumulate(last[order])
    begins = np.ones(len(order), np.bool_)
    begins[1:] = first[order][1:] > furthest[:-1]
    group = np.cumsum(begins) - 1
    return pa.array(order[np.bincount(group)[group] > 1])
