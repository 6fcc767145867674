"""Heartbeats in Storm's bytes, made fast by patching numbers into prepared bytes.

A `Template` is the encoded record of an executor, cut at its numbers and shared by all executors of
a component; a body is joined from these pieces and the current numbers. The times, the record's
last fields, change with every beat, the counters less often. So the part before the times is
compressed once, at level 1, and kept open; the times follow in an uncompressed block. Together they
are one gzip member, or one zstd frame.
"""

from __future__ import annotations

import functools
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from stormkeeper.simulation.activity import WINDOWS
from stormkeeper.simulation.cluster import SimulatedComponent
from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)
from stormkeeper.thrift.serialization import GZIP_MAGIC, Compression, zstd_library
from stormkeeper.thrift.writer import Release, encode

#: Storm counts one tuple in twenty, as twenty.
SAMPLING: Final = 20

#: The pieces of all templates, most of which are equal.
_PIECES: Final[dict[bytes, bytes]] = {}

#: Marks of a task (i32) and of a number (i64, or a finite double) in a record that becomes a
#: template. The record's texts are ASCII, so that these bytes are unique.
_TASK: Final = 0x5AA5_C33D
_NUMBER: Final = 0x5AA5_C33C_0000_0000
_SLOT: Final = re.compile(rb"\x5a\xa5\xc3(?:\x3c....|\x3d)", re.DOTALL)

_LEVEL: Final = 1

#: Head of a last deflate block that is stored uncompressed (RFC 1951 §3.2.4).
_STORED: Final = struct.Struct("<BHH")
#: CRC and length at a gzip member's end (RFC 1952 §2.3.1).
_GZIP_END: Final = struct.Struct("<II")
_TIMES_2: Final = struct.Struct(">bhibhib")
_TIMES_3: Final = struct.Struct(">bhqbhib")
_GZIP_HEAD: Final = GZIP_MAGIC + b"\x08\x00\x00\x00\x00\x00\x00\xff"

Numbers = Iterator[Any]


def stats(
    component: SimulatedComponent, numbers: Numbers, *, names_component: bool
) -> ExecutorStats:
    """Return an executor's record, with the next `numbers` in the order of a component's groups."""
    outputs = [o.stream for o in component.outputs]
    emitted, transferred = _by_window(outputs, numbers), _by_window(outputs, numbers)
    if component.kind == "spout":
        tracked = [stream for stream in outputs if not stream.startswith("__")]
        spout = SpoutStats(*(_by_window(tracked, numbers) for _ in range(3)))
        specific = ExecutorSpecificStats(spout=spout)
    else:
        inputs = [GlobalStreamId(i.source, i.stream) for i in component.inputs]
        bolt = BoltStats(*(_by_window(inputs, numbers) for _ in range(5)))
        specific = ExecutorSpecificStats(bolt=bolt)
    return ExecutorStats(
        emitted=emitted,
        transferred=transferred,
        specific=specific,
        rate=1.0 / SAMPLING,
        component=component.id if names_component else None,
    )


def _by_window(streams: Sequence[Any], numbers: Numbers) -> dict[str, dict[Any, Any]]:
    return {window: {stream: next(numbers) for stream in streams} for window in WINDOWS}


def values(
    component: SimulatedComponent, share: float, work: Sequence[float], slowness: Sequence[float]
) -> list[float]:
    """Return the numbers of an executor, in the order of `SimulatedComponent.groups`.

    Parameters
    ----------
    work, slowness
        Work done, and latency relative to the usual one, by window.
    """
    sampled = [share * done / SAMPLING for done in work]
    found: list[float] = []
    for is_latency, rates in component.groups:
        if is_latency:
            found += [rate * factor for factor in slowness for rate in rates]
        else:
            found += [int(rate * done) * SAMPLING for done in sampled for rate in rates]
    return found


def head(storm_id: str, executors: int) -> bytes:
    """Return the beginning of a heartbeat, before the first executor."""
    return _record(storm_id, {})[:-4] + executors.to_bytes(4, "big")


def _record(storm_id: str, executors: dict[ExecutorInfo, ExecutorStats]) -> bytes:
    record = ClusterWorkerHeartbeat(storm_id, executors, time_secs=0, uptime_secs=0)
    return encode(record, Release.STORM_2).removesuffix(times(Release.STORM_2, 0, 0))


