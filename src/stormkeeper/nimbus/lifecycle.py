"""A topology's life: the commands that each status takes, the base after each, and conf changes.

The table is Storm's, with two differences. The base has the deadline of a kill or a rebalance, so
that any later leader finishes it. A second kill can only shorten the wait, or have the checkpoints
removed as well.

A rebalance writes new conf values into the base, then into the conf, and records that in the base
before it is carried out: so the next leader can finish it.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from stormkeeper.blobs import keys
from stormkeeper.blobs.distributor import CodeDistributor
from stormkeeper.errors import CodeError, NoNodeError, SerializationError, StatusError
from stormkeeper.nimbus.submitted import decode_conf, encode_conf
from stormkeeper.state.storm.cluster import LeaderClusterState
from stormkeeper.thrift.records import (
    KillOptions,
    RebalanceOptions,
    StormBase,
    TopologyActionOptions,
    TopologyStatus,
)

log = logging.getLogger(__name__)

_CONF: Final = keys.PARTS[2]


class Event(Enum):
    """An event in a topology's life."""

    ACTIVATE = "activate"
    INACTIVATE = "deactivate"
    REBALANCE = "rebalance"
    KILL = "kill"
    #: The deadline of a rebalance has passed.
    DO_REBALANCE = "do rebalance"
    #: The deadline of a kill has passed.
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Command:
    """An event with arguments."""

    event: Event
    now_ms: int
    #: Of a kill or a rebalance.
    wait_secs: int = 0
    rebalance: RebalanceOptions | None = None
    purge: bool = False


_Step = Callable[[StormBase, Command], StormBase | None]


def after(storm_id: str, base: StormBase, command: Command) -> StormBase | None:
    """Return a topology's base after a command; None: removed. Raises `StatusError`."""
    step = _TABLE[base.status].get(command.event)
    if step is None:
        raise StatusError(
            f"the topology {storm_id} is {base.status.name}, and cannot {command.event.value}:"
            f" {_REMEDIES[base.status]}"
        )
    return step(copy.copy(base), command)


def is_purged(base: StormBase) -> bool:
    """Return whether a killed topology's checkpoints are removed, too."""
    asked = base.topology_action_options
    options = asked.kill_options if asked is not None else None
    return options is not None and bool(options.purge)


def unsaved_conf(base: StormBase) -> str | None:
    """Return a rebalance's unsaved conf changes, as JSON; None: none."""
    asked = base.topology_action_options
    options = asked.rebalance_options if asked is not None else None
    if options is None or base.status is not TopologyStatus.REBALANCING:
        return None
    return options.topology_conf_overrides or None


def conf_saved(base: StormBase) -> StormBase:
    asked = base.topology_action_options
    if unsaved_conf(base) is None or asked is None or asked.rebalance_options is None:
        return base  # it is being killed by now, or another Nimbus was quicker
    changed, options = copy.copy(base), copy.copy(asked.rebalance_options)
    options.topology_conf_overrides = None
    changed.topology_action_options = TopologyActionOptions(rebalance_options=options)
    return changed


def conf_refused(base: StormBase) -> StormBase:
    """Return the base without the rebalance, whose conf changes were refused."""
    if unsaved_conf(base) is None:
        return base
    changed = copy.copy(base)
    changed.status = base.prev_status or TopologyStatus.ACTIVE
    changed.prev_status = changed.topology_action_options = changed.deadline_ms = None
    return changed


def _stays(base: StormBase, _: Command) -> StormBase:
    return base


def _becomes(status: TopologyStatus) -> _Step:
    def step(base: StormBase, _: Command) -> StormBase:
        base.status = status
        return base

    return step


def _begins_rebalance(base: StormBase, command: Command) -> StormBase:
    options = copy.copy(command.rebalance or RebalanceOptions())
    options.wait_secs = command.wait_secs
    base.prev_status = base.status
    base.status = TopologyStatus.REBALANCING
    base.topology_action_options = TopologyActionOptions(rebalance_options=options)
    base.deadline_ms = _deadline_ms(command)
    return base


def _begins_kill(base: StormBase, command: Command) -> StormBase:
    base.prev_status = None  # there is no way back
    base.status = TopologyStatus.KILLED
    base.topology_action_options = TopologyActionOptions(
        kill_options=KillOptions(wait_secs=command.wait_secs, purge=command.purge or None)
    )
    base.deadline_ms = _deadline_ms(command)
    return base


