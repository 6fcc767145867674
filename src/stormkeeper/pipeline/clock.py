"""The machine's clock, which may be set while the pipeline runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import current, rows, tables

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
                table = table.replace_schema_metadata(current.moved_notes(table, set_secs))
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
