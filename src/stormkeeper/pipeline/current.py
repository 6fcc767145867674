"""The pipeline's tables as Arrow, and how a batch turns the last ones into the next.

The tables hold the present: one row per worker, and one per worker, component and window. So the
newest ones are also all that has to be remembered from batch to batch. They are merged in the
driver, where that takes a quarter of the time and two thirds of the memory of joining them in
Spark (for a hundred workers as for ten thousand); what is costly, reading and decoding, is done by
Spark's executors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.heartbeats.liveness import (
    FORGET_SECS,
    Beat,
    Limits,
    Row,
    Server,
    Status,
    Step,
    Tombstone,
    step,
)
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decode import typed

#: One row per worker: the columns of `liveness.Row`, and the name in its storm id. Who is unproven
#: is ``late`` and ``stale`` here.
LIVENESS: Final = pa.schema(
    [
        ("storm_id", pa.string()),
        ("topology", pa.string()),
        ("node", pa.string()),
        ("port", pa.int32()),
        ("status", pa.string()),
        ("stale", pa.bool_()),
        ("age_secs", pa.float64()),
        ("last_seen", rows.TIMESTAMP),
        ("updated_at", rows.TIMESTAMP),
        ("server", pa.string()),
        ("instance", pa.string()),
        ("revision", pa.int64()),
        ("time_secs", pa.int64()),
        ("uptime_secs", pa.int32()),
        ("error", pa.string()),
        ("moved_from", pa.string()),
        ("moved_at", rows.TIMESTAMP),
    ]
)

#: Where the table's metadata keep the workers that are forgotten, and of each of them this.
_FORGOTTEN: Final = b"stormkeeper.forgotten"
_REMEMBERED: Final = ("server", "last_seen", "status", "time_secs")

#: A topology's id is its name, a sequence number and the time of its submission.
_STORM_ID: Final = re.compile(r"(.+)-\d+-\d+")


def next_liveness(
    previous: pa.Table | None,
    batch: pa.Table,
    limits: Limits,
    between: tuple[float, float] | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Return the next liveness table, and the rows of the batch that are workers' newest pulses.

    Parameters
    ----------
    previous
        The liveness table so far, its metadata included; None at the beginning.
    batch
        Rows as `decode.typed` gives them, servers' rows included.
    between
        When the batch was read, at the earliest and at the latest: seconds since the epoch, on one
        clock for all batches. The clocks of its readers are held against that. None for a batch
        that stands for itself: then every server counts as read at the newest ``read_at``.
    """
    servers = _of_kind(batch, rows.SERVER)
    pulses = _of_kind(batch, rows.PULSE)
    read_at = [at for at in rows.seconds(servers["read_at"]) if at is not None]
    newest = max(read_at, default=0.0)
    earliest, latest = between or (newest, newest)
    now = max((at for at in read_at if earliest <= at <= latest), default=latest)
    result = step(
        () if previous is None else _rows(previous),
        _beats(pulses),
        _tombstones(_of_kind(batch, rows.TOMBSTONE)),
        _servers(servers, earliest, now),
        now=now,
        limits=limits,
    )
    return _table(result, now), pulses.take(pa.array(result.taken, pa.int64()))


def liveness(
    df: DataFrame,
    *,
    late_secs: float = 9.0,
    timeout_secs: float = 30.0,
    forget_secs: float = FORGET_SECS,
) -> DataFrame:
    """Judge the workers by one read of the ``pacemaker`` source.

    Parameters
    ----------
    df
        Rows of ``spark.read.format("pacemaker")``, all of its columns.
    late_secs, timeout_secs, forget_secs
        As in `liveness.Limits`; the defaults are those of Storm's configuration.

    Returns
    -------
    The rows of the liveness table, as the pipeline would write them had it just started.

    Examples
    --------
    >>> raw = spark.read.format("pacemaker").option("servers", "a,b").load()  # doctest: +SKIP
    >>> raw.transform(liveness, timeout_secs=60).show()  # doctest: +SKIP
    """
    limits = Limits(late_secs, timeout_secs, forget_secs)

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = list(batches)
        if read:
            table, _ = next_liveness(None, pa.Table.from_batches(read), limits)
            yield from table.replace_schema_metadata(None).to_batches()

    # All workers in one task: which servers were left, and for which, is known only of all.
    return typed(df).coalesce(1).mapInArrow(judge, from_arrow_schema(LIVENESS))


