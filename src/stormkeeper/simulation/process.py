"""The process of a simulation: connections, clock, progress, and the truth as JSON lines."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Final, Self

from stormkeeper import paths
from stormkeeper.conf import Conf
from stormkeeper.daemon.lifecycle import StopSignals, raise_file_limit
from stormkeeper.daemon.logs import counted
from stormkeeper.errors import ConfigError, PacemakerUnavailableError, SimulationError
from stormkeeper.pacemaker.client.pool import PacemakerPool, connect
from stormkeeper.simulation import cluster
from stormkeeper.simulation.cluster import Profile, SimulatedTopology
from stormkeeper.simulation.links import Link
from stormkeeper.simulation.model import SimulatedBeat, Simulation, Writer
from stormkeeper.simulation.troubles import ROUND_SECS, Troubles
from stormkeeper.thrift.serialization import compression_for, release_for
from stormkeeper.thrift.writer import Release

_TICK_SECS: Final = 0.02
_LOOK_SECS: Final = 0.25

#: Limits of a batch of heartbeats between two reads of answers: heartbeats, and seconds.
_BATCH: Final = 1024
_BATCH_SECS: Final = 0.05

_REPORT_SECS: Final = 5.0

_END_SECS: Final = 6.0

_NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options of a simulation.

    Parameters
    ----------
    count_every
        A worker's counters are new in every n-th heartbeat.
    release
        The Storm release that reads the heartbeats; None: follows the compression.
    """

    profile: Profile
    seed: int
    period_secs: float
    count_every: int
    connections: int
    release: Release | None = None
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
    """Simulate workers until the duration is over or a signal arrives; returns a summary.

    Raises
    ------
    ConfigError
        The Pacemakers require TLS, or authentication of writers.
    PacemakerError
        A Pacemaker does not answer at the beginning, or refuses.
    SimulationError
        There are pulses of real topologies, or the truth cannot be written.
    """
    if conf["pacemaker.tls.enable"] or conf["pacemaker.auth.writes"]:
        raise ConfigError(
            "simulated workers speak neither TLS nor authenticate: set pacemaker.tls.enable and"
            " pacemaker.auth.writes to false, here and in a Pacemaker for them alone"
        )
    raise_file_limit()
    with connect(conf, name="simulation") as pool, Truth(truth_at) as truth:
        if not options.beside:
            check_alone(pool)
        made = _Run(conf, options, pool, truth, say)
        made.prepare(stop)
        return asyncio.run(made.until(stop))


def check_alone(pool: PacemakerPool) -> None:
    """Raise an error if Pacemakers may hold pulses of real topologies.

    Raises `PacemakerUnavailableError` if a Pacemaker does not answer, `SimulationError` if there
    is a real topology.
    """
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


class _Lags:
    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, secs: float) -> None:
        self._counts[math.ceil(secs * 1000.0)] += 1

    def take(self, others: _Lags) -> None:
        self._counts.update(others._counts)
        others._counts.clear()

    def at(self, part: float) -> int:
        """Return the delay that `part` of all heartbeats do not exceed; 0 without any."""
        left = part * self._counts.total()
        for lag in sorted(self._counts):
            left -= self._counts[lag]
            if left <= 0:
                return lag
        return 0


def _pause() -> None:
    """Block the event loop for a tick, which then reads all the answers of a tick at once."""
    time.sleep(_TICK_SECS)


