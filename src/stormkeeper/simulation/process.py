"""The process of a simulation: connections, clock, progress, and the truth as JSON lines.

The workers of a node share a connection, as a process cannot have 72,000, and so a server, chosen
as by real workers (`stormkeeper.pacemaker.client.pool_writes`). Heartbeats are pipelined: answers
come in the order of the requests. Without TLS and authentication.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from stormkeeper import paths
from stormkeeper.conf import Address, Conf
from stormkeeper.daemon.lifecycle import StopSignals, raise_file_limit
from stormkeeper.daemon.logs import counted
from stormkeeper.errors import (
    ConfigError,
    PacemakerUnavailableError,
    ProtocolError,
    RemoteProtocolError,
    SimulationError,
)
from stormkeeper.pacemaker.client.pacemaker_client import TRY_TIMEOUT, make_backoff
from stormkeeper.pacemaker.client.pool import PacemakerPool, connect
from stormkeeper.pacemaker.client.pool_writes import WRITE_DEADLINE, WriterPlacement
from stormkeeper.pacemaker.wire.decoder import PacemakerFrameSplitter, decode
from stormkeeper.pacemaker.wire.encoder import encode_acknowledgement, encode_pulse_around
from stormkeeper.pacemaker.wire.messages import MessageType
from stormkeeper.simulation import cluster
from stormkeeper.simulation.cluster import Profile, SimulatedTopology
from stormkeeper.simulation.model import SimulatedBeat, Simulation, Tell, Writer
from stormkeeper.simulation.troubles import ROUND_SECS, Troubles
from stormkeeper.thrift.serialization import Codec, compression_for

#: As in Storm's client.
_IDS: Final = 100
_TAKEN: Final = [
    encode_acknowledgement(MessageType.SEND_PULSE_RESPONSE, n)[4:] for n in range(_IDS)
]

_TICK_SECS: Final = 0.02
_LOOK_SECS: Final = 0.25

#: Limits between two reads of answers: heartbeats, and seconds.
_BATCH: Final = 1024
_BATCH_SECS: Final = 0.05

_REPORT_SECS: Final = 5.0
_END_SECS: Final = 6.0
_NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of a simulation.

    `count_every`: see `Simulation`. `beside`: allow pulses of real topologies.
    """

    profile: Profile
    seed: int
    period_secs: float
    count_every: int
    connections: int
    names_components: bool = False
    has_troubles: bool = False
    duration_secs: float | None = None
    cleans: bool = False
    beside: bool = False
    tells_counters: bool = True


