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

from stormkeeper.heartbeats.liveness import FORGET_SECS, Limits, Row, Server, Status
from stormkeeper.paths import WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decode import typed
from stormkeeper.pipeline.liveness_columns import (
    WORKERS,
    Step,
    columns_of,
    places,
    step,
    worker_keys,
)

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

#: What another table says of when workers were started.
STARTS: Final = pa.schema(
    [WORKER_LIVENESS.field(name) for name in (*WorkerId._fields, "started_at")]
)

#: Where the table's metadata keep the workers that are forgotten, and of each of them this.
_FORGOTTEN: Final = b"stormkeeper.forgotten"
_REMEMBERED: Final = ("server", "last_seen", "status", "time_secs")

#: A topology's id is its name, a sequence number and the time of its submission.
_STORM_ID: Final = re.compile(r"(.+)-\d+-\d+")


class LastPulseFacts(NamedTuple):
    """What silent workers said last.

    Their last pulse says of the `completed` that all of their queries had ended. That of the
    `unread` could not be read, though its server answers: nobody knows whether they are dead.
    """

    completed: Collection[WorkerId] = ()
    unread: Collection[WorkerId] = ()


#: Reads what workers have said last, of those who are silent (`judging.WORKERS`), where they have
#: said it to servers that answer.
ReadLastPulses = Callable[[pa.Table, Collection[str]], LastPulseFacts]


def no_last_pulses(_silent: pa.Table, _servers: Collection[str]) -> LastPulseFacts:
    """Stand for `ReadLastPulses` where a batch has what its pulses say."""
    return LastPulseFacts()


class Judged(NamedTuple):
    """The workers after a batch, its pulses (of which `step.taken` has positions), and when."""

    step: Step
    pulses: pa.Table
    now: float


def judged(
    previous: pa.Table,
    remembered: Sequence[Row],
    batch: pa.Table,
    limits: Limits,
    between: tuple[float, float] | None = None,
    *,
    last_words: ReadLastPulses = no_last_pulses,
) -> Judged:
    """Return what is known of the workers after a batch.

    `previous` has the columns `judging.WORKERS`, and `remembered` are the `forgotten`; the other
    arguments are as `next_liveness`'s.
    """
    servers = _of_kind(batch, rows.SERVER)
    pulses = _of_kind(batch, rows.PULSE)
    read_at = [at for at in rows.seconds(servers["read_at"]) if at is not None]
    newest = max(read_at, default=0.0)
    earliest, latest = between or (newest, newest)
    now = max((at for at in read_at if earliest <= at <= latest), default=latest)
    found = _servers(servers, earliest, now)
    buried = _of_kind(batch, rows.TOMBSTONE)
    result = step(previous, remembered, pulses, buried, found, now=now, limits=limits)
    return Judged(_heard(result, found, last_words), pulses, now)


def _heard(result: Step, servers: Mapping[str, Server], last_words: ReadLastPulses) -> Step:
    """Take in what the silent have said last: dead is only who has not said that it is done."""
    status = result.rows["status"]
    is_silent = pc.invert(pc.is_in(status, pa.array([Status.ALIVE, Status.COMPLETED], pa.string())))
    if not pc.any(is_silent).as_py():
        return result
    silent = result.rows.filter(is_silent)
    said = last_words(silent, [name for name, server in servers.items() if server.reachable])
    if not (said.completed or said.unread):
        return result
    completed, unread = (_is_among(silent, workers) for workers in said)
    unread = pc.and_(unread, pc.equal(silent["status"], Status.DEAD))
    heard = pc.if_else(unread, str(Status.UNPROVEN), silent["status"])
    heard = rows.one_array(pc.if_else(completed, str(Status.COMPLETED), heard))
    status = pc.replace_with_mask(status, rows.one_array(is_silent), heard)
    return result._replace(rows=_with(result.rows, "status", status))


def _is_among(table: pa.Table, workers: Collection[WorkerId]) -> Any:
    keys = [f"{worker.storm_id}/{worker.node}-{worker.port}" for worker in workers]
    return pc.is_in(worker_keys(table), pa.array(keys, pa.string()))


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(name), column)


