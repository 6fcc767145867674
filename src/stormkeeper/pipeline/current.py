"""The liveness table as Arrow, and how a batch turns the last one into the next.

The table holds the present: one row per worker. So the newest one is also all that has to be
remembered from batch to batch. It is merged in the driver, where that takes a quarter of the time
and two thirds of the memory of joining it in Spark (for a hundred workers as for ten thousand);
what is costly, reading and decoding, is done by Spark's executors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

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
from stormkeeper.paths import WorkerId, parse_workerbeat
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decode import TYPED, decode_batches, typed

#: One row per worker: the columns of `liveness.Row` that need no value, and the name in its
#: storm id. Who is unproven is ``late`` and ``stale`` here. The worker's clock is there where a
#: server tells no ages: it ranks pulses then.
WORKER_LIVENESS: Final = pa.schema(
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
        ("started_at", rows.TIMESTAMP),
        ("moved_from", pa.string()),
        ("moved_at", rows.TIMESTAMP),
    ]
)

#: Where the table's metadata keep the workers that are forgotten, and of each of them this.
_FORGOTTEN: Final = b"stormkeeper.forgotten"
_REMEMBERED: Final = ("server", "last_seen", "status", "time_secs")

#: A topology's id is its name, a sequence number and the time of its submission.
_STORM_ID: Final = re.compile(r"(.+)-\d+-\d+")


class Said(NamedTuple):
    """What silent workers said last.

    Their last pulse says of the `completed` that all of their queries had ended. That of the
    `unread` could not be read, though its server answers: nobody knows whether they are dead.
    """

    completed: Collection[WorkerId] = ()
    unread: Collection[WorkerId] = ()


#: Reads what workers have said last, of those who are silent and of the servers that answer.
LastWords = Callable[[Sequence[Row], Collection[str]], Said]


def no_words(_rows: Sequence[Row], _servers: Collection[str]) -> Said:
    """Stand for `LastWords` where a batch has what its pulses say."""
    return Said()


def with_workers(batch: pa.Table) -> pa.Table:
    """Return rows of the source as `decode.typed` does, at no cost for those without values."""
    if batch["details"].null_count < batch.num_rows:
        found = list(decode_batches(iter(batch.to_batches())))
        return pa.Table.from_batches(found, TYPED)
    workers = [parse_workerbeat(path or "") for path in batch["path"].to_pylist()]
    columns = {name: pa.nulls(batch.num_rows, TYPED.field(name).type) for name in TYPED.names}
    columns |= {name: batch[name] for name in batch.column_names if name in columns}
    for name in WorkerId._fields:
        found = [worker and getattr(worker, name) for worker in workers]
        columns[name] = pa.array(found, TYPED.field(name).type)
    return pa.table(columns).cast(TYPED)


class Judged(NamedTuple):
    """The workers after a batch, its pulses (of which `step.taken` has positions), and when."""

    step: Step
    pulses: pa.Table
    now: float


def judged(
    previous: Iterable[Row],
    batch: pa.Table,
    limits: Limits,
    between: tuple[float, float] | None = None,
    last_words: LastWords = no_words,
) -> Judged:
    """Return what is known of the workers after a batch; the arguments are as `next_liveness`'s."""
    servers = _of_kind(batch, rows.SERVER)
    pulses = _of_kind(batch, rows.PULSE)
    read_at = [at for at in rows.seconds(servers["read_at"]) if at is not None]
    newest = max(read_at, default=0.0)
    earliest, latest = between or (newest, newest)
    now = max((at for at in read_at if earliest <= at <= latest), default=latest)
    found = _servers(servers, earliest, now)
    result = step(
        previous,
        _beats(pulses),
        _tombstones(_of_kind(batch, rows.TOMBSTONE)),
        found,
        now=now,
        limits=limits,
    )
    return Judged(_heard(result, found, last_words), pulses, now)


def _heard(result: Step, servers: Mapping[str, Server], last_words: LastWords) -> Step:
    """Take in what the silent have said last: dead is only who has not said that it is done."""
    silent = [row for row in result.rows if row.status not in (Status.ALIVE, Status.COMPLETED)]
    if not silent:
        return result
    said = last_words(silent, [name for name, server in servers.items() if server.reachable])

    def heard(row: Row) -> Row:
        if row.worker in said.completed:
            return row._replace(status=Status.COMPLETED)
        if row.worker in said.unread and row.status is Status.DEAD:
            return row._replace(status=Status.UNPROVEN)
        return row

    return result._replace(rows=[heard(row) for row in result.rows])


