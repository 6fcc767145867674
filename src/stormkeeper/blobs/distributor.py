"""Distributes blobs from the disks of the Nimbuses, and waits for copies of a topology's code.

A Nimbus counts as a copy if it has all blobs of the code in their newest versions: only then can
the Nimbus lead. (Storm waits for copies of any one blob.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from stormkeeper import paths
from stormkeeper.blobs import keys
from stormkeeper.blobs.drafts import BLOCK, MOST_BYTES, Draft, disk_errors
from stormkeeper.blobs.peers import PeerConnector
from stormkeeper.blobs.publisher import Publisher, Upload, forget
from stormkeeper.blobs.store import BlobStore
from stormkeeper.blobs.sync import BlobSync
from stormkeeper.blobs.transfers import Downloads, Inbox, Uploads
from stormkeeper.conf import Conf
from stormkeeper.conf.folders import folder
from stormkeeper.errors import BlobInUseError, BlobNotFoundError, StormkeeperError
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blob_records import BlobEntry, BlobWrites, VersionedNumber
from stormkeeper.state.storm.cluster import StormClusterState, StormReads
from stormkeeper.state.watches import Callback


@dataclass(frozen=True)
class BlobSettings:
    """Configuration of a Nimbus's blobs."""

    folder: Path
    inbox: Path
    chunk_bytes: int = 65536
    #: Until an idle upload or download ends.
    idle_secs: float = 600.0
    #: For uploads to the inbox; then how long a file there waits for its submission.
    inbox_idle_secs: float = 600.0
    inbox_kept_secs: float = 3600.0
    most_bytes: int | None = MOST_BYTES
    #: Between rounds of the synchronisation without a change.
    period_secs: float = 120.0
    delay_secs: float = 300.0
    #: From the end of one check of all checksums to the next.
    scrub_secs: float = 3600.0

    @classmethod
    def from_conf(cls, conf: Conf) -> BlobSettings:
        local = folder("storm.local.dir", conf["storm.local.dir"])
        own = conf["blobstore.dir"]
        return cls(
            folder=local / "blobs" if own is None else folder("blobstore.dir", own),
            inbox=local / "nimbus" / "inbox",
            chunk_bytes=conf["storm.blobstore.inputstream.buffer.size.bytes"],
            idle_secs=conf["nimbus.blobstore.expiration.secs"],
            inbox_idle_secs=conf["nimbus.file.copy.expiration.secs"],
            inbox_kept_secs=conf["nimbus.inbox.jar.expiration.secs"],
            most_bytes=conf["nimbus.upload.max.bytes"],
            period_secs=conf["nimbus.code.sync.freq.secs"],
            delay_secs=conf["nimbus.topology.blobstore.deletion.delay.ms"] / 1000,
        )


