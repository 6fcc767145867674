"""What a Nimbus needs before it leads: the topologies' code, and topologies that are its to lead.

The list of topologies is ZooKeeper's, whatever a Nimbus has on its disk.

A topology is Java's if its ``StormBase`` has no ``leader_epoch``. Our leaders write it (field 1000)
into every record, and Storm's write none: they drop it from what they write again. So it says who
wrote the base last.
"""

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from stormkeeper import paths
from stormkeeper.errors import NoNodeError
from stormkeeper.nimbus.election_events import Checked
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.leader import LeaderClusterState
from stormkeeper.thrift.records import StormBase

log = logging.getLogger(__name__)


class Missing(NamedTuple):
    """The ids of the topologies whose code is not here, or not whole."""

    #: Some Nimbus that is alive has it.
    obtainable: frozenset[str] = frozenset()

    #: Nobody alive has it: it has to wait until a holder is back.
    unobtainable: frozenset[str] = frozenset()


class TopologyCode(Protocol):
    """The code of topologies on this machine, and where else it is. Calls end, also if badly."""

    def missing(self, storm_ids: Collection[str]) -> Missing:
        """Return which of some topologies' code is not here."""
        ...

    def fetch(self, storm_ids: Collection[str]) -> None:
        """Copy the code of topologies from those who have it, as much as can be had now."""
        ...


class Readiness:
    """Finds out whether a Nimbus may lead, and says in the log why not.

    Parameters
    ----------
    storm
        Whose topologies they are.
    code
        What of their code is here.
    may_take_over
        Whether Java's are led as well.
    """

    def __init__(
        self, storm: StormClusterState, code: TopologyCode, *, may_take_over: bool = False
    ) -> None:
        self._storm = storm
        self._code = code
        self._may_take_over = may_take_over
        # What was logged last.
        self._told: Checked | None = None
        self._told_waiting: frozenset[str] = frozenset()

    def check(self) -> Checked:
        """Look at all topologies as they are now.

        Raises
        ------
        StateError
            They could not be read.
        StormkeeperError, OSError
            What of their code is here could not be found out.
        """
        # What the last leader has written, too.
        self._storm.state.sync_path(paths.STORMS)
        storm_ids = self._storm.active_storms()
        foreign = frozenset() if self._may_take_over else foreign_to(self._storm.storm_bases())
        missing = self._code.missing(storm_ids)
        found = Checked(missing.obtainable, foreign)
        self._tell(found, missing.unobtainable)
        return found

    def take_over(self, leader: LeaderClusterState) -> None:
        """Mark Java's topologies as ours, by a leader: the next one finds them so.

        Raises
        ------
        StateError
            Some may not be marked yet.
        """
        for storm_id in foreign_to(leader.storm_bases()) if self._may_take_over else ():
            try:
                # Nothing of it changes but the mark.
                leader.update_storm(storm_id, StormBase(None, None, None))  # type: ignore[arg-type]
            except NoNodeError:
                continue
            log.warning("took over the topology %s of a Java Nimbus", storm_id)

    def _tell(self, found: Checked, waiting: frozenset[str]) -> None:
        if self._told == found and self._told_waiting == waiting:
            return
        self._told, self._told_waiting = found, waiting
        if found.foreign:
            log.error(
                "this Nimbus does not lead: a Java Nimbus leads these topologies: %s; start it"
                " with --take-over to lead them, or use another storm.zookeeper.root",
                _named(found.foreign),
            )
        if found.lacking:
            log.info("the code of these topologies is fetched: %s", _named(found.lacking))
        if waiting:
            log.warning(
                "nobody alive has the code of these topologies, whose workers run on: %s; start"
                " a Nimbus that has it",
                _named(waiting),
            )


def foreign_to(bases: Mapping[str, StormBase]) -> frozenset[str]:
    """Return the ids of the topologies, by their bases, that a Java Nimbus wrote last."""
    return frozenset(storm_id for storm_id, base in bases.items() if base.leader_epoch is None)


def _named(storm_ids: Collection[str]) -> str:
    return ", ".join(sorted(storm_ids))
