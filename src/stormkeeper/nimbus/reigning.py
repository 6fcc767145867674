"""Carries out what an election asks of the Nimbus: to be ready, to lead, and to stop leading."""

import logging
from collections.abc import Callable
from typing import Final, assert_never

from stormkeeper.errors import StateError, StormkeeperError
from stormkeeper.nimbus.election_events import (
    Check,
    CheckFailed,
    Depose,
    Elect,
    Fetch,
    Fetched,
    NimbusAnswer,
    NimbusInstruction,
    NotTold,
    Told,
)
from stormkeeper.nimbus.readiness import Readiness, TopologyCode
from stormkeeper.paths import NimbusId
from stormkeeper.state.leader_lock import Fence, Lock
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState, leader_state

log = logging.getLogger(__name__)

#: How long code may take to be fetched, in seconds. A peer that does not answer, or is too slow, is
#: given up long before.
FETCH_SECS: Final = 600.0

#: Told that this Nimbus leads, with what lets it write.
Elected = Callable[[LeaderClusterState], None]

#: Told that it does not lead any more.
Deposed = Callable[[], None]


class Reigning:
    """One Nimbus, as its election sees it. Its calls may block for as long as the Nimbus likes.

    Parameters
    ----------
    storm
        The session that it leads in.
    code, may_take_over, nimbus, disk_fault
        As `stormkeeper.nimbus.readiness.Readiness` has them.
    elected, deposed
        As `stormkeeper.nimbus.elector.Elector` has them.
    """

    def __init__(
        self,
        storm: StormClusterState,
        code: TopologyCode,
        *,
        elected: Elected,
        deposed: Deposed,
        may_take_over: bool = False,
        nimbus: NimbusId | None = None,
        disk_fault: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._storm = storm
        self._code = code
        self._elected = elected
        self._deposed = deposed
        self._readiness = Readiness(
            storm, code, may_take_over=may_take_over, nimbus=nimbus, disk_fault=disk_fault
        )
        self._leader: LeaderClusterState | None = None
        self._failures = 0

    def carry_out(self, instruction: NimbusInstruction) -> NimbusAnswer:
        """Do it, and return what came of it."""
        match instruction:
            case Check():
                return self._check()
            case Fetch():
                return self._fetch()
            case Elect(lock):
                return self._elect(lock)
            case Depose():
                return self._depose()
            case _:
                assert_never(instruction)

    def _check(self) -> NimbusAnswer:
        try:
            found = self._readiness.check()
        except Exception as error:
            self._tell("cannot find out whether this Nimbus may lead", error)
            return CheckFailed()
        self._failures = 0
        return found

    def _fetch(self) -> NimbusAnswer:
        try:
            if not self._code.fetch(FETCH_SECS):
                log.warning("the code of topologies was not all fetched in %g s", FETCH_SECS)
        except Exception as error:
            self._tell("the code of topologies was not all fetched", error)
        return Fetched()

    def _elect(self, lock: Lock) -> NimbusAnswer:
        """Have the Nimbus lead; the store catches up first, as `leader_state` says."""
        try:
            leader = leader_state(self._storm, Fence(lock.path, lock.created))
            self._leader = leader
            self._readiness.take_over(leader)
        except Exception as error:
            self._tell("cannot lead yet", error)
            self._disconnect()
            return NotTold(is_unfit=not isinstance(error, StateError))
        self._failures = 0
        log.info("this Nimbus leads, epoch %d", lock.created)
        try:
            self._elected(leader)
        # On a thread of its own nobody is there to be ended by a SystemExit.
        except BaseException:
            log.exception("this Nimbus could not begin to lead, and another one may")
            self._depose()
            return NotTold(is_unfit=True)
        return Told()

    def _depose(self) -> NimbusAnswer:
        log.info("this Nimbus does not lead any more")
        try:
            self._deposed()
        except BaseException:
            log.exception("this Nimbus could not stop leading in order")
        self._disconnect()
        return Told()

    def _disconnect(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.disconnect()

    def _tell(self, what: str, error: Exception) -> None:
        self._failures += 1
        is_defect = not isinstance(error, StormkeeperError | OSError)
        if self._failures & (self._failures - 1) == 0:
            log.warning("%s: %s", what, error, exc_info=error if is_defect else None)