class _Run:
    def __init__(
        self,
        conf: Conf,
        options: SimulationOptions,
        pool: PacemakerPool,
        truth: Truth,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._pool = pool
        self._truth = truth
        self._say = say
        self._behind = time.time() - time.monotonic()
        self._lags, self._recent = _Lags(), _Lags()
        self._deleting: set[asyncio.Task[None]] = set()
        self._prepared_cpu = 0.0
        self._reason = ""
        begin = self._clock()
        compression = compression_for(conf["storm.meta.serialization.delegate"])
        release = options.release or release_for(compression)
        made = cluster.plan(options.profile, seed=options.seed, now=begin)
        servers = list(dict.fromkeys(conf.pacemaker_servers()))
        about = asdict(options) | {"release": release.value, "compression": compression.value}
        truth.tell({"event": "run", "at": begin, "servers": [str(s) for s in servers], **about})
        for event in of_topologies(made.topologies, begin) if truth.is_kept else ():
            truth.tell(event)
        self._simulation = Simulation(
            made,
            Writer(compression, release, names_components=options.names_components),
            period_secs=options.period_secs,
            count_every=options.count_every,
            seed=options.seed,
            now=begin,
            tell=truth.tell if truth.is_kept else None,
            tells_counters=options.tells_counters,
        )
        # As with real workers, the choice of a server does not follow the seed.
        links = [
            Link(servers, Random(), clock=self._clock, taken=self._taken, failed=self._failed)
            for _ in range(min(options.connections, len(made.nodes)))
        ]
        self._links = links
        self._link_of = {node: links[n % len(links)] for n, node in enumerate(made.nodes)}
        self._began = begin

    def _clock(self) -> float:
        return time.monotonic() + self._behind

    def prepare(self, stop: StopSignals) -> None:
        for _ in self._simulation.prepare(self._began):
            if stop.stopped:
                return
        gc.freeze()
        profile, took = self._options.profile, self._clock() - self._began
        workers = counted(profile.workers, "worker")
        topologies = "1 topology" if profile.topologies == 1 else f"{profile.topologies} topologies"
        self._say(f"ready after {took:.1f} s: {workers} of {topologies}")

    async def until(self, stop: StopSignals) -> dict[str, Any]:
        self._began = began = self._clock()
        self._prepared_cpu = time.process_time()
        self._simulation.begin(began)
        if self._options.has_troubles:
            self._plant(began)
        duration = self._options.duration_secs
        end = math.inf if duration is None else began + duration
        look_at = began
        report_at = began + _REPORT_SECS
        while not stop.stopped and (now := self._clock()) < end:
            behind = self._send(now)
            if now >= look_at:
                look_at = now + _LOOK_SECS
                await self._look(now)
            if now >= report_at:
                report_at += _REPORT_SECS
                self._report(now)
            if not behind:
                _pause()
            await asyncio.sleep(0)
        await self._drain()
        for outcome in await asyncio.gather(*self._deleting, return_exceptions=True):
            if outcome is not None:
                self._say(f"a killed topology's pulses may still be there: {outcome}")
        summary = self._summary(self._clock() - began)
        for link in self._links:
            link.close()
        self._simulation.finish(self._clock())
        self._truth.check()
        if self._options.cleans:
            for topology in self._simulation.cluster.topologies:
                path = paths.workerbeats(topology.storm_id)
                await asyncio.to_thread(self._pool.delete_path, path)
        # Unanswered heartbeats have failed since.
        return summary | asdict(self._simulation.tally)

    def _plant(self, begin: float) -> None:
        Troubles(
            self._simulation,
            seed=self._options.seed,
            begin=begin,
            round_secs=min(self._options.duration_secs or ROUND_SECS, ROUND_SECS),
            tell=self._truth.tell,
        )

    def _send(self, now: float) -> bool:
        touched = set()
        count = 0
        for beat in self._simulation.due(now):
            at = self._clock()
            self._recent.add(at - beat.due)
            link = self._link_of[beat.worker.slot.node]
            link.send(beat)
            touched.add(link)
            count += 1
            if count == _BATCH or at - now > _BATCH_SECS:
                break
        else:
            count = 0
        for link in touched:
            link.flush()
        return count > 0

    async def _look(self, now: float) -> None:
        # The first reads waiting answers, the second handles them: a pause of this process is not
        # the servers' fault.
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
            f" {recent.at(0.5)} ms (p50), {recent.at(0.99)} ms (p99)"
        )
        self._say(line + (f"; {self._reason}" if self._reason else ""))
        self._lags.take(recent)
        self._reason = ""
        self._truth.check()

    def _summary(self, worked: float) -> dict[str, Any]:
        tally, lags = self._simulation.tally, self._lags
        lags.take(self._recent)
        return {
            "seconds": round(worked, 3),
            "workers": self._options.profile.workers,
            "topologies": self._options.profile.topologies,
            **asdict(tally),
            "per_second": round(tally.acknowledged / worked, 1) if worked else 0.0,
            "lag_ms": {"p50": lags.at(0.5), "p99": lags.at(0.99), "max": lags.at(1.0)},
            "cpu_seconds": round(time.process_time() - self._prepared_cpu, 3),
            "prepared_cpu_seconds": round(self._prepared_cpu, 3),
        }


class Truth:
    """A file of events as JSON lines; without a path, events are dropped.

    Raises `SimulationError` if the file cannot be made.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.fault: SimulationError | None = None
        try:
            self._file = None if path is None else path.open("w", encoding="utf-8")
        except OSError as error:
            raise self._fault(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                if exc is None:
                    raise self._fault(error) from error

    @property
    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def tell(self, event: dict[str, Any]) -> None:
        """Write an event; `check` raises errors later."""
        if self._file is not None and self.fault is None:
            try:
                self._file.write(json.dumps(event, separators=(",", ":")) + "\n")
            except OSError as error:
                self.fault = self._fault(error)

    def check(self) -> None:
        """Flush the file.

        Raises `SimulationError` if an event could not be written.
        """
        if self._file is not None and self.fault is None:
            try:
                self._file.flush()
            except OSError as error:
                self.fault = self._fault(error)
        if self.fault is not None:
            raise self.fault

    def _fault(self, error: OSError) -> SimulationError:
        return SimulationError(
            f"cannot write the truth to {self._path}: {error.strerror}; name another file with"
            " --truth"
        )


def of_topologies(topologies: list[SimulatedTopology], at: float) -> Iterator[dict[str, Any]]:
    """Yield an event per topology, with components."""
    for topology in topologies:
        yield {
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
