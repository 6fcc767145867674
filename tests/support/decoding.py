"""Both engines of decoding, and the long way round: records first, then what columns would say."""

import random
import struct
from collections.abc import Callable
from typing import Any

from stormkeeper.errors import SerializationError
from stormkeeper.pipeline import decoded_rows
from stormkeeper.pipeline.decoded_rows import decode
from stormkeeper.pipeline.decoding.layout import COUNTER
from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)
from stormkeeper.thrift.serialization import deserialize

#: The engines that can be run here.
ENGINES = {one.name: one for one in (decoded_rows.INTERPRETED, decoded_rows.load())}

_ABSENT = dict.fromkeys(("time_secs", "uptime_secs", "executors", "completed", "error"))


def rows_of(values: list[bytes | None], name: str) -> list[dict[str, Any]]:
    """Return what an engine makes of values, a row for each; executors and counters in order."""
    found = []
    for count, columns in decode(values, ENGINES[name]):
        lists = {column: array.to_pylist() for column, array in columns.items()}
        assert {len(these) for these in lists.values()} == {count}
        for array in columns.values():
            array.validate(full=True)
        found += [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
    return [ordered(row) for row in found]


def ordered(row: dict[str, Any]) -> dict[str, Any]:
    """Put executors and rows in order; what is not a number becomes equal to itself."""
    if row["executors"] is None:
        return row
    executors = [
        {
            **executor,
            "rate": repr(executor["rate"]),
            "counters": sorted(map(_text, executor["counters"])),
        }
        for executor in row["executors"]
    ]
    return {**row, "executors": sorted(executors, key=repr)}


def _text(counter: dict[str, Any]) -> str:
    return repr(list(counter.items()))


def by_records(value: bytes) -> dict[str, Any]:
    """Return the row of a value, taken out of its record."""
    try:
        beat = deserialize(ClusterWorkerHeartbeat, value)
    except SerializationError as error:
        return {**_ABSENT, "error": str(error)}
    executors = [
        {
            "task_start": info.task_start,
            "task_end": info.task_end,
            "component": stats.component,
            "kind": _kind(stats),
            "rate": stats.rate,
            "counters": _counters(stats),
        }
        for info, stats in beat.executor_stats.items()
    ]
    row = {
        "time_secs": beat.time_secs,
        "uptime_secs": beat.uptime_secs,
        "executors": executors,
        "completed": bool(beat.completed),
    }
    return ordered({**_ABSENT, **row})


def _kind(stats: ExecutorStats) -> str | None:
    set_members = [kind for kind in ("bolt", "spout") if getattr(stats.specific, kind) is not None]
    return set_members[0] if set_members else None


def _counters(stats: ExecutorStats) -> list[dict[str, Any]]:
    found: dict[tuple[str, str | None, str], dict[str, Any]] = {}
    specific = stats.specific.bolt or stats.specific.spout
    statistics = {"emitted": stats.emitted, "transferred": stats.transferred}
    statistics |= vars(specific) if specific else {}
    for name, by_window in statistics.items():
        for window, by_stream in by_window.items():
            for stream, value in by_stream.items():
                key = (
                    (window, None, stream)
                    if isinstance(stream, str)
                    else (window, stream.componentId, stream.streamId)
                )
                found.setdefault(key, {})[name] = value
    partial = stats.partial_batches or {}
    names = [field.name for field in COUNTER]
    return [
        dict.fromkeys(names)
        | dict(zip(names, key, strict=False))
        | values
        | {"partial": bool(partial.get(key[0]))}
        for key, values in found.items()
    ]


_WINDOWS = ("600", "10800", "86400", ":all-time", "", "é" * 40)
_NAMES = ("default", "__metrics", "__ack_ack", "s", "sécond", "", "\U0001f329", "n" * 300)


def any_heartbeat(seed: int) -> ClusterWorkerHeartbeat:
    """Return a heartbeat with any numbers, and names that come again or do not."""
    chance = random.Random(seed)

    def name() -> str:
        return chance.choice(_NAMES) if chance.random() < 0.9 else str(chance.random())

    def number(bits: int) -> int:
        return chance.choice((0, 1, -1, chance.randrange(2**bits) - 2 ** (bits - 1)))

    def statistic(stream: Callable[[], Any], value: Callable[[], Any]) -> dict[str, Any]:
        windows = chance.sample(_WINDOWS, chance.randrange(len(_WINDOWS)))
        most = chance.choice((0, 1, 3, 9))
        return {w: {stream(): value() for _ in range(chance.randint(0, most))} for w in windows}

    def counts(stream: Callable[[], Any]) -> dict[str, Any]:
        return statistic(stream, lambda: number(64))

    def averages(stream: Callable[[], Any]) -> dict[str, Any]:
        return statistic(stream, lambda: struct.unpack(">d", chance.randbytes(8))[0])

    def source() -> GlobalStreamId:
        return GlobalStreamId(name(), name())

    def specific() -> ExecutorSpecificStats:
        if chance.random() < 0.5:
            spout = SpoutStats(counts(name), counts(name), averages(name))
            return ExecutorSpecificStats(spout=spout)
        bolt = BoltStats(
            counts(source), counts(source), averages(source), counts(source), averages(source)
        )
        return ExecutorSpecificStats(bolt=bolt)

    def executor() -> ExecutorStats:
        component = chance.choice((None, name()))
        partial = {w: chance.randrange(2) for w in chance.sample(_WINDOWS, chance.randrange(3))}
        found = (component, chance.choice((None, partial)))
        return ExecutorStats(counts(name), counts(name), specific(), chance.random(), *found)

    executors = {
        ExecutorInfo(number(32), number(32)): executor() for _ in range(chance.randrange(4))
    }
    ours = (chance.choice((None, True, False)), chance.choice((None, True)))
    return ClusterWorkerHeartbeat(name(), executors, number(32), number(32), *ours)
