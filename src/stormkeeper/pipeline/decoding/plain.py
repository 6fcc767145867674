"""The decoding engine in plain Python, by records of `thrift.reader`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any, Final

import pyarrow as pa

from stormkeeper.errors import SerializationError
from stormkeeper.pipeline.decoding import layout
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorStats

#: The statistics in the order of the columns.
_STATISTICS: Final = tuple(field.name for field in layout.COUNTER)[3:-1]


class Builder:
    """Builds the columns of heartbeats."""

    def __init__(self) -> None:
        #: Bytes of the heartbeats added, and of the names in their rows.
        self.weight = 0
        #: Rows with the columns of `layout.HEARTBEAT`.
        self._rows: list[tuple[Any, ...]] = []

    def add(self, data: bytes) -> bool:
        """Add an uncompressed heartbeat; bytes after the record are ignored. Returns True.

        Raises `SerializationError` if the bytes are no heartbeat, or the names in its rows exceed
        `layout.NAME_BYTES`; nothing was added then.
        """
        heartbeat = decode(ClusterWorkerHeartbeat, data)
        executors, name_bytes = [], 0
        for tasks, executor in heartbeat.executor_stats.items():
            counters, more = _counters(executor)
            name_bytes += more
            about = (executor.component, _kind_of(executor), executor.rate)
            executors.append((tasks.task_start, tasks.task_end, *about, counters))
        if name_bytes > layout.NAME_BYTES:
            raise SerializationError(
                f"a heartbeat whose names would take {name_bytes} bytes in its rows, more than the"
                f" limit of {layout.NAME_BYTES}"
            )
        times = (heartbeat.time_secs, heartbeat.uptime_secs)
        self._rows.append((*times, executors, bool(heartbeat.completed), None))
        self.weight += len(data) + name_bytes
        return True

    def refuse(self, reason: str | None) -> None:
        """Add a row without a heartbeat."""
        self._rows.append((None, None, None, None, reason))

    def __len__(self) -> int:
        return len(self._rows)

    def finish(self) -> dict[str, pa.Array]:
        """Return the columns of `layout.HEARTBEAT`; the builder must not be used again."""
        rows = pa.array(self._rows, pa.struct(layout.HEARTBEAT.items()))
        return dict(zip(layout.HEARTBEAT, rows.flatten(), strict=True))


def _kind_of(executor: ExecutorStats) -> str | None:
    specific = executor.specific
    return next((kind for kind in ("bolt", "spout") if getattr(specific, kind) is not None), None)


def _counters(executor: ExecutorStats) -> tuple[list[tuple[Any, ...]], int]:
    """Return an executor's rows of `layout.COUNTER`, and the bytes of the names in them."""
    kind, partial = _kind_of(executor), executor.partial_batches or {}
    component_bytes = len((executor.component or "").encode())
    sent = {"emitted": executor.emitted, "transferred": executor.transferred}
    of_kind = vars(getattr(executor.specific, kind)) if kind is not None else {}
    incoming, outgoing = (of_kind, sent) if kind == "bolt" else ({}, sent | of_kind)
    rows: list[tuple[Any, ...]] = []
    name_bytes = 0
    sources: Iterable[str | None]
    for statistics in (outgoing, incoming):
        for window in _distinct(statistics.values()):
            found = {name: of[window] for name, of in statistics.items() if of.get(window)}
            keys = _distinct(found.values())
            if statistics is incoming:
                sources, streams = [key.componentId for key in keys], [key.streamId for key in keys]
                names = [*sources, *streams]
            else:
                sources, streams, names = repeat(None), keys, keys
            values = (
                map(found[name].get, keys) if name in found else repeat(None)
                for name in _STATISTICS
            )
            is_partial = repeat(bool(partial.get(window)))
            rows += zip(repeat(window), sources, streams, *values, is_partial)
            name_bytes += (len(window.encode()) + component_bytes) * len(keys)
            name_bytes += len("".join(names).encode())
    return rows, name_bytes


def _distinct(groups: Iterable[Iterable[Any]]) -> list[Any]:
    return list(dict.fromkeys(chain.from_iterable(groups)))