def _hastens_kill(base: StormBase, command: Command) -> StormBase:
    purge = command.purge or is_purged(base)
    if base.deadline_ms is None or _deadline_ms(command) < base.deadline_ms:
        return _begins_kill(base, replace(command, purge=purge))
    asked = base.topology_action_options
    if purge and asked is not None and asked.kill_options is not None:
        options = KillOptions(wait_secs=asked.kill_options.wait_secs, purge=True)
        base.topology_action_options = TopologyActionOptions(kill_options=options)
    return base


def _finishes_rebalance(base: StormBase, _: Command) -> StormBase:
    asked = base.topology_action_options
    options = (asked.rebalance_options if asked is not None else None) or RebalanceOptions()
    base.status = base.prev_status or TopologyStatus.ACTIVE
    base.num_workers = options.num_workers or base.num_workers
    if options.num_executors:
        base.component_executors = {**(base.component_executors or {}), **options.num_executors}
    base.prev_status = base.topology_action_options = base.deadline_ms = None
    return base


def _ends(_base: StormBase, _: Command) -> None: ...


def _deadline_ms(command: Command) -> int:
    return command.now_ms + command.wait_secs * 1000


#: Deadlines that come after another command are ignored.
_LATE: Final[Mapping[Event, _Step]] = {Event.DO_REBALANCE: _stays, Event.REMOVE: _stays}

#: A missing event is an error.
_TABLE: Final[Mapping[TopologyStatus, Mapping[Event, _Step]]] = {
    TopologyStatus.ACTIVE: {
        **_LATE,
        Event.ACTIVATE: _stays,
        Event.INACTIVATE: _becomes(TopologyStatus.INACTIVE),
        Event.REBALANCE: _begins_rebalance,
        Event.KILL: _begins_kill,
    },
    TopologyStatus.INACTIVE: {
        **_LATE,
        Event.ACTIVATE: _becomes(TopologyStatus.ACTIVE),
        Event.INACTIVATE: _stays,
        Event.REBALANCE: _begins_rebalance,
        Event.KILL: _begins_kill,
    },
    TopologyStatus.REBALANCING: {
        **_LATE,
        Event.KILL: _begins_kill,
        Event.DO_REBALANCE: _finishes_rebalance,
    },
    TopologyStatus.KILLED: {**_LATE, Event.KILL: _hastens_kill, Event.REMOVE: _ends},
}

_REMEDIES: Final = {
    TopologyStatus.ACTIVE: "it has to be killed first",
    TopologyStatus.INACTIVE: "it has to be killed first",
    TopologyStatus.REBALANCING: "try again when the rebalance is done",
    TopologyStatus.KILLED: "submit it again when it is gone",
}


class ConfChanges:
    """Saves conf changes on a Nimbus. Safe for many threads."""

    def __init__(self, code: CodeDistributor) -> None:
        self._code = code
        self._lock = threading.Lock()
        self._under_way: set[str] = set()

    @contextmanager
    def under_way(self, storm_id: str) -> Iterator[None]:
        """Reserve a topology's change: `finish` skips the topology during the block."""
        with self._lock:
            self._under_way.add(storm_id)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(storm_id)

    def save(
        self, storm_id: str, overrides: Mapping[str, Any], *, is_repeated: bool = False
    ) -> None:
        """Save new values in a topology's conf; idempotent.

        Raises `CodeError` and `StateError` as `CodeDistributor.change` does.
        """

        def changed(data: bytes) -> bytes:
            saved = decode_conf(data)
            conf = {**saved, **overrides}
            return data if conf == saved else encode_conf(conf)

        self._code.change(storm_id, _CONF, changed, is_repeated=is_repeated)
        log.info("%s: changed in its conf: %s", storm_id, ", ".join(sorted(overrides)))

    def finish(self, leader: LeaderClusterState, bases: Mapping[str, StormBase]) -> bool:
        """Save conf changes that earlier leaders left unsaved; returns whether a base changed."""
        has_changed = False
        for storm_id, base in bases.items():
            overrides = unsaved_conf(base)
            with self._lock:
                is_others = storm_id in self._under_way
            if overrides is None or is_others:
                continue
            try:
                self.save(storm_id, json.loads(overrides), is_repeated=True)
            except CodeError as error:
                log.warning("%s: its conf cannot be changed yet: %s", storm_id, error)
                continue
            except (SerializationError, ValueError) as error:
                log.warning("%s: rebalanced without its conf changes: %s", storm_id, error)
            with suppress(NoNodeError):  # it is gone
                leader.change_storm(storm_id, conf_saved)
                has_changed = True
        return has_changed
