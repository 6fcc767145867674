"""The status of a Nimbus and, if leading, of the cluster: for log, metrics and health."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stormkeeper.daemon.http import Page, health_page, metrics_page
from stormkeeper.heartbeats.follower import FollowedHeartbeats
from stormkeeper.heartbeats.liveness import Status
from stormkeeper.nimbus.scheduling.cluster import Cluster
from stormkeeper.nimbus.scheduling.planning import Action, Assign, FinishRebalance, Remove
from stormkeeper.rpc.server import ThriftServer
from stormkeeper.state.storage import ConnectionState
from stormkeeper.topology.plan import Claim

log = logging.getLogger(__name__)

_ACTION_NAMES: Final[Mapping[type[Action], str]] = {
    Assign: "assign",
    Remove: "remove",
    FinishRebalance: "rebalance",
}


@dataclass(frozen=True)
class ClusterStatus:
    """An immutable snapshot of the status."""

    #: Of this Nimbus's leadership; None while it does not lead.
    epoch: int | None = None
    leaderships: int = 0
    rounds: int = 0
    failures: int = 0
    round_secs: float = 0.0
    #: Monotonic time when the last round ended or the leadership began.
    last_round_at: float | None = None
    actions: Mapping[str, int] = field(default_factory=dict)
    supervisors: int = 0
    slots: int = 0
    free_slots: int = 0
    topologies: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    #: Pacemakers that did not answer.
    unread: int = 0


class ClusterStatusTracker:
    """Keeps the current `ClusterStatus`, which any thread may read, and logs changes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.status = ClusterStatus()
        self._clock = clock
        self._lock = threading.Lock()
        self._has_heartbeats = True
        self._counts: _Counts | None = None

    def record_leadership(self, epoch: int | None) -> None:
        """Record the epoch in which this Nimbus leads; None: the leadership ended."""
        if epoch is None:
            before = self.status
            self._replace(
                epoch=None, supervisors=0, slots=0, free_slots=0, topologies={}, workers={}
            )
            log.debug("leadership of epoch %s ended", before.epoch)
            return
        self._replace(
            epoch=epoch, leaderships=self.status.leaderships + 1, last_round_at=self._clock()
        )

    def record_round(
        self, cluster: Cluster, heartbeats: FollowedHeartbeats, took_secs: float
    ) -> None:
        counts = self._counts
        if counts is None or not counts.cluster.has_same_parts(cluster):
            counts = self._counts = _Counts.of(cluster)
        workers = counts.workers(cluster.workers)
        before = self._replace(
            rounds=self.status.rounds + 1,
            round_secs=took_secs,
            last_round_at=self._clock(),
            supervisors=len(cluster.supervisors),
            slots=counts.slots,
            free_slots=counts.free_slots,
            topologies=counts.topologies,
            workers=workers,
            unread=len(heartbeats.missing),
        )
        # The client already logs individual failures.
        had, self._has_heartbeats = self._has_heartbeats, bool(heartbeats.coverage)
        if had and not self._has_heartbeats:
            log.warning("no Pacemaker can be read: no worker is moved until one answers")
        _log_unproven(before.workers.get(Status.UNPROVEN, 0), workers[Status.UNPROVEN])

    def record_action(self, action: Action) -> None:
        actions = Counter(self.status.actions)
        actions[_ACTION_NAMES[type(action)]] += 1
        self._replace(actions=actions)

    def record_failure(self) -> None:
        self._replace(failures=self.status.failures + 1)

    def _replace(self, **changes: Any) -> ClusterStatus:
        with self._lock:
            before, self.status = self.status, replace(self.status, **changes)
        return before


@dataclass(frozen=True, eq=False)
class _Counts:
    """The counts of a cluster that change only with topologies and supervisors."""

    cluster: Cluster
    slots: int
    free_slots: int
    topologies: Counter[str]
    #: Of the workers that should run.
    claims: frozenset[Claim]

    @classmethod
    def of(cls, cluster: Cluster) -> Self:
        ports = {id_: each.ports for id_, each in cluster.supervisors.items()}
        slots = sum(map(len, ports.values()))
        launches = [one for each in cluster.topologies.values() for one in each.launches]
        return cls(
            cluster,
            slots,
            slots
            - sum(port in ports.get(node, ()) for node, port in {one.slot for one in launches}),
            Counter(each.status.name.lower() for each in cluster.topologies.values()),
            # The status of workers that a Java Nimbus assigned is unknown.
            frozenset(one.claim for one in launches if one.queries and not one.is_released),
        )

    def workers(self, statuses: Mapping[Claim, Status]) -> Counter[str]:
        """Return workers by status; without a status a worker is alive."""
        counts = Counter(
            str(status)
            for claim, status in statuses.items()
            if status is not Status.ALIVE and claim in self.claims
        )
        counts[str(Status.ALIVE)] = len(self.claims) - counts.total()
        return +counts


def _log_unproven(before: int, now: int) -> None:
    if now and not before:
        log.warning(
            "self-preservation: %d worker%s, and no server can vouch that %s dead: no worker is"
            " moved",
            *(now, *(("s are silent", "they are") if now > 1 else (" is silent", "it is"))),
        )
    elif before and not now:
        log.info("self-preservation ended: the state of every worker is known again")


PREFIX: Final = "stormkeeper_nimbus_"

#: A leader is unhealthy after this many periods, and at least this many seconds, without a round: a
#: round that waits for ZooKeeper or a Pacemaker takes half a minute.
_PERIODS: Final = 6
_LEAST_SECS: Final = 60.0


