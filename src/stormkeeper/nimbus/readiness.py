"""What a Nimbus needs before it leads: the topologies' code, and topologies that are its to lead.

The list of topologies is ZooKeeper's, whatever a Nimbus has on its disk.

A topology is Java's if its ``StormBase`` has no ``leader_epoch``. Our leaders write it (field 1000)
into every record, and Storm's write none: they drop it from what they write again. So it says who
wrote the base last.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from stormkeeper import paths
from stormkeeper.code.planning import Missing
from stormkeeper.errors import NoNodeError
from stormkeeper.nimbus.election_events import Checked
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.leader import LeaderClusterState
from stormkeeper.thrift.records import StormBase

log = logging.getLogger(__name__)


class TopologyCode(Protocol):
    """What a `stormkeeper.code.sync.CodeSync` knows of the topologies' code, and does for it."""

    def missing(self) -> Mapping[str, Missing]:
        """Return the topologies whose code is not all here, by their ids."""
        ...

    def fetch(self, timeout_secs: float) -> bool:
        """Fetch what can be had now, and wait for it; returns whether all of it was tried."""
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
        self._told: tuple[Checked, Mapping[str, Missing]] = (Checked(), {})

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
        foreign = frozenset() if self._may_take_over else foreign_to(self._storm.storm_bases())
        missing = self._code.missing()
        # What is lost has to wait for its holder, and nobody waits for that.
        lacking = (each for each, what in missing.items() if len(what.lost) < len(what.keys))
        found = Checked(frozenset(lacking), foreign)
        self._tell(found, {each: what for each, what in missing.items() if what.lost})
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

    def _tell(self, found: Checked, lost: Mapping[str, Missing]) -> None:
        if self._told == (found, lost):
            return
        self._told = found, lost
        if found.foreign:
            log.error(
                "this Nimbus does not lead: a Java Nimbus leads these topologies: %s; start it"
                " with --take-over to lead them, or use another storm.zookeeper.root",
                ", ".join(sorted(found.foreign)),
            )
        if found.lacking:
            log.info(
                "the code of these topologies is fetched: %s", ", ".join(sorted(found.lacking))
            )
        for storm_id, what in sorted(lost.items()):
            log.warning(
                "nobody alive has the code of %s, whose workers run on; start who held it last: %s",
                *(storm_id, ", ".join(what.held_last_by) or "nobody is known"),
            )


def foreign_to(bases: Mapping[str, StormBase]) -> frozenset[str]:
    """Return the ids of the topologies, by their bases, that a Java Nimbus wrote last."""
    return frozenset(storm_id for storm_id, base in bases.items() if base.leader_epoch is None)
