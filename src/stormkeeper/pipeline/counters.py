"""What an executor counted, taken out of Storm's nested maps.

Storm keeps each statistic as a map from window to a map from stream to a number. Here it is one
record per window and stream, with every statistic of that stream side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from stormkeeper.thrift.records import ExecutorStats, GlobalStreamId


class Counter(NamedTuple):
    """The statistics of one executor, in one window, on one stream.

    `source` is None for a stream that the executor itself emitted on; otherwise the stream came
    in, from that component. What was not reported is None. Latencies are averages in milliseconds.
    `partial` says that the executor had more rows in that window than were counted.
    """

    window: str
    source: str | None
    stream: str
    emitted: int | None
    transferred: int | None
    executed: int | None
    acked: int | None
    failed: int | None
    complete_ms_avg: float | None
    execute_ms_avg: float | None
    process_ms_avg: float | None
    partial: bool = False


#: Window, source and stream; then the statistics in the order of `Counter`.
_Key = tuple[str, str | None, str]
_Found = dict[_Key, list[Any]]

_STATISTICS: Final = Counter._fields[3:-1]
_PLACES: Final = {name: place for place, name in enumerate(_STATISTICS)}
_OfStreams = Mapping[str, Mapping[str, int | float]]
_OfSources = Mapping[str, Mapping[GlobalStreamId, int | float]]


def counters(stats: ExecutorStats) -> Iterator[Counter]:
    """Yield an executor's statistics, one record per window and stream, in no special order."""
    found: _Found = {}
    _own_streams(found, "emitted", stats.emitted)
    _own_streams(found, "transferred", stats.transferred)
    specific = stats.specific
    if specific is not None and specific.spout is not None:
        spout = specific.spout
        _own_streams(found, "acked", spout.acked)
        _own_streams(found, "failed", spout.failed)
        _own_streams(found, "complete_ms_avg", spout.complete_ms_avg)
    if specific is not None and specific.bolt is not None:
        bolt = specific.bolt
        _inputs(found, "executed", bolt.executed)
        _inputs(found, "acked", bolt.acked)
        _inputs(found, "failed", bolt.failed)
        _inputs(found, "execute_ms_avg", bolt.execute_ms_avg)
        _inputs(found, "process_ms_avg", bolt.process_ms_avg)
    partial = stats.partial_batches or {}
    for key, values in found.items():
        yield Counter._make((*key, *values, bool(partial.get(key[0]))))


def _own_streams(found: _Found, statistic: str, by_window: _OfStreams | None) -> None:
    for window, by_stream in (by_window or {}).items():
        for stream, value in by_stream.items():
            _put(found, (window, None, stream), statistic, value)


def _inputs(found: _Found, statistic: str, by_window: _OfSources | None) -> None:
    for window, by_source in (by_window or {}).items():
        for source, value in by_source.items():
            _put(found, (window, source.componentId, source.streamId), statistic, value)


def _put(found: _Found, key: _Key, statistic: str, value: float) -> None:
    values = found.get(key)
    if values is None:
        values = found[key] = [None] * len(_STATISTICS)
    values[_PLACES[statistic]] = value
