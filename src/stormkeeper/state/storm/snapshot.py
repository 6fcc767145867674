"""All that a decision about a cluster needs, read in one go and never changed afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from stormkeeper import paths
from stormkeeper.errors import NoNodeError
from stormkeeper.heartbeats.protocols import Heartbeats, HeartbeatStore
from stormkeeper.state.storm.codec import Record
from stormkeeper.state.storm.records import RecordReader
from stormkeeper.thrift.records import Assignment, NimbusSummary, StormBase, SupervisorInfo


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """A cluster as it was read; whoever decides about it reads nothing else.

    It is not of one moment: the heartbeats were read last, so that a worker that an assignment
    names had the time to beat, and each of the others in one go.

    Parameters
    ----------
    bases, assignments
        By the ids of their topologies.
    supervisors
        By their ids.
    nimbuses
        By the names of their nodes.
    heartbeats
        By path, without values, and how far back each server can vouch.
    unreadable
        The paths of records that are there and cannot be read, so that nobody takes them for
        absent.
    """

    bases: Mapping[str, StormBase]
    assignments: Mapping[str, Assignment]
    supervisors: Mapping[str, SupervisorInfo]
    nimbuses: Mapping[str, NimbusSummary]
    heartbeats: Heartbeats
    unreadable: frozenset[str]


class SnapshotReads(RecordReader):
    """The cluster as a whole."""

    _heartbeats: HeartbeatStore

    def snapshot(self) -> ClusterSnapshot:
        """Read bases, assignments, supervisors, Nimbuses, and then who beats.

        It takes eight round trips to ZooKeeper, and one bulk read of the heartbeats.

        Raises
        ------
        PacemakerError
            No Pacemaker answered. Where some did, `Heartbeats.missing` names the others.
        """
        unreadable: set[str] = set()

        def read(cls: type[Record], path: str) -> Mapping[str, Record]:
            try:
                nodes = self._state.children_data(path)
            except NoNodeError:
                nodes = {}
            found = self._decoded(cls, path, ((name, node.data) for name, node in nodes.items()))
            unreadable.update(f"{path}/{name}" for name in nodes.keys() - found.keys())
            return MappingProxyType(found)

        return ClusterSnapshot(
            bases=read(StormBase, paths.STORMS),
            assignments=read(Assignment, paths.ASSIGNMENTS),
            supervisors=read(SupervisorInfo, paths.SUPERVISORS),
            nimbuses=read(NimbusSummary, paths.NIMBUSES),
            heartbeats=self._heartbeats.read_all(),
            unreadable=frozenset(unreadable),
        )
