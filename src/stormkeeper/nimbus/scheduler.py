"""The leader's scheduling thread: reads the cluster, and decides by `round`; `ActionWriter` writes.

A round starts on a change in the view (a topology, assignment or supervisor comes or goes, or a
supervisor reports a stopped worker), after a command, and by time. Every write is fenced. After a
write with unknown outcome the next round syncs first. No claim is given twice: each leadership has
its own epoch, and `RoundMemory` has the next counter before a plan's first write.

A plan with thousands of assignments takes several rounds, which begin no write after 0.6 s. After
news the rest is planned anew, but not before writing has taken as long as planning.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import stormkeeper
from stormkeeper import paths
from stormkeeper.daemon.periodic import PeriodicThread
from stormkeeper.errors import ChangedMeanwhileError, NotLeaderError, PacemakerError
from stormkeeper.heartbeats.follower import HeartbeatFollower
from stormkeeper.nimbus.action_writer import ActionWriter
from stormkeeper.nimbus.cleanup import Cleaner
from stormkeeper.nimbus.cluster_status import ClusterStatusTracker
from stormkeeper.nimbus.lifecycle import ConfChanges
from stormkeeper.nimbus.round import Decision, RoundMemory, Timeouts, decide
from stormkeeper.nimbus.scheduling.cluster import Cluster
from stormkeeper.nimbus.scheduling.followed_workers import BeatFacts, beat_facts
from stormkeeper.nimbus.scheduling.planning import Assign, Remove
from stormkeeper.nimbus.submitted import TopologyCache
from stormkeeper.state.storm.cluster import ClusterSnapshot, LeaderClusterState, StormClusterState
from stormkeeper.state.storm.cluster_view import ClusterRecords
from stormkeeper.state.subtrees import Difference
from stormkeeper.thrift.records import SupervisorInfo

log = logging.getLogger(__name__)

#: Longest wait of `end` for the round in progress.
_END_SECS: Final = 5.0
#: Longest wait of a service call for a leadership that is about to begin.
_BEGIN_SECS: Final = 5.0

#: Between readings of heartbeats that no round needs: at least a second, so that a round has few
#: left to read, and so many times the last reading, which thus takes less than a quarter of a core.
_FOLLOW_SECS: Final = 1.0
_IDLE_SHARE: Final = 4.0

#: Between a change and its round: a caller writes several changes at once.
_SETTLE_SECS: Final = 0.02

#: After so long a round begins no further write.
_ROUND_SECS: Final = 0.6


@dataclass(eq=False)
class _Plan:
    """A decision whose writes may take several rounds."""

    decision: Decision
    snapshot: ClusterSnapshot
    writer: ActionWriter
    #: How long the planning took, and the writing until now.
    planned_secs: float = 0.0
    written_secs: float = 0.0
    #: Whether a change since the planning calls for another plan.
    has_news: bool = False


@dataclass(eq=False)
class Scheduler:
    """Schedules while this Nimbus leads. `begin` and `end` alternate on a single thread.

    `clock` returns seconds since 1970 and never jumps. `on_removed` gets a topology's id and owner.
    """

    storm: StormClusterState
    topology_cache: TopologyCache
    timeouts: Timeouts
    status: ClusterStatusTracker
    conf_changes: ConfChanges
    master_code_dir: str
    clock: Callable[[], float]
    on_removed: Callable[[str, str | None], None] = lambda _id, _owner: None

    def __post_init__(self) -> None:
        #: The epoch of `_memory`; a leadership may be interrupted and go on.
        self._epoch: int | None = None
        self._memory = RoundMemory()
        self._needs_sync = True
        #: Of the leadership of `_epoch`, as its memory.
        self._follower = self._new_follower()
        #: Storm's own Nimbuses that the log has warned of.
        self._java: set[str] = set()
        self._rounds: _Rounds | None = None
        #: What is not written yet.
        self._unfinished: _Plan | None = None

    def begin(self, leader: LeaderClusterState) -> None:
        if leader.fence.epoch != self._epoch:
            self._epoch = leader.fence.epoch
            self._memory = RoundMemory()
            self._follower = self._new_follower()
        self._needs_sync, self._unfinished = True, None
        self._rounds = _Rounds(leader, self._once, self._follow)
        self._rounds.start()

    def end(self) -> None:
        """Stop scheduling; waits a few seconds for a write in progress."""
        rounds, self._rounds = self._rounds, None
        if rounds is not None and not rounds.close():
            log.warning(
                "a write of scheduling still runs %g s after the end of this Nimbus's leadership",
                _END_SECS,
            )

    def wake(self) -> None:
        """Start a round at once, if this Nimbus leads; returns at once."""
        rounds = self._rounds
        if rounds is not None:
            rounds.thread.wake()

    def sched_status(self) -> Mapping[str, str]:
        """Return the texts by topology id from when this Nimbus last led."""
        return self._memory.texts

    def _once(self, rounds: _Rounds) -> float:
        """Do a round; returns the seconds until the next."""
        began = time.monotonic()
        plan, self._unfinished = self._unfinished, None
        try:
            if plan is None or self._is_outdated(plan, rounds):
                plan = self._planned(rounds)
                plan.planned_secs = time.monotonic() - began
            write_began = time.monotonic()
            is_done = plan.writer.write(began + _ROUND_SECS - write_began)
            plan.written_secs += time.monotonic() - write_began
            rounds.check()
        except NotLeaderError:
            raise
        except ChangedMeanwhileError as error:
            log.info("%s: planned again", error)
            self._needs_sync = True
            return 0.0
        except Exception:
            self._needs_sync = True
            self.status.record_failure()
            raise
        decision, snapshot = plan.decision, plan.snapshot
        if is_done:
            self._log_texts(decision.memory.texts)
            self._memory = decision.memory
            rounds.watch_supervisors(decision, snapshot)
            if plan.has_news:
                rounds.thread.wake()
        else:
            self._unfinished = plan
        took_secs = time.monotonic() - began
        self.status.record_round(decision.cluster, snapshot.heartbeats, took_secs)
        # The next plan counts the free slots, and places topologies that this one left to it.
        if not is_done or any(isinstance(each, Assign) for each in decision.actions):
            return 0.0
        return max(0.0, decision.next_round_at - self.clock())

    def _is_outdated(self, plan: _Plan, rounds: _Rounds) -> bool:
        plan.has_news |= rounds.thread.was_woken or self.clock() >= plan.decision.next_round_at
        # Else plans that take longer than a round would never be written.
        return plan.has_news and plan.written_secs >= plan.planned_secs

    def _planned(self, rounds: _Rounds) -> _Plan:
        leader, epoch = rounds.leader, rounds.leader.fence.epoch
        now = self.clock()
        snapshot = self._snapshot(leader, is_synced=self._needs_sync)
        self._needs_sync = False
        if self.conf_changes.finish(leader, snapshot.bases):
            snapshot = self._snapshot(leader)
        self._warn_of_java(snapshot)
        known = self.topology_cache.topologies(snapshot, self._memory.texts)
        decision = decide(
            self._memory,
            snapshot,
            {storm_id: each.facts for storm_id, each in known.items()},
            now=now,
            epoch=epoch,
            timeouts=self.timeouts,
            default_wait_secs={storm_id: each.wait_secs for storm_id, each in known.items()},
        )
        rounds.check()
        # Claims count as given even if a write fails; texts hold only after the writes.
        self._memory = replace(decision.memory, texts=self._memory.texts)
        writer = ActionWriter(
            decision.actions,
            leader,
            snapshot,
            known,
            self._memory.memo,
            now=now,
            check=rounds.check,
            master_code_dir=self.master_code_dir,
            on_removed=self.on_removed,
            on_done=self.status.record_action,
        )
        return _Plan(decision, snapshot, writer)

    def _new_follower(self) -> HeartbeatFollower[BeatFacts]:
        return self.storm.heartbeats.follower(beat_facts, values=False)

    def _snapshot(self, leader: LeaderClusterState, *, is_synced: bool = False) -> ClusterSnapshot:
        return leader.snapshot(
            may_lack_heartbeats=True,
            is_synced=is_synced,
            follower=self._follower,
            clock=self.clock,
        )

    def _follow(self) -> float:
        """Read changed heartbeats between rounds; return the pause before the next reading."""
        began = time.monotonic()
        if self._follower.reads_changes:
            # A round tells what cannot be read.
            with contextlib.suppress(PacemakerError):
                self._follower.refresh(hurried=True)
        return max(_FOLLOW_SECS, _IDLE_SHARE * (time.monotonic() - began))

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

    def _log_texts(self, texts: Mapping[str, str]) -> None:
        for storm_id, text in () if texts is self._memory.texts else texts.items():
            if self._memory.texts.get(storm_id) != text:
                log.info("%s: %s", storm_id, text)


class _Rounds:
    """The rounds of a leadership: a thread that also changes of the cluster wake.

    Another thread follows the heartbeats, so that a round has little to read.
    """

    def __init__(
        self,
        leader: LeaderClusterState,
        once: Callable[[_Rounds], float],
        follow: Callable[[], float],
    ) -> None:
        self.leader = leader
        self._following = PeriodicThread(
            "nimbus heartbeats", follow, first_secs=_FOLLOW_SECS, logger=log
        )
        self.thread = PeriodicThread(
            "nimbus scheduling", lambda: once(self), settle_secs=_SETTLE_SECS, logger=log
        )
        self._watched: frozenset[str] = frozenset()
        #: The cluster that `_watched` is of.
        self._planned: Cluster | None = None

    def start(self) -> None:
        self.leader.view.subscription.add_listener(self._on_change)
        self.thread.start()
        self._following.start()

    def close(self) -> bool:
        """End the threads; return whether the last round ended in time."""
        self.leader.view.subscription.remove_listener(self._on_change)
        self.leader.view.subscription.hurry(())
        self._following.close(0.0)
        has_ended = self.thread.close(_END_SECS)
        self._following.close(_END_SECS)
        return has_ended

    def check(self) -> None:
        """Raise `NotLeaderError` if the leadership ended.

        A leadership may be interrupted and go on with the same lock: ZooKeeper would then accept
        the writes of the old round.
        """
        if self.thread.is_closing:
            raise NotLeaderError("this leadership ended, and its round with it")

    def watch_supervisors(self, decision: Decision, seen: ClusterRecords) -> None:
        """Start a round when a supervisor reports a released or removed worker stopped."""
        planned, self._planned = self._planned, decision.cluster
        if decision.actions or planned is None or not planned.has_same_parts(decision.cluster):
            self._watched = frozenset(_supervisors_to_watch(decision))
            self.leader.view.subscription.hurry([paths.supervisor(each) for each in self._watched])
        # A report that came during the round was not watched for.
        before, now = seen.supervisors, self.leader.view.latest().supervisors
        if any(
            _stopped_workers(before.get(i)) != _stopped_workers(now.get(i)) for i in self._watched
        ):
            self.thread.wake()

    def _on_change(self, changes: Sequence[Difference]) -> None:
        if not self.thread.is_woken and any(map(self._needs_round, changes)):
            self.thread.wake()

    def _needs_round(self, change: Difference) -> bool:
        """Return whether a topology or supervisor came or went, or an assignment or worker ended.

        A new assignment is the leader's own. Other changes of supervisors' records, which are
        frequent, and of bases wait for the next round.
        """
        directory, _, name = change.path.rpartition("/")
        if change.after is None and directory == paths.ASSIGNMENTS:
            return True
        if change.before is None or change.after is None:
            return directory in (paths.STORMS, paths.SUPERVISORS)
        if directory != paths.SUPERVISORS or name not in self._watched:
            return False
        return _stopped_workers(change.before.value) != _stopped_workers(change.after.value)


def _supervisors_to_watch(decision: Decision) -> set[str]:
    """Return the supervisors that have yet to report a released or removed worker stopped."""
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


def _stopped_workers(info: object) -> object:
    return (info.used_ports, info.stopped_workers) if isinstance(info, SupervisorInfo) else None


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader's tools for a service call."""

    #: ZooKeeper refuses its writes once this Nimbus no longer leads.
    leader: LeaderClusterState
    wake: Callable[[], None]


