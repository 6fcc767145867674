"""Daemons, a leader among them, and a topology's worker, each with its own digest."""

import pytest
from kazoo.security import make_digest_acl_credential

from stormkeeper import conf as configuration
from stormkeeper.errors import AccessDeniedError
from stormkeeper.state import leader_lock
from stormkeeper.state.storage import Role
from stormkeeper.state.storm import cluster
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    Credentials,
    StormBase,
    TaskHeartbeat,
    TaskInfo,
    TopologyStatus,
)
from support.leaders import lead
from support.secure_zookeeper import digest_conf, topology_conf

pytestmark = pytest.mark.zookeeper

ID, OTHER = "wc-1-1700000000", "other-2-1700000000"
SUPER = f"digest:{make_digest_acl_credential('storm', 'very secret')}"


@pytest.fixture
def open_storm(zookeeper_settings):
    """Opens what daemons and workers work with, by role and credentials."""
    opened = []

    def open_storm(role, credentials):
        values = {**zookeeper_settings(), "storm.zookeeper.superACL": SUPER, **credentials}
        conf = configuration.defaults().with_values(values)
        opened.append(cluster.connect(conf, role=role))
        return opened[-1]

    yield open_storm
    for storm in opened:
        storm.disconnect()


@pytest.fixture
def daemon(open_storm):
    """One whose topologies come with digests of their own."""
    return open_storm(Role.SERVER, digest_conf("storm:very secret"))


@pytest.fixture
def leader(daemon):
    leader = lead(daemon)
    for storm_id, digest in ((ID, "wc:hush"), (OTHER, "other:hush")):
        own = topology_conf(digest)
        leader.setup_heartbeats(storm_id, own)
        leader.setup_errors(storm_id, own)
        leader.setup_backpressure(storm_id, own)
        leader.activate_storm(storm_id, StormBase("wc", TopologyStatus.ACTIVE, 1), own)
        leader.set_credentials(storm_id, Credentials({"key": "value"}), own)
        leader.set_task(storm_id, 1, TaskInfo("spout"), own)
        leader.set_assignment(storm_id, Assignment("/code", {"node": "host"}), own)
    yield leader
    leader.disconnect()


@pytest.fixture
def worker(leader, open_storm):
    assert leader.active_storms() == sorted((ID, OTHER))
    return open_storm(Role.WORKER, topology_conf("wc:hush"))


def test_a_worker_does_its_work(worker, daemon, leader):
    assert worker.storm_base(ID).name == "wc"
    assert worker.assignment_info(ID).master_code_dir == "/code"
    assert worker.credentials(ID).creds == {"key": "value"}
    worker.set_worker_heartbeat(ID, "node", 6700, ClusterWorkerHeartbeat(ID, {}, 1, 1))
    assert worker.report_error(ID, "spout", "broken", host="host", port=6700)
    worker.set_task_heartbeat(ID, 1, TaskHeartbeat(1_700_000_000, 5))
    assert worker.report_task_error(ID, 1, "broken too")
    worker.worker_backpressure(ID, "node", 6700, 1)
    assert [error.error for error in daemon.errors(ID, "spout")] == ["broken"]
    assert daemon.last_error(ID, "spout").error == "broken"
    assert len(daemon.worker_heartbeats(ID)) == 1
    assert daemon.heartbeat_tasks(ID) == [1]
    assert [error.error for error in daemon.task_errors(ID, 1)] == ["broken too"]
    assert daemon.state.get_children(f"/backpressure/{ID}") == ["node-6700"]
    leader.remove_backpressure(ID)
    leader.teardown_heartbeats(ID)
    leader.teardown_errors(ID)
    leader.remove_storm(ID)
    assert daemon.active_storms() == daemon.assignments() == [OTHER]


@pytest.mark.parametrize(
    "operation",
    [
        lambda worker: worker.state.get_children(f"/errors/{ID}/spout"),
        lambda worker: worker.state.delete_node(f"/errors/{ID}/spout/e0000000000"),
        lambda worker: worker.last_error(ID, "spout"),
        lambda worker: worker.report_error(ID, "spout", "forged"),
        lambda worker: worker.worker_heartbeat(ID, "node", 6700),
        lambda worker: worker.set_worker_heartbeat(
            ID, "node", 6700, ClusterWorkerHeartbeat(ID, {}, 2, 2)
        ),
    ],
    ids=["list", "delete", "read", "report", "read a heartbeat", "beat"],
)
def test_what_a_daemon_reports_is_the_daemons(worker, daemon, operation):
    daemon.report_error(ID, "spout", "the daemon's", host="host", port=6700)
    daemon.set_worker_heartbeat(ID, "node", 6700, ClusterWorkerHeartbeat(ID, {}, 1, 1))
    with pytest.raises(AccessDeniedError):
        operation(worker)
    assert [error.error for error in daemon.errors(ID, "spout")] == ["the daemon's"]
    assert daemon.last_error(ID, "spout").error == "the daemon's"
    assert daemon.worker_heartbeat(ID, "node", 6700).time_secs == 1
    # Beside it, workers report what is theirs.
    assert worker.report_error(ID, "count", "broken")


@pytest.mark.parametrize(
    "operation",
    [
        lambda worker: worker.assignment_info(OTHER),
        lambda worker: worker.credentials(OTHER),
        lambda worker: worker.storm_base(OTHER),
        lambda worker: worker.active_storms(),
        lambda worker: worker.report_error(OTHER, "spout", "broken"),
        lambda worker: worker.set_worker_heartbeat(
            OTHER, "node", 6700, ClusterWorkerHeartbeat(OTHER, {}, 1, 1)
        ),
        lambda worker: leader_lock.take(worker.state),
    ],
    ids=["assignment", "credentials", "base", "topologies", "errors", "heartbeats", "lead"],
)
def test_a_worker_has_no_business_elsewhere(worker, operation):
    with pytest.raises(AccessDeniedError):
        operation(worker)
