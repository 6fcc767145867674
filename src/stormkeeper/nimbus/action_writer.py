"""Carries out the actions of a round; one transaction has the assignments of many topologies.

Each transaction has the leader's fence, and for each assignment the versions of the records that
the plan was made from, and the machines of the checkpoints.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import inf

from stormkeeper.errors import (
    NoNodeError,
    RecordTooLargeError,
    SerializationError,
    StatusError,
    StormkeeperError,
)
from stormkeeper.nimbus import checkpoints, lifecycle
from stormkeeper.nimbus.lifecycle import Command, Event
from stormkeeper.nimbus.scheduling.cluster import Launch, assignment_record, launches_from_record
from stormkeeper.nimbus.scheduling.cluster_memo import ClusterMemo
from stormkeeper.nimbus.scheduling.planning import Action, Assign, FinishRebalance, Remove
from stormkeeper.nimbus.submitted import CachedTopology
from stormkeeper.state.storm.cluster import ClusterSnapshot, LeaderClusterState
from stormkeeper.state.storm.daemon_records import NewAssignment
from stormkeeper.thrift.records import Assignment, StormBase

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ActionWriter:
    """Carries out a plan of `snapshot` and `now`: removals first, each topology's actions in order.

    `check` is called before each write, and raises `NotLeaderError` when the leadership has ended.
    `on_removed` gets a topology's id and owner, `on_done` each action.
    """

    actions: Sequence[Action]
    leader: LeaderClusterState
    snapshot: ClusterSnapshot
    known: Mapping[str, CachedTopology]
    memo: ClusterMemo
    _: KW_ONLY
    now: float
    check: Callable[[], None]
    master_code_dir: str
    on_removed: Callable[[str, str | None], None]
    on_done: Callable[[Action], None]

    def __post_init__(self) -> None:
        rebalanced = {each.storm_id for each in self.actions if isinstance(each, FinishRebalance)}

        def turn(action: Action) -> int:
            # The slots of removed topologies may be others' in the same plan.
            return 0 if isinstance(action, Remove) else 1 + (action.storm_id in rebalanced)

        self._left = deque(sorted(self.actions, key=turn))
        self._unfit: StormkeeperError | None = None

    def write(self, secs: float = inf) -> bool:
        """Carry out actions for about `secs`; return whether none is left.

        After an error no further write begins, but for assignments that cannot be encoded: their
        first error is raised when no other action is left.
        """
        until = time.monotonic() + secs
        while self._left and time.monotonic() < until:
            if isinstance(self._left[0], Assign):
                try:
                    self._assign(until)
                except (RecordTooLargeError, SerializationError) as error:
                    self._unfit = self._unfit or error
            else:
                action = self._left.popleft()
                self.check()
                if isinstance(action, Remove):
                    self._remove(action.storm_id)
                else:
                    self._finish_rebalance(action.storm_id)
                self.on_done(action)
        if self._unfit is not None and not self._left:
            raise self._unfit
        return not self._left

    def _remove(self, storm_id: str) -> None:
        self._keep_checkpoints(storm_id)
        self.leader.remove_storm(storm_id)
        log.info("%s: removed", storm_id)
        base = self.snapshot.bases.get(storm_id)
        self.on_removed(storm_id, None if base is None else base.owner)

    def _finish_rebalance(self, storm_id: str) -> None:
        command = Command(Event.DO_REBALANCE, int(self.now * 1000))
        with contextlib.suppress(NoNodeError):
            self.leader.change_storm(storm_id, lambda base: _after(storm_id, base, command))
            log.info("%s: rebalanced", storm_id)

    def _assign(self, until: float) -> None:
        taken: dict[str, Assign] = {}

        def records() -> Iterator[NewAssignment]:
            while self._left and isinstance(action := self._left[0], Assign):
                taken[action.storm_id] = action
                self._left.popleft()
                yield self._record(action)
                if time.monotonic() > until:
                    return

        def on_written(new: NewAssignment) -> None:
            action = taken[new.storm_id]
            text = _launches_text(action.launches, new.assignment.node_host or {})
            log.info("%s: assigned %s", new.storm_id, text)
            self.memo.expect_launches(new.storm_id, new.assignment, action.launches)
            self.on_done(action)

        self.leader.set_assignments(records(), seen=self.snapshot, on_written=on_written)

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
        # No plan needs a shared checkpoint's machine. The assignment names it until it changes.
        noted = earlier if known.facts.is_shared else (*earlier, *launches)
        base = self._with_checkpoints(storm_id, noted, hosts)
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
