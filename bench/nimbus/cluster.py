"""The cluster of the bench: how many of everything, its conf, and its topologies as submitted.

The topologies are written as Nimbus would after so many submissions: bases and counted blobs in
ZooKeeper, and the blobs in the folder of each Nimbus. All have one package, built from a real
script, and each has its own conf and keys.
"""

import hashlib
import json
import runpy
import time
from collections import deque
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
from kazoo.client import KazooClient

from stormkeeper import conf as configuration
from stormkeeper import paths
from stormkeeper.blobs import keys
from stormkeeper.blobs.store import BlobStore
from stormkeeper.client.topology_submission import storm_topology
from stormkeeper.nimbus import checkpoints
from stormkeeper.nimbus.service import topology_checks
from stormkeeper.nimbus.submitted import encode_conf
from stormkeeper.paths import NimbusId
from stormkeeper.state.storm.blob_records import BlobRecord
from stormkeeper.supervisor.registration import Machine
from stormkeeper.thrift.records import StormBase, TopologyStatus
from stormkeeper.thrift.serialization import serialize
from stormkeeper.topology import description as descriptions
from stormkeeper.topology.package import archive
from stormkeeper.topology.package.code import collect

HOST = "127.0.0.1"
ROOT = "/storm"
PORTS = tuple(range(6700, 6724))
#: Of document 000's large cluster: 4,332 topologies on 3,000 machines.
TOPOLOGIES_PER_SUPERVISOR = 4_332 / 3_000
EXECUTORS_PER_QUERY = 6
MEMORY_MB = 64 * 1024
PACEMAKER_STORE = "org.apache.storm.cluster.PaceMakerStateStorageFactory"
#: Nodes of a transaction, and transactions under way at once, while all is written.
BATCH = 200
MOST_PENDING = 8
WRITE_SECS = 120

SCRIPT = """
from stormkeeper.topology import Topology

topology = Topology("large", conf={"queries": %d, "bolts": %d})

for number in range(topology.conf["queries"]):

    @topology.spout(name=f"lines-{number:02d}")
    def last(spark):
        return spark.readStream.format("rate").load()

    for bolt in range(topology.conf["bolts"]):

        @topology.bolt(last, name=f"step-{number:02d}-{bolt}")
        def last(lines):
            return lines
"""


