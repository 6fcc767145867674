"""What was counted: the tables that readings of workers make, and how a batch changes them.

A batch has new readings of some workers; a topology's sums are of all of its workers. So what each
worker has counted, as its newest reading said it, is kept in a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import tables
from stormkeeper.pipeline.current import worker_keys
from stormkeeper.pipeline.statistics.readings import EXECUTOR_STATS
from stormkeeper.pipeline.statistics.summaries import (
    WORKER_STATS,
    component_stats,
    topology_stats,
    worker_stats,
)


def next_counted(
    previous: pa.Table | None, newest: pa.Table, executors: Iterable[pa.Table], reports: pa.Table
) -> Mapping[str, pa.Table]:
    """Return the next table of workers' sums, and the rows that are new in the logs.

    Parameters
    ----------
    previous
        The table of workers' sums so far; None at the beginning.
    newest
        The rows of the batch that are workers' newest pulses, as `reports.next_reports` gives them.
    executors
        What `readings.executor_stats` makes of these: each worker's rows are in one of the parts.
    reports
        The next table of worker reports; workers that are not in it have no sums either.

    Returns
    -------
    By name: ``worker_stats``, ``executor_stats``, and of the topologies of which a worker has a new
    reading, ``component_stats`` and ``topology_stats``. A pulse that cannot be read leaves what the
    one before it said.
    """
    executors = list(executors)
    read = newest.filter(pc.is_valid(newest["executors"]))
    found = [worker_stats(part) for part in executors]
    if previous is not None:
        kept = previous.filter(pc.is_in(worker_keys(previous), worker_keys(reports)))
        kept = kept.filter(pc.invert(pc.is_in(worker_keys(kept), worker_keys(read))))
        found.append(kept.replace_schema_metadata())
    workers = pa.concat_tables([WORKER_STATS.empty_table(), *found])
    changed = pc.is_in(workers["storm_id"], pc.unique(read["storm_id"]))
    of_changed = workers.filter(changed)
    return {
        tables.WORKER_STATS: workers,
        tables.EXECUTOR_STATS: pa.concat_tables([EXECUTOR_STATS.empty_table(), *executors]),
        tables.COMPONENT_STATS: component_stats(of_changed),
        tables.TOPOLOGY_STATS: topology_stats(of_changed),
    }
