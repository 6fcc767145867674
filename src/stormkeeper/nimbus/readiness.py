"""What a Nimbus needs before it leads: topologies that are its to lead, their code, and a disk.

The list of topologies is ZooKeeper's, whatever a Nimbus has on its disk.

A topology is Java's if its ``StormBase`` has no ``leader_epoch``. Our leaders write it (field 1000)
into every record, and Storm's write none: they drop it from what they write again. So it says who
wrote the base last.

A Nimbus whose disk takes no files says so in its record in ZooKeeper. So the Nimbuses know of each
other whether one that can write is in the queue for the lead.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, Protocol

from stormkeeper import paths
from stormkeeper.blobs.sync_plan import Missing
from stormkeeper.errors import NoNodeError, StateError
from stormkeeper.nimbus.election_events import Checked
from stormkeeper.paths import NimbusId
from stormkeeper.state import leader_lock
from stormkeeper.state.storm.cluster import LeaderClusterState, StormClusterState
from stormkeeper.thrift.records import StormBase

log = logging.getLogger(__name__)

#: Time between two looks at the disk, in seconds, and how many of them come to one that writes.
LOOK_SECS: Final = 1.0
LOOKS_PER_WRITE: Final = 5

#: How long a probe may take before the disk counts as failing, in seconds.
HANG_SECS: Final = 20.0


class TopologyCode(Protocol):
    """What a `stormkeeper.blobs.sync.BlobSync` knows of the topologies' code, and does for it."""

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
    nimbus
        The Nimbus; None: its disk is not looked at.
    disk_fault
        Returns why its disk takes no files; None where it does.
    """

    def __init__(
        self,
        storm: StormClusterState,
        code: TopologyCode,
        *,
        may_take_over: bool = False,
        nimbus: NimbusId | None = None,
        disk_fault: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._storm = storm
        self._code = code
        self._may_take_over = may_take_over
        self._nimbus = nimbus
        self._disk_fault = disk_fault
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
        found = Checked(frozenset(lacking), foreign, self._yields())
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

    def _yields(self) -> bool:
        """Return whether this disk takes no files and a Nimbus whose disk does is in the queue."""
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
        if found.yields:
            log.error(
                "this Nimbus leaves the lead to one that can write to its disk: %s",
                self._disk_fault(),
            )
        if found.lacking:
            log.info(
                "the code of these topologies is fetched: %s", ", ".join(sorted(found.lacking))
            )
        for storm_id, what in sorted(lost.items()):
            log.warning(
                "nobody alive has the code of %s, whose workers run on; it is fetched from a"
                " supervisor that runs it, else start who held it last: %s",
                *(storm_id, ", ".join(what.held_last_by) or "nobody is known"),
            )


def foreign_to(bases: Mapping[str, StormBase]) -> frozenset[str]:
    """Return the ids of the topologies, by their bases, that a Java Nimbus wrote last."""
    return frozenset(storm_id for storm_id, base in bases.items() if base.leader_epoch is None)


class DiskWatch:
    """Looks at the disk of a Nimbus at intervals, on a thread of its own.

    Parameters
    ----------
    find_fault
        Returns why the disk takes no files, None if it does. It may hang. It is called with whether
        it is to write to the disk, and whether the look before found a fault.
    on_fault
        Called with the fault after the first look and each write that finds one, and with None
        after the first that finds none any more. If it raises `StateError`, it is called again
        after the next.
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
        self._period_secs = period_secs
        self._hang_secs = hang_secs
        #: Why the disk takes no files, in one line; None where it does.
        self.fault: str | None = None
        self._is_told = True
        self._looks = 0
        self._probe: Future[str | None] | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nimbus disk", daemon=True)

    def start(self) -> None:
        """Look at the disk, and go on with that in the thread."""
        self.look()
        self._thread.start()

    def close(self) -> None:
        """End; a look that hangs is not waited for."""
        self._closing.set()

    def look(self) -> None:
        """Look at the disk once, and tell what was found."""
        is_write = self._looks % LOOKS_PER_WRITE == 0
        self._looks += 1
        if self.fault is not None and not is_write:
            return  # only a write ends a fault
        fault = self._result(is_write)
        if (fault is None) != (self.fault is None):
            self._is_told = False
            if fault is None:
                log.info("the disk takes files again")
            else:
                log.error("the disk of this Nimbus fails: %s", fault)
        self.fault = fault
        if fault is None and self._is_told:
            return
        try:
            self._on_fault(fault)
        except StateError as error:
            log.debug("the fault of the disk is not published yet: %s", error)
        else:
            self._is_told = True

    def _result(self, is_write: bool) -> str | None:
        if self._probe is None:
            self._probe = Future()
            arguments = (self._probe, is_write)
            threading.Thread(target=self._do, args=arguments, daemon=True).start()
        try:
            fault = self._probe.result(self._hang_secs)
        except TimeoutError:
            return f"a write has not ended for {self._hang_secs:g} s or longer: check the disk"
        except Exception as error:
            fault = f"the disk cannot be probed: {error}"
        self._probe = None
        return fault

    def _do(self, probe: Future[str | None], is_write: bool) -> None:
        try:
            probe.set_result(self._find_fault(is_write, self.fault is not None))
        except BaseException as error:
            probe.set_exception(error)

    def _run(self) -> None:
        while not self._closing.wait(self._period_secs):
            self.look()
