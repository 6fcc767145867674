"""The cluster's state on one ZooKeeper, by Storm's own code and by ours: both ways, every form."""

import pytest
from kazoo.client import KazooClient

from stormkeeper import conf as configuration
from stormkeeper import paths
from stormkeeper.state.storm.cluster import connect
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    Credentials,
    ExecutorInfo,
    LogConfig,
    LogLevel,
    LogLevelAction,
    NimbusSummary,
    NodeInfo,
    ProfileAction,
    ProfileRequest,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
    WorkerResources,
)
from stormkeeper.thrift.serialization import Compression, Release, serialize
from support.heartbeats import spout
from support.leaders import lead
from support.storm_peer import PeerProcess
from support.waiting import DEADLINE_SECS

pytestmark = [pytest.mark.interop, pytest.mark.zookeeper]

# As ClusterState.java has them.
TOPOLOGY = "wc-1-1700000000"
SUPERVISOR = "sup-aaaa-10.0.0.1"
PORT = 6700
COMPONENT = "split bolt/é"
HOST = "h1.example"
ERROR = "boom ☃"
NIMBUS = "nimbus1.example"
BLOB = f"{TOPOLOGY}-stormcode.ser"
HOLDER = f"{NIMBUS}:6627:0"

NODE = NodeInfo(SUPERVISOR, {PORT})
RECORDS = {
    type(record).__name__: record
    for record in (
        Assignment(
            f"/var/storm/{TOPOLOGY}",
            {SUPERVISOR: HOST},
            {(1, 1): NODE, (2, 3): NODE},
            {(1, 1): 1_700_000_001, (2, 3): 1_700_000_002},
            {NODE: WorkerResources(768.0, 0.0, 50.0, resources={"cpu.pcore.percent": 50.0})},
            {SUPERVISOR: 128.0},
            "alice",
        ),
        ClusterWorkerHeartbeat(TOPOLOGY, {ExecutorInfo(1, 1): spout(7)}, 1_700_000_300, 42),
        Credentials({"key": "vâlue"}, "alice"),
        LogConfig({"ROOT": LogLevel(LogLevelAction.UPDATE, "DEBUG")}),
        NimbusSummary(NIMBUS, 6627, 1_700_000_000, True, "2.8.8"),
        ProfileRequest(NODE, ProfileAction.JPROFILE_STOP, 1_700_000_500_000),
        StormBase("wc", TopologyStatus.ACTIVE, 2, {"split": 2}, 1_700_000_000, "alice"),
        SupervisorInfo(1_700_000_123, HOST, SUPERVISOR, [PORT]),
    )
}

DAEMONS = "storm:daemons' own"
TOPOLOGYS = "topology:its own"
SECURED = {
    "storm.zookeeper.auth.scheme": "digest",
    "storm.zookeeper.auth.payload": DAEMONS,
    "storm.zookeeper.superACL": "digest:storm:KVZRxgCzVYlG1mYvnyyB2DMmtAY=",
}


@pytest.fixture
def records_file(storm_peer, tmp_path):
    """The records in plain Thrift, for this release of Storm."""
    path = tmp_path / "records"
    release = Release(storm_peer.release)
    path.write_text(
        "".join(
            f"{name} {serialize(record, Compression.PLAIN, release=release).hex()}\n"
            for name, record in RECORDS.items()
        )
    )
    return str(path)


#: Where ours are others, on purpose (docs/security.md): no topology's workers read the list of all
#: credentials.
OTHERWISE = {paths.CREDENTIALS}


def write(storm, topology_conf):
    """Write what ClusterState.java writes, with our calls."""
    leader = lead(storm)
    leader.activate_storm(TOPOLOGY, RECORDS["StormBase"], topology_conf)
    leader.set_assignment(TOPOLOGY, RECORDS["Assignment"], topology_conf)
    storm.supervisor_heartbeat(SUPERVISOR, RECORDS["SupervisorInfo"])
    leader.setup_errors(TOPOLOGY, topology_conf)
    storm.report_error(TOPOLOGY, COMPONENT, ERROR, host=HOST, port=PORT)
    leader.setup_heartbeats(TOPOLOGY, topology_conf)
    storm.set_worker_heartbeat(TOPOLOGY, SUPERVISOR, PORT, RECORDS["ClusterWorkerHeartbeat"])
    storm.add_nimbus_host(RECORDS["NimbusSummary"])
    leader.set_credentials(TOPOLOGY, RECORDS["Credentials"], topology_conf)
    leader.set_topology_log_config(TOPOLOGY, RECORDS["LogConfig"], topology_conf)
    leader.set_worker_profile_request(TOPOLOGY, RECORDS["ProfileRequest"])
    storm.setup_blob(BLOB, HOLDER, 1)