def run(
    conf: Conf,
    options: SimulationOptions,
    truth_at: Path | None,
    stop: StopSignals,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return a summary after the duration or a signal.

    Raises `ConfigError` if the Pacemakers require TLS or authentication of writers,
    `PacemakerError` if a Pacemaker refuses or does not answer at first, and `SimulationError` for
    pulses of real topologies, or a truth that cannot be written.
    """
    if conf["pacemaker.tls.enable"] or conf["pacemaker.auth.writes"]:
        raise ConfigError(
            "simulated workers speak neither TLS nor authenticate: set pacemaker.tls.enable and"
            " pacemaker.auth.writes to false, here and in a Pacemaker for them alone"
        )
    raise_file_limit()
    with connect(conf, name="simulation") as pool, truth_lines(truth_at) as truth:
        if not options.beside:
            _check_alone(pool)
        return asyncio.run(_Run(conf, options, pool, truth, say).until(stop))


def _check_alone(pool: PacemakerPool) -> None:
    """Raise an error if Pacemakers hold real pulses, or do not answer."""
    held = pool.children(paths.WORKERBEATS)
    if pool.failures:
        reasons = "; ".join(pool.failures.values())
        raise PacemakerUnavailableError(
            f"not every Pacemaker answers whether it has real workers: {reasons}; start it, take it"
            " out of pacemaker.servers, or use --beside"
        )
    real = [name for name in held if not name.startswith(cluster.PREFIX)]
    if real:
        more = f" and {len(real) - _NAMES_SHOWN} more" if len(real) > _NAMES_SHOWN else ""
        raise SimulationError(
            f"the Pacemakers hold pulses of real topologies: {', '.join(real[:_NAMES_SHOWN])}"
            f"{more}; name others with -c pacemaker.servers=HOST:PORT, or simulate beside them"
            " with --beside"
        )


class _Run:
    def __init__(
        self,
        conf: Conf,
        options: SimulationOptions,
        pool: PacemakerPool,
        truth: Tell | None,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._pool = pool
        self._say = say
        self._behind = time.time() - time.monotonic()
        #: Heartbeats by delay in ms, of all time and since the last report.
        self._lags, self._recent = Counter[int](), Counter[int]()
        self._deleting: set[asyncio.Task[None]] = set()
        self._prepared_cpu = 0.0
        self._reason = ""
        self._began = begin = self._clock()
        compression = compression_for(conf["storm.meta.serialization.delegate"])
        release = Codec.from_conf(conf).release
        made = cluster.plan(options.profile, seed=options.seed, now=begin)
        servers = list(dict.fromkeys(conf.pacemaker_servers()))
        if truth is not None:
            about = asdict(options) | {"release": release.value, "compression": compression.value}
            truth({"event": "run", "at": begin, "servers": [str(s) for s in servers], **about})
            for topology in made.topologies:
                truth(_topology_event(topology, begin))
        self._simulation = Simulation(
            made,
            Writer(compression, release, names_components=options.names_components),
            period_secs=options.period_secs,
            count_every=options.count_every,
            seed=options.seed,
            now=begin,
            tell=truth,
            tells_counters=options.tells_counters,
        )
        # As with real workers, the choice of a server does not follow the seed.
        self._links = [
            Link(servers, Random(), clock=self._clock, taken=self._taken, failed=self._failed)
            for _ in range(min(options.connections, len(made.nodes)))
        ]
        self._link_of = {
            node: self._links[n % len(self._links)] for n, node in enumerate(made.nodes)
        }

    def _clock(self) -> float:
        return time.monotonic() + self._behind

    def _prepare(self, stop: StopSignals) -> None:
        for _ in self._simulation.prepare(self._began):
            if stop.stopped:
                return
        gc.freeze()
        profile, took = self._options.profile, self._clock() - self._began
        workers = counted(profile.workers, "worker")
        topologies = "1 topology" if profile.topologies == 1 else f"{profile.topologies} topologies"
        self._say(f"ready after {took:.1f} s: {workers} of {topologies}")

    async def until(self, stop: StopSignals) -> dict[str, Any]:
        self._prepare(stop)
        self._began = began = self._clock()
        self._prepared_cpu = time.process_time()
        simulation, options = self._simulation, self._options
        simulation.begin(began)
        duration = options.duration_secs or math.inf
        if options.has_troubles:
            round_secs = min(duration, ROUND_SECS)
            Troubles(simulation, seed=options.seed, begin=began, round_secs=round_secs)
        look_at, report_at = began, began + _REPORT_SECS
        while not stop.stopped and (now := self._clock()) < began + duration:
            is_behind = self._send(now)
            if now >= look_at:
                look_at = now + _LOOK_SECS
                await self._look(now)
            if now >= report_at:
                report_at += _REPORT_SECS
                self._report(now)
            if not is_behind:
                # Blocks the event loop, which then reads all the answers of a tick at once.
                time.sleep(_TICK_SECS)
            await asyncio.sleep(0)
        await self._drain()
        for outcome in await asyncio.gather(*self._deleting, return_exceptions=True):
            if outcome is not None:
                self._say(f"a killed topology's pulses may still be there: {outcome}")
        summary = self._summary(self._clock() - began)
        for link in self._links:
            link.close()
        simulation.finish(self._clock())
        for topology in simulation.cluster.topologies if options.cleans else ():
            await asyncio.to_thread(self._pool.delete_path, paths.workerbeats(topology.storm_id))
        # Unanswered heartbeats have failed since.
        return summary | asdict(simulation.tally)

    def _send(self, now: float) -> bool:
        """Send due heartbeats; return whether others are still due."""
        touched = set()
        for count, beat in enumerate(self._simulation.due(now), start=1):
            at = self._clock()
            self._recent[math.ceil((at - beat.due) * 1000.0)] += 1
            link = self._link_of[beat.worker.slot.node]
            link.send(beat)
            touched.add(link)
            if is_behind := count == _BATCH or at - now > _BATCH_SECS:
                break
        else:
            is_behind = False
        for link in touched:
            link.flush()
        return is_behind

    async def _look(self, now: float) -> None:
        # The first sleep reads waiting answers, the second handles them: a pause of this process is
        # not the servers' fault.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for link in self._links:
            link.look(now)
        deletions, self._simulation.deletions = self._simulation.deletions, []
        for path in deletions:
            # In a thread: an absent server would delay all heartbeats.
            task = asyncio.create_task(asyncio.to_thread(self._pool.delete_path, path))
            self._deleting.add(task)

    async def _drain(self) -> None:
        end = self._clock() + _END_SECS
        while self._simulation.unanswered() and self._clock() < end:
            await self._look(self._clock())
            await asyncio.sleep(_TICK_SECS)

    def _taken(self, beat: SimulatedBeat, server: str) -> None:
        self._simulation.acknowledged(beat, server, self._clock())

    def _failed(self, beat: SimulatedBeat, reason: str) -> None:
        self._reason = reason
        self._simulation.failed(beat, self._clock())

    def _report(self, now: float) -> None:
        tally, recent = self._simulation.tally, self._recent
        line = (
            f"{now - self._began:.0f} s: {tally.sent} sent, {tally.acknowledged} acknowledged,"
            f" {tally.failed} failed, {tally.left_out} left out; behind the schedule"
            f" {_lag(recent, 0.5)} ms (p50), {_lag(recent, 0.99)} ms (p99)"
        )
        self._say(line + (f"; {self._reason}" if self._reason else ""))
        self._lags += recent
        self._recent, self._reason = Counter(), ""

    def _summary(self, worked: float) -> dict[str, Any]:
        tally, lags = self._simulation.tally, self._lags + self._recent
        return {
            "seconds": round(worked, 3),
            "workers": self._options.profile.workers,
            "topologies": self._options.profile.topologies,
            **asdict(tally),
            "per_second": round(tally.acknowledged / worked, 1) if worked else 0.0,
            "lag_ms": {"p50": _lag(lags, 0.5), "p99": _lag(lags, 0.99), "max": _lag(lags, 1.0)},
            "cpu_seconds": round(time.process_time() - self._prepared_cpu, 3),
            "prepared_cpu_seconds": round(self._prepared_cpu, 3),
        }


def _lag(counts: Counter[int], part: float) -> int:
    """Return the delay that `part` of all heartbeats do not exceed; 0 without any."""
    left = part * counts.total()
    for lag in sorted(counts):
        left -= counts[lag]
        if left <= 0:
            return lag
    return 0


def _topology_event(topology: SimulatedTopology, at: float) -> dict[str, Any]:
    return {
        "event": "topology",
        "at": at,
        "storm_id": topology.storm_id,
        "topology": topology.name,
        "workers": len(topology.slots),
        "components": [
            {
                "component": component.id,
                "kind": component.kind,
                "task_start": component.tasks[0],
                "task_end": component.tasks[-1],
            }
            for component in topology.components
        ],
    }


@contextlib.contextmanager
def truth_lines(path: Path | None) -> Iterator[Tell | None]:
    """Yield a function that writes an event as a line of JSON; None without a path.

    A failed write raises `SimulationError`.
    """
    if path is None:
        yield None
        return
    try:
        # Buffered by lines: readers see an event at once.
        with path.open("w", encoding="utf-8", buffering=1) as file:
            yield lambda event: print(json.dumps(event, separators=(",", ":")), file=file)
    except OSError as error:  # a simulation has no others: a lost connection is made again
        raise SimulationError(
            f"cannot write the truth to {path}: {error.strerror}; name another file with --truth"
        ) from error


class Link:
    """A connection to a chosen server, with failover."""

    def __init__(
        self,
        servers: list[Address],
        random: Random,
        *,
        clock: Callable[[], float],
        taken: Callable[[SimulatedBeat, str], None],
        failed: Callable[[SimulatedBeat, str], None],
    ) -> None:
        self.clock = clock
        self.failed = failed
        self._taken = taken
        self._placement = WriterPlacement(servers, random)
        self._backoff = make_backoff(random)
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: deque[SimulatedBeat] = deque()
        self._retry_at = 0.0
        self._failures = 0
        self._reason = "no connection was made"

    def send(self, beat: SimulatedBeat) -> None:
        """Queue a heartbeat for the next `flush`, or until there is a connection."""
        if self._wire is None:
            self._waiting.append(beat)
        else:
            self._wire.send(beat)

    def flush(self) -> None:
        if self._wire is not None:
            self._wire.flush()

    def look(self, now: float) -> None:
        """Connect, time out, or return to the home server; called several times a second.

        All answers that arrived by `now` must have been read.
        """
        if self._wire is not None:
            self._wire.look(now)
        while self._waiting and now - self._waiting[0].sent_at >= WRITE_DEADLINE:
            self.failed(self._waiting.popleft(), self._reason)
        if self._connecting is not None:
            return
        server = None
        if self._wire is not None:
            server = self._placement.pop_due_check(now)
        elif self._waiting and now >= self._retry_at:
            order = self._placement.order()
            server = order[self._failures % len(order)]
        if server is not None:
            self._connecting = asyncio.ensure_future(self._connect(server))

    def close(self) -> None:
        """End the connections; unanswered heartbeats have failed."""
        if self._connecting is not None:
            self._connecting.cancel()
        beats = self._wire.abandon() if self._wire is not None else []
        for beat in (*beats, *self._waiting):
            self.failed(beat, "the simulation ended before it was answered")
        self._waiting.clear()
        self._wire = None

    async def _connect(self, server: Address) -> None:
        """Connect to another server, or return to the home server, which need not answer."""
        connecting = asyncio.get_running_loop().create_connection(
            lambda: _Wire(self, server), server.host, server.port
        )
        try:
            _, wire = await asyncio.wait_for(connecting, TRY_TIMEOUT)
        except OSError as error:
            if self._wire is None:
                self._note(f"{server}: {error.strerror or str(error) or 'no connection in time'}")
            return
        finally:
            self._connecting = None
        before, self._wire = self._wire, wire
        if before is not None:
            self._placement.return_home(self.clock())
            self._send_all(before.abandon())
        waiting, self._waiting = self._waiting, deque()
        self._send_all(waiting)

    def _send_all(self, beats: Iterable[SimulatedBeat]) -> None:
        for beat in beats:
            self.send(beat)
        self.flush()

    def _note(self, reason: str) -> None:
        self._reason = reason
        self._failures += 1
        self._retry_at = self.clock() + self._backoff.record()

    def took(self, beat: SimulatedBeat, wire: _Wire) -> None:
        if self._failures and wire is self._wire:
            self._failures = 0
            self._backoff.reset()
            self._placement.record_taken(wire.server, self._placement.current, self.clock())
        self._taken(beat, str(wire.server))

    def lost(self, wire: _Wire, beats: list[SimulatedBeat], reason: str) -> None:
        """Record the end of a connection; another server gets unanswered heartbeats."""
        if wire is self._wire:
            self._wire = None
            self._note(f"{wire.server}: {reason}")
        self._send_all(beats)


class _Wire(asyncio.Protocol):
    def __init__(self, link: Link, server: Address) -> None:
        self.server = server
        self._link = link
        self._transport: asyncio.Transport | None = None
        self._splitter = PacemakerFrameSplitter()
        self._unanswered: deque[tuple[int, SimulatedBeat]] = deque()
        self._unsent: list[bytes] = []
        self._next_id = 0
        self._alive_at = 0.0
        self._reason = "the server closed the connection"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, beat: SimulatedBeat) -> None:
        id_, self._next_id = self._next_id, (self._next_id + 1) % _IDS
        start, end = beat.start, beat.end
        before, after = encode_pulse_around(id_, beat.worker.path.encode(), len(start) + len(end))
        self._unsent += (before, start, end, after)
        if not self._unanswered:
            self._alive_at = self._link.clock()
        self._unanswered.append((id_, beat))

    def flush(self) -> None:
        if self._unsent and self._transport is not None:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    def look(self, now: float) -> None:
        if self._unanswered and now - self._alive_at >= TRY_TIMEOUT:
            self._give_up(f"no answer within {TRY_TIMEOUT:g} s")

    def abandon(self) -> list[SimulatedBeat]:
        """Close the connection; return unanswered heartbeats."""
        beats = [beat for _, beat in self._unanswered]
        self._unanswered.clear()
        if self._transport is not None:
            self._transport.abort()
        return beats

    def data_received(self, data: bytes) -> None:
        self._alive_at = self._link.clock()
        try:
            for payload in self._splitter.feed(data):
                self._answered(payload)
        except ProtocolError as error:
            self._give_up(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.lost(self, self.abandon(), str(exc) if exc else self._reason)

    def _answered(self, payload: bytes) -> None:
        if not self._unanswered:
            raise RemoteProtocolError("an answer came to no request")
        id_, beat = self._unanswered.popleft()
        if payload == _TAKEN[id_]:
            self._link.took(beat, self)
            return
        answer = decode(payload)
        if answer.type != MessageType.NOT_AUTHORIZED:
            self._unanswered.appendleft((id_, beat))
            raise RemoteProtocolError(f"a message of type {answer.type} came as the answer")
        self._link.failed(beat, f"{self.server} refused it; its log has the reason")

    def _give_up(self, reason: str) -> None:
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()
