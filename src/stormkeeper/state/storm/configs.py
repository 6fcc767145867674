"""What is set for a topology while it runs: its credentials and its log levels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stormkeeper import paths
from stormkeeper.state.storm.dispatch import Callback
from stormkeeper.state.storm.reading import Reading
from stormkeeper.state.storm.writing import LeaderWrites
from stormkeeper.thrift.records import Credentials, LogConfig


class ConfigReads(Reading):
    """Reads of credentials and log levels; `SerializationError` where a node holds none."""

    def credentials(self, storm_id: str, callback: Callback | None = None) -> Credentials | None:
        """Return a topology's credentials, None where it has none; told once when they change."""
        return self._record(Credentials, paths.credentials(storm_id), callback)

    def topology_log_config(
        self, storm_id: str, callback: Callback | None = None
    ) -> LogConfig | None:
        """Return a topology's log levels, None where none are set; told once when they change."""
        return self._record(LogConfig, paths.log_config(storm_id), callback)


class ConfigWrites(LeaderWrites):
    """What a leader sets for a topology; errors and `topology_conf` as in `TopologyWrites`."""

    def set_credentials(
        self,
        storm_id: str,
        credentials: Credentials,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Give a topology credentials in place of those it has."""
        self._put(Credentials, paths.credentials(storm_id), credentials, topology_conf)

    def set_topology_log_config(
        self,
        storm_id: str,
        log_config: LogConfig,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
        """Give a topology log levels in place of those it has."""
        self._put(LogConfig, paths.log_config(storm_id), log_config, topology_conf)
