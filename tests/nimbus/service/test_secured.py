"""A Nimbus on a ZooKeeper where daemons and workers prove who they are."""

import pytest
from kazoo.security import make_digest_acl_credential

from stormkeeper import conf as configuration
from stormkeeper.errors import AccessDeniedError
from stormkeeper.nimbus.submitted import TopologyCache
from stormkeeper.state.storage import Role
from stormkeeper.state.storm import cluster
from stormkeeper.thrift.nimbus import SubmitOptions, TopologyInitialStatus
from stormkeeper.thrift.records import (
    Assignment,
    ClusterWorkerHeartbeat,
    Credentials,
    LaunchClaim,
    LogConfig,
    LogLevel,
    LogLevelAction,
    WorkerLaunch,
)
from support.nimbus_service import nimbuses
from support.secure_zookeeper import digest_conf, topology_conf

pytestmark = pytest.mark.zookeeper

UPDATE = LogLevelAction.UPDATE

DAEMON, WORKER = "storm:very secret", "workers:hush"


@pytest.fixture
def conf(zookeeper_settings):
    """The conf of all machines; workers' processes do not get the daemons' payload."""
    name, _, password = DAEMON.partition(":")
    return {
        **zookeeper_settings(),
        **topology_conf(WORKER),
        "storm.zookeeper.superACL": f"digest:{make_digest_acl_credential(name, password)}",
    }


@pytest.fixture
def nimbus(conf, tmp_path):
    values = {**conf, **digest_conf(DAEMON)}
    storm = cluster.connect(configuration.defaults().with_values(values))
    with nimbuses(tmp_path, storm, **values) as [nimbus]:
        yield nimbus


def test_workers_connect_without_secrets_in_the_conf(nimbus, conf):
    options = SubmitOptions(TopologyInitialStatus.ACTIVE, Credentials({"key": "value"}))
    own = "storm.zookeeper.topology.auth.payload"
    storm_id = nimbus.submit("wc", conf=f'{{"{own}": "own:secret"}}', options=options)
    # As scheduling does it.
    cache = TopologyCache(nimbus.submitted, nimbus.conf)
    saved = cache.topologies(nimbus.leader.snapshot(), {})[storm_id].conf
    assert own not in saved
    claim = LaunchClaim(1, 2)
    launch = WorkerLaunch("node", 6700, claim, ["q"], 0, 0, tells_claims=True)
    nimbus.leader.set_assignment(storm_id, Assignment("/code", launches=[launch]), saved)
    nimbus.handler.setLogConfig(storm_id, LogConfig({"ROOT": LogLevel(UPDATE, "DEBUG")}))

    worker = cluster.connect(configuration.defaults().with_values(conf), role=Role.WORKER)
    try:
        assert worker.assignment_info(storm_id).master_code_dir == "/code"
        assert worker.storm_base(storm_id).name == "wc"
        assert worker.credentials(storm_id).creds == {"key": "value"}
        levels = worker.topology_log_config(storm_id).named_logger_level
        assert levels["ROOT"].target_log_level == "DEBUG"
        assert worker.begin_claim(storm_id, "q", claim)
        assert nimbus.leader.snapshot(is_synced=True).claimed == {storm_id: {"q"}}
        worker.set_worker_heartbeat(
            storm_id, "node", 6700, ClusterWorkerHeartbeat(storm_id, {}, 1, 1)
        )
        assert worker.report_error(storm_id, "lines", "broken", host="host", port=6700)
        assert len(nimbus.storm.worker_heartbeats(storm_id)) == 1
        assert [error.error for error in nimbus.storm.errors(storm_id, "lines")] == ["broken"]
        with pytest.raises(AccessDeniedError):
            worker.active_storms()
    finally:
        worker.disconnect()
