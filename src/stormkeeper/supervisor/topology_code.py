"""The code of topologies on this machine: fetched, verified, unpacked, with its environment.

Before each start of a worker the checksums are compared with the cluster's state, if readable, and
the unpacked files with the manifest. Packages are unpacked in folders by checksum, so a running
worker keeps its own.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from stormkeeper.blobs import keys
from stormkeeper.blobs.peers import FetchLimits, PeerConnector, deliver
from stormkeeper.errors import (
    BlobNotFoundError,
    CodeError,
    SerializationError,
    StateError,
    StormkeeperError,
    SupervisorError,
)
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.disk import Directories, Needed
from stormkeeper.supervisor.environments import BUILD_SECS, CHECK_SECS, Environments
from stormkeeper.supervisor.slot_model import Event, PreparationFailed, Prepared
from stormkeeper.thrift.serialization import decompress
from stormkeeper.topology.package import manifest as manifests
from stormkeeper.topology.package.archive import Package, find_difference, remove_unfinished, unpack
from stormkeeper.topology.package.manifest import PackageManifest

log = logging.getLogger(__name__)

_PACKAGE, _, _CONF = keys.PARTS

#: SHA-256 of each part.
_CHECKSUMS: Final = "checksums.json"

_DIGITS: Final = 32

_WAIT_SECS: Final = BUILD_SECS + 2 * CHECK_SECS


class LocalTopologyCode:
    """The code of all topologies of a supervisor. Thread-safe."""

    def __init__(
        self, storm: StormClusterState, peers: PeerConnector, directories: Directories
    ) -> None:
        self._storm = storm
        self._peers = peers
        self._directories = directories
        self._fetching: dict[str, threading.Lock] = {}
        #: Held while code is searched or removed.
        self._disk = threading.RLock()
        remove_unfinished(directories.packages)

    def fetch(self, storm_id: str, is_wanted: Callable[[], bool]) -> None:
        """Fetch the newest version of a topology's code, if needed; `is_wanted` may cancel.

        A second caller waits for the first. Raises `CodeError` or `StateError` if the fetch fails,
        `SupervisorError` if the code cannot be run or stored.
        """
        with self._fetching.setdefault(storm_id, threading.Lock()):
            is_connected = self._storm.state.connection is ConnectionState.CONNECTED
            # Without ZooKeeper the local code is used at once.
            if not is_connected and self._is_there(storm_id, None):
                return
            if self._is_there(storm_id, self._wanted(storm_id)):
                return
            limits = FetchLimits(is_wanted=is_wanted)
            folder = self._directories.code(storm_id)
            try:
                deliver(self._storm, self._peers, storm_id, folder, limits=limits)
                with self._disk:
                    checksums = {part: _checksum(folder / part) for part in keys.PARTS}
                    (folder / _CHECKSUMS).write_bytes(msgspec.json.encode(checksums))
                    self._unpack(storm_id)
            except OSError as error:
                raise SupervisorError(
                    f"the code of {storm_id} cannot be put below {folder.parent} ({error}): make"
                    " space, or the folder writable"
                ) from error

    def unpacked(self, storm_id: str) -> Path:
        """Return the folder of the unpacked package; raises `SupervisorError` if missing."""
        checksums = self._checksums(storm_id)
        if checksums is None:
            raise SupervisorError(f"the code of {storm_id} is not here any more")
        return self._directories.packages / checksums[_PACKAGE][:_DIGITS]

    def manifest(self, storm_id: str) -> PackageManifest:
        """Return the package's manifest; raises `SupervisorError` if missing."""
        try:
            return manifests.decode((self.unpacked(storm_id) / manifests.MANIFEST).read_bytes())
        except (OSError, SerializationError) as error:
            raise SupervisorError(f"the package of {storm_id} cannot be read: {error}") from error

    def conf(self, storm_id: str) -> dict[str, Any]:
        """Return the configuration of the submission; raises `SupervisorError` if unreadable."""
        try:
            data = (self._directories.code(storm_id) / _CONF).read_bytes()
            return msgspec.json.decode(decompress(data), type=dict[str, Any])
        except (OSError, SerializationError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SupervisorError(
                f"the configuration of {storm_id} cannot be read: {error}"
            ) from error

    def read(self, storm_id: str, part: str, sha256: str, start: int, length: int) -> bytes:
        """Return bytes of a part with that `sha256`, none at the end; raises `OSError`."""
        checksums = self._checksums(storm_id) if part in keys.PARTS else None
        if checksums is None or not hmac.compare_digest(checksums[part].encode(), sha256.encode()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with (self._directories.code(storm_id) / part).open("rb") as file:
            return os.pread(file.fileno(), length, start)

    def remove_unneeded(self, needed: Callable[[], Needed]) -> list[str]:
        """Remove unneeded code and folders of workers; return the ids."""
        with self._disk:
            removed = self._directories.remove_unneeded(needed)
            used = [self._checksums(storm_id) for storm_id in needed().storm_ids]
            names = {each[_PACKAGE][:_DIGITS] for each in used if each is not None}
            self._directories.remove_unused_packages(names)
        return removed

    def _wanted(self, storm_id: str) -> Mapping[str, str] | None:
        """Return each part's checksum in the cluster's state; None if unreadable."""
        blobs = keys.of_topology(keys.check(storm_id))
        try:
            entries = self._storm.blobs(blobs)
        except StateError:
            return None
        wanted = {}
        for key, part in zip(blobs, keys.PARTS, strict=True):
            entry = entries.get(key)
            if entry is None or entry.record is None:
                raise BlobNotFoundError(
                    f"no Nimbus has ever had {key}: was its topology submitted?"
                )
            wanted[part] = entry.record.sha256
        return wanted

    def _is_there(self, storm_id: str, wanted: Mapping[str, str] | None) -> bool:
        with self._disk:
            there = self._checksums(storm_id)
            if there is None or (wanted is not None and there != wanted):
                return False
            try:
                if _checksum(self._directories.code(storm_id) / _CONF) != there[_CONF]:
                    return False
                self._unpack(storm_id)
            except (CodeError, SupervisorError, OSError):
                return False  # fetched again
            return True

    def _checksums(self, storm_id: str) -> dict[str, str] | None:
        folder = self._directories.code(storm_id)
        try:
            data = (folder / _CHECKSUMS).read_bytes()
            there = msgspec.json.decode(data, type=dict[str, str])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return there if there.keys() == set(keys.PARTS) else None

    def _unpack(self, storm_id: str) -> None:
        folder = self.unpacked(storm_id)
        try:
            with (self._directories.code(storm_id) / _PACKAGE).open("rb") as package:
                differing = find_difference(Package(package).manifest, folder)
                if differing is None:
                    return
                if folder.exists():
                    log.warning("%s differs from its package, which is unpacked again", differing)
                self._directories.remove(folder)
                package.seek(0)
                unpack(package, folder)
        except SerializationError as error:
            raise SupervisorError(
                f"{storm_id} is no topology that this supervisor can run: {error}"
            ) from error
        except OSError as error:
            raise SupervisorError(
                f"the package of {storm_id} cannot be unpacked in {folder} ({error}): make space,"
                " or the folder writable"
            ) from error


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@dataclass(eq=False)
class PreparationThreads:
    """Prepares code and environments of workers on threads. Thread-safe.

    `answer` gets a slot's port and the answer to its request.
    """

    code: LocalTopologyCode
    environments: Environments
    answer: Callable[[int, Event], None]
    _closed: threading.Event = field(default_factory=threading.Event, init=False)
    _pythons: dict[str, Path] = field(default_factory=dict, init=False)
    _building: dict[str, str] = field(default_factory=dict, init=False)

    def begin(self, port: int, request: int, storm_id: str) -> None:
        """Fetch the code and build the environment on a thread."""
        threading.Thread(
            target=self._run, args=(port, request, storm_id), name=f"code {storm_id}", daemon=True
        ).start()

    def progress(self, storm_id: str) -> str | None:
        """Return pip's last step, perhaps empty; None if the code is not there yet."""
        building = self._building.get(storm_id)
        return None if building is None else self.environments.progress(building)

    def python(self, storm_id: str) -> Path:
        """Return the Python of a prepared topology; raises `SupervisorError`."""
        try:
            return self._pythons[storm_id]
        except KeyError:
            raise SupervisorError(f"there is no environment for {storm_id} yet") from None

    def close(self) -> None:
        """Drop all answers, and cancel fetches and builds."""
        self._closed.set()
        self.environments.close()

    def _run(self, port: int, request: int, storm_id: str) -> None:
        answer: Event = Prepared(request)
        try:
            self._prepare(storm_id)
        except StormkeeperError as error:
            answer = PreparationFailed(request, str(error))
        except Exception as error:
            # The slot gets an answer at once, and retries.
            log.exception("%s cannot be prepared, by a defect of Stormkeeper", storm_id)
            answer = PreparationFailed(request, f"an error of the supervisor: {error!r}")
        if not self._closed.is_set():
            self.answer(port, answer)

    def _prepare(self, storm_id: str) -> None:
        self._building.pop(storm_id, None)
        self.code.fetch(storm_id, lambda: not self._closed.is_set())
        manifest, unpacked = self.code.manifest(storm_id), self.code.unpacked(storm_id)
        self._building[storm_id] = self.environments.identity(manifest) or ""
        python = self.environments.python(manifest, unpacked, wait_secs=_WAIT_SECS)
        self._pythons[storm_id] = python