def next_liveness(
    previous: pa.Table | None,
    batch: pa.Table,
    limits: Limits,
    between: tuple[float, float] | None = None,
    last_words: ReadLastPulses = no_last_pulses,
    *,
    reports: pa.Table | None = None,
) -> pa.Table:
    """Return the next liveness table.

    Parameters
    ----------
    previous
        The liveness table so far, its metadata included; None at the beginning.
    batch
        Rows as `decode.typed` gives them, servers' rows included; with values or without.
    between
        When the batch was read, at the earliest and at the latest: seconds since the epoch, on one
        clock for all batches. The clocks of its readers are held against that. None for a batch
        that stands for itself: then every server counts as read at the newest ``read_at``.
    last_words
        Asked of workers that are silent; needed where the batch has no values.
    reports
        The newest worker reports, which say when workers were started: `STARTS`.
    """
    known = WORKER_LIVENESS.empty_table() if previous is None else previous
    result, _, now = judged(
        _known(known), list(forgotten(known)), batch, limits, between, last_words=last_words
    )
    table = _table(result, now)
    for said in (previous, reports):
        if said is not None and "started_at" in said.column_names:
            known_since = said["started_at"].take(places(table, said))
            table = _with(table, "started_at", pc.coalesce(known_since, table["started_at"]))
    return table


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
        return rows.where(batch, of_kind)
    return rows.where(batch, pc.and_(of_kind, pc.is_valid(batch["storm_id"])))


def _servers(servers: pa.Table, earliest: float, now: float) -> dict[str, Server]:
    found = {}
    for name, health, read_at in columns_of(servers, "server", "health", "read_at"):
        # A pulse was read on the same machine as its server's row, with the same clock. When that
        # is wrong, all that is known is that the server was read in this batch.
        ahead_secs = 0.0 if earliest <= read_at <= now else read_at - now
        found[name] = Server(bool(health["reachable"]), health["horizon_secs"], ahead_secs)
    return found


def _known(table: pa.Table) -> pa.Table:
    """Return the rows of a liveness table as `judging.WORKERS`."""
    columns = {name: pa.nulls(table.num_rows, WORKERS.field(name).type) for name in WORKERS.names}
    columns |= {name: table[name] for name in table.column_names if name in columns}
    for name in ("last_seen", "moved_at"):
        columns[name] = rows.epoch_seconds(table[name])
    columns["status"] = pc.if_else(table["stale"], str(Status.UNPROVEN), table["status"])
    return pa.table(columns).cast(WORKERS)


def forgotten(table: pa.Table) -> Iterator[Row]:
    """Return the workers without a row that are to be known again, as `remembering` noted them."""
    for worker, *rest in json.loads((table.schema.metadata or {}).get(_FORGOTTEN, b"[]")):
        known: dict[str, Any] = dict.fromkeys(Row._fields)
        known |= zip(_REMEMBERED, rest, strict=True)
        known |= {"worker": WorkerId(*worker), "status": Status(known["status"])}
        yield Row(**known)


def merged_notes(
    notes: Iterable[Mapping[bytes, bytes]], has: Callable[[str], bool]
) -> dict[bytes, bytes]:
    """Put together what several tables `remembering` have noted, of those topologies only."""
    noted = [one for each in notes for one in json.loads(each.get(_FORGOTTEN, b"[]"))]
    return {_FORGOTTEN: json.dumps([one for one in noted if has(one[0][0])]).encode()}


def moved_notes(table: pa.Table, secs: float) -> Mapping[bytes, bytes] | None:
    """Return a table's metadata, with what `remembering` noted moved by so many seconds."""
    noted: Mapping[bytes, bytes] | None = table.schema.metadata
    if noted is None or _FORGOTTEN not in noted:
        return noted
    moved = [row._replace(last_seen=max(0.0, row.last_seen + secs)) for row in forgotten(table)]
    return {**noted, _FORGOTTEN: _note(moved)}


def remembering(schema: pa.Schema, result: Step) -> pa.Schema:
    """Return a table's schema with a note of the workers that have no row any more."""
    return schema.with_metadata({_FORGOTTEN: _note(result.forgotten)})


def _note(forgotten: Iterable[Row]) -> bytes:
    noted = [[row.worker, *(getattr(row, name) for name in _REMEMBERED)] for row in forgotten]
    return json.dumps(noted).encode()


def _table(result: Step, now: float) -> pa.Table:
    found = result.rows
    columns: dict[str, Any] = {
        name: found[name] for name in found.column_names if name in WORKER_LIVENESS.names
    }
    for name in ("last_seen", "moved_at"):
        columns[name] = rows.times(found[name])
    storm_ids = rows.one_array(found["storm_id"]).dictionary_encode()
    topologies = [topology_name(storm_id) for storm_id in storm_ids.dictionary.to_pylist()]
    columns["topology"] = pa.array(topologies, pa.string()).take(storm_ids.indices)
    unproven = pc.equal(found["status"], Status.UNPROVEN)
    columns["stale"] = unproven
    columns["status"] = pc.if_else(unproven, str(Status.LATE), found["status"])
    columns["updated_at"] = pa.repeat(rows.timestamps([now])[0], found.num_rows)
    columns["started_at"] = pa.nulls(found.num_rows, rows.TIMESTAMP)
    return pa.table(
        {name: columns[name] for name in WORKER_LIVENESS.names},
        schema=remembering(WORKER_LIVENESS, result),
    )
