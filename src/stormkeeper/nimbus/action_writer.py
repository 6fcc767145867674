"""Carries out the actions of a round, those of different topologies at the same time.

Each write is a transaction of its own: with the leader's fence, and for an assignment with the
versions of the records that the plan was made from, and with the machines of the checkpoints.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, assert_never

from stormkeeper.errors import NoNodeError, NotLeaderError, StatusError
from stormkeeper.nimbus import checkpoints, lifecycle
from stormkeeper.nimbus.lifecycle import Command, Event
from stormkeeper.nimbus.scheduling.cluster import Launch, assignment_record, launches_from_record
from stormkeeper.nimbus.scheduling.planning import (
    Action,
    Assign,
    FinishRebalance,
    Remove,
    SetStatus,
)
from stormkeeper.nimbus.submitted import CachedTopology
from stormkeeper.state.storm.cluster import ClusterSnapshot, LeaderClusterState
from stormkeeper.thrift.records import Assignment, StormBase

log = logging.getLogger(__name__)

#: Topologies whose writes are under way at once: a write mostly waits for ZooKeeper's disk.
AT_ONCE: Final = 16


class ActionWriter:
    """Carries out actions that were decided from `snapshot` at `now`.

    `check` is called before each action, and raises `NotLeaderError` when the leadership has ended.
    `on_removed` gets a topology's id and owner, `on_done` each action; both may be called by
    several threads.
    """

    def __init__(
        self,
        leader: LeaderClusterState,
        snapshot: ClusterSnapshot,
        known: Mapping[str, CachedTopology],
        *,
        now: float,
        check: Callable[[], None],
        master_code_dir: str,
        on_removed: Callable[[str, str | None], None],
        on_done: Callable[[Action], None],
    ) -> None:
        self._leader = leader
        self._snapshot = snapshot
        self._known = known
        self._now = now
        self._check = check
        self._master_code_dir = master_code_dir
        self._on_removed = on_removed
        self._on_done = on_done
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Carry out a plan: removals first, and each topology's actions in order.

        After an error no further action begins, and those that have begun end; raises the first
        error, or a `NotLeaderError`.
        """
        others: dict[str, list[Action]] = {}
        for action in actions:
            if isinstance(action, Remove):
                # The slots of removed topologies may be others' in the same plan.
                self._do([action])
            else:
                others.setdefault(action.storm_id, []).append(action)
        if len(others) > 1:
            with ThreadPoolExecutor(min(AT_ONCE, len(others)), "nimbus assignments") as pool:
                for each in others.values():
                    pool.submit(self._do, each)
        else:
            for each in others.values():
                self._do(each)
        if self._error is not None:
            raise self._error

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if self._error is not None:
                return
            try:
                self._check()
                self._carry_out(action)
                self._on_done(action)
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None or isinstance(error, NotLeaderError):
                self._error = error

    def _carry_out(self, action: Action) -> None:
        storm_id = action.storm_id
        match action:
            case Remove():
                self._keep_checkpoints(storm_id)
                self._leader.remove_storm(storm_id)
                log.info("%s: removed", storm_id)
                base = self._snapshot.bases.get(storm_id)
                self._on_removed(storm_id, None if base is None else base.owner)
            case Assign(launches=launches):
                was = self._snapshot.assignments.get(storm_id)
                earlier = () if was is None else launches_from_record(was)
                hosts = self._hosts((*earlier, *launches), was)
                record = assignment_record(
                    launches,
                    self._known[storm_id].executors,
                    master_code_dir=self._master_code_dir,
                    hosts=hosts,
                    owner=self._snapshot.bases[storm_id].owner,
                )
                self._leader.set_assignment(
                    storm_id,
                    record,
                    self._known[storm_id].conf,
                    seen=self._snapshot,
                    base=self._with_checkpoints(storm_id, (*earlier, *launches), hosts),
                )
                log.info("%s: assigned %s", storm_id, _launches_text(launches, hosts))
            case FinishRebalance():
                command = Command(Event.DO_REBALANCE, int(self._now * 1000))
                try:
                    self._leader.change_storm(
                        storm_id, lambda base: _after(storm_id, base, command)
                    )
                except NoNodeError:
                    return
                log.info("%s: rebalanced", storm_id)
            case SetStatus():
                pass  # `decide` returns none of these
            case _:
                assert_never(action)

    def _hosts(self, launches: Iterable[Launch], was: Assignment | None) -> dict[str, str]:
        """Return the host names of the launches' supervisors, as far as they are known."""
        last = (was.node_host if was is not None else None) or {}
        found = {}
        for node in {launch.slot.node for launch in launches}:
            info = self._snapshot.supervisors.get(node)
            host = last.get(node) if info is None else info.hostname
            if host is not None:
                found[node] = host
        return found

    def _with_checkpoints(
        self, storm_id: str, launches: Iterable[Launch], hosts: Mapping[str, str]
    ) -> StormBase | None:
        """Return the base with the machines of the launches' checkpoints; None if it says so."""
        base = self._snapshot.bases[storm_id]
        known = base.checkpoints
        noted = None if known is None else checkpoints.placed(known, launches, hosts)
        if noted is known:
            return None
        changed = copy.copy(base)
        changed.checkpoints = noted
        return changed

    def _keep_checkpoints(self, storm_id: str) -> None:
        base = self._snapshot.bases.get(storm_id)
        assignment = self._snapshot.assignments.get(storm_id)
        if base is None or base.checkpoints is None:
            return
        launches = () if assignment is None else launches_from_record(assignment)
        kept = checkpoints.ended(
            checkpoints.placed(
                base.checkpoints, launches, None if assignment is None else assignment.node_host
            ),
            int(self._now * 1000),
            self._snapshot.supervisors.keys(),
            purge=lifecycle.is_purged(base),
        )
        if kept is not None:
            self._leader.set_checkpoints(kept)


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
