"""A Nimbus as a candidate: conditions of leading, the begin and end of leading, and the disk.

The conditions are complete code, a writable disk, and no topologies of a Java Nimbus: our leaders
write ``leader_epoch`` (field 1000) into every ``StormBase``, and Storm's drop it. A Nimbus's record
in ZooKeeper has the fault of its disk: so others know whether a Nimbus in the queue can write.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final, assert_never

from stormkeeper import paths
from stormkeeper.blobs.sync import BlobSync
from stormkeeper.blobs.sync_plan import Missing
from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread, in_thread
from stormkeeper.errors import NoNodeError, StateError, StormkeeperError
from stormkeeper.nimbus import election
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.leader_lock import Fence, Lock
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState, leader_state
from stormkeeper.thrift.records import StormBase

log = logging.getLogger(__name__)

#: For a fetch of code; slow peers are given up long before.
FETCH_SECS: Final = 600.0

#: Between two probes of the disk; every fifth writes.
LOOK_SECS: Final = 1.0
LOOKS_PER_WRITE: Final = 5

#: An unfinished probe means a failing disk then.
HANG_SECS: Final = 20.0


class Candidate:
    """Carries out an election's instructions to the Nimbus; calls may block for any time.

    `code` must be started; closing it ends a fetch. `elected` gets the leader's writes when this
    Nimbus begins to lead, and again, with the same epoch, after an interruption that the session
    survives; if it raises, the lock is given back. `deposed` is called at the end of leading, or of
    the connection; then the writes are disconnected. Both are called alternately, on one thread,
    and may block; other Nimbuses wait at most half a minute for `deposed`.

    Without `nimbus` the disk is not checked. `bases` returns the topologies, with all that the
    session has synced; they are read from the store by default. `disk_fault` returns why the disk
    takes no files. `may_take_over` permits leading topologies of a Java Nimbus (`--take-over`).
    """

    def __init__(
        self,
        storm: StormClusterState,
        code: BlobSync,
        nimbus: NimbusId | None = None,
        *,
        bases: Callable[[], Mapping[str, StormBase]] | None = None,
        elected: Callable[[LeaderClusterState], None] = lambda _leader: None,
        deposed: Callable[[], None] = lambda: None,
        disk_fault: Callable[[], str | None] = lambda: None,
        may_take_over: bool = False,
    ) -> None:
        self._storm = storm
        self._code = code
        self._nimbus = nimbus
        self._bases = bases or storm.storm_bases
        self._elected = elected
        self._deposed = deposed
        self._disk_fault = disk_fault
        self._may_take_over = may_take_over
        self._leader: LeaderClusterState | None = None
        self._failures = FailureStreak()
        self._logged: tuple[election.Checked, Mapping[str, Missing]] = (election.Checked(), {})

    def carry_out(self, instruction: election.NimbusInstruction) -> election.NimbusAnswer:
        match instruction:
            case election.Check():
                return self._check()
            case election.Fetch():
                return self._fetch()
            case election.Elect(lock):
                return self._elect(lock)
            case election.Depose():
                return self._depose()
            case _:
                assert_never(instruction)

    def check(self) -> election.Checked:
        """Check whether this Nimbus may lead the present topologies, and log why not."""
        # Includes the last leader's writes.
        self._storm.state.sync_path(paths.STORMS)
        foreign = frozenset() if self._may_take_over else foreign_to(self._bases())
        missing = self._code.missing()
        # Lost code waits for its holder; the election does not.
        lacking = (each for each, what in missing.items() if len(what.lost) < len(what.keys))
        found = election.Checked(frozenset(lacking), foreign, self._yields())
        self._log_findings(found, {each: what for each, what in missing.items() if what.lost})
        return found

    def take_over(self, leader: LeaderClusterState) -> None:
        """Mark Java's topologies as ours, for this leader and the next."""
        for storm_id in foreign_to(leader.storm_bases()) if self._may_take_over else ():
            try:
                # An update without changes writes the mark.
                leader.update_storm(storm_id, StormBase(None, None, None))  # type: ignore[arg-type]
            except NoNodeError:
                continue
            log.warning("took over the topology %s of a Java Nimbus", storm_id)

    def _check(self) -> election.NimbusAnswer:
        try:
            found = self.check()
        except Exception as error:
            self._log_failure("cannot find out whether this Nimbus may lead", error)
            return election.CheckFailed()
        self._failures.reset()
        return found

    def _fetch(self) -> election.NimbusAnswer:
        try:
            if not self._code.fetch(FETCH_SECS):
                log.warning("the code of topologies was not all fetched in %g s", FETCH_SECS)
        except Exception as error:
            self._log_failure("the code of topologies was not all fetched", error)
        return election.Fetched()

    def _elect(self, lock: Lock) -> election.NimbusAnswer:
        try:
            leader = leader_state(self._storm, Fence(lock.path, lock.created))
            self._leader = leader
            self.take_over(leader)
        except Exception as error:
            self._log_failure("cannot lead yet", error)
            self._disconnect()
            return election.NotifyFailed(is_unfit=not isinstance(error, StateError))
        self._failures.reset()
        log.info("this Nimbus leads, epoch %d", lock.created)
        try:
            self._elected(leader)
        # On this thread a SystemExit would end nothing.
        except BaseException:
            log.exception("this Nimbus could not begin to lead, and another Nimbus will lead")
            self._depose()
            return election.NotifyFailed(is_unfit=True)
        return election.Notified()

    def _depose(self) -> election.NimbusAnswer:
        log.info("this Nimbus no longer leads")
        try:
            self._deposed()
        except BaseException:
            log.exception("this Nimbus could not end its leadership properly")
        self._disconnect()
        return election.Notified()

    def _disconnect(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            leader.disconnect()

    def _yields(self) -> bool:
        if self._nimbus is None or self._disk_fault() is None:
            return False
        writable = {
            (each.host, each.port) for each in self._storm.nimbuses() if not each.disk_fault
        }
        others = {
            lock.nimbus[:2]
            for lock in leader_lock.queue(self._storm.state)
            if lock.nimbus is not None and not lock.revoked
        }
        return bool(others & writable - {self._nimbus[:2]})

    def _log_findings(self, found: election.Checked, lost: Mapping[str, Missing]) -> None:
        if self._logged == (found, lost):
            return
        self._logged = found, lost
        if found.foreign:
            log.error(
                "this Nimbus does not lead: a Java Nimbus leads these topologies: %s; start it"
                " with --take-over to lead them, or use another storm.zookeeper.root",
                ", ".join(sorted(found.foreign)),
            )
        if found.yields:
            log.error(
                "this Nimbus leaves the lead to one that can write to its disk: %s",
                self._disk_fault(),
            )
        if found.lacking:
            log.info("fetching the code of topologies: %s", ", ".join(sorted(found.lacking)))
        for storm_id, what in sorted(lost.items()):
            log.warning(
                "no live Nimbus has the code of %s; its workers run on. This Nimbus asks their"
                " supervisors for it; if that fails, start the Nimbus that held it last: %s",
                *(storm_id, ", ".join(what.held_last_by) or "unknown"),
            )

    def _log_failure(self, what: str, error: Exception) -> None:
        self._failures.record()
        is_defect = not isinstance(error, StormkeeperError | OSError)
        if self._failures.should_log:
            log.warning("%s: %s", what, error, exc_info=error if is_defect else None)


def foreign_to(bases: Mapping[str, StormBase]) -> frozenset[str]:
    """Return the ids of topologies that a Java Nimbus wrote last."""
    return frozenset(storm_id for storm_id, base in bases.items() if base.leader_epoch is None)


class DiskWatch:
    """Probes the disk of a Nimbus at intervals, on a separate thread.

    `find_fault` (whether to write, whether the last probe found a fault) returns why the disk takes
    no files, and may hang. `on_fault` gets a fault after the first probe and each write, and None
    after its end; if `on_fault` raises `StateError`, again after the next probe.
    """

    def __init__(
        self,
        find_fault: Callable[[bool, bool], str | None],
        on_fault: Callable[[str | None], None],
        *,
        period_secs: float = LOOK_SECS,
        hang_secs: float = HANG_SECS,
    ) -> None:
        self._find_fault = find_fault
        self._on_fault = on_fault
        self._hang_secs = hang_secs
        #: In one line.
        self.fault: str | None = None
        self._is_reported = True
        self._looks = 0
        self._probe: Future[str | None] | None = None
        self._thread = PeriodicThread(
            "nimbus disk", self.look, period_secs=period_secs, first_secs=period_secs, retried=()
        )

    def start(self) -> None:
        self.look()
        self._thread.start()

    def close(self) -> None:
        """End without waiting for a hanging probe."""
        self._thread.close(0.0)

    def look(self) -> None:
        is_write = self._looks % LOOKS_PER_WRITE == 0
        self._looks += 1
        if self.fault is not None and not is_write:
            return  # only a write ends a fault
        fault = self._result(is_write)
        if (fault is None) != (self.fault is None):
            self._is_reported = False
            if fault is None:
                log.info("the disk takes files again")
            else:
                log.error("the disk of this Nimbus fails: %s", fault)
        self.fault = fault
        if fault is None and self._is_reported:
            return
        try:
            self._on_fault(fault)
        except StateError as error:
            log.debug("the fault of the disk is not published yet: %s", error)
        else:
            self._is_reported = True

    def _result(self, is_write: bool) -> str | None:
        if self._probe is None:
            work = partial(self._find_fault, is_write, self.fault is not None)
            self._probe = in_thread(work, "disk probe")
        try:
            fault = self._probe.result(self._hang_secs)
        except TimeoutError:
            return f"a write has not ended for {self._hang_secs:g} s or longer: check the disk"
        except Exception as error:
            fault = f"the disk cannot be probed: {error}"
        self._probe = None
        return fault
