"""What Storm wrote, in a real ZooKeeper, read by us; and what we write, beside what Storm wrote."""

import io
import re
from importlib import resources

import pytest
import thriftpy2
from kazoo.client import KazooClient

from stormkeeper import conf as configuration
from stormkeeper import paths
from stormkeeper.state.storage import DIRECTORY
from stormkeeper.state.storm.cluster import StormClusterState, connect
from stormkeeper.thrift import records
from stormkeeper.thrift.serialization import Codec, Compression, deserialize, serialize
from support import reference_codec, vectors
from support.leaders import lead
from support.waiting import DEADLINE_SECS

STORM = "wc-1-1700000000"
SUPERVISOR = "sup-aaaa-10.0.0.1"
SLOT = (SUPERVISOR, 6700)
COMPONENT = "split bolt/é"
NIMBUS = "nimbus1.example:6627:0"
#: Where the trees have it. Storm's own Nimbus, which did not write them, has it at its host.
NIMBUS_AS_WRITTEN = paths.nimbus(NIMBUS)
NIMBUS_AS_STORM_S = paths.nimbus("nimbus1.example")
KEY = f"{STORM}-stormcode.ser"
HOLDER = paths.blob_holder(KEY, NIMBUS, 1)
ERROR = f"{paths.component_errors(STORM, COMPONENT)}/e0000000000"
PROFILING = paths.profiler_config(STORM, *SLOT, "JPROFILE_STOP")

#: Where each record of the vectors' trees is, of which class, and which call reads it.
READS = {
    paths.assignment(STORM): (records.Assignment, lambda s: s.assignment_info(STORM)),
    paths.storm(STORM): (records.StormBase, lambda s: s.storm_base(STORM)),
    paths.supervisor(SUPERVISOR): (
        records.SupervisorInfo,
        lambda s: s.supervisor_info(SUPERVISOR),
    ),
    NIMBUS_AS_WRITTEN: (records.NimbusSummary, lambda s: s.nimbuses()[0]),
    paths.workerbeat(STORM, *SLOT): (
        records.ClusterWorkerHeartbeat,
        lambda s: s.worker_heartbeat(STORM, *SLOT),
    ),
    ERROR: (records.ErrorInfo, lambda s: s.errors(STORM, COMPONENT)[0]),
    paths.last_error(STORM, COMPONENT): (
        records.ErrorInfo,
        lambda s: s.last_error(STORM, COMPONENT),
    ),
    paths.credentials(STORM): (records.Credentials, lambda s: s.credentials(STORM)),
    paths.log_config(STORM): (records.LogConfig, lambda s: s.topology_log_config(STORM)),
    PROFILING: (records.ProfileRequest, lambda s: s.topology_profile_requests(STORM)[0]),
}

#: The same through the calls that read several at once.
BULK_READS = {
    paths.assignment(STORM): lambda s: s.assignments_info()[STORM],
    paths.storm(STORM): lambda s: s.storm_bases()[STORM],
    paths.supervisor(SUPERVISOR): lambda s: s.all_supervisor_info()[SUPERVISOR],
    paths.workerbeat(STORM, *SLOT): lambda s: s.worker_heartbeats(STORM)[SLOT],
    PROFILING: lambda s: s.worker_profile_requests(STORM, records.NodeInfo(SUPERVISOR, {SLOT[1]}))[
        0
    ],
}

#: What the trees hold of the kinds that have no plain vector of the same value.
LOG_CONFIG = {
    "$struct": "LogConfig",
    "named_logger_level": {
        "$map": [
            [
                "ROOT",
                {
                    "$struct": "LogLevel",
                    "action": {"$enum": "UPDATE", "value": 2},
                    "target_log_level": "DEBUG",
                },
            ]
        ]
    },
}
PROFILE_REQUEST = {
    "$struct": "ProfileRequest",
    "nodeInfo": {"$struct": "NodeInfo", "node": SUPERVISOR, "port": {"$set": [6700]}},
    "action": {"$enum": "JPROFILE_STOP", "value": 0},
    "time_stamp": 1_700_000_500_000,
}
ERROR_INFO = {
    "$struct": "ErrorInfo",
    "error": "java.lang.RuntimeException: boom ☃\n\tat"
    " org.apache.storm.pacemaker.ClusterInterop.main(ClusterInterop.java:33)\n",
    "host": "h1.example",
    "port": 6700,
}

DELEGATES = {
    "plain": "org.apache.storm.serialization.ThriftSerializationDelegate",
    "gzip": "org.apache.storm.serialization.GzipThriftSerializationDelegate",
    "zstd": "org.apache.storm.serialization.ZstdThriftSerializationDelegate",
}


def tree(name):
    """The nodes of a vectors' tree by their paths below its root."""
    nodes = vectors.load(name)
    root = min(node["path"] for node in nodes)
    return {node["path"].removeprefix(root) or "/": node for node in nodes}


def value(node):
    """A node's value: Storm writes none at all where a name says everything."""
    return None if node["hex"] is None else bytes.fromhex(node["hex"])


