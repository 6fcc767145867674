"""Statistics of servers, topologies and workers from repeated reads of Pacemakers; pure.

Reads carry the time at which they were made, in seconds. A worker's age is that of its newest pulse
on any server. Rates are averages over `WINDOW_SECS`, because a worker beats only every few seconds;
pulses that a server held at the first read do not count. A Pacemaker keeps one pulse per worker, so
of two pulses between two reads one is counted for the topology; the server's own count has both.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from stormkeeper.paths import parse_workerbeat

#: The window of rates, in seconds.
WINDOW_SECS: Final = 10.0

#: The topology of paths that do not belong to a worker.
OTHER: Final = "(other paths)"


class ServerState(StrEnum):
    """How a Pacemaker answered the last read."""

    SERVING = "serving"
    #: It has served less than a heartbeat period, so workers may be missing.
    FILLING = "filling"
    #: Storm's own Pacemaker, which answers but does not report changes.
    PLAIN = "no extensions"
    REFUSED = "refused"
    DOWN = "down"


class PulseChange(NamedTuple):
    """A pulse of `size` bytes, or None if deleted, and the time of receipt."""

    path: str
    size: int | None
    received: float


class ServerStatus(NamedTuple):
    """A server's report; times in seconds."""

    instance: str
    version: str
    uptime: float
    horizon: float
    keys: int
    pulses_received: int
    connections: int


@dataclass(frozen=True)
class ServerRead:
    """A read of a server: the changes since the read before, the oldest first.

    `is_anew` means that `changes` are all pulses of the server. A failed read has a `problem`, and
    no `status`.
    """

    server: str
    at: float
    state: ServerState = ServerState.SERVING
    problem: str = ""
    status: ServerStatus | None = None
    changes: Sequence[PulseChange] = ()
    is_anew: bool = False


# The fields of the following classes are the keys of `storm heartbeats top --json`.


@dataclass(frozen=True)
class ServerRow:
    """A server; after a failed read most fields are None."""

    address: str
    state: ServerState
    problem: str
    version: str | None = None
    uptime_secs: float | None = None
    horizon_secs: float | None = None
    keys: int | None = None
    connections: int | None = None
    pulses_per_s: float | None = None


@dataclass(frozen=True)
class TopologyRow:
    """A topology: workers, rates, mean size, and the age of the oldest worker's newest pulse."""

    topology: str
    workers: int
    silent: int
    pulses_per_s: float | None
    bytes_per_s: float | None
    mean_bytes: float
    oldest_secs: float


@dataclass(frozen=True)
class WorkerRow:
    """A worker: age and size of the newest pulse, and the server that holds the pulse."""

    topology: str
    worker: str
    age_secs: float
    bytes: int
    server: str


@dataclass(frozen=True)
class Summary:
    """All statistics at a moment: topologies with the most bytes first, oldest workers first.

    `pulses_per_s` comes from the servers' counts, `bytes_per_s` from the pulses read.
    """

    servers: list[ServerRow]
    topologies: list[TopologyRow]
    oldest: list[WorkerRow]
    workers: int
    silent: int
    pulses_per_s: float | None
    bytes_per_s: float | None


class _Sample(NamedTuple):
    """New pulses of a round of reads, by topology."""

    at: float
    pulses: Counter[str]
    bytes: Counter[str]


class _HeldPulse(NamedTuple):
    size: int
    received: float


@dataclass
class _Server:
    read: ServerRead | None = None
    held: dict[str, _HeldPulse] = field(default_factory=dict)
    #: Times and counts of received pulses, of one instance.
    counts: deque[tuple[float, int]] = field(default_factory=deque)


