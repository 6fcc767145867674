"""The table ``worker_liveness`` as Arrow, and how a batch updates the table.

The table has one row per worker, as of now; the next batch starts from it. The driver merges the
batch into the table: a join in Spark takes four times as long, for a hundred workers as for ten
thousand. The liveness query reads no values; but the last pulse of a worker whose queries have all
ended says so, and such a worker is not dead: so the newest pulse of each late worker is read, once.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from stormkeeper.conf import Address
from stormkeeper.heartbeats.liveness import (
    FORGET_SECS,
    LivenessLimits,
    ServerHorizon,
    Status,
    WorkerLiveness,
)
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pacemaker.client.pool_reads import ask_all
from stormkeeper.pacemaker.client.server_reads import Question, pulses_of
from stormkeeper.paths import WORKERBEATS, WorkerId
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.decoded_rows import decode, typed
from stormkeeper.pipeline.liveness_columns import (
    WORKERS,
    Step,
    columns_of,
    positions,
    step,
    worker_keys,
)
from stormkeeper.pipeline.source import Options
from stormkeeper.pipeline.table_columns import WORKER_LIVENESS

#: The columns of ``worker_reports`` with workers' start times.
STARTS: Final = pa.schema(
    [WORKER_LIVENESS.field(name) for name in (*WorkerId._fields, "started_at")]
)

#: The key in the table's metadata under which forgotten workers are kept, and their columns.
_FORGOTTEN: Final = b"stormkeeper.forgotten"
_REMEMBERED: Final = ("server", "last_seen", "status", "time_secs")

#: A topology's id: its name, a sequence number and the time of its submission.
_STORM_ID: Final = re.compile(r"(.+)-\d+-\d+")


#: Pulses per request, longest silence first, and requests per batch: of 72,000 silent workers all
#: last pulses are read before the timeout.
_AT_ONCE: Final = 2000

_ROUNDS: Final = 5


class LastPulseFacts(NamedTuple):
    """Facts from the last pulses of silent workers.

    All queries of `completed` workers had ended. The last pulse of `unread` workers could not be
    read, though the server answers.
    """

    completed: Collection[WorkerId] = ()
    unread: Collection[WorkerId] = ()


#: Reads the last pulses of silent workers (`liveness_columns.WORKERS`) from the servers that
#: answer.
ReadLastPulses = Callable[[pa.Table, Collection[str]], LastPulseFacts]


def no_last_pulses(_silent: pa.Table, _servers: Collection[str]) -> LastPulseFacts:
    """Stand for `ReadLastPulses` where a batch has the pulses' values."""
    return LastPulseFacts()


class JudgedWorkers(NamedTuple):
    """The workers after a batch, the pulses (with positions in `step.taken`), and the time."""

    step: Step
    pulses: pa.Table
    now: float


def judge_workers(
    previous: pa.Table,
    remembered: Sequence[WorkerLiveness],
    batch: pa.Table,
    limits: LivenessLimits,
    between: tuple[float, float] | None = None,
    *,
    read_last_pulses: ReadLastPulses = no_last_pulses,
) -> JudgedWorkers:
    """Return the known workers after a batch; arguments are as for `next_liveness`."""
    servers = _of_kind(batch, rows.SERVER)
    pulses = _of_kind(batch, rows.PULSE)
    read_at = [at for at in rows.seconds(servers["read_at"]) if at is not None]
    newest = max(read_at, default=0.0)
    earliest, latest = between or (newest, newest)
    now = max((at for at in read_at if earliest <= at <= latest), default=latest)
    found = _servers(servers, earliest, now)
    buried = _of_kind(batch, rows.TOMBSTONE)
    result = step(previous, remembered, pulses, buried, found, now=now, limits=limits)
    return JudgedWorkers(_apply_last_pulses(result, found, read_last_pulses), pulses, now)


