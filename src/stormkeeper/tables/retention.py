"""Which files of a log are kept: those that are young enough, and few enough."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from stormkeeper.tables.manifest import DataFile
from stormkeeper.tables.specs import Retention

#: Before all rows. Who keeps them longer keeps all.
_FIRST = datetime.fromtimestamp(0, UTC)

#: A megabyte, as the retention means it.
MB = 1 << 20


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
