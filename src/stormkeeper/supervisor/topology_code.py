"""The code of topologies on this machine: fetched from a Nimbus, checked, and laid out.

A topology has three blobs: its package, a description, and its configuration. Whenever a worker is
about to be started, they are compared with what the cluster's state says, by their checksums. So a
configuration that was changed counts from the next start on. Where the cluster's state cannot be
read, what is here is taken.

Packages are laid out beside, by their checksums. So one stays where it is while a worker runs from
it, whatever is fetched meanwhile. Before each start its files are compared with the manifest, and
it is laid out again if one differs.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import os
import threading
from collections.abc import Callable, Collection, Container, Mapping
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
    SupervisorError,
)
from stormkeeper.state.storage import ConnectionState
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.supervisor.directories import Directories
from stormkeeper.thrift.compression import decompress
from stormkeeper.topology.package import manifest as manifests
from stormkeeper.topology.package.archive import Package, find_difference, remove_unfinished, unpack
from stormkeeper.topology.package.manifest import PackageManifest

log = logging.getLogger(__name__)

_PACKAGE, _, _CONF = keys.PARTS

#: Says what is in a topology's folder: the SHA-256 of each part.
_CHECKSUMS: Final = "checksums.json"

#: Digits of a checksum that name a laid out package.
_DIGITS: Final = 32


class LocalTopologyCode:
    """The code of all topologies of a supervisor. Safe for many threads.

    Parameters
    ----------
    storm
        The cluster's state, which says who has the code and what is in it.
    peers
        Connects to Nimbuses.
    directories
        Where the code is.
    """

    def __init__(
        self, storm: StormClusterState, peers: PeerConnector, directories: Directories
    ) -> None:
        self._storm = storm
        self._peers = peers
        self._directories = directories
        self._lock = threading.Lock()
        #: Held by who fetches for a topology.
        self._fetching: dict[str, threading.Lock] = {}
        #: Held by who looks whether code is there, and by who removes some.
        self._disk = threading.RLock()
        remove_unfinished(directories.packages)

    def fetch(self, storm_id: str, is_wanted: Callable[[], bool]) -> None:
        """See that a topology's code is here, whole and in its newest version.

        Of two callers for one topology, the second waits for what comes of the first.

        Parameters
        ----------
        storm_id
            The topology.
        is_wanted
            Asked now and then whether to go on.

        Raises
        ------
        CodeError, StateError
            It could not be fetched.
        SupervisorError
            What was fetched is not what a supervisor can run, or the disk did not take it.
        """
        with self._lock:
            turn = self._fetching.setdefault(storm_id, threading.Lock())
        with turn:
            is_connected = self._storm.state.connection is ConnectionState.CONNECTED
            # Else nobody waits in vain for what is here.
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
                    self._lay_out(storm_id)
            except OSError as error:
                raise SupervisorError(
                    f"the code of {storm_id} cannot be put below {folder.parent} ({error}): make"
                    " space, or the folder writable"
                ) from error

    def unpacked(self, storm_id: str) -> Path:
        """Return where the topology's package is laid out.

        Raises
        ------
        SupervisorError
            Its code is not here.
        """
        checksums = self._checksums(storm_id)
        if checksums is None:
            raise SupervisorError(f"the code of {storm_id} is not here any more")
        return self._directories.packages / checksums[_PACKAGE][:_DIGITS]

    def manifest(self, storm_id: str) -> PackageManifest:
        """Return the manifest of the topology's package.

        Raises
        ------
        SupervisorError
            Its code is not here.
        """
        try:
            return manifests.decode((self.unpacked(storm_id) / manifests.MANIFEST).read_bytes())
        except (OSError, SerializationError) as error:
            raise SupervisorError(f"the package of {storm_id} cannot be read: {error}") from error

    def conf(self, storm_id: str) -> dict[str, Any]:
        """Return the topology's configuration, as it was saved when it was submitted.

        Raises
        ------
        SupervisorError
            It is not here, or it is none.
        """
        try:
            data = (self._directories.code(storm_id) / _CONF).read_bytes()
            return msgspec.json.decode(decompress(data), type=dict[str, Any])
        except (OSError, SerializationError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SupervisorError(
                f"the configuration of {storm_id} cannot be read: {error}"
            ) from error

    def read(self, storm_id: str, part: str, sha256: str, start: int, length: int) -> bytes:
        """Return bytes of a part of a topology's code, none at its end.

        Parameters
        ----------
        sha256
            The checksum of the whole part, which the caller has to know.

        Raises
        ------
        FileNotFoundError
            No part with that checksum is here.
        OSError
            It cannot be read.
        """
        checksums = self._checksums(storm_id) if part in keys.PARTS else None
        if checksums is None or not hmac.compare_digest(checksums[part].encode(), sha256.encode()):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with (self._directories.code(storm_id) / part).open("rb") as file:
            return os.pread(file.fileno(), length, start)

    def remove_unneeded(self, storm_ids: Collection[str], worker_ids: Container[str]) -> list[str]:
        """Remove what is needed neither by these topologies nor by these launches.

        `storm_ids` and `worker_ids` are asked while this goes on, and may change meanwhile.

        Returns
        -------
        list of str
            The ids of those topologies and launches.
        """
        with self._disk:
            removed = self._directories.remove_unneeded(storm_ids, worker_ids)
            used = [self._checksums(storm_id) for storm_id in storm_ids]
            names = {each[_PACKAGE][:_DIGITS] for each in used if each is not None}
            self._directories.remove_unused_packages(names)
        return removed

    def _wanted(self, storm_id: str) -> Mapping[str, str] | None:
        """Return what the cluster's state says of each part; None where it cannot be read.

        Raises
        ------
        BlobNotFoundError
            Nobody has ever had the code.
        """
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
                self._lay_out(storm_id)
            except (CodeError, SupervisorError, OSError):
                return False  # and fetched anew
            return True

    def _checksums(self, storm_id: str) -> dict[str, str] | None:
        """Return what is in a topology's folder, None where that is not whole."""
        folder = self._directories.code(storm_id)
        try:
            data = (folder / _CHECKSUMS).read_bytes()
            there = msgspec.json.decode(data, type=dict[str, str])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return there if there.keys() == set(keys.PARTS) else None

    def _lay_out(self, storm_id: str) -> None:
        """Lay a package out, unless it is there as its manifest says."""
        folder = self.unpacked(storm_id)
        try:
            with (self._directories.code(storm_id) / _PACKAGE).open("rb") as package:
                differing = find_difference(Package(package).manifest, folder)
                if differing is None:
                    return
                if folder.exists():
                    log.warning("%s differs from its package, which is laid out again", differing)
                self._directories.remove_package(folder)
                package.seek(0)
                unpack(package, folder)
        except SerializationError as error:
            raise SupervisorError(
                f"{storm_id} is no topology that this supervisor can run: {error}"
            ) from error
        except OSError as error:
            raise SupervisorError(
                f"the package of {storm_id} cannot be laid out in {folder} ({error}): make space,"
                " or the folder writable"
            ) from error


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
