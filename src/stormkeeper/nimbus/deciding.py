"""One round of a leader: of what was read, and what it remembers, to what is to be written; pure.

A round reads once, decides once, and then writes. What a round remembers for the next one is what
no record has: since when this Nimbus looks at each worker, when a deadline is due by its own clock,
which claims it may have given, and what was told of each topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from stormkeeper.nimbus import deadlines
from stormkeeper.nimbus.deadlines import Due
from stormkeeper.nimbus.scheduling import reading
from stormkeeper.nimbus.scheduling.actions import Action, Assign, Remove, SetStatus, counter_after
from stormkeeper.nimbus.scheduling.cluster import Cluster, Crashes
from stormkeeper.nimbus.scheduling.mapping import Facts
from stormkeeper.nimbus.scheduling.planning import plan
from stormkeeper.nimbus.scheduling.watching import Watch, judge
from stormkeeper.nimbus.times import Times
from stormkeeper.state.storm.cluster import ClusterSnapshot
from stormkeeper.topology.plan import Claim

#: How long after a worker's time is over it is looked at, in seconds: it is dead only then.
_AFTER_SECS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Memory:
    """What a leader remembers from one round to the next; a new reign starts with nothing.

    Parameters
    ----------
    watch
        Of the workers.
    due
        When kills and rebalances are due, by the ids of their topologies.
    texts
        What is told of topologies, by their ids: their ``sched_status``.
    next_counter
        The least counter that no claim of this reign can have had.
    crashes
        Newest crash counts from supervisors, for workers that are still launched, by claim.
    """

    watch: Watch = field(default_factory=Watch)
    due: Mapping[str, Due] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    next_counter: int = 0
    crashes: Mapping[Claim, Crashes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a round leads to.

    Parameters
    ----------
    actions
        What is to be written, in that order.
    memory
        For the next round.
    cluster
        What it was decided about.
    again_at
        When to look again at the latest, on the clock of the round.
    """

    actions: tuple[Action, ...]
    memory: Memory
    cluster: Cluster
    again_at: float


def decide(
    memory: Memory,
    snapshot: ClusterSnapshot,
    facts: Mapping[str, Facts],
    *,
    now: float,
    epoch: int,
    times: Times,
    default_wait_secs: Mapping[str, float],
) -> Decision:
    """Return what a round leads to.

    Parameters
    ----------
    memory
        What the round before has left.
    snapshot
        What was read, by the clock of `now`.
    facts
        What is known of topologies besides their records, by their ids.
    now
        When the read began, in seconds since 1970, on a clock that never jumps.
    epoch
        The leader's.
    times
        What is configured.
    default_wait_secs
        What a topology waits whose kill or rebalance does not say how long, by its id.
    """
    watch, statuses = judge(
        memory.watch,
        reading.workers(snapshot),
        snapshot.supervisors.keys(),
        snapshot.heartbeats,
        now=snapshot.heartbeats_at,
        epoch=epoch,
        limits=times.limits,
        launch_secs=times.launch,
        supervisor_secs=times.supervisor,
    )
    due = deadlines.due(memory.due, snapshot.bases, default_wait_secs=default_wait_secs, now=now)
    cluster = reading.cluster(
        snapshot,
        facts=facts,
        due=due,
        statuses=statuses,
        refusals={id_: info.refuses for id_, info in snapshot.supervisors.items() if info.refuses},
        now=now,
        epoch=epoch,
        next_counter=memory.next_counter,
        launch_secs=times.launch,
    )
    crashes = _crashes(memory.crashes, cluster)
    actions = tuple(_with_crashes(each, cluster, crashes) for each in plan(cluster))
    after = Memory(
        watch=watch,
        due=due,
        texts=_texts(memory.texts, cluster, actions),
        next_counter=counter_after(actions, epoch, memory.next_counter),
        crashes=crashes,
    )
    return Decision(
        tuple(each for each in actions if not isinstance(each, SetStatus)),
        after,
        cluster,
        now if _is_to_move(actions, cluster) else _again_at(after, now, times),
    )


def _is_to_move(actions: Iterable[Action], cluster: Cluster) -> bool:
    """Return whether workers are released for whose end nothing has to be waited."""
    return any(
        launch.is_released and launch.slot.node not in cluster.supervisors
        for action in actions
        if isinstance(action, Assign)
        for launch in action.launches
    )


def _crashes(before: Mapping[Claim, Crashes], cluster: Cluster) -> dict[Claim, Crashes]:
    """Return the crashes of each launch; those of a lost supervisor as they were last."""
    told = {
        claim: one for each in cluster.supervisors.values() for claim, one in each.crashes.items()
    }
    found = {}
    for topology in cluster.topologies.values():
        for launch in topology.launches:
            is_there = launch.slot.node in cluster.supervisors
            last = None if is_there else before.get(launch.claim)
            known = told.get(launch.claim) or last
            if known is not None:
                found[launch.claim] = known
    return found


def _with_crashes(action: Action, cluster: Cluster, crashes: Mapping[Claim, Crashes]) -> Action:
    """Have new launches go on with the count of what has crashed elsewhere."""
    topology = cluster.topologies.get(action.storm_id)
    if not isinstance(action, Assign) or topology is None:
        return action
    had: dict[str, Crashes] = {}
    for launch in topology.launches:
        known = crashes.get(launch.claim)
        if known is not None:
            had |= dict.fromkeys(launch.queries, known)
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
) -> dict[str, str]:
    told = {each.storm_id: each.text for each in actions if isinstance(each, SetStatus)}
    removed = {each.storm_id for each in actions if isinstance(each, Remove)}
    left = cluster.topologies.keys() - removed
    return {id_: text for id_, text in {**before, **told}.items() if id_ in left}


def _again_at(memory: Memory, now: float, times: Times) -> float:
    """Return when something may be due by itself, or it is time to look in any case."""
    watch = memory.watch
    ends = [row.last_seen + times.limits.timeout_secs for row in watch.rows]
    ends += [max(since) + times.launch for since in watch.since.values()]
    moments = [due.at for due in memory.due.values()]
    moments += [end + _AFTER_SECS for end in ends]
    # What is past has been seen to, or waits for something else.
    return min([now + times.monitor, *(moment for moment in moments if moment > now)])
