"""What was seen of a local cluster: pulses, their gaps, and the counts that they carried.

Pure: the watchers of the Pacemakers report each answer with its time. The view and the report read
snapshots. A pulse's time is that of its receipt at its Pacemaker: the time of the answer less the
age that the server gave. So a slow watcher makes no gap look longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stormkeeper.paths import WorkerId


@dataclass(frozen=True)
class Counts:
    """Rows that a component let out and took in since its worker started.

    `queries` is in how many queries it runs: what it reads is read once for each. `partial` says
    that there were more rows than these, of batches that nobody read to their end.
    """

    emitted: int = 0
    executed: int = 0
    queries: int = 1
    partial: bool = False

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.emitted + other.emitted,
            self.executed + other.executed,
            self.queries + other.queries,
            self.partial or other.partial,
        )


@dataclass(frozen=True)
class Pulse:
    """One pulse as one Pacemaker reported it, and how many since the look before it stands for."""

    worker: WorkerId
    received: float
    components: Mapping[str, Counts]
    count: int = 1
    #: Whether it says that all queries of the worker have ended by themselves.
    completed: bool = False
    #: What the worker waits for; empty where it waits for nothing.
    waiting: str = ""


@dataclass(frozen=True)
class PacemakerSeen:
    """A Pacemaker: its address, whether it answers, what it said of itself when it last did."""

    address: str
    reachable: bool = False
    instance: str = ""
    pulses_received: int = 0
    keys: int = 0


@dataclass(frozen=True)
class WorkerSeen:
    """A worker: where its last pulse arrived and when, how many there were, the longest silence."""

    worker: WorkerId
    pacemaker: str
    pulses: int
    last_received: float
    max_gap_secs: float
    components: Mapping[str, Counts]
    #: Whether all of its queries have ended by themselves.
    completed: bool = False
    #: What the worker waits for; empty where it waits for nothing.
    waiting: str = ""

    def gap_at(self, now: float) -> float:
        """Return the longest silence; the one that lasts at `now` counts, unless it is the end."""
        if self.completed:
            return self.max_gap_secs
        return max(self.max_gap_secs, now - self.last_received)


@dataclass(frozen=True)
class Snapshot:
    """All that was seen up to one moment."""

    pacemakers: Sequence[PacemakerSeen]
    workers: Sequence[WorkerSeen]

    def components(self) -> dict[str, Counts]:
        """Sum the counts by component over the workers' newest pulses."""
        totals: dict[str, Counts] = {}
        for worker in self.workers:
            for name, counts in worker.components.items():
                totals[name] = totals[name] + counts if name in totals else counts
        return totals


@dataclass
class Ledger:
    """Gathers what the Pacemakers report; times are seconds of one monotonic clock."""

    _pacemakers: dict[str, PacemakerSeen] = field(default_factory=dict)
    _workers: dict[WorkerId, WorkerSeen] = field(default_factory=dict)
    #: Pulses that a restarted server no longer counts, by address.
    _earlier_pulses: dict[str, int] = field(default_factory=dict)

    def expect(self, address: str) -> None:
        """Name a Pacemaker that has not answered yet."""
        self._pacemakers.setdefault(address, PacemakerSeen(address))

    def answered(
        self,
        address: str,
        *,
        instance: str,
        pulses_received: int,
        keys: int,
        pulses: Sequence[Pulse],
    ) -> None:
        """Take in one answer of the Pacemaker at `address`; `pulses` are those not reported yet."""
        before = self._pacemakers.get(address, PacemakerSeen(address))
        earlier = self._earlier_pulses.get(address, 0)
        if before.instance and before.instance != instance:
            earlier = self._earlier_pulses[address] = before.pulses_received
        self._pacemakers[address] = PacemakerSeen(
            address, True, instance, earlier + pulses_received, keys
        )
        for pulse in sorted(pulses, key=lambda p: p.received):
            self._pulse(address, pulse)

    def silent(self, address: str) -> None:
        """Take in that the Pacemaker at `address` did not answer."""
        before = self._pacemakers.get(address, PacemakerSeen(address))
        self._pacemakers[address] = replace(before, reachable=False)

    def snapshot(self) -> Snapshot:
        """Return what was seen so far, sorted by address and by worker."""
        return Snapshot(
            [self._pacemakers[address] for address in sorted(self._pacemakers)],
            [self._workers[worker] for worker in sorted(self._workers)],
        )

    def _pulse(self, address: str, pulse: Pulse) -> None:
        before = self._workers.get(pulse.worker)
        if before is None:
            self._workers[pulse.worker] = WorkerSeen(
                pulse.worker,
                address,
                pulse.count,
                pulse.received,
                0.0,
                pulse.components,
                pulse.completed,
                pulse.waiting,
            )
            return
        if pulse.received < before.last_received:
            # Another Pacemaker's older copy: it was sent, but says nothing new.
            self._workers[pulse.worker] = replace(before, pulses=before.pulses + pulse.count)
            return
        self._workers[pulse.worker] = WorkerSeen(
            pulse.worker,
            address,
            before.pulses + pulse.count,
            pulse.received,
            max(before.max_gap_secs, pulse.received - before.last_received),
            pulse.components,
            pulse.completed,
            pulse.waiting,
        )
