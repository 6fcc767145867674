"""Follows the Pacemakers of a local run, and keeps a ledger of pulses, gaps and counts.

Each Pacemaker has a thread, so that a dead Pacemaker delays no other. A pulse's time is its receipt
(the time of the answer minus the age), so a slow watcher makes no gap longer.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stormkeeper import paths
from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerError, ProtocolError, SerializationError
from stormkeeper.heartbeats import change_pages
from stormkeeper.heartbeats.change_pages import Position, ServerReading
from stormkeeper.pacemaker.client.client_settings import ClientSettings
from stormkeeper.paths import WorkerId
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize

log = logging.getLogger(__name__)

ALL_TIME = ":all-time"

#: Timeout of a look.
ANSWER_SECS = 0.5

#: Attempts to get a last answer from a Pacemaker after the stop request.
LAST_LOOKS = 3


@dataclass(frozen=True)
class ComponentCounts:
    """Rows that a component emitted and executed since the worker's start.

    Each of the component's `queries` reads its input. `partial`: some batches were not read to the
    end.
    """

    emitted: int = 0
    executed: int = 0
    queries: int = 1
    partial: bool = False

    def __add__(self, other: "ComponentCounts") -> "ComponentCounts":
        return ComponentCounts(
            self.emitted + other.emitted,
            self.executed + other.executed,
            self.queries + other.queries,
            self.partial or other.partial,
        )


@dataclass(frozen=True)
class PacemakerStatus:
    """A Pacemaker's last answer."""

    address: str
    pulses_received: int = 0
    keys: int = 0


@dataclass(frozen=True)
class WorkerPulses:
    """A worker: Pacemaker and time of the last pulse, number of pulses, longest silence."""

    worker: WorkerId
    pacemaker: str
    pulses: int
    last_received: float
    components: Mapping[str, ComponentCounts]
    completed: bool = False
    waiting: str = ""
    max_gap_secs: float = 0.0

    def gap_at(self, now: float) -> float:
        """Return the longest silence; the present silence counts unless the worker is completed."""
        if self.completed:
            return self.max_gap_secs
        return max(self.max_gap_secs, now - self.last_received)


@dataclass(frozen=True)
class RunSnapshot:
    """The ledger at a moment."""

    pacemakers: Sequence[PacemakerStatus]
    workers: Sequence[WorkerPulses]

    def components(self) -> dict[str, ComponentCounts]:
        """Sum the counts by component over the workers' newest pulses."""
        totals: dict[str, ComponentCounts] = {}
        for worker in self.workers:
            for name, counts in worker.components.items():
                totals[name] = totals[name] + counts if name in totals else counts
        return totals


class PulseLedger:
    """Collects the Pacemakers' reports; times are seconds of a monotonic clock."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._pacemakers = {address: PacemakerStatus(address) for address in addresses}
        self._workers: dict[WorkerId, WorkerPulses] = {}

    def record(self, status: PacemakerStatus, pulses: Iterable[WorkerPulses]) -> None:
        """Record an answer of a Pacemaker, with the pulses since the last answer."""
        self._pacemakers[status.address] = status
        for pulse in sorted(pulses, key=lambda p: p.last_received):
            self._record_pulse(pulse)

    def snapshot(self) -> RunSnapshot:
        return RunSnapshot(
            [self._pacemakers[address] for address in sorted(self._pacemakers)],
            [self._workers[worker] for worker in sorted(self._workers)],
        )

    def _record_pulse(self, new: WorkerPulses) -> None:
        before = self._workers.get(new.worker)
        if before is not None:
            pulses = before.pulses + new.pulses
            silence = new.last_received - before.last_received
            # An older copy from another Pacemaker counts as a pulse, but has no news.
            newer = before if silence < 0 else new
            new = replace(newer, pulses=pulses, max_gap_secs=max(before.max_gap_secs, silence))
        self._workers[new.worker] = new


class ClusterWatcher:
    """Follows the changes on every Pacemaker, and keeps a ledger.

    `period_secs` must be less than a heartbeat period: a Pacemaker keeps one pulse of a worker.
    """

    def __init__(
        self,
        servers: Iterable[Address],
        *,
        period_secs: float,
        settings: ClientSettings = ClientSettings(),  # noqa: B008 -- frozen
    ) -> None:
        servers = tuple(servers)
        self._ledger = PulseLedger(map(str, servers))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._period = period_secs
        self._settings = settings
        self._threads = []
        for server in servers:
            thread = threading.Thread(
                target=self._follow, args=(server,), name=f"watch {server}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def snapshot(self) -> RunSnapshot:
        """Return the ledger's state; times are of `time.monotonic`."""
        with self._lock:
            return self._ledger.snapshot()

    def finish(self) -> RunSnapshot:
        """Look once more at every Pacemaker, end the threads, and return the ledger's state."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=10 * ANSWER_SECS)
        return self.snapshot()

    def _follow(self, server: Address) -> None:
        address = str(server)
        client = self._settings.client(
            server, name="storm-local", try_timeout=ANSWER_SECS, retries=0
        )
        position: Position | None = None
        with client:
            last_looks = 0
            while True:
                try:
                    look = change_pages.look(client, position=position)
                    found = pulses(look, address)
                except (PacemakerError, ProtocolError) as error:
                    log.debug("%s does not answer: %s", address, error)
                else:
                    # Only now, so that a failed look is repeated.
                    position = look.position
                    info = look.info
                    status = PacemakerStatus(address, info.pulses_received, info.keys)
                    with self._lock:
                        self._ledger.record(status, found)
                    if last_looks:
                        return
                if last_looks == LAST_LOOKS:
                    return
                # One more look after the stop request gets the workers' last pulses.
                last_looks += self._stop.wait(self._period)


def pulses(look: ServerReading, pacemaker: str) -> list[WorkerPulses]:
    """Return the heartbeats of a look.

    A Pacemaker keeps the newest pulse of a path, but counts each. If one path changed, the pulses
    that the look lacks were overwritten ones of that path (a regular pulse by the farewell). If
    several changed, each counts once.
    """
    changes = [(page.read_at, change) for page in look.pages for change in page.changes]
    overwritten = look.revisions - len(changes) if len(changes) == 1 else 0
    found = []
    for read_at, change in changes:
        worker = paths.parse_workerbeat(change.path)
        if change.details is None or worker is None:
            continue
        try:
            beat = deserialize(ClusterWorkerHeartbeat, change.details)
        except SerializationError as error:
            log.debug("%s holds no heartbeat: %s", change.path, error)
            continue
        found.append(
            WorkerPulses(
                worker,
                pacemaker,
                1 + overwritten,
                read_at - (change.age_secs or 0.0),
                component_counts(beat),
                bool(beat.completed),
                beat.waiting or "",
            )
        )
    return found


def component_counts(beat: ClusterWorkerHeartbeat) -> dict[str, ComponentCounts]:
    totals: dict[str, ComponentCounts] = {}
    for executor, stats in (beat.executor_stats or {}).items():
        name = stats.component or f"tasks {executor.task_start}-{executor.task_end}"
        emitted = sum(((stats.emitted or {}).get(ALL_TIME) or {}).values())
        bolt = stats.specific.bolt if stats.specific else None
        executed = sum(((bolt.executed or {}).get(ALL_TIME) or {}).values()) if bolt else 0
        partial = bool((stats.partial_batches or {}).get(ALL_TIME))
        counts = ComponentCounts(emitted, executed, partial=partial)
        totals[name] = totals[name] + counts if name in totals else counts
    return totals
