"""The decoding engine in plain Python.

Rules and errors are as in `thrift.reader`, without records: a statistic is a dictionary of
dictionaries, which become columns. Running off the end raises `IndexError` or `struct.error`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

import pyarrow as pa

from stormkeeper.errors import SerializationError
from stormkeeper.pipeline.decoding import layout
from stormkeeper.thrift.idl import DOUBLE, I64, MAP, STRING, STRUCT, schema_of
from stormkeeper.thrift.reader import (
    LEAST,
    MAX_DEPTH,
    MAX_SEEN,
    SCALAR_READERS,
    MalformedError,
    Reader,
    Seen,
    accepted,
    bad_count,
    skip,
    unpack_map_header,
)
from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)

#: A statistic by window and stream. A stream is its name, or its source component and its name.
_Statistic = dict[str, dict[Any, int | float]]

_read_text = SCALAR_READERS[STRING]
_header = Struct(">bh")


_counts, _averages = ((I64, Struct(">q").unpack_from), (DOUBLE, Struct(">d").unpack_from))

#: The statistics in the order of the columns, and the statistics of every executor.
_STATISTICS: Final = tuple(field.name for field in layout.COUNTER)[3:-1]

_COMMON: Final = ("emitted", "transferred")

#: An executor's statistics, by name and by whether their streams come in.
_Statistics = dict[tuple[str, bool], _Statistic]

#: The streams of an executor's rows, by window and by whether they come in.
_Streams = dict[tuple[str, bool], dict[Any, Any]]


def _struct(cls: type, read_fields: dict[str, Reader]) -> Reader:
    """Return the reader of a struct as a dictionary of the fields present.

    `read_fields` has readers that replace readers of `thrift.reader`.
    """
    schema = schema_of(cls)
    fields: dict[bytes, tuple[str, Reader]] = {}
    for field in schema.fields:
        for kind, reader in accepted(field.type):
            read_value = read_fields.get(field.name, reader)
            fields[_header.pack(kind, field.id)] = (field.name, read_value)
    required = tuple((field.name, field.id) for field in schema.fields if field.required)

    def read(data: bytes, pos: int, seen: Seen) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        begin = pos
        while kind := data[pos]:
            found = fields.get(data[pos : pos + 3])
            if found is None:
                pos = skip(data, pos + 3, kind, MAX_DEPTH)
            else:
                name, read_value = found
                values[name], pos = read_value(data, pos + 3, seen)
        for name, field_id in required:
            if name not in values:
                raise MalformedError(
                    f"{cls.__name__} without its required field {field_id}, {name}", begin
                )
        if schema.union and len(values) > 1:
            raise MalformedError(f"{cls.__name__} with more than one member", begin)
        return values, pos + 1

    return read


def _of_struct(read: Reader, *names: str) -> Reader:
    """Return the reader of a struct as a tuple of fields, usable as a key."""

    def read_key(data: bytes, pos: int, seen: Seen) -> tuple[tuple[Any, ...], int]:
        values, pos = read(data, pos, seen)
        return tuple([values[name] for name in names]), pos

    return read_key


def _map_header(data: bytes, pos: int, key: int, value: int) -> tuple[int, int]:
    kind, other_kind, count = unpack_map_header(data, pos)
    if (kind != key or other_kind != value) and count:
        raise MalformedError(f"a map of types {kind}, {other_kind} instead of {key}, {value}", pos)
    pos += 6
    if count < 0 or count * (LEAST[key] + LEAST[value]) > len(data) - pos:
        raise bad_count(data, pos, count)
    return count, pos


def _map(key: int, read_key: Reader, value: int, read_value: Reader) -> Reader:
    def read(data: bytes, pos: int, seen: Seen) -> tuple[dict[Any, Any], int]:
        count, pos = _map_header(data, pos, key, value)
        entries: dict[Any, Any] = {}
        for _ in range(count):
            name, pos = read_key(data, pos, seen)
            entries[name], pos = read_value(data, pos, seen)
        return entries, pos

    return read


def _by_stream(key: int, read_key: Reader, value: int, unpack: Callable[..., Any]) -> Reader:
    """Return the reader of a map from streams to numbers; a known stream is found by bytes."""
    of_this_kind = (key,)

    def read(data: bytes, pos: int, seen: Seen) -> tuple[dict[Any, Any], int]:
        count, pos = _map_header(data, pos, key, value)
        entries: dict[Any, Any] = {}
        known = seen.setdefault(of_this_kind, [])
        candidates = iter(known)
        startswith = data.startswith
        for _ in range(count):
            for written, stream in candidates:  # noqa: B007  (goes on from the last one's place)
                if startswith(written, pos):
                    pos += len(written)
                    break
            else:
                start = pos
                stream, pos = read_key(data, pos, seen)
                if len(known) < MAX_SEEN:
                    known.append((data[start:pos], stream))
            (entries[stream],) = unpack(data, pos)
            pos += 8
        return entries, pos

    return read


_read_source = _of_struct(_struct(GlobalStreamId, {}), "componentId", "streamId")
_OWN, _INPUT = (STRING, _read_text), (STRUCT, _read_source)


def _statistic(stream: tuple[int, Reader], number: tuple[int, Callable[..., Any]]) -> Reader:
    return _map(STRING, _read_text, MAP, _by_stream(*stream, *number))


_own_counts, _own_averages = _statistic(_OWN, _counts), _statistic(_OWN, _averages)
_input_counts, _input_averages = _statistic(_INPUT, _counts), _statistic(_INPUT, _averages)

_read_bolt = _struct(
    BoltStats,
    {
        **dict.fromkeys(("acked", "failed", "executed"), _input_counts),
        **dict.fromkeys(("process_ms_avg", "execute_ms_avg"), _input_averages),
    },
)
_read_spout = _struct(
    SpoutStats,
    {"acked": _own_counts, "failed": _own_counts, "complete_ms_avg": _own_averages},
)
_read_specific = _struct(ExecutorSpecificStats, {"bolt": _read_bolt, "spout": _read_spout})
_read_executor = _struct(
    ExecutorStats,
    {"emitted": _own_counts, "transferred": _own_counts, "specific": _read_specific},
)
_read_tasks = _of_struct(_struct(ExecutorInfo, {}), "task_start", "task_end")
_read_heartbeat = _struct(
    ClusterWorkerHeartbeat,
    {"executor_stats": _map(STRUCT, _read_tasks, STRUCT, _read_executor)},
)


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
        heartbeat = _heartbeat(data)
        executors = heartbeat["executor_stats"]
        statistics = [_statistics_of(executor) for executor in executors.values()]
        streams = [_streams_of(these) for these in statistics]
        components = [executor.get("component") or "" for executor in executors.values()]
        name_bytes = sum(map(_name_bytes, streams, components))
        if name_bytes > layout.NAME_BYTES:
            raise SerializationError(
                f"a heartbeat whose names would take {name_bytes} bytes in its rows, more than the"
                f" limit of {layout.NAME_BYTES}"
            )
        for number, ((first, last), executor) in enumerate(executors.items()):
            self._add_rows(statistics[number], streams[number], executor.get("partial_batches", {}))
            kind = next(iter(executor["specific"]), None)
            self._executors.append((first, last, executor.get("component"), kind, executor["rate"]))
        completed = heartbeat.get("completed", False)
        self._end((heartbeat["time_secs"], heartbeat["uptime_secs"], completed), None)
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
            sources.extend([source for source, _ in keys] if comes_in else repeat(None, count))
            names.extend([name for _, name in keys] if comes_in else keys)
            self._partial.extend(repeat(bool(partial.get(window)), count))
            for name, column in self._statistics.items():
                found = statistics.get((name, comes_in), {}).get(window)
                column.extend(map(found.get, keys) if found else repeat(None, count))
        self._rows_from.append(len(windows))


def _heartbeat(data: bytes) -> dict[str, Any]:
    try:
        heartbeat: dict[str, Any] = _read_heartbeat(data, 0, {})[0]
    except MalformedError as error:
        raise SerializationError(f"not a ClusterWorkerHeartbeat: {error}") from None
    except (IndexError, struct_error):
        raise SerializationError(
            "not a ClusterWorkerHeartbeat: ends in the middle of the record, after"
            f" {len(data)} bytes"
        ) from None
    return heartbeat


def _statistics_of(executor: dict[str, Any]) -> _Statistics:
    statistics: _Statistics = {(name, False): executor[name] for name in _COMMON}
    for kind, specific in executor["specific"].items():
        for name, statistic in specific.items():
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
    return sum(
        (len(window.encode()) + len(component.encode())) * len(keys)
        + len(
            "".join(chain.from_iterable(keys)).encode()
        )  # of a str its characters, of a pair both
        for (window, _), keys in streams.items()
    )


def _lists(values: pa.Array, ends: list[int], absent: pa.Array | None = None) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, mask=absent)
