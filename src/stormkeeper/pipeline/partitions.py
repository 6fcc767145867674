"""What is counted, part by part: all workers of a large cluster at once would take gigabytes.

A part has some of the topologies, each with all of its workers, so it can be brought up to date by
itself. Tables of the kind ``current`` are kept in the same parts, a file each. After a start with
another number of parts, the files of the last one are read once more for each of the new ones.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.conf import Conf
from stormkeeper.heartbeats import coverage
from stormkeeper.heartbeats.following import Part
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import rollups, rows, tables, worker_liveness
from stormkeeper.pipeline.batch import part_numbers
from stormkeeper.pipeline.source import Options

log = logging.getLogger(__name__)

#: Reads a table as it is: all rows of a part; of a log all rows, or those since a time, if not
#: others, too. A schema may say which columns, and how.
Before = Callable[..., pa.Table | None]

#: How many workers a part has, about, where nobody has said how many parts there are.
WORKERS_OF_PART: Final = 8192

#: From here on a part takes much more memory than it was meant to.
_TOO_MANY: Final = 4 * WORKERS_OF_PART

_KEY: Final = "pipeline.statistics.parts"


def settled(conf: Conf, options: Options, store: TableStore) -> Conf:
    """Return a configuration that says in how many parts statistics are made.

    Where it does not, it is by the number of pulses that the Pacemakers hold, but no fewer than
    there were: a Pacemaker that has just started holds few.

    Parameters
    ----------
    conf
        The configuration.
    options
        How the Pacemakers are read, which are asked.
    store
        The tables of statistics.

    Raises
    ------
    ConfigError
        A file that says how to come to them is missing or wrong.
    """
    if conf[_KEY] is not None:
        return conf
    health = coverage.ask(options.servers, options.timeout_secs, options.settings())
    held = sum(each.keys or 0 for each in health.values())
    count = max(math.ceil(held / WORKERS_OF_PART), len(store.read_parts(tables.WORKER_REPORTS)), 1)
    if count > 1:
        log.info("statistics are made in %d parts, as Pacemakers hold %d pulses", count, held)
    return conf.with_values({_KEY: count})


def parts_of(conf: Conf, query: str) -> int:
    """Return in how many parts the tables of a query are made."""
    count: int | None = conf[_KEY] if query == tables.STATISTICS else None
    return count or 1


class Growth:
    """Says once that the cluster has outgrown its parts: their number is settled at the start."""

    def __init__(self) -> None:
        self._is_said = False

    def of_part(self, workers: int) -> None:
        """Take the number of workers that a part has."""
        if workers > _TOO_MANY and not self._is_said:
            self._is_said = True
            log.warning(
                "statistics are made in parts that have become large, of %d workers: restart the "
                "pipeline, which makes one for each %d, or set %s to more",
                *(workers, WORKERS_OF_PART, _KEY),
            )


def before(store: TableStore, part: Part, on_time: OnTime) -> Before:
    """Return what reads the part of a query's tables as they are before a batch, on time."""

    def read(
        name: str, since: datetime | None = None, schema: pa.Schema | None = None
    ) -> pa.Table | None:
        return on_time(name, _read(store, part, name, since, schema))

    return read


def _read(
    store: TableStore,
    part: Part,
    name: str,
    since: datetime | None,
    schema: pa.Schema | None,
) -> pa.Table | None:
    written = store.read_parts(name, schema)
    if (part.count == 1 and len(written) <= 1) or since is not None:
        return store.read(name, since, schema)
    if len(written) == part.count:
        return written[part.number]()
    return _part_of(written, part) if written else None


def _part_of(written: Sequence[Callable[[], pa.Table]], part: Part) -> pa.Table:
    """Return a part of a table that was written in another number of them."""
    found, notes = [], []
    for read in written:
        table = read()
        notes.append(table.schema.metadata or {})
        mine = pc.equal(part_numbers(table, part.count), part.number)
        found.append(table.replace_schema_metadata().filter(mine))
    merged = worker_liveness.merged_notes(notes, part.has) | rollups.merged_notes(notes)
    return pa.concat_tables(found).replace_schema_metadata(merged)


#: A clock that is kept right by small steps makes no difference to an age. Nor does a machine that
#: is busy between two looks at its clocks.
_SMALL_SECS: Final = 2.0

#: What tables of the present say of when something was heard, which is compared with what is heard
#: now. When a worker was started stays as it was said first, for two tables have it.
_HEARD: Final = {
    tables.WORKER_LIVENESS: ("last_seen", "moved_at"),
    tables.WORKER_REPORTS: ("received_at",),
    tables.EXECUTOR_COUNTERS: ("at",),
}

#: Of these tables, times are by our clock; of others, by the clocks of those who have read.
_BY_OUR_CLOCK: Final = frozenset({tables.WORKER_LIVENESS, tables.WORKER_REPORTS})

#: Brings a table of the batch before, by its name, to the clock as it is now.
OnTime = Callable[[str, pa.Table | None], pa.Table | None]


class Clock:
    """Brings times of the batch before to a clock that was set since then.

    Else all who have sent nothing since would be older by as much, and so dead, or younger; and
    those who have sent something would seem to have been started anew, or not to have sent it yet.

    Parameters
    ----------
    wall, steady
        The clock that may be set, and one that nobody sets.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead: float | None = None

    def look(self) -> OnTime:
        """Return what brings the tables of the batch before to the clock as it is now.

        The first time, when nothing is known of before, they are as they were. But nothing was
        heard later than now, whatever they say: the clock may have been set back before the start.
        """
        now = self._wall()
        before, self._ahead = self._ahead, now - self._steady()
        set_secs = 0.0 if before is None else self._ahead - before
        if abs(set_secs) <= _SMALL_SECS:
            set_secs = 0.0

        def on_time(name: str, table: pa.Table | None) -> pa.Table | None:
            if table is None or name not in _HEARD:
                return table
            latest = now if name in _BY_OUR_CLOCK else inf
            for column in _HEARD[name]:
                if column in table.column_names:
                    table = _moved(table, column, set_secs, latest)
            if set_secs:
                table = table.replace_schema_metadata(worker_liveness.moved_notes(table, set_secs))
            return table

        return on_time


def _moved(table: pa.Table, name: str, secs: float, latest: float) -> pa.Table:
    heard = known = table[name]
    if secs:
        heard = pc.add(heard, pa.scalar(timedelta(seconds=secs))).cast(heard.type)
    last = pc.max(heard).as_py()
    if last is not None and last.timestamp() > latest + _SMALL_SECS:
        at = rows.timestamps([latest])[0]
        heard = pc.if_else(pc.greater(heard, at), at, heard)
    if heard is known:
        return table
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), heard)
