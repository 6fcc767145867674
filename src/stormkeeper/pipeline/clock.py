"""The machine's clock, which may be set while the pipeline runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: A clock that is kept right by small steps makes no difference to an age. Nor does a machine that
#: is busy between two looks at its clocks.
_SMALL_SECS: Final = 2.0


class Clock:
    """Brings times of the batch before to a clock that was set since then.

    Else all who have sent nothing since would be older by as much, and so dead, or younger.

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

    def on_time(self, liveness: pa.Table | None) -> pa.Table | None:
        """Return the liveness table of the batch before, as of the clock as it is now.

        The first time, when nothing is known of before, it is as it was.
        """
        before, self._ahead = self._ahead, self._wall() - self._steady()
        set_secs = 0.0 if before is None else self._ahead - before
        if liveness is None or abs(set_secs) <= _SMALL_SECS:
            return liveness
        place = liveness.schema.get_field_index("last_seen")
        moved = pc.add(liveness["last_seen"], pa.scalar(timedelta(seconds=set_secs)))
        field = liveness.schema.field(place)
        return liveness.set_column(place, field, moved.cast(field.type))