def is_record(node):
    return value(node) not in (None, b"", DIRECTORY)


def plain_vectors():
    """The JSON of Storm's records by the names of their vectors, such as 2.8.thrift.StormBase."""
    return {
        vector["name"]: vector["json"]
        for name in ("pacemaker", "storm-2.8")
        for vector in vectors.load(name)
        if "thrift." in vector["name"]
    }


def expected(path):
    """The JSON of the vector that a node of the trees was written from, without an error's time."""
    cls = READS[path][0]
    special = {
        records.LogConfig: LOG_CONFIG,
        records.ProfileRequest: PROFILE_REQUEST,
        records.ErrorInfo: ERROR_INFO,
    }
    if cls in special:
        return special[cls]
    release = "2.8." if cls is records.SupervisorInfo else ""
    return plain_vectors()[f"{release}thrift.{cls.__name__}"]


def noted(record):
    """A record in the vectors' notation, without what each writes anew: times and epochs."""
    notation = vectors.notation(record)
    notation.pop("leader_epoch", None)
    if isinstance(record, records.ErrorInfo):
        notation.pop("error_time_secs")
    return notation


@pytest.fixture
def kazoo(zookeeper_server):
    """A client that is not ours."""
    client = KazooClient(hosts=str(zookeeper_server.address))
    client.start(timeout=DEADLINE_SECS)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def connected(zookeeper_settings):
    """Connects as a daemon does."""
    opened = []

    def connect_one(compression="gzip"):
        values = zookeeper_settings() | {
            "storm.meta.serialization.delegate": DELEGATES[compression]
        }
        opened.append(connect(configuration.defaults().with_values(values)))
        return opened[-1]

    yield connect_one
    for storm in opened:
        storm.disconnect()


def fill(kazoo, root, nodes):
    for path in sorted(nodes):
        kazoo.create(
            root + path.rstrip("/"), value(nodes[path]), ephemeral=nodes[path]["ephemeral"]
        )


def nodes_below(kazoo, root, path="/"):
    """Yield the paths of all nodes at and below one, but for the leader's lock."""
    if path == paths.LEADER_LOCK:
        return
    yield path
    for name in kazoo.get_children(root + path.rstrip("/")):
        yield from nodes_below(kazoo, root, f"{path.rstrip('/')}/{name}")


@pytest.mark.zookeeper
@pytest.mark.parametrize("name", ["znodes-gzip", "znodes-zstd"])
def test_a_tree_of_storms_reads_back_as_its_json(kazoo, zookeeper_root, connected, name):
    nodes = tree(name)
    assert {path for path, node in nodes.items() if is_record(node)} == READS.keys()
    fill(kazoo, zookeeper_root, nodes)
    storm = connected()
    for path, (_, read) in READS.items():
        assert noted(read(storm)) == expected(path), path
    for path, read in BULK_READS.items():
        assert noted(read(storm)) == expected(path), path
    assert storm.last_error(STORM, COMPONENT).error_time_secs > 1_700_000_000
    assert (storm.unreadable, storm.unknown_events) == (0, 0)

    assert storm.assignments() == storm.active_storms() == [STORM]
    assert storm.storm_id_by_name("wc") == STORM
    assert storm.supervisors() == [SUPERVISOR]
    assert storm.heartbeat_storms() == storm.error_topologies() == [STORM]
    assert storm.blobstore() == [KEY]
    assert storm.blobstore_info(KEY) == [paths.BlobHolder(NIMBUS, 1)]
    assert storm.state.get_data(HOLDER) == b""
    assert not storm.topology_backpressure(STORM, 10**9)


@pytest.mark.zookeeper
def test_every_record_of_storms_reads_back_as_its_json(kazoo, zookeeper_root, connected):
    storm = connected()
    where = {cls: path for path, (cls, _) in READS.items() if path != ERROR}
    plain = plain_vectors()
    seen = set()
    for name in ("pacemaker", "storm-2.8"):
        for vector in vectors.load(name):
            found = re.fullmatch(r"(2\.8\.)?(thrift|gzip|zstd)\.(\w+)(\..*)?", vector["name"])
            cls = found and getattr(records, found[3], None)
            if cls not in where:
                continue
            json = vector.get("json", plain[re.sub("gzip|zstd", "thrift", vector["name"])])
            path = where[cls]
            kazoo.ensure_path(zookeeper_root + paths.parent(path))
            if kazoo.exists(zookeeper_root + path):
                kazoo.set(zookeeper_root + path, bytes.fromhex(vector["hex"]))
            else:
                kazoo.create(zookeeper_root + path, bytes.fromhex(vector["hex"]))
            assert vectors.notation(READS[path][1](storm)) == json, vector["name"]
            seen.add(vector["name"])
    # The workers' private keys are read by nobody but their makers.
    assert {name for name in plain if "PrivateWorkerKey" not in name} <= seen
    assert len(seen) == 37


