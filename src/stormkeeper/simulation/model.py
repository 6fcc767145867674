"""The simulated workers: due heartbeats, their counters and bytes, starts and ends.

Pure: every call gets the time, in seconds since 1970, from a clock that never goes back; a seed
decides the rest. A worker has a *seat*, a place in the period, which the successor inherits.

Heartbeats have Storm's bytes. An executor's encoded record is cut at the numbers into a `_Template`
for all executors of the component, and joined with the current numbers. The times, the record's
last fields, change with every beat, the counters less often. So the part before the times is
compressed once, at level 1; the times follow in an uncompressed block of the same gzip member or
zstd frame.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.simulation.cluster import (
    WINDOWS,
    SimulatedCluster,
    SimulatedComponent,
    SimulatedExecutor,
    SimulatedTopology,
    begins,
    spans,
    wavering,
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
from stormkeeper.thrift.serialization import GZIP_MAGIC, Compression, zstd_library
from stormkeeper.thrift.writer import Release, encode

#: Greatest age of workers at the beginning: half of them have full windows.
_OLDEST_SECS: Final = 2 * 86400.0

#: Greatest error of a healthy machine's clock, in seconds.
_CLOCK_SECS: Final = 2

#: Periods of silence after which a worker counts as paused.
_PAUSE_PERIODS: Final = 3

#: Storm counts one tuple in twenty, as twenty.
_SAMPLING: Final = 20

_LEVEL: Final = 1

#: Marks of a task (i32) and of a number (i64, or a finite double) in a template's record, whose
#: texts are ASCII, so that these bytes are unique.
_TASK: Final = 0x5AA5_C33D
_NUMBER: Final = 0x5AA5_C33C_0000_0000
_SLOT: Final = re.compile(rb"\x5a\xa5\xc3(?:\x3c....|\x3d)", re.DOTALL)

#: Head of a last deflate block that is stored uncompressed (RFC 1951 §3.2.4).
_STORED: Final = struct.Struct("<BHH")
#: CRC and length at a gzip member's end (RFC 1952 §2.3.1).
_GZIP_END: Final = struct.Struct("<II")
_GZIP_HEAD: Final = GZIP_MAGIC + b"\x08\x00\x00\x00\x00\x00\x00\xff"
_TIMES: Final = {
    Release.STORM_2: (struct.Struct(">bhibhib"), 8),
    Release.STORM_3: (struct.Struct(">bhqbhib"), 10),
}

Tell = Callable[[dict[str, Any]], None]

Numbers = Iterator[Any]


@dataclass(slots=True)
class SimulatedBeat:
    """A heartbeat, from the due time until the next is acknowledged.

    `start` has the counters, `end` the times. `counted_at` is the counters' time, `sent_at` the
    send time by a correct clock.
    """

    worker: Worker
    start: bytes
    end: bytes
    due: float
    sent_at: float
    counted_at: float
    time_secs: int
    uptime_secs: int
    server: str = ""
    acknowledged_at: float = 0.0


@dataclass(slots=True, eq=False)
class Worker:
    """A life of a worker; uptime and counters begin at `started`.

    `ending` is why the worker ended, while the last heartbeat is unanswered.
    """

    topology: SimulatedTopology
    slot: paths.Slot
    executors: tuple[SimulatedExecutor, ...]
    started: float
    fast_secs: int
    path: str = ""
    silent_until: float = 0.0
    body: _Body | None = None
    counted_at: float = 0.0
    under_way: SimulatedBeat | None = None
    taken: SimulatedBeat | None = None
    taken_beats: int = 0
    failed: int = 0
    ending: str = ""

    def __post_init__(self) -> None:
        self.path = paths.workerbeat(self.topology.storm_id, self.slot.node, self.slot.port)

    @property
    def name(self) -> dict[str, Any]:
        """The worker in an event of the truth."""
        return {"storm_id": self.topology.storm_id, "node": self.slot.node, "port": self.slot.port}

    def numbers(
        self, at: float
    ) -> Iterator[tuple[SimulatedExecutor, SimulatedComponent, list[float]]]:
        """Yield each executor with component and numbers, in the order of the groups."""
        topology = self.topology
        since = begins(self.started, at)
        usual = spans(topology.activity, since, at)
        added = topology.growth.added(at) if topology.growth else 0
        for executor in self.executors:
            component, task = executor.component, executor.task
            if added and not component.is_system:
                component = component.grown(added)
            skewed = topology.skewed.get(task)
            work = usual if skewed is None else spans(skewed, since, at)
            slowness = wavering(at, task)
            ramp = topology.slowed.get(component.id)
            if ramp is not None and at > self.started:
                slowness = [
                    factor * ramp.mean(begin, at)
                    for factor, begin in zip(slowness, since, strict=True)
                ]
            sampled = [executor.share * done / _SAMPLING for done in work]
            found: list[float] = []
            for is_latency, rates in component.groups:
                if is_latency:
                    found += [rate * factor for factor in slowness for rate in rates]
                else:
                    found += [int(rate * done) * _SAMPLING for done in sampled for rate in rates]
            yield executor, component, found

    def counters(self, at: float) -> list[dict[str, Any]]:
        """Return the counters per executor, as objects of JSON."""
        return [
            {
                "task_start": executor.task,
                "task_end": executor.task,
                "component": component.id,
                **_as_json(_stats(component, iter(numbers), names_component=False)),
            }
            for executor, component, numbers in self.numbers(at)
        ]


def _stats(
    component: SimulatedComponent, numbers: Numbers, *, names_component: bool
) -> ExecutorStats:
    """Return an executor's record, with the next `numbers` in the order of the groups."""
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
    name = component.id if names_component else None
    return ExecutorStats(emitted, transferred, specific, rate=1.0 / _SAMPLING, component=name)


