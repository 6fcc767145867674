"""How a topology stands: which of its workers stay, and which of its queries need a new place.

The rules, and why:

- **A worker stays unless it is proven dead.** One that is late stays, and so does one of which
  nobody can say whether it beats: after a Pacemaker's restart, a change of the leader or a cut of
  the network its pulses have yet to come back.
- **A worker stays where its supervisor says that it runs.** Only its pulses do not get through; and
  if it hangs, its supervisor ends it and starts it again.
- **A dead worker may move from a supervisor that is there** only once that one had the time to
  start it again, and only to another one. Until there is room elsewhere, it stays.
- **A query whose checkpoint is on one machine stays with it**, however long that machine is gone,
  and also when its topology goes on from an earlier one.
- **A checkpoint that no launch has claimed holds nothing.** A launch tells the cluster before it
  claims a checkpoint for the first time, and only as long as it is not released. So a dead worker
  without such a record is released first. If there is none by then either, its queries can move.
- **Storm's own supervisors run nothing of ours**, so no machine of theirs has a checkpoint.
- **Nothing of a topology starts while one of its released workers may still run.** Its supervisor
  says that it has stopped, or the supervisor is gone and the worker is proven dead.
- **A worker is left in peace for as long as one of its queries has not ended**: it cannot be given
  others, or fewer, without being started anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from stormkeeper.heartbeats.liveness import Status
from stormkeeper.nimbus.scheduling.cluster import Cluster, Launch, Supervisor, Topology
from stormkeeper.thrift.records import TopologyStatus

#: Statuses in which a topology is to run.
TO_RUN: Final = (TopologyStatus.ACTIVE, TopologyStatus.INACTIVE)


class Why(Enum):
    """What is to be told of a worker that stays where it is."""

    #: It is silent, and may be alive.
    UNPROVEN = auto()
    #: It is silent, and its supervisor says that it runs.
    UNHEARD = auto()
    #: It is dead, and its supervisor has yet to start it again.
    RESTARTING = auto()
    #: It is dead, and its queries can run on its machine alone, which is gone.
    NO_MACHINE = auto()
    #: It is dead, its machine is gone, and no other machine has room for its queries.
    NO_ROOM = auto()
    #: It is to stop, and nothing says that it has.
    STOPPING = auto()


class _Fate(Enum):
    STAYS = auto()
    #: It is dead where it cannot be started again.
    IS_LOST = auto()
    #: It is dead, and its supervisor does not get it started.
    IS_STUCK = auto()
    #: It is dead, and its queries can move once it is released, if nothing was claimed by then.
    IS_RELEASABLE = auto()


@dataclass(slots=True)
class Standing:
    """How a topology stands.

    Parameters
    ----------
    topology
        The topology.
    supervisors
        All that are there, by their ids.
    kept
        Workers that stay as they are.
    lost
        Dead workers, whose queries may run elsewhere. Where no place is found they stay as they
        are: should their machine come back, they run there again.
    vacated
        Released workers that have stopped. Their slots are their topology's until it has others.
    releasable
        Those of the kept workers that can be released if another machine has room.
    needs
        The queries to be placed, by the machine (a supervisor's id) on which they must be; None:
        on any.
    not_on
        The supervisors on which they are not to be.
    told
        What is to be told of the workers.
    """

    topology: Topology
    supervisors: Mapping[str, Supervisor]
    kept: list[Launch] = field(default_factory=list)
    lost: list[Launch] = field(default_factory=list)
    vacated: list[Launch] = field(default_factory=list)
    releasable: list[Launch] = field(default_factory=list)
    needs: dict[str | None, list[str]] = field(default_factory=dict)
    not_on: Collection[str] = frozenset()
    told: list[tuple[Why, Launch]] = field(default_factory=list)

    @property
    def most(self) -> int:
        """How many more slots it may have."""
        return max(0, self.topology.workers - len(self.kept))

    def place_of(self, launch: Launch) -> str | None:
        """Return on which machine the queries of a worker must be; None: on any."""
        node = launch.slot.node
        is_free = self.topology.holds_nothing(launch) or not self._has_checkpoints(node)
        return None if self.topology.is_shared or is_free else node

    def home_of(self, query: str) -> str | None:
        """Return on which machine a query must be that has no worker; None: on any."""
        node = None if self.topology.is_shared else self.topology.homes.get(query)
        return node if node is not None and self._has_checkpoints(node) else None

    def tells_claims(self, queries: Collection[str]) -> bool:
        """Return whether each launch of some queries so far records its claims."""
        if self.topology.is_shared:
            return False  # nothing depends on it
        before = [
            each for each in self.topology.launches if not set(each.queries).isdisjoint(queries)
        ]
        launched = {query for each in before for query in each.queries}
        return all(
            each.tells_claims or not self._has_checkpoints(each.slot.node) for each in before
        ) and all(query in launched or self.home_of(query) is None for query in queries)

    def _has_checkpoints(self, node: str) -> bool:
        supervisor = self.supervisors.get(node)
        return supervisor is None or supervisor.is_ours


def standing(topology: Topology, launches: Iterable[Launch], cluster: Cluster) -> Standing:
    """Return how a topology stands that has these workers."""
    found = Standing(topology, cluster.supervisors)
    if topology.blocked is not None or topology.status not in TO_RUN:
        found.kept.extend(launches)
        return found
    stuck: list[Launch] = []
    live = dict.fromkeys(query for query in topology.queries if query not in topology.ended)
    unplaced = dict(live)
    for launch in launches:
        if live.keys().isdisjoint(launch.queries):
            continue  # nothing is left for it to do
        for query in launch.queries:
            unplaced.pop(query, None)
        _take_in(found, stuck, launch, cluster)
    if any(why is Why.STOPPING for why, _ in found.told):
        found.kept += [*found.lost, *found.vacated, *stuck]
        found.lost, found.vacated, found.releasable = [], [], []
        return found
    moving = [*found.lost, *found.vacated]
    if stuck and not moving and not unplaced:
        # The rest of it has a place: now these may look for a better one than they have.
        moving = found.lost = stuck
        found.not_on = frozenset(launch.slot.node for launch in stuck)
    else:
        found.kept += stuck
    places = {query: found.home_of(query) for query in unplaced}
    places |= {q: found.place_of(launch) for launch in moving for q in launch.queries}
    for query in live:
        if query in places:
            found.needs.setdefault(places.get(query), []).append(query)
    return found


def _take_in(found: Standing, stuck: list[Launch], launch: Launch, cluster: Cluster) -> None:
    if launch.is_released:
        if _has_stopped(launch, cluster):
            found.vacated.append(launch)
        else:
            found.kept.append(launch)
            found.told.append((Why.STOPPING, launch))
        return
    fate, why = _fate(launch, cluster, found.topology)
    if fate is _Fate.IS_RELEASABLE:
        found.releasable.append(launch)
        fate = _Fate.STAYS
    {_Fate.STAYS: found.kept, _Fate.IS_LOST: found.lost, _Fate.IS_STUCK: stuck}[fate].append(launch)
    if why is not None:
        found.told.append((why, launch))


def _fate(launch: Launch, cluster: Cluster, topology: Topology) -> tuple[_Fate, Why | None]:
    """Return what becomes of a worker that was not released, and what is to be told of it."""
    status = cluster.workers.get(launch.claim)
    if status is not Status.DEAD:
        return _Fate.STAYS, Why.UNPROVEN if status is Status.UNPROVEN else None
    node, port = launch.slot
    supervisor = cluster.supervisors.get(node)
    is_shared, is_unclaimed = topology.is_shared, topology.is_unclaimed(launch)
    if supervisor is None:
        if is_shared:
            return _Fate.IS_LOST, None
        return (_Fate.IS_RELEASABLE, Why.NO_ROOM) if is_unclaimed else (_Fate.STAYS, Why.NO_MACHINE)
    if not supervisor.is_ours or port not in supervisor.ports | supervisor.running:
        return _Fate.IS_LOST, None
    if port in supervisor.running:
        return _Fate.STAYS, Why.UNHEARD
    fate = _Fate.STAYS
    if supervisor.uptime_secs > cluster.launch_secs:
        fate = _Fate.IS_STUCK if is_shared else _Fate.IS_RELEASABLE if is_unclaimed else fate
    return fate, Why.RESTARTING


def _has_stopped(launch: Launch, cluster: Cluster) -> bool:
    """Return whether nothing runs any more of a worker that was released."""
    node, port = launch.slot
    supervisor = cluster.supervisors.get(node)
    if supervisor is None:
        return cluster.workers.get(launch.claim) is Status.DEAD
    if not supervisor.is_ours:
        return True
    if port not in supervisor.ports:
        return port not in supervisor.running
    stopped = supervisor.stopped.get(port)
    return stopped is not None and stopped >= launch.claim
