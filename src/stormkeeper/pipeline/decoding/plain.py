"""The decoding engine in plain Python, by records of `thrift.reader`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any, Final

import pyarrow as pa

from stormkeeper.errors import SerializationError
from stormkeeper.pipeline.decoding import layout
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.records import ClusterWorkerHeartbeat, ExecutorStats

#: A statistic by window and stream.
_Statistic = Mapping[str, Mapping[Any, int | float]]

#: The statistics in the order of the columns.
_STATISTICS: Final = tuple(field.name for field in layout.COUNTER)[3:-1]

#: An executor's statistics, by name and by whether their streams come in.
_Statistics = dict[tuple[str, bool], _Statistic]

#: The streams of an executor's rows, by window and by whether they come in.
_Streams = dict[tuple[str, bool], dict[Any, Any]]


class Builder:
    """Builds the columns of heartbeats."""

    def __init__(self) -> None:
        #: Bytes of the heartbeats added, and of the names in their rows.
        self.weight = 0
        #: Each heartbeat's time, uptime, and whether the worker's last.
        self._heartbeats: list[tuple[int, int, bool] | None] = []
        self._reasons: list[str | None] = []
        self._executors_from = [0]
        #: Each executor's first and last task, component, kind, rate.
        self._executors: list[tuple[int, int, str | None, str | None, float]] = []
        self._rows_from = [0]
        self._names: tuple[list[str], list[str | None], list[str]] = ([], [], [])
        self._statistics: dict[str, list[int | float | None]] = {name: [] for name in _STATISTICS}
        self._partial: list[bool] = []

    def add(self, data: bytes) -> bool:
        """Add an uncompressed heartbeat; bytes after the record are ignored. Returns True.

        Raises `SerializationError` if the bytes are no heartbeat, or the names in its rows exceed
        `layout.NAME_BYTES`; nothing was added then.
        """
        heartbeat = decode(ClusterWorkerHeartbeat, data)
        executors = heartbeat.executor_stats
        statistics = [_statistics_of(executor) for executor in executors.values()]
        streams = [_streams_of(these) for these in statistics]
        components = [executor.component or "" for executor in executors.values()]
        name_bytes = sum(map(_name_bytes, streams, components))
        if name_bytes > layout.NAME_BYTES:
            raise SerializationError(
                f"a heartbeat whose names would take {name_bytes} bytes in its rows, more than the"
                f" limit of {layout.NAME_BYTES}"
            )
        for number, (tasks, executor) in enumerate(executors.items()):
            self._add_rows(statistics[number], streams[number], executor.partial_batches or {})
            name, kind = executor.component, _kind_of(executor)
            self._executors.append((tasks.task_start, tasks.task_end, name, kind, executor.rate))
        completed = bool(heartbeat.completed)
        self._end((heartbeat.time_secs, heartbeat.uptime_secs, completed), None)
        self.weight += len(data) + name_bytes
        return True

    def refuse(self, reason: str | None) -> None:
        """Add a row without a heartbeat."""
        self._end(None, reason)

    def __len__(self) -> int:
        return len(self._reasons)

    def finish(self) -> dict[str, pa.Array]:
        """Return the columns of `layout.HEARTBEAT`; the builder must not be used again."""
        counters = (*self._names, *self._statistics.values(), self._partial)
        rows = [
            pa.array(values, field.type)
            for field, values in zip(layout.COUNTER, counters, strict=True)
        ]
        executors = [
            pa.array([executor[place] for executor in self._executors], field.type)
            for place, field in enumerate(list(layout.EXECUTOR)[:-1])
        ]
        executors.append(_lists(layout.structs(layout.COUNTER, rows), self._rows_from))
        time_secs, uptime_secs, completed = (
            pa.array([beat and beat[place] for beat in self._heartbeats], layout.HEARTBEAT[name])
            for place, name in enumerate(("time_secs", "uptime_secs", "completed"))
        )
        absent = pa.array([beat is None for beat in self._heartbeats], pa.bool_())
        return {
            "time_secs": time_secs,
            "uptime_secs": uptime_secs,
            "executors": _lists(
                layout.structs(layout.EXECUTOR, executors), self._executors_from, absent
            ),
            "completed": completed,
            "error": layout.reasons(self._reasons),
        }

    def _end(self, heartbeat: tuple[int, int, bool] | None, reason: str | None) -> None:
        self._heartbeats.append(heartbeat)
        self._reasons.append(reason)
        self._executors_from.append(len(self._executors))

    def _add_rows(
        self, statistics: _Statistics, streams: _Streams, partial: dict[str, int]
    ) -> None:
        windows, sources, names = self._names
        for (window, comes_in), keys in streams.items():
            count = len(keys)
            windows.extend(repeat(window, count))
            sources.extend([key.componentId for key in keys] if comes_in else repeat(None, count))
            names.extend([key.streamId for key in keys] if comes_in else keys)
            self._partial.extend(repeat(bool(partial.get(window)), count))
            for name, column in self._statistics.items():
                found = statistics.get((name, comes_in), {}).get(window)
                column.extend(map(found.get, keys) if found else repeat(None, count))
        self._rows_from.append(len(windows))


def _kind_of(executor: ExecutorStats) -> str | None:
    specific = executor.specific
    return next((kind for kind in ("bolt", "spout") if getattr(specific, kind) is not None), None)


def _statistics_of(executor: ExecutorStats) -> _Statistics:
    statistics: _Statistics = {
        ("emitted", False): executor.emitted,
        ("transferred", False): executor.transferred,
    }
    kind = _kind_of(executor)
    if kind is not None:
        for name, statistic in vars(getattr(executor.specific, kind)).items():
            statistics[name, kind == "bolt"] = statistic
    return statistics


def _streams_of(statistics: _Statistics) -> _Streams:
    streams: _Streams = {}
    for (_, comes_in), by_window in statistics.items():
        for window, by_stream in by_window.items():
            if by_stream:
                streams.setdefault((window, comes_in), {}).update(by_stream)
    return streams


def _name_bytes(streams: _Streams, component: str) -> int:
    total = 0
    for (window, comes_in), keys in streams.items():
        names = [key.componentId + key.streamId for key in keys] if comes_in else keys
        of_row = len(window.encode()) + len(component.encode())
        total += of_row * len(keys) + len("".join(names).encode())
    return total


def _lists(values: pa.Array, ends: list[int], absent: pa.Array | None = None) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=absent)
