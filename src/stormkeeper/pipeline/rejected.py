"""Pulses that are not counted: the table of what was rejected, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows

#: One row per pulse that could not be decoded, or belongs to no worker.
REJECTED: Final = pa.schema(
    [
        ("read_at", rows.TIMESTAMP),
        ("storm_id", pa.string()),
        ("node", pa.string()),
        ("port", pa.int32()),
        ("path", pa.string()),
        ("server", pa.string()),
        ("revision", pa.int64()),
        ("bytes", pa.int64()),
        ("reason", pa.string()),
    ]
)

#: Rows that a batch adds at most: a broken release of workers is not to fill a disk.
AT_ONCE: Final = 1000

#: For so long a pulse that is read again is known, in seconds: longer than it is while its batch
#: may be repeated. One of a Java Pacemaker, without a revision, is read again at every trigger.
KNOWN_SECS: Final = 3600.0

_STRAY: Final = "its path is not a worker's: /workerbeats/<topology id>/<node>-<port>"

#: What tells one pulse from others.
_PULSE: Final = ("server", "path", "revision")


def next_rejected(recent: Callable[[], pa.Table | None], batch: pa.Table) -> pa.Table:
    """Return the rows that a batch adds to the log of rejected pulses.

    Parameters
    ----------
    recent
        Returns its rows of the last `KNOWN_SECS` seconds; asked where there is something to reject.
    batch
        Rows as `decode.typed` gives them; all but pulses that are rejected are passed over.
    """
    is_stray = pc.is_null(batch["storm_id"])
    refused = pc.or_(is_stray, pc.is_valid(batch["error"]))
    refused = batch.filter(pc.and_(pc.equal(batch["kind"], rows.PULSE), refused))
    if not refused.num_rows:
        return REJECTED.empty_table()
    reason = pc.if_else(pc.is_null(refused["storm_id"]), _STRAY, refused["error"])
    found = refused.append_column("reason", reason).select(REJECTED.names).cast(REJECTED)
    before = recent()
    known = set() if before is None else set(_pulses(before))
    places = []
    for place, pulse in enumerate(_pulses(found)):
        if pulse not in known:
            known.add(pulse)
            places.append(place)
    return found.take(pa.array(places[-AT_ONCE:], pa.int64()))


def _pulses(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in _PULSE), strict=True))