class CodeDistributor:
    """The blobs of one Nimbus, with the calls for topologies' code. Thread-safe.

    `leader` and `submitted` are as in `BlobSync`.
    """

    def __init__(
        self,
        storm: StormClusterState,
        nimbus_id: NimbusId,
        peers: PeerConnector,
        settings: BlobSettings,
        *,
        leader: Callable[[], BlobWrites | None] = lambda: None,
        submitted: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._storm = storm
        self._nimbus_id = nimbus_id
        self.store = BlobStore(settings.folder)
        self.publisher = Publisher(storm, self.store, nimbus_id)
        self.uploads = Uploads(
            self.store,
            self.publisher,
            idle_secs=settings.idle_secs,
            most_bytes=settings.most_bytes,
        )
        self.downloads = Downloads(
            self.store, chunk_bytes=settings.chunk_bytes, idle_secs=settings.idle_secs
        )
        self.inbox = Inbox(
            settings.inbox,
            idle_secs=settings.inbox_idle_secs,
            kept_secs=settings.inbox_kept_secs,
            most_bytes=settings.most_bytes,
        )
        self.sync = BlobSync(
            storm,
            self.store,
            nimbus_id,
            peers,
            period_secs=settings.period_secs,
            delay_secs=settings.delay_secs,
            scrub_secs=settings.scrub_secs,
            leader=leader,
            submitted=submitted,
            tidy=self._expire,
        )

    def start(self) -> None:
        self.sync.start()

    def folders(self) -> list[Path]:
        """Return the folders; create missing folders."""
        self.inbox.restore()
        return [*self.store.folders(), self.inbox.folder]

    def upload(self, topology_id: str, parts: Mapping[str, bytes | Path]) -> None:
        """Publish a topology's code, all or nothing: bytes or a file for each of `keys.PARTS`."""
        if sorted(parts) != sorted(keys.PARTS):
            raise ValueError(f"a topology's code has {', '.join(keys.PARTS)}, not {sorted(parts)}")
        published: list[str] = []
        try:
            for key, part in zip(keys.of_topology(topology_id), keys.PARTS, strict=True):
                base = self.publisher.base(keys.check(key))
                self._publish(key, parts[part], base)
                published.append(key)
        except BaseException:
            with suppress(StormkeeperError):
                for key in published:
                    self._delete(key)
            raise

    def change(
        self,
        topology_id: str,
        part: str,
        change: Callable[[bytes], bytes],
        *,
        is_repeated: bool = False,
    ) -> None:
        """Publish a new version of a part of a topology's code, unless its bytes stay equal.

        `is_repeated`: an earlier try may have made the newest version. If no live Nimbus has that
        version, as after a lost disk, the version here is changed. Raises `BlobNotFoundError` if
        the newest version is not here, `BlobExistsError` after a change by another Nimbus.
        """
        key = f"{topology_id}-{part}"
        base, known = self.publisher.base(key), self.publisher.known(key)
        entry = self._storm.blobs([key]).get(key)
        is_lost = is_repeated and entry is not None and not entry.alive
        record, file = self.store.open(key)
        with file, disk_errors(self.store.folder, f"read {key}"):
            data = file.read()
        if record != known and not is_lost:
            raise BlobNotFoundError(f"the blob {key} is not here yet: try again in a moment")
        changed = change(data)
        if changed != data or record != known:
            self._publish(key, changed, base, settable=record.settable)

    def cleanup(self, topology_id: str) -> None:
        """Delete a topology's code; raises `BlobInUseError` if active."""
        for key in keys.of_topology(topology_id):
            self.delete(key)

    def delete(self, key: str) -> None:
        """Delete a blob; raises `BlobInUseError` for code of an active topology."""
        topology_id = keys.topology_of(keys.check(key))
        self._storm.state.sync_path(paths.STORMS)
        if topology_id in self._storm.active_storms():
            raise BlobInUseError(
                f"the code of {topology_id} is in use: kill the topology, and wait until it is gone"
            )
        self._delete(key)

    def close(self) -> None:
        """Stop, and delete unfinished uploads."""
        self.sync.close()
        self.uploads.close()
        self.downloads.close()
        self.inbox.close()
        self.store.close()

    def _publish(
        self,
        key: str,
        source: bytes | Path,
        base: VersionedNumber | None,
        *,
        settable: bytes | None = None,
    ) -> None:
        draft = self.store.draft()
        try:
            if isinstance(source, bytes):
                draft.write(source)
            else:
                _read(source, draft)
            draft.finish()
            is_new = settable is None
            self.publisher.publish(Upload(key, draft, base, is_new, settable or b""))
        finally:
            draft.discard()

    def _delete(self, key: str) -> None:
        forget(self._storm, key)
        record = self.store.get(key)
        if record is not None:
            self._storm.leave_blob(key, self._nimbus_id, record.version)
            self.store.delete(key)

    def _expire(self) -> None:
        self.uploads.expire()
        self.downloads.expire()
        self.inbox.expire()


def _read(path: Path, draft: Draft) -> None:
    with disk_errors(path.parent, f"read {path.name}"), path.open("rb") as file:
        while block := file.read(BLOCK):
            draft.write(block)


#: Default, if there are as many Nimbuses.
COPIES: Final = 2

#: Between looks without a change: no watch reports a failed disk.
_TURN_SECS: Final = 2.0


class Replication(NamedTuple):
    """How many Nimbuses have a topology's code, and should have it."""

    copies: int
    wanted: int

    @property
    def is_enough(self) -> bool:
        return self.copies >= self.wanted


def complete_copies(blobs: Collection[str], entries: Mapping[str, BlobEntry]) -> int:
    """Return how many live Nimbuses have all of these blobs."""
    holders = [set(entries[key].alive) if key in entries else set() for key in blobs]
    return len(set.intersection(*holders)) if holders else 0


def wanted_copies(configured: int | None, nimbuses: int) -> int:
    """Return the wanted number of copies; `nimbuses` are alive and can write."""
    return max(1, min(COPIES, nimbuses)) if configured is None else configured


def count_copies(
    storm: StormReads, topology_id: str, configured: int | None, callback: Callback | None = None
) -> Replication:
    """Return the current and wanted copies; `callback` is called when they change."""
    blobs = keys.of_topology(topology_id)
    nimbuses = sum(not each.disk_fault for each in storm.nimbuses(callback))
    if callback is not None:
        for key in blobs:
            storm.blobstore_info(key, callback)
    return Replication(
        complete_copies(blobs, storm.blobs(blobs)), wanted_copies(configured, nimbuses)
    )


def await_copies(storm: StormReads, topology_id: str, conf: Mapping[str, Any]) -> Replication:
    """Wait until enough Nimbuses have a topology's code; return the last count.

    `conf` is the topology's over the cluster's; at ``topology.max.replication.wait.time.sec`` 0 and
    less there is no limit.
    """
    configured = conf["topology.min.replication.count"]
    longest = conf["topology.max.replication.wait.time.sec"]
    deadline = time.monotonic() + longest if longest > 0 else None
    with storm.watch(lambda again: count_copies(storm, topology_id, configured, again)) as stream:
        latest = stream.next(0)
        while not latest.is_enough:
            left = _TURN_SECS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            try:
                latest = stream.next(min(left, _TURN_SECS))
            except TimeoutError:
                latest = count_copies(storm, topology_id, configured)
        return latest