def pages(
    status: Callable[[], ClusterStatus],
    server: ThriftServer,
    connection: Callable[[], ConnectionState],
    period_secs: float,
    clock: Callable[[], float],
    *,
    disk_fault: Callable[[], str | None] = lambda: None,
    lost_blobs: Callable[[], int] = lambda: 0,
    count_health: Callable[[], tuple[Mapping[str, int], float | None]] = lambda: ({}, None),
) -> dict[str, Callable[[str], Page]]:
    """Return the pages of a Nimbus by path.

    ``/healthz`` fails if this Nimbus leads and its rounds (every `period_secs`) stop; ``/readyz``
    if ZooKeeper is away or the disk takes no uploads. `count_health` runs only on the leader.
    """

    def readyz(_: str) -> Page:
        if connection() is not ConnectionState.CONNECTED:
            return Page(503, b"ZooKeeper cannot be reached\n")
        role, fault = "leads" if status().epoch is not None else "stands by", disk_fault()
        if fault is not None:
            return Page(503, f"{role}, and takes no uploads: {fault}\n".encode())
        return Page(200, f"{role}\n".encode())

    return {
        "/metrics": metrics_page(
            _NimbusMetrics(status, server, connection, disk_fault, lost_blobs, count_health)
        ),
        "/healthz": health_page(lambda: unhealthy(status(), period_secs, clock())),
        "/readyz": readyz,
    }


def unhealthy(status: ClusterStatus, period_secs: float, now: float) -> str | None:
    """Return why a Nimbus is unhealthy; None: healthy."""
    if status.epoch is None or status.last_round_at is None:
        return None
    ago = now - status.last_round_at
    if ago > max(_LEAST_SECS, _PERIODS * period_secs):
        return f"it leads, and has last looked at the cluster {ago:.0f} s ago"
    return None


@dataclass(eq=False)  # a registry hashes collectors
class _NimbusMetrics(Collector):
    _status: Callable[[], ClusterStatus]
    _server: ThriftServer
    _connection: Callable[[], ConnectionState]
    _disk_fault: Callable[[], str | None]
    _lost_blobs: Callable[[], int]
    _count_health: Callable[[], tuple[Mapping[str, int], float | None]]

    def collect(self) -> Iterator[Metric]:
        status = self._status()  # once: all that a scrape has is of one moment
        connected = self._connection() is ConnectionState.CONNECTED
        yield _gauge("connected", "Whether the session with ZooKeeper is connected.", connected)
        is_writable = self._disk_fault() is None
        yield _gauge("disk_writable", "Whether this Nimbus can write files.", is_writable)
        yield _counter(
            "blobs_lost", "Blobs of this Nimbus that were lost on disk.", self._lost_blobs()
        )
        yield _gauge("leads", "Whether this Nimbus leads.", status.epoch is not None)
        yield _counter("reigns", "Leaderships that this Nimbus has begun.", status.leaderships)
        yield _counter("rounds", "Rounds of scheduling that succeeded.", status.rounds)
        yield _counter("failed_rounds", "Rounds of scheduling that failed.", status.failures)
        yield _gauge("round_seconds", "Seconds of the last round of scheduling.", status.round_secs)
        actions = (([name], status.actions.get(name, 0)) for name in _ACTION_NAMES.values())
        yield _counters("actions", "Writes of scheduling, by action.", ["action"], actions)
        if status.epoch is not None:
            yield from _leader_metrics(status)
            counts, age_secs = self._count_health()
            yield _gauges("topology_health", "Topologies, by health.", "health", counts)
            if age_secs is not None:
                meaning = "Seconds since Nimbus began to read the heartbeats for topology_health."
                yield _gauge("topology_health_age_seconds", meaning, age_secs)
        yield from _service_metrics(self._server)


def _leader_metrics(status: ClusterStatus) -> Iterator[Metric]:
    yield _gauge("supervisors", "Registered supervisors.", status.supervisors)
    yield _gauge("slots", "Slots of the registered supervisors.", status.slots)
    yield _gauge("free_slots", "Slots without a worker.", status.free_slots)
    yield _gauges("topologies", "Topologies.", "status", status.topologies)
    counts = {str(each): status.workers.get(each, 0) for each in Status}
    meaning = "Assigned workers, by status; unproven workers are not moved."
    yield _gauges("workers", meaning, "status", counts)
    yield _gauge("unread_pacemakers", "Pacemakers that did not answer.", status.unread)


def _service_metrics(server: ThriftServer) -> Iterator[Metric]:
    yield _gauge("connections", "Connections of clients.", server.open)
    yield _counter("connections_accepted", "Accepted connections.", server.counts.accepted)
    yield _gauge("calls_waiting", "Calls waiting for a thread.", server.workers.waiting)
    labels, calls = ["method", "outcome"], dict(server.dispatcher.calls).items()
    yield _counters("calls", "Calls, by method and outcome.", labels, calls)
    seconds = (([method], secs) for method, secs in dict(server.dispatcher.seconds).items())
    yield _counters("call_seconds", "Seconds of all calls, by method.", ["method"], seconds)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}{name}", meaning, float(value))


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"{PREFIX}{name}", meaning, value)


def _gauges(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}{name}", meaning, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


def _counters(
    name: str, meaning: str, labels: list[str], values: Iterable[tuple[Sequence[str], float]]
) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}{name}", meaning, labels=labels)
    for each, value in values:
        family.add_metric(each, value)
    return family