@dataclass(frozen=True)
class Shape:
    """How many of everything; `spares` have free slots for the workers of dead supervisors."""

    supervisors: int
    beat_secs: float = 3.0
    task_timeout_secs: float = 30.0
    session_timeout_secs: float = 20.0

    @property
    def workers(self):
        return self.supervisors * len(PORTS)

    @property
    def topologies(self):
        return max(1, round(self.supervisors * TOPOLOGIES_PER_SUPERVISOR))

    @property
    def dying(self):
        """Supervisors that die at once, after the one that dies alone."""
        return max(1, self.supervisors // 10)

    @property
    def spares(self):
        return self.dying + 1

    @property
    def queries(self):
        """Queries of each topology; a topology with fewer workers runs two in one worker."""
        return -(-self.workers // self.topologies)

    def workers_of(self, number):
        few, more = divmod(self.workers, self.topologies)
        return few + (number < more)

    def storm_id(self, number):
        return f"{self.name(number)}-{number + 1}-{1_700_000_000 + number}"

    def name(self, number):
        return f"topology-{number:04d}"

    @property
    def storm_ids(self):
        return [self.storm_id(number) for number in range(self.topologies)]


def supervisor_id(number):
    """An id as Storm makes them: a UUID and an address."""
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return f"3f9c27d1-4b1e-4c57-9d2a-7be0c1{number:06d}-{address}"


def machine(number):
    return Machine(
        supervisor_id=supervisor_id(number),
        hostname=f"machine-{number:04d}.example.org",
        ports=PORTS,
        memory_mb=float(MEMORY_MB),
        cpu_percent=2_400.0,
    )


def conf(shape, zookeeper_port, pacemaker_ports, **more):
    """Return the configuration of the cluster's daemons and clients."""
    return {
        "storm.zookeeper.servers": [HOST],
        "storm.zookeeper.port": zookeeper_port,
        "storm.zookeeper.root": ROOT,
        "storm.zookeeper.session.timeout": int(shape.session_timeout_secs * 1000),
        "storm.cluster.state.store": PACEMAKER_STORE,
        "pacemaker.servers": [f"{HOST}:{port}" for port in pacemaker_ports],
        "task.heartbeat.frequency.secs": shape.beat_secs,
        "nimbus.task.timeout.secs": shape.task_timeout_secs,
        "storm.local.hostname": HOST,
        **more,
    }


def loaded(settings):
    return configuration.load(
        files=[], overrides=[f"{key}={json.dumps(value)}" for key, value in settings.items()]
    )


@contextmanager
def kazoo_client(port):
    client = KazooClient(f"{HOST}:{port}", timeout=60)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


class Creations:
    """Creates many nodes through a client of kazoo's, many in a transaction."""

    def __init__(self, client, *, ephemeral=False):
        self._client = client
        self._ephemeral = ephemeral
        self._transaction = client.transaction()
        self._pending = deque()

    def add(self, path, data=b""):
        self._transaction.create(ROOT + path, data, ephemeral=self._ephemeral)
        if len(self._transaction.operations) >= BATCH:
            self._commit(MOST_PENDING)

    def settle(self):
        self._commit(0)

    def _commit(self, most):
        if self._transaction.operations:
            self._pending.append(self._transaction.commit_async())
            self._transaction = self._client.transaction()
        while len(self._pending) > most:
            for result in self._pending.popleft().get(timeout=WRITE_SECS):
                if isinstance(result, Exception):
                    raise result


@dataclass(frozen=True)
class Code:
    """The bytes of the topologies' code."""

    package: bytes
    topology: bytes
    description: descriptions.Description


def code(shape, folder):
    """Build the package of all topologies from a script."""
    script = Path(folder) / "large.py"
    script.write_text(SCRIPT % (shape.queries, EXECUTORS_PER_QUERY - 1))
    declared = runpy.run_path(str(script))["topology"]
    description = descriptions.of_topology(declared)
    contents = archive.PackageContents(collect(script, Path(folder)), description)
    with (Path(folder) / "package.zip").open("w+b") as file:
        archive.write(file, contents, archive.versions())
        file.seek(0)
        package = file.read()
    topology = topology_checks.normalised(storm_topology(description, script.name), description)
    return Code(package, serialize(topology), description)


def submit_all(client, shape, settings, built, folders: Mapping[NimbusId, Path]):
    """Write all topologies: as submitted, with the blobs in the folder of each Nimbus."""
    defaults = loaded(settings)
    for top in (*paths.DIRECTORIES, paths.BLOB_KEY_SEQUENCES):
        client.ensure_path(ROOT + top)
    born, nodes = _count_blobs(client, shape), Creations(client)
    stored = {nimbus: _Blobs(folder) for nimbus, folder in folders.items()}
    components = {one.id: one.parallelism for one in built.description.components}
    for number, storm_id in enumerate(shape.storm_ids):
        name = shape.name(number)
        own = {
            "topology.workers": shape.workers_of(number),
            "topology.checkpoint.shared": True,
            "topology.checkpoint.dir": "/shared/checkpoints",
        }
        saved = topology_checks.saved_conf(
            own, defaults, storm_id=storm_id, name=name, user="storm"
        )
        parts = (built.package, built.topology, encode_conf(checkpoints.conf_of(saved, None)))
        for key, data in zip(keys.of_topology(storm_id), parts, strict=True):
            record = _record(data, born[key])
            nodes.add(paths.blob(key), b"\x07")
            for nimbus, blobs in stored.items():
                blobs.write(key, record, data)
                nodes.add(paths.blob_record(key, str(nimbus), 1), record.encode())
        for top in (paths.workerbeats(storm_id), paths.errors(storm_id)):
            nodes.add(top, b"\x07")
        base = StormBase(
            name=name,
            status=TopologyStatus.ACTIVE,
            num_workers=shape.workers_of(number),
            component_executors=components,
            launch_time_secs=int(time.time()),
            owner="storm",
            principal="",
            leader_epoch=1,
            checkpoints=checkpoints.begun(storm_id, name, saved),
        )
        nodes.add(paths.storm(storm_id), serialize(base))
    nodes.settle()
    for folder in folders.values():
        with BlobStore(folder) as store:
            if len(store.all()) != len(born):
                raise RuntimeError(f"{folder} has {len(store.all())} blobs of {len(born)}")


def _count_blobs(client, shape):
    """Count the first version of each blob; return when each was born."""
    found, waiting = {}, [key for each in shape.storm_ids for key in keys.of_topology(each)]
    while waiting:
        some, waiting = waiting[:BATCH], waiting[BATCH:]
        nodes = Creations(client)
        for key in some:
            nodes.add(paths.blob_key_sequence(key), (1).to_bytes(4, "big"))
        nodes.settle()
        # A transaction has one zxid.
        zxid = client.exists(ROOT + paths.blob_key_sequence(some[0])).czxid
        found |= dict.fromkeys(some, zxid)
    return found


def _record(data, born):
    sha256 = hashlib.sha256(data).hexdigest()
    return BlobRecord(1, sha256, len(data), google_crc32c.extend(0, data), born)


class _Blobs:
    """A folder that a `BlobStore` reads, written without waiting for the disk each time."""

    def __init__(self, folder):
        self._data, self._keys = folder / "data", folder / "keys"
        for each in (self._data, self._keys):
            each.mkdir(parents=True, exist_ok=True)

    def write(self, key, record, data):
        content = self._data / record.sha256
        if not content.exists():
            content.write_bytes(data)
        (self._keys / f"{key}.json").write_bytes(record.encode())


def hold_blobs(client, shape, nimbus):
    """Announce all blobs for a Nimbus, in a session that ends with the client's."""
    nodes = Creations(client, ephemeral=True)
    for storm_id in shape.storm_ids:
        for key in keys.of_topology(storm_id):
            nodes.add(paths.blob_holder(key, str(nimbus), 1))
    nodes.settle()