def read(storm):
    """Read it back, as our calls give it."""
    [nimbus] = storm.nimbuses()
    [request] = storm.worker_profile_requests(TOPOLOGY, NODE)
    return {
        "Assignment": storm.assignment_info(TOPOLOGY),
        "ClusterWorkerHeartbeat": storm.worker_heartbeat(TOPOLOGY, SUPERVISOR, PORT),
        "Credentials": storm.credentials(TOPOLOGY),
        "LogConfig": storm.topology_log_config(TOPOLOGY),
        "NimbusSummary": nimbus,
        "ProfileRequest": request,
        "StormBase": storm.storm_base(TOPOLOGY),
        "SupervisorInfo": storm.supervisor_info(SUPERVISOR),
    }


def acls(server, root):
    """Who may do what, by path, wherever Storm's layout has something."""
    client = KazooClient(hosts=str(server.address), auth_data=[("digest", DAEMONS)])
    client.start(timeout=DEADLINE_SECS)
    found = {}

    def walk(path):
        if path in (paths.LEADER_LOCK, paths.LEADER_INFO):
            return
        entries, _ = client.get_acls(f"{root}{path}".rstrip("/"))
        found[path] = {(entry.id.scheme, entry.id.id, entry.perms) for entry in entries}
        for name in client.get_children(f"{root}{path}".rstrip("/")):
            walk(f"{path.rstrip('/')}/{name}")

    walk("/")
    client.stop()
    client.close()
    return found


secured = pytest.mark.parametrize("secured", [False, True], ids=["open", "acl"])
every_form = pytest.mark.parametrize("form", ["Thrift", "GzipThrift", "ZstdThrift"])


@pytest.fixture
def conf(storm_peer, zookeeper_settings, form, secured):
    """The configuration of both sides."""
    delegate = f"org.apache.storm.serialization.{form}SerializationDelegate"
    if delegate not in storm_peer.delegates:
        pytest.skip(f"Storm {storm_peer.release} has no {form}SerializationDelegate")
    return {
        **zookeeper_settings(),
        "storm.meta.serialization.delegate": delegate,
        **(SECURED if secured else {}),
    }


@pytest.fixture
def ours(storm_peer, conf):
    """A session of a daemon of ours; where the form says nothing of the release, the key does."""
    values = {**conf, "storm.meta.serialization.release": storm_peer.release}
    storm = connect(configuration.defaults().with_values(values))
    yield storm
    storm.disconnect()


@secured
@every_form
def test_storm_reads_what_we_write(storm_peer, conf, ours, records_file, form, secured, say):
    write(ours, {"storm.zookeeper.topology.auth.payload": TOPOLOGYS} if secured else None)
    passed = storm_peer.checks("ClusterState", "check", records_file, conf=conf)
    say(f"its cluster state reads ours, {form}{', ACLs' * secured}: {passed} checks")


@secured
@every_form
def test_we_read_what_storm_writes(storm_peer, conf, ours, records_file, form, secured, say):
    with PeerProcess(storm_peer, "ClusterState", "write", records_file, conf=conf):
        assert read(ours) == RECORDS
        [error] = ours.errors(TOPOLOGY, COMPONENT)
        assert ERROR in error.error
        assert (error.host, error.port) == (HOST, PORT)
        assert ours.last_error(TOPOLOGY, COMPONENT) == error
        assert ours.active_storms() == ours.heartbeat_storms() == [TOPOLOGY]
        assert ours.error_topologies() == [TOPOLOGY]
        assert ours.blobstore_info(BLOB) == [paths.BlobHolder(HOLDER, 1)]
        assert (ours.unreadable, ours.unknown_events) == (0, 0)
    say(f"our cluster state reads its, {form}{', ACLs' * secured}: {len(RECORDS)} records")


@pytest.mark.parametrize("form", ["GzipThrift"])
@secured
def test_everything_lies_where_storm_puts_it_for_the_same_users(
    storm_peer, conf, ours, records_file, zookeeper_server, secured, say
):
    root = conf["storm.zookeeper.root"]
    theirs = {**conf, "storm.zookeeper.root": f"{root}-theirs"}
    topologys = [TOPOLOGYS] if secured else []
    write(ours, {"storm.zookeeper.topology.auth.payload": TOPOLOGYS} if secured else None)
    with PeerProcess(storm_peer, "ClusterState", "write", records_file, *topologys, conf=theirs):
        wanted = acls(zookeeper_server, f"{root}-theirs")
    found = acls(zookeeper_server, root)
    assert found.keys() == wanted.keys()
    differing = {path for path in found if found[path] != wanted[path]}
    assert differing == (OTHERWISE if secured else set())
    say(f"paths{' and ACLs' * secured}: the same at {len(wanted) - len(differing)} nodes")
