"""Heartbeats as workers send them."""

import time
from collections.abc import Iterable, Mapping

import pyarrow as pa

from stormkeeper.heartbeats.change_pages import ChangePage, PathChange, Position
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline.batch import Batch
from stormkeeper.pipeline.decoded_rows import Engine, decode_batches
from stormkeeper.pipeline.rows import TYPED
from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)
from stormkeeper.thrift.serialization import serialize
from stormkeeper.thrift.writer import Release
from support.pacemaker import PacemakerProcess

WINDOWS = ("600", "10800", "86400", ":all-time")


def path(storm_id: str, node: str = "node", port: int = 6700) -> str:
    """Return where a worker's pulses go."""
    return f"/workerbeats/{storm_id}/{node}-{port}"


def send(server: PacemakerProcess, *storm_ids: str, details: bytes = b"x") -> None:
    """Send a pulse of a worker of each topology, with `details` for its heartbeat."""
    with PacemakerClient(server.address) as client:
        for storm_id in storm_ids:
            client.send_pulse(path(storm_id), details)


def spout(emitted: int, *, stream: str = "default", acked: int = 0) -> ExecutorStats:
    """Return the statistics of a spout, the same in every window."""
    return ExecutorStats(
        _counts({stream: emitted}),
        _counts({stream: emitted}),
        ExecutorSpecificStats(
            spout=SpoutStats(_counts({stream: acked}), _counts({}), _counts({stream: 2.5}))
        ),
        1.0,
    )


def bolt(
    executed: Mapping[tuple[str, str], int], emitted: int = 0, *, execute_ms: float = 1.0
) -> ExecutorStats:
    """Return the statistics of a bolt, the same in every window, by (component, stream)."""
    sources = {GlobalStreamId(*source): count for source, count in executed.items()}
    times = dict.fromkeys(sources, execute_ms)
    return ExecutorStats(
        _counts({"default": emitted}),
        _counts({"default": emitted}),
        ExecutorSpecificStats(
            bolt=BoltStats(
                _counts(sources), _counts({}), _counts(times), _counts(sources), _counts(times)
            )
        ),
        1.0,
    )


def heartbeat(
    storm_id: str = "wc-1-1700000000",
    executors: Mapping[tuple[int, int], ExecutorStats] | None = None,
    *,
    time_secs: int | None = None,
    uptime_secs: int = 10,
    completed: bool | None = None,
    release: Release | None = None,
) -> bytes:
    """Return a worker's pulse; executors are (first task, last task)."""
    return serialize(
        ClusterWorkerHeartbeat(
            storm_id,
            {ExecutorInfo(*tasks): stats for tasks, stats in (executors or {}).items()},
            int(time.time()) if time_secs is None else time_secs,
            uptime_secs,
            completed,
        ),
        release=release,
    )


def _counts(by_stream):  # type: ignore[no-untyped-def]
    return {window: dict(by_stream) for window in WINDOWS}


def change_of(where, details, revision=None, age_secs=None):
    """Return the change of a path as a server tells it; a tombstone without `details`."""
    size = None if details is None else len(details)
    return PathChange(where, size, details, revision, age_secs)


def page_of(instance, changes, read_at):
    """Return a page of one instance's changes."""
    newest = max((one.revision or 0 for one in changes), default=0)
    return ChangePage(changes, read_at, Position(instance, newest))


def decode_batch(batch: pa.RecordBatch, engine: Engine | None = None) -> pa.RecordBatch:
    """Decode one Arrow batch of the source's rows to one batch."""
    decoded = pa.Table.from_batches(decode_batches(iter([batch]), engine), schema=TYPED)
    found = decoded.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], schema=TYPED)


def decode_table(table: pa.Table) -> pa.Table:
    """Decode the source's rows."""
    return pa.Table.from_batches(decode_batches(iter(table.to_batches())), TYPED)


def decoded_batch(read: Iterable[pa.RecordBatch]) -> Batch:
    """Return a batch of the source's rows in one part."""
    table = decode_table(pa.Table.from_batches(read))
    return Batch(table.drop_columns(["executors"]), lambda: iter([table]))