def _apply_last_pulses(
    result: Step, servers: Mapping[str, ServerHorizon], read_last_pulses: ReadLastPulses
) -> Step:
    """Apply the last pulses of silent workers: a completed worker is not dead."""
    status = result.rows["status"]
    is_silent = pc.invert(pc.is_in(status, pa.array([Status.ALIVE, Status.COMPLETED], pa.string())))
    if not pc.any(is_silent).as_py():
        return result
    silent = result.rows.filter(is_silent)
    facts = read_last_pulses(silent, [name for name, server in servers.items() if server.reachable])
    if not (facts.completed or facts.unread):
        return result
    completed, unread = (_is_among(silent, workers) for workers in facts)
    unread = pc.and_(unread, pc.equal(silent["status"], Status.DEAD))
    judged = pc.if_else(unread, str(Status.UNPROVEN), silent["status"])
    judged = rows.one_array(pc.if_else(completed, str(Status.COMPLETED), judged))
    status = pc.replace_with_mask(status, rows.one_array(is_silent), judged)
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
    limits: LivenessLimits,
    between: tuple[float, float] | None = None,
    read_last_pulses: ReadLastPulses = no_last_pulses,
    *,
    reports: pa.Table | None = None,
) -> pa.Table:
    """Return the next liveness table.

    Without values in the decoded `batch`, `read_last_pulses` is needed. `between` is the earliest
    and latest time of the reading on the driver's clock, in seconds since the epoch; without it,
    every server counts as read at the newest ``read_at``. `reports` have the workers' start times.
    """
    known = WORKER_LIVENESS.empty_table() if previous is None else previous
    result, _, now = judge_workers(
        _known(known),
        list(forgotten(known)),
        batch,
        limits,
        between,
        read_last_pulses=read_last_pulses,
    )
    table = _table(result, now)
    for source in (previous, reports):
        if source is not None and "started_at" in source.column_names:
            known_since = source["started_at"].take(positions(table, source))
            table = _with(table, "started_at", pc.coalesce(known_since, table["started_at"]))
    return table


def liveness(
    df: DataFrame,
    *,
    late_secs: float = 9.0,
    timeout_secs: float = 30.0,
    forget_secs: float = FORGET_SECS,
) -> DataFrame:
    """Judge the workers by a single read of the ``pacemaker`` source.

    `df` has all columns of the source; the limits are those of `LivenessLimits`.

    >>> raw = spark.read.format("pacemaker").option("servers", "a,b").load()  # doctest: +SKIP
    >>> raw.transform(liveness, timeout_secs=60).show()  # doctest: +SKIP
    """
    limits = LivenessLimits(late_secs, timeout_secs, forget_secs)

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read = list(batches)
        if read:
            table = next_liveness(None, pa.Table.from_batches(read), limits)
            yield from table.replace_schema_metadata(None).to_batches()

    # In one task: which servers workers have left follows from all workers.
    return typed(df).coalesce(1).mapInArrow(judge, from_arrow_schema(WORKER_LIVENESS))


def topology_name(storm_id: str) -> str:
    """Return the name in a topology's id, or the id itself if not of Storm's form.

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


def _servers(servers: pa.Table, earliest: float, now: float) -> dict[str, ServerHorizon]:
    found = {}
    for name, health, read_at in columns_of(servers, "server", "health", "read_at"):
        # A pulse and its server's row are read with the same clock. If that clock is wrong, the
        # server still was read in this batch.
        ahead_secs = 0.0 if earliest <= read_at <= now else read_at - now
        found[name] = ServerHorizon(bool(health["reachable"]), health["horizon_secs"], ahead_secs)
    return found


def _known(table: pa.Table) -> pa.Table:
    columns = {name: pa.nulls(table.num_rows, WORKERS.field(name).type) for name in WORKERS.names}
    columns |= {name: table[name] for name in table.column_names if name in columns}
    for name in ("last_seen", "moved_at"):
        columns[name] = rows.to_seconds(table[name])
    columns["status"] = pc.if_else(table["stale"], str(Status.UNPROVEN), table["status"])
    return pa.table(columns).cast(WORKERS)


def forgotten(table: pa.Table) -> Iterator[WorkerLiveness]:
    """Return the workers without a row that a later pulse may bring back, as noted before."""
    for worker, *rest in json.loads((table.schema.metadata or {}).get(_FORGOTTEN, b"[]")):
        known: dict[str, Any] = dict.fromkeys(WorkerLiveness._fields)
        known |= zip(_REMEMBERED, rest, strict=True)
        known |= {"worker": WorkerId(*worker), "status": Status(known["status"])}
        yield WorkerLiveness(**known)


def merge_forgotten(
    notes: Iterable[Mapping[bytes, bytes]], has: Callable[[str], bool]
) -> dict[bytes, bytes]:
    """Merge the notes of several tables on forgotten workers, of some topologies only."""
    noted = [one for each in notes for one in json.loads(each.get(_FORGOTTEN, b"[]"))]
    return {_FORGOTTEN: json.dumps([one for one in noted if has(one[0][0])]).encode()}


def move_forgotten(table: pa.Table, secs: float) -> Mapping[bytes, bytes] | None:
    """Return a table's metadata, with the times of forgotten workers moved by `secs` seconds."""
    noted: Mapping[bytes, bytes] | None = table.schema.metadata
    if noted is None or _FORGOTTEN not in noted:
        return noted
    moved = [row._replace(last_seen=max(0.0, row.last_seen + secs)) for row in forgotten(table)]
    return {**noted, _FORGOTTEN: _note(moved)}