class Template:
    """The bytes of an executor in a heartbeat, without task and numbers.

    Parameters
    ----------
    names_component
        Whether executors name their component, as ours do and Storm's do not.
    """

    __slots__ = ("_cut", "_pack", "_pieces")

    def __init__(self, component: SimulatedComponent, *, names_component: bool) -> None:
        latencies: list[bool] = []
        marks = _marks(component, latencies)
        record = stats(component, marks, names_component=names_component)
        plain = _record("", {ExecutorInfo(_TASK, _TASK): record}).removeprefix(head("", 1))
        pieces, at = [], 0
        for found in _SLOT.finditer(plain):
            fixed = plain[at : found.start()]
            pieces += [_PIECES.setdefault(fixed, fixed), b""]
            at = found.end()
        kinds = "qq" + "".join("d" if is_latency else "q" for is_latency in latencies)
        # Runs of one kind make the struct smaller.
        runs = (f"{len(run[0])}{run[1]}" for run in re.finditer(r"(.)\1*", kinds))
        self._pack = struct.Struct(">" + "".join(runs)).pack
        self._cut = _cutter(len(kinds))
        #: Fixed bytes, alternating with places for the task, twice, and the numbers.
        self._pieces: list[bytes] = [*pieces, plain[at:]]

    def filled(self, task: int, numbers: Sequence[float]) -> bytes:
        """Return the bytes with a task and the numbers of `values`."""
        packed = self._pack(task, task, *numbers)
        pieces = self._pieces.copy()
        pieces[1::2] = self._cut(packed)
        pieces[1] = pieces[3] = packed[4:8]
        return b"".join(pieces)


@functools.cache
def _cutter(slots: int) -> Callable[[bytes], tuple[bytes, ...]]:
    """Return a function that cuts packed numbers apart; few counts occur, each often."""
    return struct.Struct("8s" * slots).unpack


def _marks(component: SimulatedComponent, latencies: list[bool]) -> Numbers:
    for is_latency, rates in component.groups:
        for _ in range(len(rates) * len(WINDOWS)):
            mark = _NUMBER + len(latencies)
            latencies.append(is_latency)
            yield struct.unpack(">d", struct.pack(">q", mark))[0] if is_latency else mark


def times(release: Release, time_secs: int, uptime_secs: int) -> bytes:
    """Return the end of a heartbeat: the last two fields, in that release's encoding."""
    if release is Release.STORM_2:
        return _TIMES_2.pack(8, 3, time_secs, 8, 4, uptime_secs, 0)
    return _TIMES_3.pack(10, 3, time_secs, 8, 4, uptime_secs, 0)


class Opened:
    """A compressed heartbeat without times."""

    __slots__ = ("_compression", "_crc", "_release", "_size", "start")

    def __init__(self, body: bytes, compression: Compression, release: Release) -> None:
        self._compression = compression
        self._release = release
        self._size = len(body)
        self._crc = 0
        self.start = body
        if compression is Compression.GZIP:
            self._crc = zlib.crc32(body)
            deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
            pieces = (_GZIP_HEAD, deflate.compress(body), deflate.flush(zlib.Z_SYNC_FLUSH))
            self.start = b"".join(pieces)
        elif compression is Compression.ZSTD:
            self.start = _zstd_start(body, len(body) + len(times(release, 0, 0)))

    def end(self, time_secs: int, uptime_secs: int) -> bytes:
        """Return the end of the heartbeat, with the times."""
        end = times(self._release, time_secs, uptime_secs)
        size = len(end)
        if self._compression is Compression.GZIP:
            head = _STORED.pack(1, size, size ^ 0xFFFF)
            total = _GZIP_END.pack(zlib.crc32(end, self._crc), self._size + size)
            return b"".join((head, end, total))
        if self._compression is Compression.ZSTD:
            # A last raw block (RFC 8878 §3.1.1.2).
            return (size << 3 | 1).to_bytes(3, "little") + end
        return end


def _zstd_start(body: bytes, size: int) -> bytes:
    frame = zstd_library().ZstdCompressor(level=_LEVEL)
    frame.set_pledged_input_size(size)
    start: bytes = frame.compress(body, frame.FLUSH_BLOCK)
    return start
