"""Keeps a Nimbus's blobs as they should be, in a thread: `planning` decides, this does it.

Watches start it: on the topologies, on the numbers of all blobs, and on who holds those that cannot
be fetched yet. So a new topology's code is fetched as soon as somebody has it. A period
(``nimbus.code.sync.freq.secs``) finds what no watch has told.

Each round looks at the files first: a blob that is lost on the disk is withdrawn in ZooKeeper, and
fetched again: from another Nimbus, or, if none has it, from a supervisor that runs its topology. A
second thread checks the checksums, slowly, an hour after the last time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Final, Generic, TypeVar

from stormkeeper import paths
from stormkeeper.blobs import fetching, keys, planning
from stormkeeper.blobs.drafts import storing
from stormkeeper.blobs.fetching import Patience
from stormkeeper.blobs.peers import SupervisorPeer
from stormkeeper.blobs.planning import Fetch, Missing, Plan, Snapshot
from stormkeeper.blobs.store import BlobStore
from stormkeeper.conf import Address
from stormkeeper.errors import (
    BadVersionError,
    BlobStorageError,
    NodeExistsError,
    NoNodeError,
    NotLeaderError,
    PeerError,
    PeerUnavailableError,
    StateClosedError,
    StormkeeperError,
)
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blobs import BlobEntry, BlobRecord, BlobWrites
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.storm.watching import Callback

log = logging.getLogger(__name__)

#: After how long a round that failed is followed by another, in seconds.
RETRY_SECS: Final = 2.0

#: How long after a change a round begins, in seconds: an upload is several changes, and a round
#: reads all that there is.
SETTLING_SECS: Final = 0.1

#: For how long one who failed is left alone: at first, and at most, in seconds.
FIRST_REST_SECS: Final = 0.5
LONGEST_REST_SECS: Final = 30.0

#: How much longer than for a peer's answer `close` waits for the end of the thread, in seconds.
_PATIENCE: Final = 5.0

Name = TypeVar("Name")


class Resting(Generic[Name]):
    """Who is left alone after failures, twice as long after each."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[Name, int] = {}
        self._until: dict[Name, float] = {}

    def failed(self, name: Name) -> float:
        """Leave one alone, and return for how many seconds."""
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        rest = min(LONGEST_REST_SECS, FIRST_REST_SECS * 2.0 ** min(failures - 1, 30))
        self._until[name] = self._clock() + rest
        return rest

    def worked(self, name: Name) -> None:
        """Forget its failures."""
        self._failures.pop(name, None)
        self._until.pop(name, None)

    def now(self) -> dict[Name, float]:
        """Return who is left alone, and until when; failures of long ago are forgotten."""
        now = self._clock()
        for name in [n for n, until in self._until.items() if until + LONGEST_REST_SECS < now]:
            self.worked(name)
        return {name: until for name, until in self._until.items() if until > now}


