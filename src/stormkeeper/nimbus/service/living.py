"""What is commanded of topologies: kill, activate, deactivate, rebalance.

A command is decided by `stormkeeper.nimbus.lifecycle` on the base that there is, and written if
that is still the one. A kill and a rebalance are written with their deadline, and carried out by
whoever leads then.
"""

# ruff: noqa: N802

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from stormkeeper.errors import (
    CallerError,
    CallRefusedError,
    CodeError,
    ConfigError,
    NoNodeError,
    StatusError,
)
from stormkeeper.nimbus import checkpoints, lifecycle
from stormkeeper.nimbus.lifecycle import Command, Event
from stormkeeper.nimbus.reign import Reign
from stormkeeper.nimbus.service import structure, topology_conf
from stormkeeper.nimbus.service.served import Served, told
from stormkeeper.nimbus.submitted import topology_value
from stormkeeper.thrift.nimbus import InvalidTopologyException, NotAliveException
from stormkeeper.thrift.records import KillOptions, RebalanceOptions, StormBase

log = logging.getLogger(__name__)

_WAIT: Final = "topology.message.timeout.secs"


class Living(Served):
    """The methods that command topologies."""

    def killTopology(self, name: str, /) -> None:
        """Kill a topology after its own time for messages."""
        self.killTopologyWithOpts(name, KillOptions())

    def killTopologyWithOpts(self, name: str, options: KillOptions, /) -> None:
        """Kill a topology after a while."""
        reign, storm_id, base = self._led(name)
        if options.purge:
            _check_purge(name, base)
        wait_secs = self._wait_secs(storm_id, options.wait_secs)
        command = Command(Event.KILL, self._now_ms(), wait_secs, purge=bool(options.purge))
        self._command(reign, name, storm_id, command)

    def activate(self, name: str, /) -> None:
        """Have a topology's queries run."""
        reign, storm_id, _ = self._led(name)
        self._command(reign, name, storm_id, Command(Event.ACTIVATE, self._now_ms()))

    def deactivate(self, name: str, /) -> None:
        """Have a topology's queries stop, and its workers wait."""
        reign, storm_id, _ = self._led(name)
        self._command(reign, name, storm_id, Command(Event.INACTIVATE, self._now_ms()))

    def rebalance(self, name: str, options: RebalanceOptions, /) -> None:
        """Have a topology placed anew after a while, with other settings."""
        reign, storm_id, base = self._led(name)
        if options.topology_resources_overrides:
            raise InvalidTopologyException(
                "a component has no resources of its own here, as a worker runs whole queries: set"
                " what each worker may use, topology.worker.memory.mb, in the conf overrides"
            )
        overrides = topology_conf.read_overrides(options.topology_conf_overrides or "{}")
        if options.num_workers is not None and options.num_workers < 0:
            raise InvalidTopologyException("Number of workers must not be negative")
        asked = options.num_executors or {}
        # The number of executors stays: they have more or fewer tasks.
        structure.check_limits(options.num_workers or 0, 0, self._given.conf, what="rebalance")
        structure.check_rebalance(name, base.component_executors or (), asked)
        if asked:
            hints = {**(base.component_executors or {}), **asked}
            structure.check_tasks(self._submitted(storm_id).spread(hints).executors)
        wait_secs = self._wait_secs(storm_id, options.wait_secs)
        self._check_blobs(overrides)
        kept = copy.copy(options)
        kept.topology_conf_overrides = json.dumps(overrides) if overrides else None
        command = Command(Event.REBALANCE, self._now_ms(), wait_secs, kept)
        try:
            with self._given.conf_changes.under_way(storm_id):
                self._command(reign, name, storm_id, command)
                if overrides:
                    self._override(reign, storm_id, overrides)
        except StatusError as error:
            raise InvalidTopologyException(str(error)) from error
        finally:
            reign.wake()

    def _override(self, reign: Reign, storm_id: str, overrides: Mapping[str, Any]) -> None:
        """Save a topology's conf with other values; each start of a worker from now on has them.

        It returns when there are as many copies as a submission waits for, and as long as that.
        Where it is not known whether they are saved, the rebalance goes on when they are.
        """
        try:
            with told():
                self._given.conf_changes.save(storm_id, overrides)
        except CallRefusedError:
            reign.leader.change_storm(storm_id, lifecycle.conf_refused)
            raise
        self._await_conf(storm_id)
        with suppress(NoNodeError):  # it was killed meanwhile
            reign.leader.change_storm(storm_id, lifecycle.conf_saved)

    def _await_conf(self, storm_id: str) -> None:
        found, secs = self._await_copies(storm_id, self._conf(storm_id))
        if not found.is_enough:
            log.warning("%s: %d copies of it after %g s", storm_id, found.copies, secs)

    def _command(self, reign: Reign, name: str, storm_id: str, command: Command) -> None:
        def changed(base: StormBase) -> StormBase:
            # Only the deadline of a kill ends without a base, and nobody commands that.
            return lifecycle.after(storm_id, base, command) or base

        try:
            reign.leader.change_storm(storm_id, changed)
        except NoNodeError as error:
            raise NotAliveException(f"{name} is not alive") from error
        except StatusError as error:
            if command.event is Event.REBALANCE:
                raise
            raise CallerError(str(error)) from error
        log.info("%s: %s", storm_id, command.event.value)
        reign.wake()

    def _wait_secs(self, storm_id: str, asked: int | None) -> int:
        if asked is not None:
            return max(0, asked)
        try:
            wait_secs: float = topology_value(_WAIT, self._conf(storm_id))
        except (CodeError, ConfigError) as error:
            # A topology that is damaged is to be killed all the more.
            log.warning("%s waits as others do: %s", storm_id, error)
            wait_secs = self._given.conf[_WAIT]
        return math.ceil(wait_secs)

    def _now_ms(self) -> int:
        return int(self._given.clock() * 1000)


def _check_purge(name: str, base: StormBase) -> None:
    """Refuse to remove checkpoints that are not where a supervisor can remove them."""
    kept = base.checkpoints
    if kept is None:
        raise CallerError(
            f"{name} is a plain script that names its own checkpoints: kill it without --purge, and"
            " remove them yourself"
        )
    if not checkpoints.is_removable(kept):
        raise CallerError(
            f"the checkpoints of {name} are in {kept.root}/{kept.folder}, and supervisors remove"
            " them only from disks: kill it without --purge, and remove them yourself"
        )
