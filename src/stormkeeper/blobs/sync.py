"""Keeps a Nimbus's blobs in step with the cluster, by carrying out `sync_plan`.

A round begins when a watch fires, and at least every ``nimbus.code.sync.freq.secs``. It reads the
entries that events have named since the last round; after lost events, all. A blob that the disk
has lost is withdrawn in ZooKeeper and fetched from another Nimbus or else from a supervisor that
runs its topology. A second thread slowly verifies the checksums.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Generic, TypeVar

from stormkeeper import paths
from stormkeeper.blobs import keys, sync_plan
from stormkeeper.blobs.drafts import disk_errors
from stormkeeper.blobs.peers import (
    ANSWER_SECS,
    FetchLimits,
    Peer,
    PeerConnector,
    SupervisorPeer,
    fetch,
    fetch_from,
)
from stormkeeper.blobs.publisher import forget
from stormkeeper.blobs.store import BlobStore
from stormkeeper.blobs.sync_plan import BlobFetch, BlobSnapshot, Missing, SyncPlan
from stormkeeper.conf import Address
from stormkeeper.daemon.periodic import FailureStreak, PeriodicThread
from stormkeeper.errors import (
    BadVersionError,
    BlobStorageError,
    NodeExistsError,
    NoNodeError,
    NotLeaderError,
    PeerError,
    PeerUnavailableError,
)
from stormkeeper.paths import NimbusId
from stormkeeper.state.storage import EventType
from stormkeeper.state.storm.blob_records import BlobEntry, BlobRecord, BlobWrites
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.watches import Callback

log = logging.getLogger(__name__)

_TOPS: Final = (paths.BLOB_KEY_SEQUENCES, paths.BLOBSTORE)

#: After a failed round.
_RETRY_SECS: Final = 2.0

#: Between a change and the round: an upload makes several changes.
_SETTLE_SECS: Final = 0.1

#: Pauses before a failed peer is asked again.
FIRST_REST_SECS: Final = 0.5
LONGEST_REST_SECS: Final = 30.0

#: Of `BlobSync.close`, beyond the timeout of a peer's answer.
_CLOSE_SECS: Final = 5.0

Name = TypeVar("Name")


class PeerBackoff(Generic[Name]):
    """Pauses of failed peers, twice as long after each failure."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._streaks: dict[Name, FailureStreak] = {}
        self._until: dict[Name, float] = {}

    def failed(self, name: Name) -> float:
        """Record a failure; return the peer's pause in seconds."""
        streak = self._streaks.setdefault(name, FailureStreak(FIRST_REST_SECS, LONGEST_REST_SECS))
        rest = streak.record()
        self._until[name] = self._clock() + rest
        return rest

    def worked(self, name: Name) -> None:
        self._streaks.pop(name, None)
        self._until.pop(name, None)

    def now(self) -> dict[Name, float]:
        now = self._clock()
        for name in [n for n, until in self._until.items() if until + LONGEST_REST_SECS < now]:
            self.worked(name)
        return {name: until for name, until in self._until.items() if until > now}


