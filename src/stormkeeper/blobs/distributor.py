"""`CodeDistributor`: how topologies' code gets to where it is needed, and its first implementation.

That one keeps blobs on the local file systems of the Nimbuses, each of which copies them from the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from stormkeeper import paths
from stormkeeper.blobs import delivery, fetching, keys, replication
from stormkeeper.blobs.downloads import Downloads
from stormkeeper.blobs.drafts import BLOCK, Draft, storing
from stormkeeper.blobs.inbox import Inbox
from stormkeeper.blobs.publishing import Publisher, Upload
from stormkeeper.blobs.settings import Settings
from stormkeeper.blobs.store import BlobStore
from stormkeeper.blobs.sync import CodeSync, forget
from stormkeeper.blobs.uploads import Uploads
from stormkeeper.errors import BlobInUseError, BlobNotFoundError, StormkeeperError
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blobs import BlobWrites, VersionedNumber
from stormkeeper.state.storm.cluster import StormClusterState


class CodeDistributor(Protocol):
    """Distributes the code of topologies. Safe for many threads."""

    def upload(self, topology_id: str, parts: Mapping[str, bytes | Path]) -> None:
        """Store a topology's code, from where all who need it get it; all of it, or nothing.

        Parameters
        ----------
        topology_id
            Whose.
        parts
            The bytes of each of `stormkeeper.blobs.keys.PARTS`, or the file that has them.
        """
        ...

    def download(self, topology_id: str, folder: Path) -> list[Path]:
        """Have a topology's code in a folder, as a whole or not at all; returns the files."""
        ...

    def replication_count(self, topology_id: str) -> int:
        """Return how many Nimbuses that are alive have all of a topology's code."""
        ...

    def cleanup(self, topology_id: str) -> None:
        """Delete the code of a topology that is not there any more; none is fine."""
        ...

    def close(self) -> None:
        """End, and leave all code where it is."""
        ...


