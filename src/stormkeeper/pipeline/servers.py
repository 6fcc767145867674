"""What a batch saw of the Pacemakers: the table of servers, a row each, whether they answer or not.

It stands beside the other tables of the batch and says what they are worth: a table of workers that
was made while no server could be read says nothing of workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.pipeline import rows

#: One row per server of ``pacemaker.servers``.
SERVERS: Final = pa.schema(
    [
        ("server", pa.string()),
        ("reachable", pa.bool_()),
        ("reason", pa.string()),
        ("since", rows.TIMESTAMP),
        ("read_at", rows.TIMESTAMP),
        ("instance", pa.string()),
        ("revision", pa.int64()),
        ("uptime_secs", pa.float64()),
        ("horizon_secs", pa.float64()),
        ("keys", pa.int64()),
        ("reset", pa.bool_()),
    ]
)

#: What a client's error says of its tries; why they failed comes last.
_TRIES: Final = re.compile(r"\(\d+ (?:try|tries) in [\d.]+ s(?:; (?P<cause>.*))?\)")


def next_servers(previous: pa.Table | None, batch: pa.Table) -> pa.Table:
    """Return the table of servers after a batch, sorted by server.

    Parameters
    ----------
    previous
        The table so far, for since when a server has been as it is; None at the beginning.
    batch
        Rows as `decode.typed` gives them; those of other kinds are passed over.
    """
    found = batch.filter(pc.equal(batch["kind"], rows.SERVER)).sort_by("server")
    health = pa.Table.from_struct_array(rows.one_array(found["health"]))
    columns = {name: found[name] for name in ("server", "read_at", "instance", "revision")}
    columns |= {name: health[name] for name in health.column_names if name != "error"}
    columns["reason"] = health["error"]
    before = _since(previous)
    states = zip(found["server"].to_pylist(), health["reachable"].to_pylist(), strict=True)
    read_at = rows.seconds(found["read_at"])
    columns["since"] = rows.timestamps(
        before.get(state, now) for state, now in zip(states, read_at, strict=True)
    )
    return pa.table({name: columns[name] for name in SERVERS.names}).cast(SERVERS)


def one_each(batch: pa.Table) -> pa.Table:
    """Return a batch in which each server has one row, though it was read in several parts.

    It was read only if all of its parts were, and all was read when the first of them was.
    """
    of_servers = pc.equal(batch["kind"], rows.SERVER)
    found = batch.filter(of_servers)
    if len(pc.unique(found["server"])) == found.num_rows:
        return batch
    first: dict[str, dict[str, Any]] = {}
    for row in sorted(found.to_pylist(), key=_worst_first):
        kept = first.setdefault(row["server"], row)
        kept["health"]["reset"] |= row["health"]["reset"]
    merged = pa.Table.from_pylist([*first.values()], schema=batch.schema)
    return pa.concat_tables([rows.where(batch, pc.invert(of_servers)), merged])


def _worst_first(row: Mapping[str, Any]) -> tuple[bool, datetime]:
    return row["health"]["reachable"], row["read_at"]


def cause(reason: str) -> str:
    """Return what stays the same in the reasons of one failure that is met again and again.

    >>> cause("a:1 did not answer a request to read /p (2 tries in 0.5 s; connection refused)")
    'connection refused'
    """
    tries = _TRIES.search(reason)
    if tries is not None:
        return tries["cause"] or ""
    return re.sub(r"\d+", "", reason)


def _since(previous: pa.Table | None) -> dict[tuple[str, bool], float | None]:
    if previous is None:
        return {}
    columns = (previous[name].to_pylist() for name in ("server", "reachable"))
    return dict(zip(zip(*columns, strict=True), rows.seconds(previous["since"]), strict=True))
