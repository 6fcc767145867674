"""Who may write what: what every family of writes is made of.

The type of the writer says it. Whoever has a session of its own writes what is its own: what it
registers, beats and reports. What decides about topologies is written by a leader only, whose
writer checks with every write that it leads still.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thriftpy2.thrift import TPayload

from stormkeeper.state.access import digest_id
from stormkeeper.state.fenced import FencedWriter
from stormkeeper.state.storage import ClusterState, StateWriter
from stormkeeper.state.storm.codec import Record, checked, stamped
from stormkeeper.state.storm.reading import Reading


class Writes(Reading):
    """What leaders and others may write, each by a writer of its own kind."""

    _writer: StateWriter


class SessionWrites(Writes):
    """What belongs to a session, or to a process: nobody has to lead for it."""

    _state: ClusterState


class LeaderWrites(Writes):
    """What only a leader may write."""

    _writer: FencedWriter

    def _put(
        self,
        cls: type[Record],
        path: str,
        record: Record,
        topology_conf: Mapping[str, Any] | None = None,
    ) -> None:
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
        data = self._stamped(checked(cls, record))
        self._writer.set_data(path, data, workers=workers_of(topology_conf))

    def _stamped(self, record: TPayload) -> bytes:
        return self._codec.write(stamped(record, self._writer.fence.epoch))


def workers_of(topology_conf: Mapping[str, Any] | None) -> str | None:
    """Return the digest of a topology's own workers, None where its configuration names none."""
    payload = (topology_conf or {}).get("storm.zookeeper.topology.auth.payload")
    return digest_id(payload) if payload else None
