"""A leader's round, pure: from the cluster as read, and the memory, to actions.

The memory has what records lack: since when this Nimbus watches each worker, deadlines on its own
clock, claims that may have been given, and texts. Another Nimbus's clock may have set a deadline: a
leader computes the remaining time once, at most the requested wait, and then uses its own clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from stormkeeper.conf import Conf
from stormkeeper.heartbeats.liveness import LivenessLimits
from stormkeeper.nimbus import lifecycle
from stormkeeper.nimbus.scheduling.cluster import Cluster, Crashes, Topology
from stormkeeper.nimbus.scheduling.cluster_memo import ClusterMemo, cluster_from_snapshot
from stormkeeper.nimbus.scheduling.followed_workers import LivenessMemory, judge_workers
from stormkeeper.nimbus.scheduling.planning import (
    Action,
    Assign,
    Remove,
    SetStatus,
    counter_after,
    plan,
)
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.thrift.records import StormBase, TopologyStatus
from stormkeeper.topology.plan import Claim

#: Seconds from a worker's timeout to the next round: at the timeout itself it is not dead.
_AFTER_SECS: Final = 0.05

#: Missed heartbeats after which a worker is late.
_BEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The configured times, in seconds."""

    monitor: float
    #: A worker's time until its first heartbeat.
    launch: float
    limits: LivenessLimits
    #: How long a removed topology's leftovers and checkpoints (None: for ever) stay.
    kept: float
    checkpoints: float | None = None
    #: How long a supervisor must be missing to count as lost.
    supervisor: float = 60.0

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        timeout = float(conf["nimbus.task.timeout.secs"])
        late = min(_BEATS * float(conf["task.heartbeat.frequency.secs"]), timeout)
        return cls(
            monitor=float(conf["nimbus.monitor.freq.secs"]),
            launch=float(conf["nimbus.task.launch.secs"]),
            limits=LivenessLimits(late, timeout),
            kept=conf["nimbus.topology.blobstore.deletion.delay.ms"] / 1000,
            checkpoints=conf["nimbus.checkpoint.retention.secs"],
            supervisor=float(conf["nimbus.supervisor.timeout.secs"]),
        )


_WAITING: Final = (TopologyStatus.KILLED, TopologyStatus.REBALANCING)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline as written, in milliseconds since 1970, and on this Nimbus's clock, in seconds."""

    #: None if the base has none, as from Storm's Nimbus.
    deadline_ms: int | None
    at: float


def left_secs(deadline_ms: int | None, wait_secs: float, *, now: float) -> float:
    """Return the rest of a wait, at most `wait_secs`; without a deadline the wait begins now."""
    if deadline_ms is None:
        return wait_secs
    return min(max(0.0, deadline_ms / 1000 - now), wait_secs)


def pending_deadlines(
    before: Mapping[str, Deadline],
    bases: Mapping[str, StormBase],
    *,
    default_wait_secs: Mapping[str, float],
    now: float,
) -> dict[str, Deadline]:
    """Return the deadline of each topology with a pending kill or rebalance.

    `before` is the last result; `default_wait_secs` is for bases without a wait.
    """
    found = {}
    for storm_id, base in bases.items():
        # A rebalance waits until its conf is saved.
        if base.status not in _WAITING or lifecycle.unsaved_conf(base) is not None:
            continue
        known = before.get(storm_id)
        if known is None or known.deadline_ms != base.deadline_ms:
            wait_secs = _wait_secs(base, default_wait_secs.get(storm_id, 0.0))
            at = now + left_secs(base.deadline_ms, wait_secs, now=now)
            known = Deadline(base.deadline_ms, at)
        found[storm_id] = known
    return found


def _wait_secs(base: StormBase, default: float) -> float:
    options = base.topology_action_options
    asked = None if options is None else options.kill_options or options.rebalance_options
    return default if asked is None or asked.wait_secs is None else max(0.0, asked.wait_secs)