def schema_with_forgotten(schema: pa.Schema, result: Step) -> pa.Schema:
    """Return a table's schema with a note of the workers without a row."""
    return schema.with_metadata({_FORGOTTEN: _note(result.forgotten)})


def _note(forgotten: Iterable[WorkerLiveness]) -> bytes:
    noted = [[row.worker, *(getattr(row, name) for name in _REMEMBERED)] for row in forgotten]
    return json.dumps(noted).encode()


def _table(result: Step, now: float) -> pa.Table:
    found = result.rows
    columns: dict[str, Any] = {
        name: found[name] for name in found.column_names if name in WORKER_LIVENESS.names
    }
    for name in ("last_seen", "moved_at"):
        columns[name] = rows.to_timestamps(found[name])
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
        schema=schema_with_forgotten(WORKER_LIVENESS, result),
    )


class _Pulse(NamedTuple):
    server: str
    instance: str | None
    revision: int


class LastPulses:
    """Reads each silent worker's last pulse once; a `worker_liveness.ReadLastPulses`."""

    def __init__(self, options: Options) -> None:
        self._options = options
        #: The pulses that were read of workers that are still silent.
        self._read: dict[WorkerId, _Pulse] = {}

    def __call__(self, silent: pa.Table, servers: Collection[str]) -> LastPulseFacts:
        """Return which silent workers have completed, and which must be asked again."""
        known, asked = {}, {}
        silent = silent.sort_by("last_seen")
        for storm_id, node, port, *which in columns_of(silent, *WorkerId._fields, *_Pulse._fields):
            worker, pulse = WorkerId(storm_id, node, port), _Pulse(*which)
            read = self._read.get(worker)
            if read is not None:
                known[worker] = read
            # A Java Pacemaker, without revisions, was read with its values.
            if read != pulse and pulse.revision is not None and pulse.server in servers:
                asked[worker] = pulse
        found = self._ask_in_rounds(asked)
        self._read = known | {worker: asked[worker] for worker in found}
        return LastPulseFacts(completed=_completed(found), unread=asked.keys() - found.keys())

    def _ask_in_rounds(self, pulses: Mapping[WorkerId, _Pulse]) -> dict[WorkerId, bytes | None]:
        found: dict[WorkerId, bytes | None] = {}
        deadline = time.monotonic() + self._options.timeout_secs
        for _ in range(_ROUNDS):
            left = {worker: pulse for worker, pulse in pulses.items() if worker not in found}
            more = self._ask(left) if left and time.monotonic() < deadline else {}
            if not more:
                break
            found |= more
        return found

    def _ask(self, pulses: Mapping[WorkerId, _Pulse]) -> dict[WorkerId, bytes | None]:
        """Return the newest pulse of each worker whose server answers; None without a pulse."""
        by_server: dict[Address, list[WorkerId]] = defaultdict(list)
        for worker, pulse in pulses.items():
            of_server = by_server[Address.parse(pulse.server, 0)]
            if len(of_server) < _AT_ONCE:
                of_server.append(worker)
        patience = self._options.timeout_secs
        settings = self._options.settings()
        clients = [
            settings.client(server, name="last-pulses", try_timeout=patience, retries=0)
            for server in by_server
        ]

        def question(client: PacemakerClient) -> Question[dict[str, bytes | None]]:
            return pulses_of([_path(*worker) for worker in by_server[client.address]])

        try:
            outcomes = ask_all(
                clients,
                question,
                try_timeout=patience,
                deadline=patience,
                tries=Counter(),
                started=time.monotonic(),
            )
        finally:
            for client in clients:
                client.close()
        return {
            worker: found[_path(*worker)]
            for server, found in outcomes.answered.items()
            for worker in by_server[server]
        }


def _path(storm_id: str, node: str, port: int) -> str:
    """Return the path of a worker's pulse, which ZooKeeper would not always accept."""
    return f"{WORKERBEATS}/{storm_id}/{node}-{port}"


def _completed(found: Mapping[WorkerId, bytes | None]) -> set[WorkerId]:
    columns = [heartbeats["completed"] for _, heartbeats in decode(found.values())]
    said = (is_last for column in columns for is_last in column.to_pylist())
    return {worker for worker, is_last in zip(found, said, strict=True) if is_last}
