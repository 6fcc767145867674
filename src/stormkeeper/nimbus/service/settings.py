"""What is set for a topology that runs: credentials and log levels.

A leader writes it. Log levels, and requests to profile a JVM, have methods that declare no
exception: whatever is wrong is Thrift's own fault, with the reason as its text.
"""

# ruff: noqa: N802

from __future__ import annotations

import copy
import threading

from stormkeeper.daemon.logs import LEVELS
from stormkeeper.errors import CallerError
from stormkeeper.nimbus.service.served import Served, told
from stormkeeper.thrift.nimbus import AuthorizationException, NotAliveException
from stormkeeper.thrift.records import (
    Credentials,
    LogConfig,
    LogLevel,
    LogLevelAction,
    ProfileAction,
    ProfileRequest,
)


class Settings(Served):
    """The methods that set something for a topology, and tell it."""

    #: Held while credentials are read, merged and written.
    _credentials_lock = threading.Lock()

    def uploadNewCredentials(self, name: str, creds: Credentials, /) -> None:
        """Give a topology credentials; those that it has under other names stay, as in Storm."""
        reign, storm_id, base = self._led(name)
        if creds.topoOwner is not None and creds.topoOwner != base.owner:
            raise AuthorizationException(
                f"{storm_id} is expected to be owned by {creds.topoOwner} but is actually owned by"
                f" {base.owner or 'nobody'}"
            )
        with self._credentials_lock, told():
            before = reign.leader.credentials(storm_id)
            merged = copy.copy(creds)
            merged.creds = {**(before.creds if before is not None else {}), **(creds.creds or {})}
            reign.leader.set_credentials(storm_id, merged, self._given.conf)

    def setLogConfig(self, storm_id: str, config: LogConfig, /) -> None:
        """Change a topology's log levels, by its id."""
        reign = self._reign()
        self._known(storm_id)
        before = reign.leader.topology_log_config(storm_id)
        after = log_levels(before, config, now=self._given.clock())
        with told():
            reign.leader.set_topology_log_config(storm_id, after, self._given.conf)

    def getLogConfig(self, storm_id: str, /) -> LogConfig:
        """Return a topology's log levels, by its id."""
        self._known(storm_id)
        found = self._given.storm.topology_log_config(storm_id)
        return LogConfig(None if found is None else found.named_logger_level)

    def debug(
        self, name: str, component: str | None, enable: bool, sampling_percentage: float, /
    ) -> None:
        """Refuse to sample rows, as Spark would compute and read each batch twice for that."""
        del sampling_percentage
        _, _, base = self._led(name)
        if component and component not in (base.component_executors or {component}):
            raise CallerError(f"{name} has no component {component}")
        if enable:
            raise CallerError(
                "rows of a running query cannot be sampled: for that, Spark would read its sources"
                " and call its functions twice; give the topology a sink that writes the rows"
            )

    def setWorkerProfiler(self, storm_id: str, request: ProfileRequest, /) -> None:
        """Refuse to profile a worker."""
        del request
        self._known(storm_id)
        raise CallerError(
            "workers are Python programs, which no JVM profiler knows: see Spark's own pages"
        )

    def getComponentPendingProfileActions(
        self, storm_id: str, component: str, action: ProfileAction, /
    ) -> list[ProfileRequest]:
        """Return no request, as none is taken."""
        del component, action
        self._known(storm_id)
        return []

    def _known(self, storm_id: str) -> None:
        try:
            self._base(storm_id)
        except NotAliveException as error:
            # Their methods do not declare it.
            raise CallerError(f"there is no topology {storm_id}") from error


def log_levels(before: LogConfig | None, asked: LogConfig, *, now: float) -> LogConfig:
    """Return a topology's log levels after what is asked, as Storm's Nimbus makes them; pure.

    Parameters
    ----------
    before
        As they are.
    asked
        What is to be updated or removed, by the logger's name; ``ROOT`` is the root logger.
    now
        Seconds since 1970.

    Raises
    ------
    CallerError
        A logger has no name, or a level is none.
    """
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