@dataclass(eq=False)
class LeaderDuties:
    """Starts and stops the scheduler and the cleaner as this Nimbus gains and loses leadership.

    The election calls `begin` and `end` alternately on one thread; the rest is thread-safe.
    """

    scheduler: Scheduler
    cleaner: Cleaner
    status: ClusterStatusTracker
    _current: Leadership | None = field(default=None, init=False)
    _has_begun: threading.Condition = field(default_factory=threading.Condition, init=False)

    @property
    def leader(self) -> LeaderClusterState | None:
        """None while this Nimbus does not lead."""
        current = self._current
        return None if current is None else current.leader

    def current(self, is_next: Callable[[], bool] = lambda: False) -> Leadership:
        """Return the current leadership; raises `NotLeaderError` if this Nimbus does not lead.

        If `is_next` says that other Nimbuses already name this one as leader, the call waits a few
        seconds for the leadership.
        """
        if self._current is None and is_next():
            with self._has_begun:
                self._has_begun.wait_for(lambda: self._current is not None, _BEGIN_SECS)
        current = self._current
        if current is None:
            raise NotLeaderError("this Nimbus does not lead: ask it who does, and call that one")
        return current

    def begin(self, leader: LeaderClusterState) -> None:
        self.status.record_leadership(leader.fence.epoch)
        self.scheduler.begin(leader)
        self.cleaner.begin(leader)
        with self._has_begun:
            self._current = Leadership(leader, self.scheduler.wake)
            self._has_begun.notify_all()

    def end(self) -> None:
        """Stop leading; waits a few seconds for a write in progress."""
        self._current = None
        try:
            self.scheduler.end()
        finally:
            self.cleaner.end()
            self.status.record_leadership(None)
