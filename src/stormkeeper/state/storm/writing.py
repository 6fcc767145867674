"""Who may write what: what every family of writes is made of.

The type of the store says it. Whoever has a session of its own writes what is its own: what it
registers, beats and reports. What decides about topologies is written by a leader only, whose
store checks with every write that it leads still.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thriftpy2.thrift import TPayload

from stormkeeper.state.access import digest_id
from stormkeeper.state.fenced import FencedClusterState
from stormkeeper.state.storage import ClusterState, StateWriter
from stormkeeper.state.storm.codec import Record, checked, stamped
from stormkeeper.state.storm.reading import Reading


class Writes(Reading):
    """What leaders and others may write, each through a store of its own kind."""

    _state: StateWriter


class SessionWrites(Writes):
    """What belongs to a session, or to a process: nobody has to lead for it."""

    _state: ClusterState


class LeaderWrites(Writes):
    """What only a leader may write."""

    _state: FencedClusterState

    def _put(self, cls: type[Record], path: str, record: Record) -> None:
        """Write a record, with the leader's epoch; the one that was given stays as it is.

        Raises
        ------
        NotLeaderError
            Somebody else may lead by now; nothing was written.
        OutcomeUnknownError
            The connection was lost in mid-write: written or not.
        TypeError
            `record` is not of class `cls`.
        """
        self._state.set_data(path, self._stamped(checked(cls, record)))

    def _stamped(self, record: TPayload) -> bytes:
        return self._codec.write(stamped(record, self._state.fence.epoch))

    def _admit(self, storm_id: str, topology_conf: Mapping[str, Any] | None) -> None:
        """Let the topology's own digest, if it has one, at what is made for it from now on."""
        payload = (topology_conf or {}).get("storm.zookeeper.topology.auth.payload")
        if payload:
            self._state.admit(storm_id, digest_id(payload))