def topology_name(storm_id: str) -> str:
    """Return the name in a topology's id, or the id itself if it is not made as Storm makes them.

    >>> topology_name("word-count-1-1700000000")
    'word-count'
    """
    match = _STORM_ID.fullmatch(storm_id)
    return match[1] if match else storm_id


def _of_kind(batch: pa.Table, kind: str) -> pa.Table:
    of_kind = pc.equal(batch["kind"], kind)
    if kind == rows.SERVER:
        return batch.filter(of_kind)
    return batch.filter(pc.and_(of_kind, pc.is_valid(batch["storm_id"])))


def _servers(servers: pa.Table, earliest: float, now: float) -> dict[str, Server]:
    found = {}
    for name, health, read_at in _columns(servers, "server", "health", "read_at"):
        # A pulse was read on the same machine as its server's row, with the same clock. When that
        # is wrong, all that is known is that the server was read in this batch.
        ahead_secs = 0.0 if earliest <= read_at <= now else read_at - now
        found[name] = Server(bool(health["reachable"]), health["horizon_secs"], ahead_secs)
    return found


def _beats(pulses: pa.Table) -> list[Beat]:
    names = Beat._fields[1:]
    return [
        Beat(WorkerId(storm_id, node, port), *rest)
        for storm_id, node, port, *rest in _columns(pulses, *WorkerId._fields, *names)
    ]


def _tombstones(tombstones: pa.Table) -> Iterator[Tombstone]:
    names = Tombstone._fields[1:]
    for storm_id, node, port, *rest in _columns(tombstones, *WorkerId._fields, *names):
        yield Tombstone(WorkerId(storm_id, node, port), *rest)


def _rows(table: pa.Table) -> Iterator[Row]:
    names = ("stale", *WorkerId._fields, *Row._fields[1:])
    for stale, storm_id, node, port, *rest in _columns(table, *names):
        row = Row(WorkerId(storm_id, node, port), *rest)
        yield row._replace(status=Status.UNPROVEN if stale else Status(row.status))
    for worker, *rest in json.loads((table.schema.metadata or {}).get(_FORGOTTEN, b"[]")):
        known: dict[str, Any] = dict.fromkeys(Row._fields)
        known |= zip(_REMEMBERED, rest, strict=True)
        known |= {"worker": WorkerId(*worker), "status": Status(known["status"])}
        yield Row(**known)


def _table(result: Step, now: float) -> pa.Table:
    found = sorted(result.rows)
    columns: dict[str, Any] = {
        "storm_id": [row.worker.storm_id for row in found],
        "topology": [topology_name(row.worker.storm_id) for row in found],
        "node": [row.worker.node for row in found],
        "port": [row.worker.port for row in found],
        "updated_at": [now] * len(found),
    }
    for name in Row._fields[1:]:
        columns[name] = [getattr(row, name) for row in found]
    columns["stale"] = [row.status is Status.UNPROVEN for row in found]
    columns["status"] = [
        Status.LATE if row.status is Status.UNPROVEN else row.status for row in found
    ]
    for name in ("last_seen", "updated_at", "moved_at"):
        columns[name] = rows.timestamps(columns[name])
    forgotten = [
        [row.worker, *(getattr(row, name) for name in _REMEMBERED)] for row in result.forgotten
    ]
    return pa.table(
        {name: columns[name] for name in LIVENESS.names},
        schema=LIVENESS.with_metadata({_FORGOTTEN: json.dumps(forgotten)}),
    )


def _columns(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    values = [
        rows.seconds(column) if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in (table[name] for name in names)
    ]
    return zip(*values, strict=True)
