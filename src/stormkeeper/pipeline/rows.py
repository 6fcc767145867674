"""The rows of the ``pacemaker`` source, raw and decoded, and functions on columns of all tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stormkeeper.heartbeats.change_pages import ChangePage
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.names import topology_name
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline.decoding.layout import HEARTBEAT, plain

PULSE: Final = "pulse"
TOMBSTONE: Final = "tombstone"
SERVER: Final = "server"

_HEALTH: Final = pa.struct(
    [
        ("reachable", pa.bool_()),
        ("error", pa.string()),
        ("uptime_secs", pa.float64()),
        ("horizon_secs", pa.float64()),
        ("keys", pa.int64()),
        ("reset", pa.bool_()),
    ]
)

#: Spark's type of times.
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

#: The latest time of pandas, in seconds since the epoch: in 2262.
_LATEST: Final = 9_223_372_036.0

#: docs/pacemaker-clients.md describes the columns.
SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("server", pa.string()),
        ("instance", pa.string()),
        ("path", pa.string()),
        ("revision", pa.int64()),
        ("age_secs", pa.float64()),
        ("received_at", TIMESTAMP),
        ("read_at", TIMESTAMP),
        ("details", pa.binary()),
        ("health", _HEALTH),
    ]
)

#: The columns that identify a worker.
WORKER: Final = pa.schema([("storm_id", pa.string()), ("node", pa.string()), ("port", pa.int32())])

PASSED_ON: Final = [name for name in SCHEMA.names if name != "details"]

#: Decoded rows: the worker, its heartbeat, and the source's other columns.
TYPED: Final = pa.schema(
    [
        *WORKER,
        *HEARTBEAT.items(),
        ("bytes", pa.int64()),
        *((name, SCHEMA.field(name).type) for name in PASSED_ON),
    ]
)

#: `TYPED` for Spark, which has no dictionaries within lists.
OF_SPARK: Final = pa.schema([(field.name, plain(field.type)) for field in TYPED])


def page_rows(server: str, pages: Sequence[ChangePage]) -> pa.RecordBatch:
    """Return a row per change: a pulse or a tombstone."""
    changes = [change for page in pages for change in page.changes]
    ages = pa.array([change.age_secs for change in changes], pa.float64())
    read_at = _of_each(pages, pa.float64(), lambda page: page.read_at)
    columns = {
        "kind": pa.array(
            [TOMBSTONE if change.size is None else PULSE for change in changes], pa.string()
        ),
        "server": pa.repeat(server, len(changes)),
        "instance": _of_each(pages, pa.string(), lambda page: page.position.instance or None),
        "path": pa.array([change.path for change in changes], pa.string()),
        "revision": pa.array([change.revision for change in changes], pa.int64()),
        "age_secs": ages,
        "received_at": to_timestamps(pc.subtract(read_at, ages)),
        "read_at": to_timestamps(read_at),
        "details": pa.array([change.details for change in changes], pa.binary()),
        "health": pa.nulls(len(changes), _HEALTH),
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _of_each(
    pages: Sequence[ChangePage], of: pa.DataType, value: Callable[[ChangePage], Any]
) -> pa.Array:
    said = [pa.repeat(pa.scalar(value(page), of), len(page.changes)) for page in pages]
    return pa.concat_arrays([pa.array([], of), *said])


def server_row(server: str, health: Coverage, *, reset: bool = False) -> pa.RecordBatch:
    position = health.position
    row = dict.fromkeys(SCHEMA.names) | {
        "kind": SERVER,
        "server": server,
        "instance": (position.instance or None) if position else None,
        "revision": position.revision if position and position.instance else None,
        "read_at": timestamps([health.read_at])[0].as_py(),
        "health": {
            "reachable": health.is_reachable,
            "error": health.error,
            "uptime_secs": health.uptime_secs,
            "horizon_secs": health.horizon_secs,
            "keys": health.keys,
            "reset": reset,
        },
    }
    return pa.RecordBatch.from_pylist([row], schema=SCHEMA)


def timestamps(times: Iterable[float | None]) -> pa.Array:
    """Convert seconds since the epoch to times, within readers' limits."""
    return to_timestamps(pa.array(times, pa.float64()))


def where(table: pa.Table, mask: pa.ChunkedArray | pa.Array) -> pa.Table:
    """Filter a table by a mask, without a copy of batches that are wanted whole."""
    found, start = [], 0
    for batch in table.to_batches():
        wanted = mask.slice(start, batch.num_rows)
        start += batch.num_rows
        is_all = pc.all(pc.fill_null(wanted, False)).as_py()
        found.append(batch if is_all else batch.filter(one_array(wanted)))
    return pa.Table.from_batches([batch for batch in found if batch.num_rows], table.schema)


def one_array(column: pa.ChunkedArray | pa.Array) -> Any:
    """Return a column as an array, without a copy of a single chunk."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def to_timestamps(secs: Any) -> Any:
    """Convert seconds since the epoch to times, as `timestamps` does."""
    held = pc.min_element_wise(pc.max_element_wise(secs, 0.0), _LATEST)
    micros = pc.round(pc.multiply(pc.if_else(pc.is_valid(secs), held, None), 1_000_000.0))
    return micros.cast(pa.int64()).cast(TIMESTAMP)


def replace_column(table: Any, name: str, column: Any) -> Any:
    """Return a table or a batch with another column of a name; the type may differ."""
    return table.set_column(table.schema.get_field_index(name), name, column)


def columns_by_name(table: pa.Table) -> dict[str, Any]:
    return dict(zip(table.column_names, table.columns, strict=True))


def to_seconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert times to seconds since the epoch."""
    return pc.divide(column.cast(pa.int64()).cast(pa.float64(), safe=False), 1_000_000.0)


def worker_keys(table: pa.Table) -> pa.Array:
    """Return a text per row that identifies the worker."""
    port = table["port"].cast(pa.string())
    # A storm id is a path segment without a slash; a port has no dash.
    found = pc.binary_join_element_wise(table["storm_id"], "/", table["node"], "-", port, "")
    return one_array(found)


def positions(table: pa.Table, among: pa.Table) -> pa.Array:
    """Return each row's position in `among`, which has each worker once, or null."""
    if all(table[name].equals(among[name]) for name in WorkerId._fields):
        return pa.arange(0, table.num_rows)  # the usual case: no worker came or went
    return pc.index_in(worker_keys(table), worker_keys(among)).cast(pa.int64())


def worker_table(workers: Iterable[WorkerId]) -> pa.Table:
    """Return a row per worker, with the columns `WORKER`."""
    return pa.Table.from_pylist([worker._asdict() for worker in workers], WORKER)


def topology_names(storm_ids: pa.ChunkedArray) -> pa.Array:
    """Return the `topology_name` of each topology id, dictionary-encoded."""
    ids = one_array(storm_ids.dictionary_encode())
    names = [topology_name(storm_id) for storm_id in ids.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(ids.indices, pa.array(names, pa.string()))


def columns_of(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Iterate over the rows of some columns; times in seconds since the epoch."""
    values = [
        (to_seconds(column) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in (table[name] for name in names)
    ]
    return zip(*values, strict=True)


def is_same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Any:
    """Compare two columns; null equals null."""
    nothing = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.coalesce(pc.equal(one, other), nothing)