def _by_window(streams: Sequence[Any], numbers: Numbers) -> dict[str, dict[Any, Any]]:
    return {window: {stream: next(numbers) for stream in streams} for window in WINDOWS}


def _as_json(record: ExecutorStats) -> dict[str, Any]:
    found: dict[str, Any] = {"emitted": record.emitted, "transferred": record.transferred}
    spout, bolt = record.specific.spout, record.specific.bolt
    if spout is not None:
        return found | vars(spout)
    return found | {
        name: {
            window: [[key.componentId, key.streamId, value] for key, value in by_input.items()]
            for window, by_input in by_window.items()
        }
        for name, by_window in vars(bolt).items()
    }


class Writer:
    """Makes the bytes of heartbeats.

    `names_components`: executors name the component, as ours do and Storm's do not.
    """

    def __init__(
        self, compression: Compression, release: Release, *, names_components: bool
    ) -> None:
        self._compression = compression
        self._release = release
        self._names_components = names_components
        self._heads: dict[tuple[str, int], bytes] = {}
        self._templates: dict[tuple[str, str, int], _Template] = {}
        #: The pieces of all templates, mostly equal.
        self._pieces: dict[bytes, bytes] = {}

    def count(self, worker: Worker, at: float) -> None:
        """Give a worker a body with the counters of that time."""
        storm_id, count = worker.topology.storm_id, len(worker.executors)
        if (storm_id, count) not in self._heads:
            self._heads[storm_id, count] = _head(storm_id, count)
        pieces = [self._heads[storm_id, count]]
        for executor, component, numbers in worker.numbers(at):
            key = storm_id, component.id, len(component.outputs)
            if key not in self._templates:
                self._templates[key] = _Template(component, self._names_components, self._pieces)
            pieces.append(self._templates[key].filled(executor.task, numbers))
        worker.body = _Body(b"".join(pieces), self._compression, self._release)
        worker.counted_at = at


def _record(storm_id: str, executors: dict[ExecutorInfo, ExecutorStats]) -> bytes:
    record = ClusterWorkerHeartbeat(storm_id, executors, time_secs=0, uptime_secs=0)
    return encode(record, Release.STORM_2).removesuffix(_times(Release.STORM_2, 0, 0))


def _head(storm_id: str, executors: int) -> bytes:
    """Return a heartbeat's bytes before the first executor."""
    return _record(storm_id, {})[:-4] + executors.to_bytes(4, "big")


def _times(release: Release, time_secs: int, uptime_secs: int) -> bytes:
    layout, kind = _TIMES[release]
    return layout.pack(kind, 3, time_secs, 8, 4, uptime_secs, 0)