class LocalCodeDistributor(CodeDistributor):
    """Code on the disks of the Nimbuses; this is one of them.

    Parameters
    ----------
    storm
        The cluster's state, in the Nimbus's session.
    nimbus_id
        Which Nimbus.
    peers
        Connects to the others.
    settings
        What is configured.
    leader
        Returns what a leader writes with, None while this Nimbus does not lead.
    submitted
        Returns the ids of topologies that are being submitted here; see `CodeSync`.

    Raises
    ------
    BlobStorageError
        The folder cannot be used.
    """

    def __init__(
        self,
        storm: StormClusterState,
        nimbus_id: NimbusId,
        peers: fetching.Peers,
        settings: Settings,
        *,
        leader: Callable[[], BlobWrites | None] = lambda: None,
        submitted: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._storm = storm
        self._nimbus_id = nimbus_id
        self._peers = peers
        #: The blobs that are here.
        self.store = BlobStore(settings.folder)
        #: What is known of blobs, and makes them.
        self.publisher = Publisher(storm, self.store, nimbus_id)
        #: What clients upload and download.
        self.uploads = Uploads(
            self.store,
            self.publisher,
            idle_secs=settings.idle_secs,
            most_bytes=settings.most_bytes,
        )
        self.downloads = Downloads(
            self.store, chunk_bytes=settings.chunk_bytes, idle_secs=settings.idle_secs
        )
        #: What clients upload to be submitted.
        self.inbox = Inbox(
            settings.inbox,
            idle_secs=settings.inbox_idle_secs,
            kept_secs=settings.inbox_kept_secs,
            most_bytes=settings.most_bytes,
        )
        #: What copies blobs from the others; `start` begins it.
        self.sync = CodeSync(
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
        """Begin to copy blobs from the others."""
        self.sync.start()

    def folders(self) -> list[Path]:
        """Return the folders that files are written to, which are made again where missing.

        Raises
        ------
        BlobStorageError
            A folder cannot be made.
        """
        self.inbox.restore()
        return [*self.store.folders(), self.inbox.folder]

    def upload(self, topology_id: str, parts: Mapping[str, bytes | Path]) -> None:
        """See `CodeDistributor.upload`.

        Raises
        ------
        ValueError
            A part is missing, or is none of them.
        BlobExistsError
            There is code of that topology already.
        BlobStorageError, StateError
            The disk or the cluster's state did not do it; nothing is left, unless that failed too.
        """
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
                    self._delete(self._storm, key)
            raise

    def change(
        self,
        topology_id: str,
        part: str,
        change: Callable[[bytes], bytes],
        *,
        is_repeated: bool = False,
    ) -> None:
        """Have a part of a topology's code be what `change` makes of its bytes.

        The next version is copied by the other Nimbuses as any is. A part that stays as it is gets
        none.

        Parameters
        ----------
        topology_id
            Whose.
        part
            One of `stormkeeper.blobs.keys.PARTS`.
        change
            Takes all bytes of the part. What it raises is raised, and nothing is changed.
        is_repeated
            Whether an earlier try may have made the newest version. If no Nimbus alive has that
            one any more, as after a lost disk, the version that is here is changed.

        Raises
        ------
        BlobNotFoundError
            There is none, or its newest version is not here.
        BlobExistsError
            Somebody else has changed it meanwhile.
        BlobStorageError, StateError
            As `upload`.
        """
        key = f"{topology_id}-{part}"
        base, known = self.publisher.base(key), self.publisher.known(key)
        entry = self._storm.blobs([key]).get(key)
        is_lost = is_repeated and entry is not None and not entry.alive
        record, file = self.store.open(key)
        with file, storing(self.store.folder, f"read {key}"):
            data = file.read()
        if record != known and not is_lost:
            raise BlobNotFoundError(f"the blob {key} is not here yet: try again in a moment")
        changed = change(data)
        if changed != data or record != known:
            self._publish(key, changed, base, settable=record.settable)

    def download(self, topology_id: str, folder: Path) -> list[Path]:
        """See `CodeDistributor.download`; errors are those of `stormkeeper.blobs.delivery`."""
        return delivery.deliver(self._storm, self._peers, topology_id, folder, store=self.store)

    def replication_count(self, topology_id: str) -> int:
        """See `CodeDistributor.replication_count`."""
        return replication.look(self._storm, topology_id, None).copies

    def cleanup(self, topology_id: str, leader: BlobWrites | None = None) -> None:
        """See `CodeDistributor.cleanup`; the other Nimbuses delete it after the configured delay.

        Parameters
        ----------
        topology_id
            Whose.
        leader
            What a leader writes with, so that nothing is deleted by one who leads no more.

        Raises
        ------
        BlobInUseError
            The topology is there.
        NotLeaderError
            `leader` leads no more.
        """
        for key in keys.of_topology(topology_id):
            self.delete(key, leader)

    def delete(self, key: str, leader: BlobWrites | None = None) -> None:
        """Delete a blob; none is fine, and else as `cleanup`."""
        topology_id = keys.topology_of(keys.check(key))
        self._storm.state.sync_path(paths.STORMS)
        if topology_id in self._storm.active_storms():
            raise BlobInUseError(
                f"the code of {topology_id} is in use: kill the topology, and wait until it is gone"
            )
        self._delete(self._storm if leader is None else leader, key)

    def close(self) -> None:
        """See `CodeDistributor.close`; what clients were uploading is removed."""
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
        """Publish what a blob is to have, which is new unless something is settable of it."""
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

    def _delete(self, writer: BlobWrites, key: str) -> None:
        forget(writer, key)
        record = self.store.get(key)
        if record is not None:
            self._storm.leave_blob(key, self._nimbus_id, record.version)
            self.store.delete(key)

    def _expire(self) -> None:
        self.uploads.expire()
        self.downloads.expire()
        self.inbox.expire()


def _read(path: Path, draft: Draft) -> None:
    with storing(path.parent, f"read {path.name}"), path.open("rb") as file:
        while block := file.read(BLOCK):
            draft.write(block)
