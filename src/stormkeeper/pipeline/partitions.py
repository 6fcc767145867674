"""The tables before a batch: a part's rows, with times on the present clock.

All statistics of a large cluster at once would take gigabytes. A part has some topologies with all
their workers, and a file in each ``current`` table. After a start with another number of parts, the
old files are read once more for each new part.
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
from stormkeeper.heartbeats.change_pages import Part
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import rollups, rows, tables, worker_liveness
from stormkeeper.pipeline.batch import part_numbers
from stormkeeper.pipeline.source import Options

log = logging.getLogger(__name__)

#: Reads this part of a table, by name. `since` skips a log's older files, and reads the other files
#: whole; `schema` chooses columns.
ReadPrevious = Callable[..., pa.Table | None]

#: Workers in a part, about, unless ``pipeline.statistics.parts`` is set.
WORKERS_OF_PART: Final = 8192

#: Workers from which a part takes much more memory than intended.
_TOO_MANY: Final = 4 * WORKERS_OF_PART

_KEY: Final = "pipeline.statistics.parts"


#: Smaller steps of the clock are ignored: NTP's adjustments, or a busy machine between two
#: readings.
_SMALL_SECS: Final = 2.0

#: Columns that are compared with times of new pulses.
_HEARD: Final = {
    tables.WORKER_LIVENESS: ("last_seen", "moved_at"),
    tables.WORKER_REPORTS: ("received_at",),
    tables.EXECUTOR_COUNTERS: ("at",),
}

#: Tables whose times are on the driver's clock; other tables have the readers' times.
_BY_OUR_CLOCK: Final = frozenset({tables.WORKER_LIVENESS, tables.WORKER_REPORTS})

#: Brings a table of the batch before, by name, to the present clock.
ToPresentClock = Callable[[str, pa.Table | None], pa.Table | None]


def choose_parts(conf: Conf, options: Options, store: TableStore) -> Conf:
    """Return the configuration with the number of parts filled in.

    It follows from the number of pulses that the Pacemakers hold, and never falls: a Pacemaker that
    has just started holds few.
    """
    if conf[_KEY] is not None:
        return conf
    health = coverage.ask(options.servers, options.timeout_secs, options.settings())
    held = sum(each.keys or 0 for each in health.values())
    count = max(math.ceil(held / WORKERS_OF_PART), len(store.read_parts(tables.WORKER_REPORTS)), 1)
    if count > 1:
        log.info("statistics have %d parts, as the Pacemakers hold %d pulses", count, held)
    return conf.with_values({_KEY: count})


def number_of_parts(conf: Conf, query: str) -> int:
    """Return in how many parts a query's tables are computed."""
    count: int | None = conf[_KEY] if query == tables.STATISTICS else None
    return count or 1


class GrowthWarning:
    """Warns once that the cluster has outgrown the number of parts, fixed at the start."""

    def __init__(self) -> None:
        self._is_logged = False

    def check(self, workers: int) -> None:
        """Log the warning if a part with so many workers is too large."""
        if workers > _TOO_MANY and not self._is_logged:
            self._is_logged = True
            log.warning(
                "the parts of statistics have grown to %d workers: restart the pipeline, which "
                "then has a part for each %d workers, or set %s to more",
                *(workers, WORKERS_OF_PART, _KEY),
            )


def read_previous(store: TableStore, part: Part, on_time: ToPresentClock) -> ReadPrevious:
    """Return the reader of a part of a query's tables, with times on the present clock."""

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
    found, notes = [], []
    for read in written:
        table = read()
        notes.append(table.schema.metadata or {})
        mine = pc.equal(part_numbers(table, part.count), part.number)
        found.append(table.replace_schema_metadata().filter(mine))
    merged = worker_liveness.merge_forgotten(notes, part.has) | rollups.merge_marks(notes)
    return pa.concat_tables(found).replace_schema_metadata(merged)


class Clock:
    """Brings times in the tables before to a clock that was set in between.

    Otherwise silent workers would age by that step, and die of it; new pulses would look like a
    restart, or like the future.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall = wall
        self._steady = steady
        self._ahead: float | None = None

    def look(self) -> ToPresentClock:
        """Return the function that brings the tables of the batch before to the present clock.

        No pulse was heard later than now, even if the clock was set back before the start.
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
                table = table.replace_schema_metadata(
                    worker_liveness.move_forgotten(table, set_secs)
                )
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