class CodeSync:
    """The blobs of one Nimbus, kept as they should be.

    Parameters
    ----------
    storm
        The cluster's state, in the Nimbus's session.
    store
        Its blobs.
    nimbus_id
        Which Nimbus.
    peers
        Connects to another one.
    period_secs
        How often is looked for what no watch has told.
    delay_secs
        How long a blob is kept that is not needed.
    leader
        Returns what a leader writes with, None while this Nimbus does not lead.
    submitted
        Returns the ids of topologies that are being submitted here. They stay in it until the
        topology is in ZooKeeper.
    answer_secs
        How long a peer may take for one answer.
    scrub_secs
        Time between the end of one check of all checksums and the beginning of the next.
    tidy
        Called in each round, for what else has to be done now and then.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        storm: StormClusterState,
        store: BlobStore,
        nimbus_id: NimbusId,
        peers: fetching.Peers,
        *,
        period_secs: float,
        delay_secs: float,
        leader: Callable[[], BlobWrites | None] = lambda: None,
        submitted: Callable[[], Collection[str]] = tuple,
        answer_secs: float = fetching.ANSWER_SECS,
        scrub_secs: float = 3600.0,
        tidy: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storm = storm
        self._store = store
        self._nimbus = str(nimbus_id)
        self._peers = peers
        self._period_secs = period_secs
        self._delay_secs = delay_secs
        self._leader = leader
        self._submitted = submitted
        self._scrub_secs = scrub_secs
        #: Called when blobs that were here are found to be lost, on the thread that finds it.
        self.on_loss: Callable[[], None] = lambda: None
        self._tidy = tidy
        self._clock = clock
        self._unreached: Resting[str] = Resting(clock)
        self._refused: Resting[tuple[str, str]] = Resting(clock)
        self._unneeded_since: dict[str, float] = {}
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._patience = Patience(answer_secs, is_wanted=lambda: not self._closing.is_set())
        #: How many rounds were begun, and which was the last that tried all that it had planned.
        self._rounds = threading.Condition()
        self._begun = 0
        self._ended = 0
        self._threads = [
            threading.Thread(target=self._run, name="code-sync", daemon=True),
            threading.Thread(target=self._scrub, name="code-scrub", daemon=True),
        ]
        store.on_loss = self._find_again

    def start(self) -> None:
        """Begin, in the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End, after the answer that a peer owes; a later process goes on with what came."""
        self._closing.set()
        self._woken.set()
        with self._rounds:
            self._rounds.notify_all()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(self._patience.answer_secs + _PATIENCE)

    def wake(self) -> None:
        """Have it look again at once."""
        self._woken.set()

    def missing(self) -> dict[str, Missing]:
        """Return the topologies whose code is not all here, as of now or later, by their ids.

        Before a Nimbus queues for the lead, and again before it accepts it, there should be none
        here but those that nobody alive has: their `Missing.lost` says so, and
        `Missing.held_last_by` names who has to come back.

        Raises
        ------
        StateError
            The cluster's state could not be read.
        """
        return planning.missing(self._look())

    def fetch(self, timeout_secs: float) -> bool:
        """Have the thread fetch all that can be had now, and wait for it.

        Returns
        -------
        bool
            Whether all was tried within the time, with success or without: `missing` tells.
        """
        with self._rounds:
            begun = self._begun
            self.wake()
            self._rounds.wait_for(
                lambda: self._ended > begun or self._closing.is_set(), timeout_secs
            )
            return self._ended > begun

    def run_once(self) -> Plan:
        """Do once what there is to do, and return what that was; for tests, and for the thread.

        Raises
        ------
        StateError
            The cluster's state could not be read or written.
        BlobStorageError
            The disk did not do it.
        """
        with self._rounds:
            self._begun += 1
            this = self._begun
        snapshot = replace(
            self._look(self.wake),
            resting=self._unreached.now(),
            refused=self._refused.now(),
            unneeded_since=self._unneeded_since,
            now=self._clock(),
            delay_secs=self._delay_secs,
        )
        plan = planning.plan(snapshot)
        self._unneeded_since = dict(plan.unneeded_since)
        for key in plan.withdraw:
            if self._store.get(key) == snapshot.local.get(key):
                self._storm.withdraw_blob(key, self._nimbus)
        for key in plan.announce:
            self._announce(key, snapshot.local[key], is_counted=key not in plan.count)
        self._forget(plan.forget)
        for key in plan.awaited:
            entry = snapshot.entries.get(key)
            self._await(key, entry)
            if key not in snapshot.local and entry is not None:
                self._adopt(key, entry.record)
        with storing(self._store.folder, "remove what is not needed"):
            self._tidy()
            records = (entry.record for entry in snapshot.entries.values())
            self._store.drop_parts({record.sha256 for record in records if record})
            for key in plan.delete:
                self._storm.leave_blob(key, self._nimbus, snapshot.local[key].version)
                if self._store.delete(key, expected=snapshot.local[key]):
                    log.info("deleted the blob %s, which nobody needs any more", key)
        for fetch in plan.lost:
            if not self._closing.is_set() and self._store.get(fetch.key) != fetch.record:
                self._fetch_from_supervisors(fetch, snapshot.local.get(fetch.key))
        for count, fetch in enumerate(plan.fetch):
            # What has changed meanwhile may be more urgent.
            if self._closing.is_set() or (count and self._woken.is_set()):
                break
            self._fetch(fetch, snapshot.local.get(fetch.key))
        else:
            with self._rounds:
                self._ended = this
                self._rounds.notify_all()
        return plan

    def _look(self, callback: Callback | None = None) -> Snapshot:
        # In this order: a topology is submitted until it is there, and its code before either.
        submitted = tuple(self._submitted())
        self._storm.state.sync_path(paths.STORMS)
        topologies = self._storm.active_storms(callback)
        # Only a blob whose files are there counts as one that this Nimbus has.
        if self._store.verify():
            self.on_loss()
            if callback is None:
                self.wake()
        local = self._store.all()
        entries = self._storm.blobs(None, callback)
        return Snapshot(
            nimbus=self._nimbus,
            topologies=topologies,
            local=local,
            entries={key: entry for key, entry in entries.items() if keys.is_key(key)},
            submitted=submitted,
        )

    def _announce(self, key: str, record: BlobRecord, *, is_counted: bool) -> None:
        try:
            if not is_counted:
                counted = self._storm.blob_key_sequence(key)
                version = None if counted is None else counted.version
                self._storm.set_blob_key_sequence(key, record.version, version)
            self._storm.announce_blob(key, self._nimbus, record)
        except (BadVersionError, NoNodeError, NodeExistsError) as error:
            log.info("%s changed while it was announced: %s", key, error)
            self.wake()

    def _await(self, key: str, seen: BlobEntry | None) -> None:
        """Be woken when somebody says to hold a blob, or has said so since it was `seen`."""
        holders = self._storm.blobstore_info(key, self.wake)
        is_held = any(holder.nimbus != self._nimbus for holder in holders)
        if is_held and self._storm.blobs([key]).get(key) != seen:
            self.wake()

    def _adopt(self, key: str, record: BlobRecord | None) -> None:
        """Take a blob that no Nimbus has, where its bytes turn up on this disk again."""
        if record is None:
            return
        with suppress(ValueError, BlobStorageError):
            if self._store.put(key, record, None, expected=None):
                self._announce(key, record, is_counted=True)

    def _fetch(self, fetch: Fetch, local: BlobRecord | None) -> None:
        key, record = fetch.key, fetch.record
        try:
            put = self._store.put(key, record, None, expected=local)
        except ValueError:  # the bytes are not here
            for source in fetch.sources:
                # It may have failed since the plan was made.
                resting = source in self._unreached.now()
                if not resting and self._fetch_from(source, key, record, local):
                    break
            else:
                return
            put = self._store.get(key) == record
        if put:
            self._announce(key, record, is_counted=True)

    def _find_again(self) -> None:
        self.wake()
        self.on_loss()

    def _scrub(self) -> None:
        while not self._closing.wait(self._scrub_secs):
            try:
                self._store.scrub(self._closing.wait)
            except Exception:
                log.exception("the checksums of blobs are not checked, and are tried again")

    def _fetch_from_supervisors(self, fetch: Fetch, local: BlobRecord | None) -> None:
        """Fetch a part of a topology's code from a supervisor that runs the topology."""
        storm_id, part = keys.split(fetch.key)
        assignment = self._storm.assignment_info(storm_id) if storm_id is not None else None
        if storm_id is None or assignment is None:
            return
        nodes = {where.node for where in (assignment.executor_node_port or {}).values()}
        for node, info in sorted(self._storm.all_supervisor_info().items()):
            source = f"supervisor {node}"
            is_resting = (source, fetch.key) in self._refused.now()
            if node not in nodes or info.http_port is None or is_resting:
                continue
            address = Address(info.hostname, info.http_port)
            peer = SupervisorPeer(address, storm_id, part, fetch.record.sha256)
            if self._fetch_from(source, fetch.key, fetch.record, local, peer):
                self._announce(fetch.key, fetch.record, is_counted=True)
                return

    def _fetch_from(
        self,
        source: str,
        key: str,
        record: BlobRecord,
        local: BlobRecord | None,
        peer: fetching.Peer | None = None,
    ) -> bool:
        """Fetch a blob from a Nimbus, or from `peer` if it is given; returns whether it came."""
        began = self._clock()
        part = self._store.part(record.sha256)
        try:
            if peer is None:
                draft = fetching.fetch_from(
                    self._peers, source, key, record, part, patience=self._patience
                )
            else:
                draft = fetching.fetch(peer, key, record, part, self._patience)
            self._store.put(key, record, draft, expected=local)
        except (PeerError, BlobStorageError) as error:
            if self._closing.is_set():
                return False
            if isinstance(error, PeerUnavailableError) and peer is None:
                rest = self._unreached.failed(source)
            else:
                rest = self._refused.failed((source, key))
            log.warning(
                "%s did not come from %s, and is asked for again in %g s: %s",
                *(key, source, rest, error),
            )
            return False
        self._unreached.worked(source)
        self._refused.worked((source, key))
        log.info(
            "fetched %s, version %d, %d bytes, from %s in %.1f s",
            *(key, record.version, record.size, source, self._clock() - began),
        )
        return True

    def _forget(self, unneeded: Collection[str]) -> None:
        """Delete blobs in ZooKeeper, if this Nimbus leads."""
        leader = self._leader() if unneeded else None
        if leader is None:
            return
        try:
            for key in unneeded:
                forget(leader, key)
                log.info("deleted the blob %s in ZooKeeper, as no topology needs it", key)
        except NotLeaderError as error:
            log.info("blobs that nobody needs are left to the next leader: %s", error)

    def _run(self) -> None:
        failing = False
        while not self._closing.is_set():
            self._woken.clear()
            try:
                plan = self.run_once()
            except StateClosedError:
                return
            except StormkeeperError as error:
                if not failing:
                    log.warning("blobs are not synchronised, and are tried again: %s", error)
                failing, wait = True, RETRY_SECS
            except Exception:
                log.exception("blobs are not synchronised, and are tried again")
                failing, wait = True, RETRY_SECS
            else:
                failing, wait = False, self._until_next(plan)
            if self._woken.wait(wait):
                self._closing.wait(SETTLING_SECS)

    def _until_next(self, plan: Plan) -> float:
        """Return after how many seconds there is something to do, if nobody wakes it."""
        now = self._clock()
        ends = [*self._unreached.now().values(), *self._refused.now().values()]
        ends += [since + self._delay_secs for since in plan.unneeded_since.values()]
        later = [end - now for end in ends if end > now]
        return min([self._period_secs, *later])


def forget(writer: BlobWrites, key: str) -> None:
    """Delete a blob in ZooKeeper, so that no Nimbus keeps it.

    Its number goes first: nobody announces what is not counted. What somebody was announcing just
    then goes when that Nimbus deletes its copy.
    """
    writer.remove_blob_key_sequence(key)
    writer.remove_blobstore_key(key)