class BlobSync:
    """Synchronises the blobs of one Nimbus.

    `leader` returns the leader's writes, None while this Nimbus does not lead; `submitted` the
    topologies in submission here. `tidy` is called in each round. An unneeded blob is kept for
    `delay_secs`.
    """

    def __init__(
        self,
        storm: StormClusterState,
        store: BlobStore,
        nimbus_id: NimbusId,
        peers: PeerConnector,
        *,
        period_secs: float,
        delay_secs: float,
        leader: Callable[[], BlobWrites | None] = lambda: None,
        submitted: Callable[[], Collection[str]] = tuple,
        scrub_secs: float = 3600.0,
        tidy: Callable[[], object] = lambda: None,
    ) -> None:
        self._storm = storm
        self._store = store
        self._nimbus = str(nimbus_id)
        self._peers = peers
        self._period_secs = period_secs
        self._delay_secs = delay_secs
        self._leader = leader
        self._submitted = submitted
        #: As `BlobStore.on_loss`.
        self.on_loss: Callable[[], None] = lambda: None
        self._tidy = tidy
        self._unreached: PeerBackoff[str] = PeerBackoff(time.monotonic)
        self._refused: PeerBackoff[tuple[str, str]] = PeerBackoff(time.monotonic)
        self._unneeded_since: dict[str, float] = {}
        self._entries: dict[str, BlobEntry] = {}
        #: Keys whose entries may have changed since they were read; None: all.
        self._changed: set[str] | None = None
        self._changes = threading.Lock()
        #: Whether something changed since the last round began.
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._limits = FetchLimits(is_wanted=lambda: not self._closing.is_set())
        #: The number of rounds begun, and of the last round that tried all of its plan.
        self._rounds = threading.Condition()
        self._begun = 0
        self._ended = 0
        self._rounds_thread = PeriodicThread(
            "code-sync",
            self._run_round,
            streak=FailureStreak(_RETRY_SECS, _RETRY_SECS),
            failure="blobs are not synchronised",
            logger=log,
        )
        self._scrub_thread = PeriodicThread(
            "code-scrub",
            self._scrub,
            period_secs=scrub_secs,
            first_secs=scrub_secs,
            streak=FailureStreak(scrub_secs, scrub_secs),
            failure="the checksums of blobs could not be checked",
            logger=log,
        )
        store.on_loss = self._find_again

    def start(self) -> None:
        self._rounds_thread.start()
        self._scrub_thread.start()

    def close(self) -> None:
        """Stop after the answer in progress."""
        self._closing.set()
        with self._rounds:
            self._rounds.notify_all()
        for thread in (self._rounds_thread, self._scrub_thread):
            thread.close(ANSWER_SECS + _CLOSE_SECS)
        for top in _TOPS:
            self._storm.state.unwatch_tree(top, self._on_event)

    def wake(self) -> None:
        self._woken.set()
        self._rounds_thread.wake()

    def missing(self) -> dict[str, Missing]:
        """Return the topologies whose code is not completely here, as of now or later."""
        self._store.verify()
        return sync_plan.missing(self._look())

    def fetch(self, timeout_secs: float) -> bool:
        """Wait until a round has tried to fetch everything missing; False after the timeout."""
        with self._rounds:
            begun = self._begun
            self.wake()
            self._rounds.wait_for(
                lambda: self._ended > begun or self._closing.is_set(), timeout_secs
            )
            return self._ended > begun

    def run_once(self) -> SyncPlan:
        # Only a blob whose file exists counts as held by this Nimbus.
        self._store.verify()
        self._woken.clear()
        with self._rounds:
            self._begun += 1
            this = self._begun
        snapshot = replace(
            self._look(self.wake),
            resting=self._unreached.now(),
            refused=self._refused.now(),
            unneeded_since=self._unneeded_since,
            now=time.monotonic(),
            delay_secs=self._delay_secs,
        )
        plan = sync_plan.plan(snapshot)
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
        with disk_errors(self._store.folder, "remove what is not needed"):
            self._tidy()
            records = (entry.record for entry in snapshot.entries.values())
            self._store.drop_parts({record.sha256 for record in records if record})
            for key in plan.delete:
                self._storm.leave_blob(key, self._nimbus, snapshot.local[key].version)
                if self._store.delete(key, expected=snapshot.local[key]):
                    log.info("deleted the blob %s, which is not needed any more", key)
        for lost in plan.lost:
            if not self._closing.is_set() and self._store.get(lost.key) != lost.record:
                self._fetch_from_supervisors(lost, snapshot.local.get(lost.key))
        for count, wanted in enumerate(plan.fetch):
            # A change meanwhile may be more urgent.
            if self._closing.is_set() or (count and self._woken.is_set()):
                break
            self._fetch(wanted, snapshot.local.get(wanted.key))
        else:
            with self._rounds:
                self._ended = this
                self._rounds.notify_all()
        return plan

    def _look(self, callback: Callback | None = None) -> BlobSnapshot:
        """Return a plan's input; without `callback`, of code that may be missing here alone."""
        # In this order: a topology counts as submitted until active, and its code comes first.
        submitted = tuple(self._submitted())
        self._storm.state.sync_path(paths.STORMS)
        topologies = self._storm.active_storms(callback)
        local = self._store.all()
        return BlobSnapshot(
            nimbus=self._nimbus,
            topologies=topologies,
            local=local,
            entries=self._read_changed() if callback else self._read_unsure(topologies, local),
            submitted=submitted,
        )

    def _read_changed(self) -> Mapping[str, BlobEntry]:
        """Return all entries; read those that may have changed."""
        with self._changes:
            changed, self._changed = self._changed, set()
        is_followed = True
        try:
            if changed is None:
                state = self._storm.state
                is_followed = all(state.watch_tree(top, self._on_event) for top in _TOPS)
            found = self._storm.blobs(changed, None if is_followed else self.wake)
        except BaseException:
            self._note(changed)
            raise
        known = {} if changed is None else self._entries
        entries = {key: entry for key, entry in known.items() if key not in (changed or ())}
        self._entries = entries | {key: each for key, each in found.items() if keys.is_key(key)}
        if not is_followed:
            self._note(None)
        return self._entries

    def _note(self, changed: Collection[str] | None) -> None:
        with self._changes:
            if changed is None:
                self._changed = None
            elif self._changed is not None:
                self._changed.update(changed)

    def _on_event(self, event: EventType, path: str) -> None:
        """Note the key of a changed node; on the store's thread."""
        _, top, *below = path.split("/")
        self._note(None if event is EventType.EVENTS_MISSED else below[:1])
        if f"/{top}" == paths.BLOB_KEY_SEQUENCES and len(below) == 1:
            self.wake()

    def _read_unsure(
        self, topologies: Collection[str], local: Mapping[str, BlobRecord]
    ) -> Mapping[str, BlobEntry]:
        """Return the entries of topologies' code, except code that is here in the counted version.

        Each version is counted before any Nimbus has it, so there is none newer than these.
        """
        needed = [key for name in topologies for key in keys.of_topology(name)]
        counts = self._storm.view.blob_counts()
        here = {key: (each.version, each.born) for key, each in local.items()}
        return self._storm.blobs(
            [key for key in needed if key not in here or here[key] != counts.get(key)]
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
        """Wake when a Nimbus announces a blob, or has announced it since it was `seen`."""
        holders = self._storm.blobstore_info(key, self.wake)
        is_held = any(holder.nimbus != self._nimbus for holder in holders)
        if is_held and self._storm.blobs([key]).get(key) != seen:
            self.wake()

    def _adopt(self, key: str, record: BlobRecord | None) -> None:
        """Store a blob that no Nimbus has if its bytes are on this disk again."""
        if record is None:
            return
        with suppress(ValueError, BlobStorageError):
            if self._store.put(key, record, None, expected=None):
                self._announce(key, record, is_counted=True)

    def _fetch(self, wanted: BlobFetch, local: BlobRecord | None) -> None:
        key, record = wanted.key, wanted.record
        try:
            put = self._store.put(key, record, None, expected=local)
        except ValueError:  # the bytes are not here
            for source in wanted.sources:
                # May have failed since the plan was made.
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
        self._store.scrub(self._closing.wait)

    def _fetch_from_supervisors(self, wanted: BlobFetch, local: BlobRecord | None) -> None:
        storm_id, part = keys.split(wanted.key)
        records = self._storm.view.caught_up()
        assignment = records.assignments.get(storm_id or "")
        if storm_id is None or assignment is None:
            return
        nodes = {where.node for where in (assignment.executor_node_port or {}).values()}
        for node in sorted(nodes & records.supervisors.keys()):
            info, source = records.supervisors[node], f"supervisor {node}"
            if info.http_port is None or (source, wanted.key) in self._refused.now():
                continue
            address = Address(info.hostname, info.http_port)
            peer = SupervisorPeer(address, storm_id, part, wanted.record.sha256)
            if self._fetch_from(source, wanted.key, wanted.record, local, peer):
                self._announce(wanted.key, wanted.record, is_counted=True)
                return

    def _fetch_from(
        self,
        source: str,
        key: str,
        record: BlobRecord,
        local: BlobRecord | None,
        peer: Peer | None = None,
    ) -> bool:
        began = time.monotonic()
        part = self._store.part(record.sha256)
        try:
            if peer is None:
                draft = fetch_from(self._peers, source, key, record, part, limits=self._limits)
            else:
                draft = fetch(peer, key, record, part, self._limits)
            self._store.put(key, record, draft, expected=local)
        except (PeerError, BlobStorageError) as error:
            if self._closing.is_set():
                return False
            if isinstance(error, PeerUnavailableError) and peer is None:
                rest = self._unreached.failed(source)
            else:
                rest = self._refused.failed((source, key))
            log.warning(
                "could not fetch %s from %s, next try in %g s: %s",
                *(key, source, rest, error),
            )
            return False
        self._unreached.worked(source)
        self._refused.worked((source, key))
        log.info(
            "fetched %s, version %d, %d bytes, from %s in %.1f s",
            *(key, record.version, record.size, source, time.monotonic() - began),
        )
        return True

    def _forget(self, unneeded: Collection[str]) -> None:
        leader = self._leader() if unneeded else None
        if leader is None:
            return
        try:
            for key in unneeded:
                forget(leader, key)
                log.info("deleted the blob %s in ZooKeeper: no topology needs it", key)
        except NotLeaderError as error:
            log.info("the next leader deletes the unneeded blobs: %s", error)

    def _run_round(self) -> float:
        if self._rounds_thread.was_woken:
            self._closing.wait(_SETTLE_SECS)
        # The last round has what woke it while it settled, unless it failed.
        is_done = self._ended == self._begun and not self._woken.is_set()
        if not ((self._rounds_thread.was_woken and is_done) or self._closing.is_set()):
            self.run_once()
        return self._until_next()

    def _until_next(self) -> float:
        now = time.monotonic()
        ends = [*self._unreached.now().values(), *self._refused.now().values()]
        ends += [since + self._delay_secs for since in self._unneeded_since.values()]
        later = [end - now for end in ends if end > now]
        return min([self._period_secs, *later])