class PulseStatistics:
    """Collects reads, and returns a summary.

    `period_secs` is ``task.heartbeat.frequency.secs``; a worker is silent after `timeout_secs`,
    ``nimbus.task.timeout.secs``.
    """

    def __init__(self, servers: Iterable[str], *, period_secs: float, timeout_secs: float) -> None:
        self._servers = {server: _Server() for server in servers}
        self._period = period_secs
        self._timeout = timeout_secs
        self._samples: deque[_Sample] = deque()

    def record(self, reads: Iterable[ServerRead], now: float) -> None:
        """Record a read of every server."""
        pulses: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for read in reads:
            for path, size in self._record(self._servers[read.server], read):
                topology = _topology(path)
                pulses[topology] += 1
                sizes[topology] += size
        self._samples.append(_Sample(now, pulses, sizes))
        while len(self._samples) > 2 and now - self._samples[1].at >= WINDOW_SECS:
            self._samples.popleft()

    def summary(self, now: float, oldest: int) -> Summary:
        """Return the statistics at `now`, with that many of the oldest workers."""
        newest = self._newest()
        by_topology: defaultdict[str, list[tuple[str, _HeldPulse]]] = defaultdict(list)
        for path, (held, _) in newest.items():
            by_topology[_topology(path)].append((path, held))
        elapsed = self._samples[-1].at - self._samples[0].at if self._samples else 0.0
        # The first sample's pulses came before the window.
        counted = list(self._samples)[1:]
        pulses = {name: sum(sample.pulses[name] for sample in counted) for name in by_topology}
        sizes = {name: sum(sample.bytes[name] for sample in counted) for name in by_topology}
        topologies = [
            TopologyRow(
                topology=name,
                workers=len(workers),
                silent=sum(now - held.received > self._timeout for _, held in workers),
                pulses_per_s=_rate(pulses[name], elapsed),
                bytes_per_s=_rate(sizes[name], elapsed),
                mean_bytes=sum(held.size for _, held in workers) / len(workers),
                oldest_secs=max(0.0, now - min(held.received for _, held in workers)),
            )
            for name, workers in by_topology.items()
        ]
        topologies.sort(key=lambda row: (-(row.bytes_per_s or 0.0), -row.workers, row.topology))
        ordered = heapq.nsmallest(
            oldest, newest.items(), key=lambda item: (item[1][0].received, item[0])
        )
        servers = [self._server_row(name, server) for name, server in self._servers.items()]
        received = [row.pulses_per_s for row in servers if row.pulses_per_s is not None]
        return Summary(
            servers=servers,
            topologies=topologies,
            oldest=[
                WorkerRow(
                    _topology(path),
                    _worker(path),
                    max(0.0, now - held.received),
                    held.size,
                    server,
                )
                for path, (held, server) in ordered
            ],
            workers=len(newest),
            silent=sum(row.silent for row in topologies),
            # The servers' counts include pulses that were overwritten between two reads.
            pulses_per_s=sum(received) if received else None,
            bytes_per_s=_rate(sum(sizes.values()), elapsed),
        )

    def _record(self, server: _Server, read: ServerRead) -> list[tuple[str, int]]:
        """Record a read, and return the paths and sizes of new pulses."""
        server.read = read
        if read.status is None:
            return []
        if read.is_anew:
            server.held.clear()
            server.counts.clear()
        for path, size, received in read.changes:
            if size is None:
                server.held.pop(path, None)
            else:
                server.held[path] = _HeldPulse(size, received)
        server.counts.append((read.at, read.status.pulses_received))
        while len(server.counts) > 2 and read.at - server.counts[1][0] >= WINDOW_SECS:
            server.counts.popleft()
        if read.is_anew:
            return []
        return [(path, size) for path, size, _ in read.changes if size is not None]

    def _newest(self) -> dict[str, tuple[_HeldPulse, str]]:
        newest: dict[str, tuple[_HeldPulse, str]] = {}
        for name, server in self._servers.items():
            for path, held in server.held.items():
                best = newest.get(path)
                if best is None or held.received > best[0].received:
                    newest[path] = held, name
        return newest

    def _server_row(self, address: str, server: _Server) -> ServerRow:
        read = server.read
        if read is None or read.status is None:
            state = ServerState.DOWN if read is None else read.state
            return ServerRow(address, state, "" if read is None else read.problem)
        status = read.status
        (then, before), (last, count) = server.counts[0], server.counts[-1]
        is_filling = read.state is ServerState.SERVING and status.horizon < self._period
        return ServerRow(
            address,
            ServerState.FILLING if is_filling else read.state,
            read.problem,
            version=status.version,
            uptime_secs=status.uptime,
            horizon_secs=status.horizon,
            keys=status.keys,
            connections=status.connections,
            pulses_per_s=_rate(count - before, last - then),
        )


def _rate(count: int, elapsed: float) -> float | None:
    return count / elapsed if elapsed > 0 else None


def _topology(path: str) -> str:
    found = parse_workerbeat(path)
    return OTHER if found is None else found.storm_id


def _worker(path: str) -> str:
    found = parse_workerbeat(path)
    return path if found is None else f"{found.node}-{found.port}"
