"""All that a decision about a cluster needs, read in one go and never changed afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from stormkeeper import paths
from stormkeeper.errors import PacemakerError
from stormkeeper.heartbeats.protocols import Heartbeats, HeartbeatStore
from stormkeeper.state.storm.codec import Record
from stormkeeper.state.storm.records import RecordReader
from stormkeeper.thrift.records import Assignment, NimbusSummary, StormBase, SupervisorInfo

log = logging.getLogger(__name__)


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
    ended
        The queries that have ended by themselves, by the ids of their topologies.
    claimed
        The queries of which a launch has told that it claims the checkpoint, by the ids of their
        topologies. They were read after the assignments.
    heartbeats
        By path, without values unless they were asked for, and how far back each server can vouch.
    heartbeats_at
        When the read of the heartbeats began, which their ages are of, by the reader's clock.
    unreadable
        The paths of records that are there and cannot be read, so that nobody takes them for
        absent.
    """

    bases: Mapping[str, StormBase]
    assignments: Mapping[str, Assignment]
    supervisors: Mapping[str, SupervisorInfo]
    nimbuses: Mapping[str, NimbusSummary]
    ended: Mapping[str, frozenset[str]]
    claimed: Mapping[str, frozenset[str]]
    heartbeats: Heartbeats
    heartbeats_at: float
    unreadable: frozenset[str]


class SnapshotReads(RecordReader):
    """The cluster as a whole."""

    _heartbeats: HeartbeatStore

    def snapshot(
        self,
        *,
        values: bool = False,
        may_lack_heartbeats: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> ClusterSnapshot:
        """Read bases, assignments, supervisors, Nimbuses, and then who beats.

        It takes nine round trips to ZooKeeper, and one bulk read of the heartbeats.

        Parameters
        ----------
        values
            Whether to read the heartbeats' values too.
        may_lack_heartbeats
            Whether there are no heartbeats, and no server that could vouch for anything, where no
            Pacemaker answered; that is waited for no longer than it has to be. Else it is an error.
        clock
            Tells when the heartbeats were read.

        Raises
        ------
        PacemakerError
            No Pacemaker answered. Where some did, `Heartbeats.missing` names the others.
        """
        unreadable: set[str] = set()

        def read(cls: type[Record], path: str) -> Mapping[str, Record]:
            found, others = self._listed(cls, path)
            unreadable.update(f"{path}/{name}" for name in others)
            return MappingProxyType(found)

        def beats() -> Heartbeats:
            try:
                return self._heartbeats.read_all(values=values, hurried=may_lack_heartbeats)
            except PacemakerError as error:
                if not may_lack_heartbeats:
                    raise
                log.debug("no heartbeats were read: %s", error)
                return Heartbeats({}, {})

        bases = read(StormBase, paths.STORMS)
        assignments = read(Assignment, paths.ASSIGNMENTS)
        told = self._told(list(bases))
        return ClusterSnapshot(
            bases=bases,
            assignments=assignments,
            supervisors=read(SupervisorInfo, paths.SUPERVISORS),
            nimbuses=read(NimbusSummary, paths.NIMBUSES),
            ended=_queries(told, paths.parse_query_end),
            claimed=_queries(told, paths.parse_query_claim),
            heartbeats_at=clock(),
            heartbeats=beats(),
            unreadable=frozenset(unreadable),
        )

    def _told(self, storm_ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the names of what workers have left in ZooKeeper, by topology."""
        names = self._state.children_many([paths.workerbeats(each) for each in storm_ids])
        return {storm_id: below for storm_id, below in zip(storm_ids, names, strict=True) if below}


def _queries(
    told: Mapping[str, list[str]], parse: Callable[[str], str | None]
) -> Mapping[str, frozenset[str]]:
    """Return which queries the names of nodes are about, by topology."""
    found = {
        storm_id: frozenset(query for name in names if (query := parse(name)) is not None)
        for storm_id, names in told.items()
    }
    return MappingProxyType({storm_id: queries for storm_id, queries in found.items() if queries})