@dataclass(frozen=True, slots=True)
class RoundMemory:
    """A leader's memory between rounds; initially empty for each epoch."""

    watch: LivenessMemory = field(default_factory=LivenessMemory)
    due: Mapping[str, Deadline] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    next_counter: int = 0
    crashes: Mapping[Claim, Crashes] = field(default_factory=dict)
    memo: ClusterMemo = field(default_factory=ClusterMemo, compare=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a round, and when the next is due at the latest."""

    actions: tuple[Action, ...]
    memory: RoundMemory
    cluster: Cluster
    next_round_at: float


def decide(
    memory: RoundMemory,
    snapshot: ClusterSnapshot,
    facts: Mapping[str, Topology],
    *,
    now: float,
    epoch: int,
    timeouts: Timeouts,
    default_wait_secs: Mapping[str, float],
) -> Decision:
    """Decide a round; `now` is when the read began, on a clock that never jumps."""
    watch, statuses = judge_workers(
        memory.watch,
        memory.memo.launches(snapshot),
        # An unreadable record counts as present.
        snapshot.supervisors.keys() | {each.rpartition("/")[2] for each in snapshot.unreadable},
        snapshot.heartbeats,
        now=snapshot.heartbeats_at,
        epoch=epoch,
        limits=timeouts.limits,
        launch_secs=timeouts.launch,
        supervisor_secs=timeouts.supervisor,
    )
    due = pending_deadlines(
        memory.due, snapshot.bases, default_wait_secs=default_wait_secs, now=now
    )
    cluster = cluster_from_snapshot(
        snapshot,
        facts=facts,
        due={storm_id: deadline.at for storm_id, deadline in due.items()},
        statuses=statuses,
        now=now,
        epoch=epoch,
        next_counter=memory.next_counter,
        launch_secs=timeouts.launch,
        memo=memory.memo,
    )
    crashes = _crashes(memory.crashes, cluster)
    actions = tuple(_with_crashes(each, cluster, crashes) for each in plan(cluster))
    after = RoundMemory(
        watch=watch,
        due=due,
        texts=_texts(memory.texts, cluster, actions),
        next_counter=counter_after(actions, epoch, memory.next_counter),
        crashes=crashes,
        memo=memory.memo,
    )
    return Decision(
        tuple(each for each in actions if not isinstance(each, SetStatus)),
        after,
        cluster,
        now if _moves_at_once(actions, cluster) else _next_round_at(after, now, timeouts),
    )


def _moves_at_once(actions: Iterable[Action], cluster: Cluster) -> bool:
    # The next round may place the queries of a released worker whose supervisor is gone.
    return any(
        launch.is_released and launch.slot.node not in cluster.supervisors
        for action in actions
        if isinstance(action, Assign)
        for launch in action.launches
    )


def _crashes(before: Mapping[Claim, Crashes], cluster: Cluster) -> dict[Claim, Crashes]:
    reported = {
        claim: one for each in cluster.supervisors.values() for claim, one in each.crashes.items()
    }
    known = before.keys() | reported.keys()
    found = {}
    for topology in cluster.topologies.values() if known else ():
        if topology.claims.isdisjoint(known):
            continue
        for launch in topology.launches:
            is_there = launch.slot.node in cluster.supervisors
            last = None if is_there else before.get(launch.claim)
            crashes = reported.get(launch.claim) or last
            if crashes is not None:
                found[launch.claim] = crashes
    return found


def _with_crashes(action: Action, cluster: Cluster, crashes: Mapping[Claim, Crashes]) -> Action:
    topology = cluster.topologies.get(action.storm_id)
    if not isinstance(action, Assign) or topology is None:
        return action
    had: dict[str, Crashes] = {}
    for launch in topology.launches:
        known = crashes.get(launch.claim)
        if known is not None:
            had |= dict.fromkeys(launch.queries, known)
    if not had:
        return action
    old = {launch.claim for launch in topology.launches}
    return Assign(
        action.storm_id,
        tuple(
            launch
            if launch.claim in old
            else replace(
                launch, crashes=max((had[q] for q in launch.queries if q in had), default=None)
            )
            for launch in action.launches
        ),
    )


def _texts(
    before: Mapping[str, str], cluster: Cluster, actions: Iterable[Action]
) -> Mapping[str, str]:
    texts = {each.storm_id: each.text for each in actions if isinstance(each, SetStatus)}
    removed = {each.storm_id for each in actions if isinstance(each, Remove)}
    left = cluster.topologies.keys() - removed
    if not texts and before.keys() <= left:
        return before
    return {id_: text for id_, text in {**before, **texts}.items() if id_ in left}


def _next_round_at(memory: RoundMemory, now: float, timeouts: Timeouts) -> float:
    """Return the next deadline or timeout, at most a period ahead."""
    moments = [deadline.at for deadline in memory.due.values()]
    moments += [end + _AFTER_SECS for end in memory.watch.ends]
    # Past moments were handled, or wait for something else.
    return min([now + timeouts.monitor, *(moment for moment in moments if moment > now)])
