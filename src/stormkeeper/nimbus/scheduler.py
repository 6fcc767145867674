"""The leader's scheduling: reads the cluster, decides by `deciding`, and writes what follows.

A round is begun by a watch (a topology, an assignment or a supervisor comes or goes, or a
supervisor says that a worker has stopped), by whoever has written something, and by time: when a
kill or a rebalance is due, when a worker may be dead, and every ``nimbus.monitor.freq.secs``. What
comes meanwhile is one more round. Each write is fenced. After one whose outcome is not known the
next round reads what there is, behind a sync. No claim is given twice: the counter is kept before
the first write, for as long as the epoch lasts.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, assert_never

import stormkeeper
from stormkeeper import paths
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import NoNodeError, NotLeaderError, SerializationError, StatusError
from stormkeeper.nimbus import checkpoints, lifecycle
from stormkeeper.nimbus.conf_changes import ConfChanges
from stormkeeper.nimbus.deciding import Decision, Memory, decide
from stormkeeper.nimbus.knowing import Knowledge, Known
from stormkeeper.nimbus.lifecycle import Command, Event
from stormkeeper.nimbus.scheduling import mapping
from stormkeeper.nimbus.scheduling.actions import (
    Action,
    Assign,
    FinishRebalance,
    Remove,
    SetStatus,
)
from stormkeeper.nimbus.scheduling.cluster import Launch
from stormkeeper.nimbus.sight import Sight
from stormkeeper.nimbus.times import Times
from stormkeeper.state.storm.cluster import ClusterSnapshot, LeaderClusterState, StormClusterState
from stormkeeper.state.storm.subscriptions import Callback
from stormkeeper.thrift.records import StormBase, SupervisorInfo

log = logging.getLogger(__name__)

Value = TypeVar("Value")

#: How long `end` waits for a round that is under way, in seconds.
_END_SECS: Final = 5.0

#: Pause between a change and its round, in seconds: a caller writes several changes at once.
_SETTLE_SECS: Final = 0.02


class Scheduler:
    """Schedules while this Nimbus leads. `begin` and `end` take turns, on one thread.

    Parameters
    ----------
    storm
        The session.
    knowledge
        Knows topologies by their code.
    times
        What is configured.
    sight
        Is told what is seen.
    conf_changes
        Saves what rebalances of former leaders have left unsaved.
    master_code_dir
        Where this Nimbus keeps code, as assignments have it.
    clock
        Seconds since 1970, which never jump.
    removed
        Is told of each topology that is removed: its id, and its owner.
    """

    def __init__(
        self,
        storm: StormClusterState,
        knowledge: Knowledge,
        times: Times,
        sight: Sight,
        *,
        conf_changes: ConfChanges,
        master_code_dir: str,
        clock: Callable[[], float],
        removed: Callable[[str, str | None], None] = lambda _id, _owner: None,
    ) -> None:
        self._storm = storm
        self._removed = removed
        self._knowledge = knowledge
        self._times = times
        self._sight = sight
        self._conf_changes = conf_changes
        self._master_code_dir = master_code_dir
        self._clock = clock
        #: Of the reign of `_epoch`, with its interruptions.
        self._epoch: int | None = None
        self._memory = Memory()
        #: Whether somebody else may have written what was not read yet.
        self._is_unsure = True
        self._needs_values = False
        #: The Nimbuses of Storm's own of which the log warns.
        self._java: set[str] = set()
        self._round: _Round | None = None

    def begin(self, leader: LeaderClusterState) -> None:
        """Schedule, from now on; returns at once."""
        if leader.fence.epoch != self._epoch:
            self._epoch = leader.fence.epoch
            self._memory = Memory()
        self._is_unsure = True
        self._round = _Round(leader, self._once)
        self._round.thread.start()

    def end(self) -> None:
        """Schedule no more; a write that is under way is waited for."""
        this, self._round = self._round, None
        if this is not None and not this.thread.close(_END_SECS):
            log.warning("scheduling is still at a write %g s after this Nimbus led", _END_SECS)

    def wake(self) -> None:
        """Have it look at once; returns at once, whether or not this Nimbus leads."""
        this = self._round
        if this is not None:
            this.thread.wake()

    def sched_status(self) -> Mapping[str, str]:
        """Return what was told of topologies when this Nimbus last led, by their ids."""
        return self._memory.texts

    def _once(self, this: _Round) -> float:
        """Do a round, and return after how many seconds the next one is due."""
        began = time.monotonic()
        try:
            decision, snapshot = self._decide(this)
        except NotLeaderError:
            raise
        except Exception:
            self._is_unsure = True
            self._sight.failed()
            raise
        self._sight.looked(decision.cluster, snapshot.heartbeats, time.monotonic() - began)
        return max(0.0, decision.again_at - self._clock())

    def _decide(self, this: _Round) -> tuple[Decision, ClusterSnapshot]:
        leader, epoch = this.leader, this.leader.fence.epoch
        if self._is_unsure:
            self._storm.state.sync_path(paths.STORMS)
            self._is_unsure = False
        # Before the read: what changes from then on is another round.
        this.watch_lists()
        now = self._clock()
        snapshot = self._snapshot(leader)
        if self._conf_changes.finish(leader, snapshot.bases):
            snapshot = self._snapshot(leader)
        self._warn_of_java(snapshot)
        known = self._knowledge.of(snapshot, self._memory.texts)
        decision = decide(
            self._memory,
            snapshot,
            {storm_id: each.facts for storm_id, each in known.items()},
            now=now,
            epoch=epoch,
            times=self._times,
            default_wait_secs={storm_id: each.wait_secs for storm_id, each in known.items()},
        )
        this.check()
        # Whatever becomes of the writes, their claims were given. What is told is true afterwards.
        self._memory = replace(decision.memory, texts=self._memory.texts)
        for action in decision.actions:
            this.check()
            self._carry_out(action, leader, snapshot, known, now)
            self._sight.did(action)
        this.check()
        self._tell(decision.memory.texts)
        self._memory = decision.memory
        this.watch_supervisors(_awaited(decision), snapshot.supervisors)
        return decision, snapshot

    def _snapshot(self, leader: LeaderClusterState) -> ClusterSnapshot:
        read = partial(leader.snapshot, may_lack_heartbeats=True, clock=self._clock)
        snapshot = read(values=self._needs_values)
        # Only where a Pacemaker tells no ages does a value say when its worker beat.
        ageless = [one for one in snapshot.heartbeats.by_path.values() if one.age_secs is None]
        was_needed, self._needs_values = self._needs_values, bool(ageless)
        if ageless and not was_needed:
            snapshot = read(values=True)
        return snapshot

    def _warn_of_java(self, snapshot: ClusterSnapshot) -> None:
        found = {
            name
            for name, each in snapshot.nimbuses.items()
            if each.stormkeeper is None and each.version != stormkeeper.UNNAMED_VERSION
        }
        for name in sorted(found - self._java):
            log.warning(
                "%s is a Nimbus of Storm %s: stop it, as it cannot run topologies of Stormkeeper"
                " once it leads",
                name,
                snapshot.nimbuses[name].version,
            )
        self._java = found

    def _carry_out(
        self,
        action: Action,
        leader: LeaderClusterState,
        snapshot: ClusterSnapshot,
        known: Mapping[str, Known],
        now: float,
    ) -> None:
        storm_id = action.storm_id
        match action:
            case Remove():
                self._keep_checkpoints(storm_id, leader, snapshot, now)
                leader.remove_storm(storm_id)
                log.info("%s: removed", storm_id)
                base = snapshot.bases.get(storm_id)
                self._removed(storm_id, None if base is None else base.owner)
            case Assign(launches=launches):
                was = snapshot.assignments.get(storm_id)
                hosts = dict((was.node_host if was is not None else None) or {})
                hosts |= {id_: info.hostname for id_, info in snapshot.supervisors.items()}
                record = mapping.assignment(
                    launches,
                    known[storm_id].executors,
                    master_code_dir=self._master_code_dir,
                    hosts=hosts,
                    owner=snapshot.bases[storm_id].owner,
                )
                leader.set_assignment(storm_id, record, known[storm_id].conf)
                log.info("%s: assigned %s", storm_id, _told(launches, hosts))
                earlier = () if was is None else mapping.launches(was)
                _note_checkpoints(
                    storm_id, leader, snapshot.bases[storm_id], (*earlier, *launches), hosts
                )
            case FinishRebalance():
                command = Command(Event.DO_REBALANCE, int(now * 1000))
                try:
                    leader.change_storm(storm_id, lambda base: _after(storm_id, base, command))
                except NoNodeError:
                    return
                log.info("%s: rebalanced", storm_id)
            case SetStatus():
                pass  # what is told is no record
            case _:
                assert_never(action)

    def _keep_checkpoints(
        self, storm_id: str, leader: LeaderClusterState, snapshot: ClusterSnapshot, now: float
    ) -> None:
        """Write down what becomes of the checkpoints of a topology that is removed next."""
        base, assignment = snapshot.bases.get(storm_id), snapshot.assignments.get(storm_id)
        if base is None or base.checkpoints is None:
            return
        launches = () if assignment is None else mapping.launches(assignment)
        kept = checkpoints.ended(
            checkpoints.placed(
                base.checkpoints, launches, None if assignment is None else assignment.node_host
            ),
            int(now * 1000),
            snapshot.supervisors.keys(),
            purge=lifecycle.is_purged(base),
        )
        if kept is not None:
            leader.set_checkpoints(kept)

    def _tell(self, texts: Mapping[str, str]) -> None:
        for storm_id, text in texts.items():
            if self._memory.texts.get(storm_id) != text:
                log.info("%s: %s", storm_id, text)


class _Round:
    """The rounds of one reign: their thread, and the watches that wake it."""

    def __init__(self, leader: LeaderClusterState, once: Callable[[_Round], float]) -> None:
        self.leader = leader
        self.thread = PeriodicThread(
            "nimbus scheduling", lambda: once(self), settle_secs=_SETTLE_SECS, logger=log
        )
        #: By what they are left on: the watches that have not been told yet.
        self._left: set[str] = set()

    def check(self) -> None:
        """Fail if the reign is over: one that follows may have the same fence."""
        if self.thread.is_closing:
            raise NotLeaderError("the reign is over, and nothing more is done in it")

    def watch_lists(self) -> None:
        """Leave watches on what comes and goes, where none is left."""
        self._watch(paths.STORMS, self.leader.active_storms)
        self._watch(paths.ASSIGNMENTS, self.leader.assignments)
        self._watch(paths.SUPERVISORS, self.leader.supervisors)

    def watch_supervisors(
        self, supervisor_ids: Iterable[str], read: Mapping[str, SupervisorInfo]
    ) -> None:
        """Leave watches on what supervisors say, and look again if one has spoken since `read`."""
        for id_ in supervisor_ids:
            path = paths.supervisor(id_)
            if path not in self._left:
                info = self._watch(path, partial(self.leader.supervisor_info, id_))
                if _said(info) != _said(read.get(id_)):
                    self.thread.wake()

    def _watch(self, path: str, read: Callable[[Callback], Value]) -> Value | None:
        """Read with a watch, if none is left there; None, too, where no record can be read."""
        if path in self._left:
            return None

        def told() -> None:
            self._left.discard(path)
            self.thread.wake()

        self._left.add(path)
        try:
            return read(told)
        except SerializationError:
            return None  # the watch is left all the same
        except BaseException:
            self._left.discard(path)
            raise


def _awaited(decision: Decision) -> set[str]:
    """Return the supervisors that are to say that a worker has stopped.

    It was released, or its topology is gone, and its slot is nobody's when it has.
    """
    supervisors = decision.cluster.supervisors
    before = (one for each in decision.cluster.topologies.values() for one in each.launches)
    after = (one for each in decision.actions if isinstance(each, Assign) for one in each.launches)
    launches = [*before, *after]
    released = {one.slot.node for one in launches if one.is_released}
    removed = {each.storm_id for each in decision.actions if isinstance(each, Remove)}
    gone = (decision.cluster.topologies.get(storm_id) for storm_id in removed)
    released |= {one.slot.node for each in gone if each is not None for one in each.launches}
    slots = {one.slot for one in launches}
    strange = {
        id_ for id_, each in supervisors.items() if any((id_, p) not in slots for p in each.running)
    }
    return (released & supervisors.keys()) | strange


def _said(info: SupervisorInfo | None) -> object:
    """Return what a supervisor says of workers that have stopped."""
    return None if info is None else (info.used_ports, info.stopped_workers)


def _after(storm_id: str, base: StormBase, command: Command) -> StormBase:
    """Return a base after its rebalance, or as it is if it has taken another way meanwhile."""
    try:
        return lifecycle.after(storm_id, base, command) or base
    except StatusError:
        return base


def _note_checkpoints(
    storm_id: str,
    leader: LeaderClusterState,
    base: StormBase,
    launches: Iterable[Launch],
    hosts: Mapping[str, str],
) -> None:
    """Have a base say on which machines its topology has checkpoints."""
    known = base.checkpoints
    if known is None or checkpoints.placed(known, launches, hosts) is known:
        return

    def noted(now: StormBase) -> StormBase:
        changed = copy.copy(now)
        changed.checkpoints = checkpoints.placed(now.checkpoints or known, launches, hosts)
        return changed

    with contextlib.suppress(NoNodeError):  # it is gone
        leader.change_storm(storm_id, noted)


def _told(launches: Iterable[Launch], hosts: Mapping[str, str]) -> str:
    """Return who runs what, for the log."""
    said = []
    for launch in launches:
        node, port = launch.slot
        what = "nothing more" if launch.is_released else " ".join(launch.queries)
        said.append(f"{hosts.get(node, node)}:{port} runs {what} (claim {launch.claim})")
    return "; ".join(said) or "no workers"
