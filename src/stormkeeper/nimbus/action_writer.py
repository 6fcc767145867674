"""Carries out the actions of a round; one transaction has the assignments of many topologies.

Each transaction has the leader's fence, and for each assignment the versions of the records that
the plan was made from, and the machines of the checkpoints.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stormkeeper.errors import NoNodeError, StatusError
from stormkeeper.nimbus import checkpoints, lifecycle
from stormkeeper.nimbus.lifecycle import Command, Event
from stormkeeper.nimbus.scheduling.cluster import Launch, assignment_record, launches_from_record
from stormkeeper.nimbus.scheduling.planning import Action, Assign, FinishRebalance, Remove
from stormkeeper.nimbus.submitted import CachedTopology
from stormkeeper.state.storm.cluster import ClusterSnapshot, LeaderClusterState
from stormkeeper.state.storm.daemon_records import NewAssignment
from stormkeeper.thrift.records import Assignment, StormBase

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActionWriter:
    """Carries out actions that were decided from `snapshot` at `now`.

    `check` is called before each write, and raises `NotLeaderError` when the leadership has ended.
    `on_removed` gets a topology's id and owner, `on_done` each action.
    """

    leader: LeaderClusterState
    snapshot: ClusterSnapshot
    known: Mapping[str, CachedTopology]
    now: float
    check: Callable[[], None]
    master_code_dir: str
    on_removed: Callable[[str, str | None], None]
    on_done: Callable[[Action], None]

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Carry out a plan: removals first, and each topology's actions in order.

        After an error no further write begins; raises the first error.
        """
        rebalanced = {each.storm_id for each in actions if isinstance(each, FinishRebalance)}
        assigns = []
        for action in actions:
            if isinstance(action, Remove):
                # The slots of removed topologies may be others' in the same plan.
                self._remove(action)
            elif isinstance(action, Assign) and action.storm_id not in rebalanced:
                assigns.append(action)
        self._assign(assigns)
        for action in actions:
            if isinstance(action, FinishRebalance):
                self._finish_rebalance(action)
            elif isinstance(action, Assign) and action.storm_id in rebalanced:
                self._assign([action])

    def _remove(self, action: Remove) -> None:
        self.check()
        storm_id = action.storm_id
        self._keep_checkpoints(storm_id)
        self.leader.remove_storm(storm_id)
        log.info("%s: removed", storm_id)
        base = self.snapshot.bases.get(storm_id)
        self.on_removed(storm_id, None if base is None else base.owner)
        self.on_done(action)

    def _finish_rebalance(self, action: FinishRebalance) -> None:
        self.check()
        storm_id = action.storm_id
        command = Command(Event.DO_REBALANCE, int(self.now * 1000))
        with contextlib.suppress(NoNodeError):
            self.leader.change_storm(storm_id, lambda base: _after(storm_id, base, command))
            log.info("%s: rebalanced", storm_id)
        self.on_done(action)

    def _assign(self, actions: Sequence[Assign]) -> None:
        by_id = {each.storm_id: each for each in actions}

        def on_written(new: NewAssignment) -> None:
            action = by_id[new.storm_id]
            text = _launches_text(action.launches, new.assignment.node_host or {})
            log.info("%s: assigned %s", new.storm_id, text)
            self.on_done(action)

        records = map(self._record, actions)
        self.leader.set_assignments(records, seen=self.snapshot, on_written=on_written)

    def _record(self, action: Assign) -> NewAssignment:
        self.check()
        storm_id, launches = action.storm_id, action.launches
        was, known = self.snapshot.assignments.get(storm_id), self.known[storm_id]
        earlier = () if was is None else launches_from_record(was)
        hosts = self._hosts((*earlier, *launches), was)
        assignment = assignment_record(
            launches,
            known.executors,
            master_code_dir=self.master_code_dir,
            hosts=hosts,
            owner=self.snapshot.bases[storm_id].owner,
        )
        base = self._with_checkpoints(storm_id, (*earlier, *launches), hosts)
        return NewAssignment(storm_id, assignment, known.conf, base)

    def _hosts(self, launches: Iterable[Launch], was: Assignment | None) -> dict[str, str]:
        """Return the host names of the launches' supervisors, as far as they are known."""
        last = (was.node_host if was is not None else None) or {}
        found = {}
        for node in {launch.slot.node for launch in launches}:
            info = self.snapshot.supervisors.get(node)
            host = last.get(node) if info is None else info.hostname
            if host is not None:
                found[node] = host
        return found

    def _with_checkpoints(
        self, storm_id: str, launches: Iterable[Launch], hosts: Mapping[str, str]
    ) -> StormBase | None:
        """Return the base with the machines of the launches' checkpoints; None if it says so."""
        base = self.snapshot.bases[storm_id]
        known = base.checkpoints
        noted = None if known is None else checkpoints.placed(known, launches, hosts)
        if noted is known:
            return None
        changed = copy.copy(base)
        changed.checkpoints = noted
        return changed

    def _keep_checkpoints(self, storm_id: str) -> None:
        base = self.snapshot.bases.get(storm_id)
        assignment = self.snapshot.assignments.get(storm_id)
        if base is None or base.checkpoints is None:
            return
        launches = () if assignment is None else launches_from_record(assignment)
        kept = checkpoints.ended(
            checkpoints.placed(
                base.checkpoints, launches, None if assignment is None else assignment.node_host
            ),
            int(self.now * 1000),
            self.snapshot.supervisors.keys(),
            purge=lifecycle.is_purged(base),
        )
        if kept is not None:
            self.leader.set_checkpoints(kept)


def _after(storm_id: str, base: StormBase, command: Command) -> StormBase:
    try:
        return lifecycle.after(storm_id, base, command) or base
    except StatusError:
        return base


def _launches_text(launches: Iterable[Launch], hosts: Mapping[str, str]) -> str:
    texts = []
    for launch in launches:
        node, port = launch.slot
        what = "nothing more" if launch.is_released else " ".join(launch.queries)
        texts.append(f"{hosts.get(node, node)}:{port} runs {what} (claim {launch.claim})")
    return "; ".join(texts) or "no workers"
