"""Calls that change a topology: kill, activate, deactivate, rebalance, credentials, log levels.

`stormkeeper.nimbus.lifecycle` decides on the base as read, and the write succeeds only if the base
is unchanged. A kill or a rebalance is stored with its deadline, so any later leader carries it out.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from stormkeeper.daemon.logs import LEVELS
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
from stormkeeper.nimbus.scheduler import Leadership
from stormkeeper.nimbus.service import topology_checks
from stormkeeper.nimbus.service.context import CallGroup, ServiceContext, client_errors
from stormkeeper.nimbus.submitted import topology_value
from stormkeeper.thrift.nimbus import (
    AuthorizationException,
    InvalidTopologyException,
    NotAliveException,
)
from stormkeeper.thrift.records import (
    Credentials,
    KillOptions,
    LogConfig,
    LogLevel,
    LogLevelAction,
    ProfileAction,
    ProfileRequest,
    RebalanceOptions,
    StormBase,
)

log = logging.getLogger(__name__)

_WAIT: Final = "topology.message.timeout.secs"


class LifecycleCalls(CallGroup):
    """The calls that change a topology."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._credentials_lock = threading.Lock()

    def killTopology(self, name: str, /) -> None:
        self.killTopologyWithOpts(name, KillOptions())

    def killTopologyWithOpts(self, name: str, options: KillOptions, /) -> None:
        leadership, storm_id, base = self._led_topology(name)
        if options.purge:
            _check_purge(name, base)
        wait_secs = self._wait_secs(storm_id, options.wait_secs)
        command = Command(Event.KILL, self._now_ms(), wait_secs, purge=bool(options.purge))
        self._command(leadership, name, storm_id, command)

    def activate(self, name: str, /) -> None:
        leadership, storm_id, _ = self._led_topology(name)
        self._command(leadership, name, storm_id, Command(Event.ACTIVATE, self._now_ms()))

    def deactivate(self, name: str, /) -> None:
        """Stop a topology's queries; the workers stay and wait."""
        leadership, storm_id, _ = self._led_topology(name)
        self._command(leadership, name, storm_id, Command(Event.INACTIVATE, self._now_ms()))

    def rebalance(self, name: str, options: RebalanceOptions, /) -> None:
        leadership, storm_id, base = self._led_topology(name)
        if options.topology_resources_overrides:
            raise InvalidTopologyException(
                "a component has no resources of its own here, as a worker runs whole queries: set"
                " what each worker may use, topology.worker.memory.mb, in the conf overrides"
            )
        overrides = topology_checks.read_overrides(options.topology_conf_overrides or "{}")
        if options.num_workers is not None and options.num_workers < 0:
            raise InvalidTopologyException("Number of workers must not be negative")
        asked = options.num_executors or {}
        # The number of executors stays the same; their number of tasks changes.
        topology_checks.check_limits(
            options.num_workers or 0, 0, self._context.conf, what="rebalance"
        )
        topology_checks.check_rebalance(name, base.component_executors or (), asked)
        if asked:
            hints = {**(base.component_executors or {}), **asked}
            topology_checks.check_tasks(self._submitted(storm_id).spread(hints).executors)
        wait_secs = self._wait_secs(storm_id, options.wait_secs)
        self._check_blobs(overrides)
        kept = copy.copy(options)
        kept.topology_conf_overrides = json.dumps(overrides) if overrides else None
        command = Command(Event.REBALANCE, self._now_ms(), wait_secs, kept)
        try:
            with self._context.conf_changes.under_way(storm_id):
                self._command(leadership, name, storm_id, command)
                if overrides:
                    self._override(leadership, storm_id, overrides)
        except StatusError as error:
            raise InvalidTopologyException(str(error)) from error
        finally:
            leadership.wake()

    def uploadNewCredentials(self, name: str, creds: Credentials, /) -> None:
        """Merge credentials, as Storm does: other names stay."""
        leadership, storm_id, base = self._led_topology(name)
        if creds.topoOwner is not None and creds.topoOwner != base.owner:
            raise AuthorizationException(
                f"{storm_id} is expected to be owned by {creds.topoOwner} but is actually owned by"
                f" {base.owner or 'nobody'}"
            )
        with self._credentials_lock, client_errors():
            before = leadership.leader.credentials(storm_id)
            merged = copy.copy(creds)
            merged.creds = {**(before.creds if before is not None else {}), **(creds.creds or {})}
            leadership.leader.set_credentials(storm_id, merged, self._context.conf)

    def setLogConfig(self, storm_id: str, config: LogConfig, /) -> None:
        leadership = self._leadership()
        self._known(storm_id)
        before = leadership.leader.topology_log_config(storm_id)
        after = log_levels(before, config, now=self._context.clock())
        with client_errors():
            leadership.leader.set_topology_log_config(storm_id, after, self._context.conf)

    def getLogConfig(self, storm_id: str, /) -> LogConfig:
        self._known(storm_id)
        found = self._context.storm.topology_log_config(storm_id)
        return LogConfig(None if found is None else found.named_logger_level)

    def debug(
        self, name: str, component: str | None, enable: bool, sampling_percentage: float, /
    ) -> None:
        """Refuse to sample rows: Spark would compute and read each batch twice."""
        del sampling_percentage
        _, _, base = self._led_topology(name)
        if component and component not in (base.component_executors or {component}):
            raise CallerError(f"{name} has no component {component}")
        if enable:
            raise CallerError(
                "rows of a running query cannot be sampled: for that, Spark would read its sources"
                " and call its functions twice; give the topology a sink that writes the rows"
            )

    def setWorkerProfiler(self, storm_id: str, request: ProfileRequest, /) -> None:
        del request
        self._known(storm_id)
        raise CallerError(
            "workers are Python programs, which no JVM profiler knows: see Spark's own pages"
        )

    def getComponentPendingProfileActions(
        self, storm_id: str, component: str, action: ProfileAction, /
    ) -> list[ProfileRequest]:
        """Return no requests: profiling is refused."""
        del component, action
        self._known(storm_id)
        return []

    def _known(self, storm_id: str) -> None:
        try:
            self._base(storm_id)
        except NotAliveException as error:
            # These methods do not declare NotAliveException.
            raise CallerError(f"there is no topology {storm_id}") from error

    def _override(
        self, leadership: Leadership, storm_id: str, overrides: Mapping[str, Any]
    ) -> None:
        try:
            with client_errors():
                self._context.conf_changes.save(storm_id, overrides)
        except CallRefusedError:
            leadership.leader.change_storm(storm_id, lifecycle.conf_refused)
            raise
        found, secs = self._await_copies(storm_id, self._conf(storm_id))
        if not found.is_enough:
            log.warning(
                "%s: only %d copies of its changed conf after %g s", storm_id, found.copies, secs
            )
        with suppress(NoNodeError):  # it was killed meanwhile
            leadership.leader.change_storm(storm_id, lifecycle.conf_saved)

    def _command(self, leadership: Leadership, name: str, storm_id: str, command: Command) -> None:
        def changed(base: StormBase) -> StormBase:
            # Only the deadline of a kill, which is no command, leaves no base.
            return lifecycle.after(storm_id, base, command) or base

        try:
            leadership.leader.change_storm(storm_id, changed)
        except NoNodeError as error:
            raise NotAliveException(f"{name} is not alive") from error
        except StatusError as error:
            if command.event is Event.REBALANCE:
                raise
            raise CallerError(str(error)) from error
        log.info("%s: %s", storm_id, command.event.value)
        leadership.wake()

    def _wait_secs(self, storm_id: str, asked: int | None) -> int:
        if asked is not None:
            return max(0, asked)
        try:
            wait_secs: float = topology_value(_WAIT, self._conf(storm_id))
        except (CodeError, ConfigError) as error:
            # A damaged topology must still be killable.
            log.warning("%s: waits for the cluster's default time: %s", storm_id, error)
            wait_secs = self._context.conf[_WAIT]
        return math.ceil(wait_secs)

    def _now_ms(self) -> int:
        return int(self._context.clock() * 1000)