def write_all(storm, leader, wanted):
    """Write what is in the vectors' trees, with our calls."""
    leader.activate_storm(STORM, wanted[paths.storm(STORM)])
    leader.set_assignment(STORM, wanted[paths.assignment(STORM)])
    leader.set_credentials(STORM, wanted[paths.credentials(STORM)])
    leader.set_topology_log_config(STORM, wanted[paths.log_config(STORM)])
    leader.set_worker_profile_request(STORM, wanted[PROFILING])
    leader.setup_heartbeats(STORM)
    leader.setup_errors(STORM)
    leader.setup_backpressure(STORM)
    storm.supervisor_heartbeat(SUPERVISOR, wanted[paths.supervisor(SUPERVISOR)])
    storm.add_nimbus_host(wanted[NIMBUS_AS_WRITTEN])
    storm.set_worker_heartbeat(STORM, *SLOT, wanted[paths.workerbeat(STORM, *SLOT)])
    error = wanted[ERROR]
    storm.report_error(STORM, COMPONENT, error.error, host=error.host, port=error.port)
    storm.setup_blob(KEY, NIMBUS, 1)


@pytest.mark.zookeeper
@pytest.mark.parametrize("compression", Compression)
def test_our_records_are_at_storms_paths_with_its_values(
    kazoo, zookeeper_root, connected, compression
):
    theirs = tree("znodes-gzip")
    wanted = {path: deserialize(cls, value(theirs[path])) for path, (cls, _) in READS.items()}
    storm = connected(compression.name.lower())
    leader = lead(storm)
    write_all(storm, leader, wanted)

    theirs[NIMBUS_AS_STORM_S] = theirs.pop(NIMBUS_AS_WRITTEN)
    wanted[NIMBUS_AS_STORM_S] = wanted.pop(NIMBUS_AS_WRITTEN)
    assert set(nodes_below(kazoo, zookeeper_root)) == theirs.keys()
    for path, node in theirs.items():
        data, stat = kazoo.get(zookeeper_root + path.rstrip("/"))
        [acl], _ = kazoo.get_acls(zookeeper_root + path.rstrip("/"))
        assert (
            stat.ephemeralOwner != 0,
            stat.version,
            f"{acl.id.scheme}:{acl.id.id}:{'rwcda' if acl.perms == 31 else acl.perms}",
        ) == (node["ephemeral"], node["version"], *node["acl"]), path
        if not is_record(node):
            assert (data or b"") == (value(node) or b""), path
            continue
        ours = deserialize(type(wanted[path]), data)
        assert noted(ours) == noted(wanted[path]), path
        assert getattr(ours, "leader_epoch", leader.fence.epoch) == leader.fence.epoch, path
        assert (data[:2] == b"\x1f\x8b") == (compression is Compression.GZIP), path
        assert (data[:4] == b"\x28\xb5\x2f\xfd") == (compression is Compression.ZSTD), path


#: What a leader writes, where, and with which call. Python's own Thrift cannot read lists as keys,
#: so the assignment has none.
FENCED = {
    "activate_storm": (
        paths.storm(STORM),
        records.StormBase("wc", records.TopologyStatus.ACTIVE, 2, {"split": 2}, owner="alice"),
    ),
    "set_assignment": (
        paths.assignment(STORM),
        records.Assignment("/code", {SUPERVISOR: "h1.example"}, owner="alice"),
    ),
    "set_credentials": (paths.credentials(STORM), records.Credentials({"k1": "v1"}, "alice")),
    "set_topology_log_config": (
        paths.log_config(STORM),
        records.LogConfig({"ROOT": records.LogLevel(records.LogLevelAction.UPDATE, "DEBUG")}),
    ),
    "set_worker_profile_request": (
        PROFILING,
        records.ProfileRequest(
            records.NodeInfo(SUPERVISOR, {SLOT[1]}), records.ProfileAction.JPROFILE_STOP, 1
        ),
    ),
}


@pytest.fixture(scope="module")
def storms_own():
    """Storm's schema, without the fields that are ours, in an implementation that is not."""
    idl = (resources.files("stormkeeper.thrift") / "storm.thrift").read_text(encoding="utf-8")
    without = re.sub(r"(?m)^ +1\d\d\d: .*$", "", idl)
    storms = thriftpy2.load_fp(io.StringIO(without), "storms_own_thrift")
    fields = [field for cls in storms.__thrift_meta__["structs"] for field in cls.thrift_spec]
    assert max(fields) < 1000
    return storms


@pytest.mark.parametrize("call", FENCED)
def test_a_reader_that_knows_no_epochs_skips_them(storms_own, ensemble, call):
    path, record = FENCED[call]
    storm = StormClusterState(ensemble.session(), Codec(Compression.PLAIN))
    leader = lead(storm)
    getattr(leader, call)(STORM, record)
    data = storm.state.get_data(path)
    assert deserialize(type(record), data).leader_epoch == leader.fence.epoch
    read = reference_codec.decode(getattr(storms_own, type(record).__name__), data)
    assert reference_codec.encode(read) == serialize(record, Compression.PLAIN)
    storm.disconnect()