class _Template:
    """The bytes of an executor in a heartbeat, without task and numbers."""

    __slots__ = ("_pack", "_pieces")

    def __init__(
        self, component: SimulatedComponent, names_component: bool, known: dict[bytes, bytes]
    ) -> None:
        kinds = "".join(
            ("d" if is_latency else "q") * len(rates) * len(WINDOWS)
            for is_latency, rates in component.groups
        )
        record = _stats(component, _marks(kinds), names_component=names_component)
        plain = _record("", {ExecutorInfo(_TASK, _TASK): record}).removeprefix(_head("", 1))
        *before, end = [known.setdefault(fixed, fixed) for fixed in _SLOT.split(plain)]
        slots = zip(before, f"ii{kinds}", strict=True)
        layout = "".join(f"{len(fixed)}s{kind}" for fixed, kind in slots)
        self._pack = _struct(f">{layout}{len(end)}s").pack
        #: Fixed bytes, alternating with places for the task, twice, and the numbers.
        self._pieces: list[Any] = [end] * (2 * len(before) + 1)
        self._pieces[:-1:2] = before

    def filled(self, task: int, numbers: Sequence[float]) -> bytes:
        """Return the bytes with a task and the numbers of `Worker.numbers`."""
        pieces = self._pieces.copy()
        pieces[1::2] = task, task, *numbers
        return self._pack(*pieces)


#: Many templates have the same layout.
_struct = functools.cache(struct.Struct)


def _marks(kinds: str) -> Numbers:
    for number, kind in enumerate(kinds):
        mark = _NUMBER + number
        yield mark if kind == "q" else struct.unpack(">d", struct.pack(">q", mark))[0]


class _Body:
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
            frame = zstd_library().ZstdCompressor(level=_LEVEL)
            frame.set_pledged_input_size(len(body) + len(_times(release, 0, 0)))
            self.start = frame.compress(body, frame.FLUSH_BLOCK)

    def end(self, time_secs: int, uptime_secs: int) -> bytes:
        end = _times(self._release, time_secs, uptime_secs)
        size = len(end)
        if self._compression is Compression.GZIP:
            head = _STORED.pack(1, size, size ^ 0xFFFF)
            total = _GZIP_END.pack(zlib.crc32(end, self._crc), self._size + size)
            return b"".join((head, end, total))
        if self._compression is Compression.ZSTD:
            # A last raw block (RFC 8878 §3.1.1.2).
            return (size << 3 | 1).to_bytes(3, "little") + end
        return end


@dataclass(slots=True)
class Seat:
    """A place in the period with a worker; None after the worker's end."""

    phase: float
    worker: Worker | None


@dataclass(slots=True)
class HeartbeatCounts:
    """Counts of heartbeats.

    `left_out` were not sent, as the last was unanswered, or long overdue.
    """

    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    left_out: int = 0
    bytes: int = 0


