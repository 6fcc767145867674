"""Pulses that are not counted: the table of what was rejected, and why."""

from __future__ import annotations

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

#: The newest rows that the table keeps: a broken release of workers is not to fill a disk.
KEPT: Final = 1000

_STRAY: Final = "its path is not a worker's: /workerbeats/<topology id>/<node>-<port>"

#: What tells one pulse from others; each may be read twice, and one without a revision ever again.
_PULSE: Final = ("server", "path", "revision")


def next_rejected(previous: pa.Table | None, batch: pa.Table) -> pa.Table:
    """Return the next table of rejected pulses.

    Parameters
    ----------
    previous
        The table so far; None at the beginning.
    batch
        Rows as `decode.typed` gives them; all but pulses that are rejected are passed over.
    """
    table = REJECTED.empty_table() if previous is None else previous
    is_stray = pc.is_null(batch["storm_id"])
    refused = pc.or_(is_stray, pc.is_valid(batch["error"]))
    refused = batch.filter(pc.and_(pc.equal(batch["kind"], rows.PULSE), refused))
    if not refused.num_rows:
        return table
    reason = pc.if_else(pc.is_null(refused["storm_id"]), _STRAY, refused["error"])
    found = refused.append_column("reason", reason).select(REJECTED.names).cast(REJECTED)
    known = set(_pulses(table))
    places = []
    for place, pulse in enumerate(_pulses(found)):
        if pulse not in known:
            known.add(pulse)
            places.append(place)
    new = found.take(pa.array(places[-KEPT:], pa.int64()))
    return pa.concat_tables([table, new])[-KEPT:]


def _pulses(table: pa.Table) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in _PULSE), strict=True))
