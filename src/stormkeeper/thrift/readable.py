"""Text and JSON values of records, for people.

Keys of maps become strings: an executor ``[first task-last task]``, a stream ``component:stream``
(with ``%3A`` for a colon in the component's name), a slot ``node:port``. Windows are ordered from
the shortest to ``:all-time``, executors by task, everything else by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from thriftpy2.thrift import TPayload

from stormkeeper.names import printable
from stormkeeper.thrift.idl import schema_of
from stormkeeper.thrift.records import (
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorStats,
    GlobalStreamId,
    NodeInfo,
    QueryActivity,
)

_INDENT = "  "


def to_builtins(record: object) -> Any:
    """Return the set fields of a record, or a part, as values of JSON.

    Binary becomes lower-case hexadecimal digits, a double that is not finite None.
    """
    if isinstance(record, TPayload):
        return {name: to_builtins(value) for name, value in _set_fields(record)}
    if isinstance(record, Mapping):
        return {key_text(key): to_builtins(value) for key, value in _in_order(record)}
    if isinstance(record, set | frozenset):
        return [to_builtins(value) for value in sorted(record)]
    if isinstance(record, list | tuple):
        return [to_builtins(value) for value in record]
    return _scalar_to_builtin(record)


def _scalar_to_builtin(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def key_text(key: object) -> str:
    """Return the string for a map's key.

    Examples
    --------
    >>> key_text(ExecutorInfo(1, 3)), key_text((1, 3))
    ('[1-3]', '[1-3]')
    >>> key_text(GlobalStreamId("split", "default"))
    'split:default'
    """
    if isinstance(key, ExecutorInfo):
        return f"[{key.task_start}-{key.task_end}]"
    if isinstance(key, tuple):
        return f"[{'-'.join(map(str, key))}]"
    if isinstance(key, GlobalStreamId):
        component = key.componentId.replace("%", "%25").replace(":", "%3A")
        return f"{component}:{key.streamId}"
    if isinstance(key, NodeInfo):
        return f"{key.node}:{','.join(map(str, sorted(key.port)))}"
    return str(key)


def render(record: object, also: Iterable[tuple[str, str]] = ()) -> str:
    """Return a record as lines of text, without a newline at the end.

    A `ClusterWorkerHeartbeat` becomes the output of ``storm heartbeats get``, with the pairs of
    `also`, such as an age. Unprintable characters are escaped.
    """
    if isinstance(record, ClusterWorkerHeartbeat):
        lines = _heartbeat(record, also)
    elif isinstance(record, TPayload):
        lines = _fields([(_label(name), value) for name, value in _set_fields(record)])
    else:
        raise TypeError(f"{type(record).__name__} is not a record")
    return "\n".join(line.rstrip() for line in lines)


def _set_fields(record: TPayload) -> list[tuple[str, Any]]:
    fields = [(field.name, getattr(record, field.name)) for field in schema_of(type(record)).fields]
    return [(name, value) for name, value in fields if value is not None]


def _in_order(entries: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return sorted(entries.items(), key=lambda entry: _rank(entry[0]))


def _rank(key: object) -> tuple[Any, ...]:
    """Sort numbers by value before names."""
    if isinstance(key, ExecutorInfo):
        return (key.task_start, key.task_end)
    if isinstance(key, tuple):
        return key
    if isinstance(key, GlobalStreamId):
        return (key.componentId, key.streamId)
    if isinstance(key, NodeInfo):
        return (key.node, sorted(key.port))
    if isinstance(key, str) and key.isascii() and key.isdigit():
        return (0, len(key.lstrip("0")), key.lstrip("0"), key)
    return (1, 0, "", key)


def _label(name: str) -> str:
    return name.replace("_", "-")


def _fields(entries: Iterable[tuple[str, Any]]) -> Iterator[str]:
    entries = list(entries)
    width = max((len(name) for name, _ in entries), default=0)
    for name, value in entries:
        if isinstance(value, TPayload):
            nested = [(_label(inner), item) for inner, item in _set_fields(value)]
        elif isinstance(value, Mapping):
            nested = [(printable(key_text(key)), item) for key, item in _in_order(value)]
        elif isinstance(value, str) and "\n" in value:
            yield name
            yield from (_INDENT + printable(line.expandtabs(4)) for line in value.splitlines())
            continue
        else:
            yield f"{name:<{width}}  {_scalar(value)}"
            continue
        yield name if nested else f"{name:<{width}}  none"
        yield from (_INDENT + line for line in _fields(nested))


def _scalar(value: object) -> str:
    value = to_builtins(value)
    if isinstance(value, list):
        return ", ".join(map(_scalar, value)) or "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return printable(str(value))


def _heartbeat(beat: ClusterWorkerHeartbeat, also: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"storm-id     {printable(beat.storm_id)}"
    yield f"time-secs    {beat.time_secs}{_date(beat.time_secs)}"
    yield f"uptime-secs  {beat.uptime_secs}{_duration(beat.uptime_secs)}"
    if beat.completed:
        yield "completed    true"
    if beat.inactive:
        yield "inactive     true"
    if beat.jvm_silent_ms is not None:
        yield f"jvm-silent   {beat.jvm_silent_ms} ms"
    for query in beat.queries or ():
        yield f"query        {_activity(query)}"
    if beat.waiting:
        yield f"waiting      {printable(beat.waiting)}"
    yield f"executors    {len(beat.executor_stats)}"
    for name, text in also:
        yield f"{name:<11}  {text}"
    for executor, stats in _in_order(beat.executor_stats):
        yield ""
        yield from _executor(executor, stats)


def _activity(query: QueryActivity) -> str:
    parts = [printable(query.query)]
    if query.last_batch is not None:
        parts.append(f"batch {query.last_batch} ended {query.since_last_ms} ms before")
    if query.running_batch is not None:
        parts.append(f"batch {query.running_batch} runs for {query.running_ms} ms")
    return ", ".join(parts)


def _date(secs: int) -> str:
    try:
        return f" ({datetime.fromtimestamp(secs, UTC):%Y-%m-%d %H:%M:%S} UTC)"
    except (ValueError, OverflowError, OSError):  # a clock may be far off
        return ""


def _duration(secs: int) -> str:
    try:
        return f" ({timedelta(seconds=secs)})"
    except OverflowError:
        return ""


def _executor(executor: ExecutorInfo, stats: ExecutorStats) -> Iterator[str]:
    statistics: list[tuple[str, Any]]
    statistics = [("emitted", stats.emitted), ("transferred", stats.transferred)]
    members = _set_fields(stats.specific)
    kind = members[0][0] if members else "unknown"
    for _, specific in members:
        statistics += _set_fields(specific)
    name = f"  {printable(stats.component)}" if stats.component else ""
    yield f"executor {key_text(executor)}  {kind}{name}  rate {stats.rate:g}"
    windows = sorted({window for _, by_window in statistics for window in by_window}, key=_rank)
    rows = [["statistic", "stream", *map(printable, windows)]]
    for name, by_window in statistics:
        rows += _statistic(_label(name), by_window, windows)
    if (partial := stats.partial_batches) is not None:
        rows.append(["partial-batches", "-", *(_figure(partial.get(window)) for window in windows)])
    yield from (_INDENT + line for line in _table(rows))


def _statistic(
    name: str, by_window: Mapping[str, Mapping[Any, float]], windows: list[str]
) -> Iterator[list[str]]:
    """Yield a row for each stream, with dashes for missing values."""
    streams = dict.fromkeys(stream for by_stream in by_window.values() for stream in by_stream)
    for stream, _ in _in_order(streams):
        values = (by_window.get(window, {}).get(stream) for window in windows)
        yield [name, printable(key_text(stream)), *map(_figure, values)]
    if not streams:
        yield [name, *("-" for _ in ("stream", *windows))]


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _table(rows: list[list[str]]) -> Iterator[str]:
    """Align the first two columns left, figures right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        yield "  ".join(
            f"{cell:<{width}}" if place < 2 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(cells)
        )