class Simulation:
    """The workers of a cluster over time.

    Counters are new in every `count_every`-th heartbeat. `tell` gets the simulated events; without
    `tells_counters` they lack the counters, most of their bytes.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        writer: Writer,
        *,
        period_secs: float,
        count_every: int,
        seed: int,
        now: float,
        tell: Tell | None,
        tells_counters: bool = True,
    ) -> None:
        self.cluster = cluster
        self.tally = HeartbeatCounts()
        #: Paths of pulses to delete.
        self.deletions: list[str] = []
        self._writer = writer
        self._period = period_secs
        self._count_every = count_every
        self._tell = tell
        self._tells_counters = tells_counters
        #: Start and number of the present period, and the next seat.
        self._round_at = now
        self._round = 0
        self._place = 0
        self._agenda: list[tuple[float, int, Callable[[float], object]]] = []
        self._numbers = itertools.count()
        random = Random(f"workers {seed}")
        self._fast = {node: random.randint(-_CLOCK_SECS, _CLOCK_SECS) for node in cluster.nodes}
        self.seats: list[Seat] = []
        for topology in cluster.topologies:
            for slot, executors in topology.workers():
                started = now - random.uniform(60.0, _OLDEST_SECS)
                worker = Worker(topology, slot, executors, started, self._fast[slot.node])
                self._tell_start(worker, now)
                self.seats.append(Seat(random.uniform(0.0, self._period), worker))
        self.seats.sort(key=lambda seat: seat.phase)

    def prepare(self, now: float) -> Iterator[None]:
        """Make a worker's first body per step."""
        for seat in self.seats:
            if seat.worker is not None:
                self._writer.count(seat.worker, now)
            yield

    def begin(self, now: float) -> None:
        self._round_at = now

    def at(self, when: float, act: Callable[[float], object]) -> None:
        """Schedule a call of `act`, which gets the time."""
        heapq.heappush(self._agenda, (when, next(self._numbers), act))

    def due(self, now: float) -> Iterator[SimulatedBeat]:
        """Yield the heartbeats due by `now`, after scheduled calls.

        Heartbeats overdue by more than a period are left out, against bursts.
        """
        while self._agenda and self._agenda[0][0] <= now:
            heapq.heappop(self._agenda)[2](now)
        while True:
            seat = self.seats[self._place]
            due = self._round_at + seat.phase
            if due > now:
                return
            # Each worker has other periods with new counters, which spreads the work.
            counts_anew = (self._round + self._place) % self._count_every == 0
            self._place += 1
            if self._place == len(self.seats):
                self._place = 0
                self._round += 1
                self._round_at += self._period
            worker = seat.worker
            if worker is None or now < worker.silent_until:
                continue
            if worker.under_way is not None or due < now - self._period:
                self.tally.left_out += 1
                continue
            if worker.body is None or counts_anew:
                self._writer.count(worker, now)
            yield self._beat(worker, due, now)

    def _beat(self, worker: Worker, due: float, now: float) -> SimulatedBeat:
        assert worker.body is not None
        time_secs = int(now) + worker.fast_secs
        uptime_secs = int(now - worker.started)
        start, end = worker.body.start, worker.body.end(time_secs, uptime_secs)
        beat = SimulatedBeat(
            worker, start, end, due, now, worker.counted_at, time_secs, uptime_secs
        )
        worker.under_way = beat
        self.tally.sent += 1
        self.tally.bytes += len(start) + len(end)
        return beat

    def acknowledged(self, beat: SimulatedBeat, server: str, now: float) -> None:
        self.tally.acknowledged += 1
        worker = beat.worker
        before, worker.taken = worker.taken, beat
        beat.server, beat.acknowledged_at = server, now
        worker.taken_beats += 1
        if before is not None:
            if now - before.acknowledged_at > _PAUSE_PERIODS * self._period:
                since = before.acknowledged_at
                self._tell_of(worker, "worker_paused", now, since=since, until=now)
            if before.server != server:
                moved = {"from_server": before.server, "server": server}
                self._tell_of(worker, "server_changed", now, **moved)
        self._settled(worker, now)

    def failed(self, beat: SimulatedBeat, now: float) -> None:
        """Record a missing acknowledgement; a server may have the heartbeat."""
        self.tally.failed += 1
        beat.worker.failed += 1
        self._settled(beat.worker, now)

    def _settled(self, worker: Worker, now: float) -> None:
        worker.under_way = None
        if worker.ending:
            self._tell_end(worker, now)

    def replace(self, seat: Seat, before: Worker, slot: paths.Slot, now: float) -> None:
        """Start a successor, with counters and uptime from `now`."""
        fast_secs = self._fast[slot.node]
        seat.worker = Worker(before.topology, slot, before.executors, now, fast_secs)
        self._tell_start(seat.worker, now)

    def stop(self, seat: Seat, why: str, now: float) -> Worker | None:
        """End and return the worker of a seat, if any."""
        worker, seat.worker = seat.worker, None
        if worker is not None:
            worker.ending = why
            if worker.under_way is None:
                self._tell_end(worker, now)
        return worker

    def finish(self, now: float) -> None:
        for seat in self.seats:
            self.stop(seat, "end of the simulation", now)

    def unanswered(self) -> int:
        return self.tally.sent - self.tally.acknowledged - self.tally.failed

    def tell(self, event: dict[str, Any]) -> None:
        if self._tell is not None:
            self._tell(event)

    def _tell_of(self, worker: Worker, event: str, now: float, **more: Any) -> None:
        self.tell({"event": event, "at": now, **worker.name, **more})

    def _tell_start(self, worker: Worker, now: float) -> None:
        clock = {"started_at": worker.started, "fast_secs": worker.fast_secs}
        self._tell_of(worker, "worker_started", now, **clock)

    def _tell_end(self, worker: Worker, now: float) -> None:
        if self._tell is None:
            return  # recomputing the counters would take time
        last: dict[str, Any] | None = None
        if worker.taken is not None:
            names = ("server", "acknowledged_at", "sent_at", "time_secs", "uptime_secs")
            last = {name: getattr(worker.taken, name) for name in names}
            if self._tells_counters:
                last["executors"] = worker.counters(worker.taken.counted_at)
        self._tell_of(
            worker,
            "worker_ended",
            now,
            started_at=worker.started,
            why=worker.ending,
            acknowledged=worker.taken_beats,
            failed=worker.failed,
            last=last,
        )