def _check_purge(name: str, base: StormBase) -> None:
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


def log_levels(before: LogConfig | None, asked: LogConfig, *, now: float) -> LogConfig:
    """Return changed log levels, as in Storm's Nimbus; raises `CallerError`."""
    levels: dict[str, LogLevel] = {}
    known = None if before is None else before.named_logger_level
    for name, level in (known or {}).items():
        levels[name] = copy.copy(level)
        levels[name].action = LogLevelAction.UNCHANGED
    for name, level in (asked.named_logger_level or {}).items():
        if not name:
            raise CallerError("Named loggers need a valid name. Use ROOT for the root logger")
        if level.action == LogLevelAction.UPDATE:
            _check_level(name, level.target_log_level)
            if level.reset_log_level is not None:
                _check_level(name, level.reset_log_level)
            updated = copy.copy(level)
            secs = level.reset_log_level_timeout_secs or 0
            ends = int((now + secs) * 1000)
            updated.reset_log_level_timeout_epoch = ends if secs > 0 else None
            levels[name] = updated
        elif level.action == LogLevelAction.REMOVE:
            levels.pop(name, None)
    return LogConfig(levels)


def _check_level(name: str, level: str | None) -> None:
    if level not in LEVELS:
        raise CallerError(f"{level!r} is no log level for {name}: {', '.join(LEVELS)} are")
