"""Nimbuses that have blobs, in one process, and a network between them that can be told to fail."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stormkeeper.blobs import distributor
from stormkeeper.blobs.distributor import BlobSettings, CodeDistributor
from stormkeeper.blobs.peers import Download
from stormkeeper.blobs.store import BlobStore
from stormkeeper.blobs.transfers import Downloads
from stormkeeper.errors import CodeError, PeerError, PeerUnavailableError
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blob_records import BlobRecord
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.thrift.records import NimbusSummary, StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Codec
from support.leaders import lead
from support.memory_state import MemoryEnsemble

#: Takes a chunk and how many bytes its peer has sent before; returns what arrives.
Fault = Callable[[bytes, int], bytes]


class StorePeer:
    """A Nimbus as another one sees it: its downloads, with what the network makes of them."""

    def __init__(self, downloads: Downloads, fault: Fault | None = None) -> None:
        self._downloads = downloads
        self._fault = fault
        self._sent = 0
        #: The offset of each download that was begun.
        self.begun: list[int] = []

    def begin_blob_download(self, key: str, offset: int, timeout_secs: float) -> Download:  # noqa: ARG002
        self.begun.append(offset)
        try:
            return self._downloads.begin(key, offset)
        except CodeError as error:
            raise PeerError(str(error)) from error

    def download_blob_chunk(self, session: str, timeout_secs: float) -> bytes:
        chunk = self._downloads.chunk(session)
        if self._fault is hangs:
            threading.Event().wait(timeout_secs)
            raise PeerUnavailableError(f"no answer within {timeout_secs} s")
        if self._fault is not None and chunk:
            chunk = self._fault(chunk, self._sent)
        self._sent += len(chunk)
        return chunk


#: A blob that takes several chunks.
WHOLE_BLOB = bytes(range(250)) * 20


class Other:
    """Another Nimbus that has a blob, ``a``, and sends it in chunks of 1,000 bytes."""

    def __init__(self, folder, data):
        self.store = BlobStore(folder)
        self.downloads = Downloads(self.store, chunk_bytes=1000, idle_secs=600)
        draft = self.store.draft()
        draft.write(data)
        draft.finish()
        self.record = BlobRecord(1, *draft.content(), draft.crc32c, 1)
        self.store.put("a", self.record, draft)

    def peer(self, fault=None):
        return StorePeer(self.downloads, fault)

    def close(self):
        self.downloads.close()
        self.store.close()


def hangs(chunk: bytes, sent: int) -> bytes:
    """The fault of a peer that takes a request and never answers."""
    raise NotImplementedError


def cut_after(size: int) -> Fault:
    """The fault of a connection that ends after so many bytes."""

    def cut(chunk: bytes, sent: int) -> bytes:
        if sent >= size:
            raise PeerUnavailableError(f"the connection was cut after {sent} bytes")
        return chunk[: size - sent]

    return cut


def damages(chunk: bytes, sent: int) -> bytes:  # noqa: ARG001
    """The fault of a disk or a network that changes a bit."""
    return bytes([chunk[0] ^ 1]) + chunk[1:]


class Nimbus:
    """One of a cluster's."""

    def __init__(self, cluster: "Cluster", number: int, **settings: float) -> None:
        self.id = NimbusId(f"nimbus{number}.example", 6627, 0)
        self.folder = cluster.folder / f"nimbus{number}"
        self.storm = cluster.connect()
        self.storm.add_nimbus_host(NimbusSummary(self.id.host, self.id.port, 0, False, "1"))
        times = {"idle_secs": 600.0, "period_secs": 600.0, "delay_secs": 0.0, **settings}
        #: What it leads with, and which topologies are being submitted to it.
        self.leader = None
        self.submitted: list[str] = []
        self.code = CodeDistributor(
            self.storm,
            self.id,
            cluster.peers,
            BlobSettings(self.folder, self.folder.with_suffix(".inbox"), chunk_bytes=1000, **times),
            leader=lambda: self.leader,
            submitted=lambda: list(self.submitted),
        )

    def stop(self) -> None:
        self.code.close()
        self.storm.disconnect()


class Cluster:
    """Nimbuses that share a store in memory, each with its folder.

    Where it is inline, no watch is told of anything, and what is done is what a test does.
    """

    def __init__(
        self,
        folder: Path,
        *,
        inline: bool = True,
        connect: Callable[[], StormClusterState] | None = None,
    ) -> None:
        self.folder = folder
        self.inline = inline
        self.ensemble = MemoryEnsemble(inline=inline)
        #: Opens a session with the store, which is another one if `connect` was given.
        self.connect = connect or (lambda: StormClusterState(self.ensemble.session(), Codec()))
        self.nimbuses: dict[str, Nimbus] = {}
        #: What the network makes of what a Nimbus sends, by its id.
        self.faults: dict[str, Fault] = {}
        #: Whom somebody has connected to, in order.
        self.dialled: list[str] = []

    def start(self, number: int, **settings: float) -> Nimbus:
        """Start a Nimbus, or start it again with what is on its disk."""
        nimbus = Nimbus(self, number, **settings)
        self.nimbuses[str(nimbus.id)] = nimbus
        return nimbus

    def stop(self, nimbus: Nimbus) -> None:
        del self.nimbuses[str(nimbus.id)]
        nimbus.stop()

    @contextmanager
    def peers(self, nimbus_id: NimbusId) -> Iterator[StorePeer]:
        self.dialled.append(str(nimbus_id))
        nimbus = self.nimbuses.get(str(nimbus_id))
        if nimbus is None:
            raise PeerUnavailableError(f"{nimbus_id}: connection refused")
        yield StorePeer(nimbus.code.downloads, self.faults.get(str(nimbus_id)))

    def close(self) -> None:
        for nimbus in list(self.nimbuses.values()):
            self.stop(nimbus)


def code_of(topology_id: str, size: int = 2500) -> dict[str, bytes]:
    """A topology's code, which is no other's."""
    text = topology_id.encode()
    package = (text * (size // len(text) + 1))[:size]
    return {"stormjar.jar": package, "stormcode.ser": text + b"!", "stormconf.ser": b"{}"}


def copies(nimbus: Nimbus, topology_id: str) -> int:
    """How many live Nimbuses have a topology's code."""
    return distributor.count_copies(nimbus.storm, topology_id, None).copies


def activate(nimbus: Nimbus, topology_id: str) -> None:
    """Have a topology be there; the Nimbus leads from the first time on."""
    nimbus.leader = nimbus.leader or lead(nimbus.storm)
    nimbus.leader.activate_storm(topology_id, StormBase("wc", TopologyStatus.ACTIVE, 1))
