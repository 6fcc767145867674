"""What is known of servers, topologies and workers after some looks at the Pacemakers.

Without I/O and without a clock: looks come with the time at which they were made, in seconds.

- A pulse is as old as its receipt; of a worker's pulses on several servers the newest counts.
- Rates are over the last `WINDOW_SECS`, as a worker beats every few seconds only: a shorter view
  would show nothing, then everything. What a server already held when it was first seen is no rate.
- A Pacemaker keeps the newest pulse of a worker: of two that come between two looks one is seen.
  So a topology's rate is exact when looks are more frequent than beats; a server counts for itself.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from stormkeeper.paths import parse_workerbeat

#: What rates are averaged over, in seconds.
WINDOW_SECS: Final = 10.0

#: The topology of paths that are no worker's.
OTHER: Final = "(other paths)"


class State(StrEnum):
    """A server's state, as a reader sees it."""

    SERVING = "serving"
    #: It has not yet been there for a heartbeat period: who is missing may still report.
    FILLING = "filling"
    #: It answers, but does not tell what changed: Storm's own Pacemaker.
    PLAIN = "no extensions"
    REFUSED = "refused"
    DOWN = "down"


class PulseChange(NamedTuple):
    """A pulse of `size` bytes that a server `received` then; a `size` of None: it was deleted."""

    path: str
    size: int | None
    received: float


class Told(NamedTuple):
    """What a server says of itself; times in seconds."""

    instance: str
    version: str
    uptime: float
    horizon: float
    keys: int
    pulses_received: int
    connections: int


@dataclass(frozen=True)
class ServerLook:
    """One look at one server.

    Parameters
    ----------
    state
        `State.SERVING` if it could be read.
    problem
        Why it could not be; empty if it could.
    told
        None where it could not be read.
    changes
        Since the look before, the oldest first.
    is_anew
        Whether `changes` are all that the server holds.
    """

    server: str
    at: float
    state: State = State.SERVING
    problem: str = ""
    told: Told | None = None
    changes: Sequence[PulseChange] = ()
    is_anew: bool = False


@dataclass(frozen=True)
class ServerRow:
    """A server; fields that only a read server tells are None for the others."""

    address: str
    state: State
    problem: str
    version: str | None = None
    uptime_secs: float | None = None
    horizon_secs: float | None = None
    keys: int | None = None
    connections: int | None = None
    pulses_per_s: float | None = None


@dataclass(frozen=True)
class TopologyRow:
    """A topology: its workers, its noise, and the age of its oldest worker's newest pulse."""

    topology: str
    workers: int
    silent: int
    pulses_per_s: float | None
    bytes_per_s: float | None
    mean_bytes: float
    oldest_secs: float


@dataclass(frozen=True)
class WorkerRow:
    """A worker, by the age of its newest pulse and the server that has it."""

    topology: str
    worker: str
    age_secs: float
    bytes: int
    server: str


@dataclass(frozen=True)
class Summary:
    """Everything at one moment: topologies with the most bytes first, workers the oldest first.

    `pulses_per_s` is what the servers received, `bytes_per_s` what was seen of topologies.
    """

    servers: list[ServerRow]
    topologies: list[TopologyRow]
    oldest: list[WorkerRow]
    workers: int
    silent: int
    pulses_per_s: float | None
    bytes_per_s: float | None


class _Sample(NamedTuple):
    """What one round of looks brought, by topology."""

    at: float
    pulses: Counter[str]
    bytes: Counter[str]


class _Held(NamedTuple):
    size: int
    received: float


@dataclass
class _Server:
    look: ServerLook | None = None
    held: dict[str, _Held] = field(default_factory=dict)
    #: When, and how many pulses it had received: of one instance.
    counts: deque[tuple[float, int]] = field(default_factory=deque)


class Statistics:
    """Gathers looks, and makes pictures of them.

    Parameters
    ----------
    servers
        In the order in which they are shown.
    period_secs
        How often a worker beats: ``task.heartbeat.frequency.secs``.
    timeout_secs
        The silence after which a worker counts as silent: ``nimbus.task.timeout.secs``.
    """

    def __init__(self, servers: Iterable[str], *, period_secs: float, timeout_secs: float) -> None:
        self._servers = {server: _Server() for server in servers}
        self._period = period_secs
        self._timeout = timeout_secs
        self._samples: deque[_Sample] = deque()

    def take(self, looks: Iterable[ServerLook], now: float) -> None:
        """Take in a look at every server."""
        pulses: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for look in looks:
            for path, size in self._take(self._servers[look.server], look):
                topology = _topology(path)
                pulses[topology] += 1
                sizes[topology] += size
        self._samples.append(_Sample(now, pulses, sizes))
        while len(self._samples) > 2 and now - self._samples[1].at >= WINDOW_SECS:
            self._samples.popleft()

    def summary(self, now: float, oldest: int) -> Summary:
        """Sum up what is known at `now`, with that many of the oldest workers."""
        newest = self._newest()
        by_topology: defaultdict[str, list[tuple[str, _Held]]] = defaultdict(list)
        for path, (held, _) in newest.items():
            by_topology[_topology(path)].append((path, held))
        elapsed = self._samples[-1].at - self._samples[0].at if self._samples else 0.0
        # What the first sample brought came before the window begins.
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
            # The servers' own count has those too that were overwritten between two looks.
            pulses_per_s=sum(received) if received else None,
            bytes_per_s=_rate(sum(sizes.values()), elapsed),
        )

    def _take(self, server: _Server, look: ServerLook) -> list[tuple[str, int]]:
        """Take in one look, and return the paths and sizes of the pulses that it brought."""
        server.look = look
        if look.told is None:
            return []
        if look.is_anew:
            server.held.clear()
            server.counts.clear()
        for path, size, received in look.changes:
            if size is None:
                server.held.pop(path, None)
            else:
                server.held[path] = _Held(size, received)
        server.counts.append((look.at, look.told.pulses_received))
        while len(server.counts) > 2 and look.at - server.counts[1][0] >= WINDOW_SECS:
            server.counts.popleft()
        if look.is_anew:
            return []
        return [(path, size) for path, size, _ in look.changes if size is not None]

    def _newest(self) -> dict[str, tuple[_Held, str]]:
        newest: dict[str, tuple[_Held, str]] = {}
        for name, server in self._servers.items():
            for path, held in server.held.items():
                best = newest.get(path)
                if best is None or held.received > best[0].received:
                    newest[path] = held, name
        return newest

    def _server_row(self, address: str, server: _Server) -> ServerRow:
        look = server.look
        if look is None or look.told is None:
            state = State.DOWN if look is None else look.state
            return ServerRow(address, state, "" if look is None else look.problem)
        told = look.told
        (then, before), (last, count) = server.counts[0], server.counts[-1]
        is_filling = look.state is State.SERVING and told.horizon < self._period
        return ServerRow(
            address,
            State.FILLING if is_filling else look.state,
            look.problem,
            version=told.version,
            uptime_secs=told.uptime,
            horizon_secs=told.horizon,
            keys=told.keys,
            connections=told.connections,
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