def next_liveness(
    previous: pa.Table | None,
    batch: pa.Table,
    limits: Limits,
    between: tuple[float, float] | None = None,
    last_words: LastWords = no_words,
    *,
    reports: pa.Table | None = None,
) -> pa.Table:
    """Return the next liveness table.

    Parameters
    ----------
    previous
        The liveness table so far, its metadata included; None at the beginning.
    batch
        Rows as `decode.typed` or `with_workers` gives them, servers' rows included.
    between
        When the batch was read, at the earliest and at the latest: seconds since the epoch, on one
        clock for all batches. The clocks of its readers are held against that. None for a batch
        that stands for itself: then every server counts as read at the newest ``read_at``.
    last_words
        Asked of workers that are silent; needed where the batch has no values.
    reports
        The newest worker reports, which say when workers were started.
    """
    known = () if previous is None else _rows(previous)
    result, _, now = judged(known, batch, limits, between, last_words)
    table = _table(result, now)
    for said in (previous, reports):
        if said is not None and "started_at" in said.column_names:
            place = pc.index_in(worker_keys(table), worker_keys(said))
            known_since = pc.coalesce(said["started_at"].take(place), table["started_at"])
            column = table.column_names.index("started_at")
            table = table.set_column(column, table.field("started_at"), known_since)
    return table


def worker_keys(table: pa.Table) -> pa.Array:
    """Return a text for each row that tells its worker from others."""
    port = table["port"].cast(pa.string())
    # A storm id is a path segment, so the slash ends it; a port has no dash.
    return pc.binary_join_element_wise(
        table["storm_id"], pc.binary_join_element_wise(table["node"], port, "-"), "/"
    ).combine_chunks()


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
            table = next_liveness(None, pa.Table.from_batches(read), limits)
            yield from table.replace_schema_metadata(None).to_batches()

    # All workers in one task: which servers were left, and for which, is known only of all.
    return typed(df).coalesce(1).mapInArrow(judge, from_arrow_schema(WORKER_LIVENESS))


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
    for name, health, read_at in columns_of(servers, "server", "health", "read_at"):
        # A pulse was read on the same machine as its server's row, with the same clock. When that
        # is wrong, all that is known is that the server was read in this batch.
        ahead_secs = 0.0 if earliest <= read_at <= now else read_at - now
        found[name] = Server(bool(health["reachable"]), health["horizon_secs"], ahead_secs)
    return found


def _beats(pulses: pa.Table) -> list[Beat]:
    names = Beat._fields[1:]
    return [
        Beat(WorkerId(storm_id, node, port), *rest)
        for storm_id, node, port, *rest in columns_of(pulses, *WorkerId._fields, *names)
    ]


def _tombstones(tombstones: pa.Table) -> Iterator[Tombstone]:
    names = Tombstone._fields[1:]
    for storm_id, node, port, *rest in columns_of(tombstones, *WorkerId._fields, *names):
        yield Tombstone(WorkerId(storm_id, node, port), *rest)


def _rows(table: pa.Table) -> Iterator[Row]:
    kept = [name for name in Row._fields[1:] if name in table.column_names]
    names = ("stale", *WorkerId._fields, *kept)
    for stale, storm_id, node, port, *rest in columns_of(table, *names):
        known: dict[str, Any] = {"uptime_secs": None, "error": None}
        row = Row(WorkerId(storm_id, node, port), **known, **dict(zip(kept, rest, strict=True)))
        yield row._replace(status=Status.UNPROVEN if stale else Status(row.status))
    yield from forgotten(table)


def forgotten(table: pa.Table) -> Iterator[Row]:
    """Return the workers without a row that are to be known again, as `remembering` noted them."""
    for worker, *rest in json.loads((table.schema.metadata or {}).get(_FORGOTTEN, b"[]")):
        known: dict[str, Any] = dict.fromkeys(Row._fields)
        known |= zip(_REMEMBERED, rest, strict=True)
        known |= {"worker": WorkerId(*worker), "status": Status(known["status"])}
        yield Row(**known)


def remembering(schema: pa.Schema, result: Step) -> pa.Schema:
    """Return a table's schema with a note of the workers that have no row any more."""
    noted = [
        [row.worker, *(getattr(row, name) for name in _REMEMBERED)] for row in result.forgotten
    ]
    return schema.with_metadata({_FORGOTTEN: json.dumps(noted)})


def _table(result: Step, now: float) -> pa.Table:
    found = sorted(result.rows)
    columns: dict[str, Any] = {
        "storm_id": [row.worker.storm_id for row in found],
        "topology": [topology_name(row.worker.storm_id) for row in found],
        "node": [row.worker.node for row in found],
        "port": [row.worker.port for row in found],
        "updated_at": [now] * len(found),
        "started_at": [None] * len(found),
    }
    for name in Row._fields[1:]:
        if name in WORKER_LIVENESS.names:
            columns[name] = [getattr(row, name) for row in found]
    columns["stale"] = [row.status is Status.UNPROVEN for row in found]
    columns["status"] = [
        Status.LATE if row.status is Status.UNPROVEN else row.status for row in found
    ]
    for name in ("last_seen", "updated_at", "moved_at"):
        columns[name] = rows.timestamps(columns[name])
    return pa.table(
        {name: columns[name] for name in WORKER_LIVENESS.names},
        schema=remembering(WORKER_LIVENESS, result),
    )


def columns_of(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Return the values of some columns, row by row; times in seconds since the epoch."""
    values = [
        rows.seconds(column) if pa.types.is_timestamp(column.type) else column.to_pylist()
        for column in (table[name] for name in names)
    ]
    return zip(*values, strict=True)
