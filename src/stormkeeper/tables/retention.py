"""Which files of a log are kept: those that are young enough, and few enough.

What is deleted is lost. So a clock that is suddenly ahead is not believed at once: it may be wrong,
and be set right again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from stormkeeper.tables.manifest import DataFile
from stormkeeper.tables.specs import Retention

#: Before all rows. Who keeps them longer keeps all.
_FIRST = datetime.fromtimestamp(0, UTC)

#: A megabyte, as the retention means it.
MB = 1 << 20

#: For how long a clock has to be ahead until it is believed, and what is not ahead yet, in seconds.
DOUBT_SECS: Final = 3600.0
_SMALL_SECS: Final = 60.0


class RetentionClock:
    """The time by which rows are too old.

    It goes by the machine's clock, and while that is ahead of what has passed, by what has passed.

    Parameters
    ----------
    steady
        A clock that nobody sets, in seconds.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        #: When it was how late, by the steady clock and by the machine's.
        self._known: tuple[float, float] | None = None
        self._ahead_since: float | None = None

    def at(self, now: datetime, before: datetime | None) -> datetime:
        """Return the time by which rows are too old.

        Parameters
        ----------
        now
            By the machine's clock.
        before
            When the manifest was written that is there, if there is one.
        """
        wall, steady = now.timestamp(), self._steady()
        if self._known is None:
            # While nobody wrote, nothing grew too old that takes more room than it did.
            self._known = steady, min(wall, before.timestamp() if before else wall)
        then, known = self._known
        passed = known + steady - then
        if wall <= passed + _SMALL_SECS:
            self._ahead_since = None
        else:
            self._ahead_since = steady if self._ahead_since is None else self._ahead_since
            if steady - self._ahead_since < DOUBT_SECS:
                return datetime.fromtimestamp(passed, UTC)
            self._ahead_since = None
        self._known = steady, wall
        return now


def kept(files: Sequence[DataFile], retention: Retention, now: datetime) -> list[DataFile]:
    """Return the files that stay, in their order.

    Files go whole: by age once their latest row is too old, by size in the order of that row.
    """
    staying = list(files)
    if retention.hours is not None:
        age = timedelta(hours=retention.hours)
        oldest = now - age if age < now - _FIRST else _FIRST
        staying = [file for file in staying if file.latest is None or file.latest >= oldest]
    if retention.mb is None:
        return staying
    room, gone = retention.mb * MB, set[str]()
    size = sum(file.bytes for file in staying)
    for file in sorted(staying, key=lambda file: file.latest or now)[:-1]:
        if size <= room:
            break
        size -= file.bytes
        gone.add(file.path)
    return [file for file in staying if file.path not in gone]
