"""Who may do what, by path."""

import pytest
from kazoo.security import make_digest_acl_credential

from stormkeeper.errors import ConfigError
from stormkeeper.state import paths
from stormkeeper.state.access import (
    CREATOR,
    OPEN,
    AccessRules,
    Grant,
    Permission,
    Role,
    digest_id,
)

ID = "wc-1-1700000000"
TOPOLOGY = digest_id("worker:hush")
DAEMONS = Grant("sasl", "nimbus", Permission.ALL)

READ = {
    paths.STORMS,
    paths.ASSIGNMENTS,
    paths.CREDENTIALS,
    paths.LOG_CONFIGS,
    paths.TASKS,
}
ALL = {
    paths.WORKERBEATS,
    paths.ERRORS,
    paths.BACKPRESSURE,
    paths.TASKBEATS,
    paths.TASKERRORS,
}
DAEMONS_ONLY = {
    paths.SUPERVISORS,
    paths.NIMBUSES,
    paths.BLOBSTORE,
    paths.BLOB_KEY_SEQUENCES,
    paths.PROFILER_CONFIGS,
    paths.LEADER_LOCK,
    paths.LEADER_INFO,
    paths.SECRET_KEYS,
}


@pytest.fixture
def rules():
    """A daemon's, where topologies authenticate too."""
    return AccessRules(authenticated=True, topology_digest=TOPOLOGY)


def test_every_directory_is_decided():
    assert READ | ALL | DAEMONS_ONLY == paths.FIRST_LEVEL


@pytest.mark.parametrize("directory", sorted(READ))
@pytest.mark.parametrize("below", ["", "/1", "/1/2"])
def test_workers_read_what_is_theirs_to_know(rules, directory, below):
    granted = (CREATOR, Grant("digest", TOPOLOGY, Permission.READ))
    assert rules.grants(f"{directory}/{ID}{below}") == granted


@pytest.mark.parametrize("directory", sorted(ALL))
@pytest.mark.parametrize("below", ["", "/1", "/1/2"])
def test_workers_write_where_they_report(rules, directory, below):
    granted = (CREATOR, Grant("digest", TOPOLOGY, Permission.ALL))
    assert rules.grants(f"{directory}/{ID}{below}") == granted


@pytest.mark.parametrize("directory", sorted(paths.FIRST_LEVEL))
def test_a_directory_is_its_makers_alone(rules, directory):
    assert rules.grants(directory) == (CREATOR,)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        *(f"{directory}/{ID}" for directory in sorted(DAEMONS_ONLY)),
        f"/profilerconfigs/{ID}/host_6700_JSTACK_DUMP",
        "/somebody-elses/wc-1",
        "/stormsandmore/wc-1",
    ],
)
def test_all_else_is_its_makers_alone(rules, path):
    assert rules.grants(path) == (CREATOR,)


@pytest.mark.parametrize("path", ["/", "/storms", f"/storms/{ID}", f"/errors/{ID}/spout/e1"])
def test_who_does_not_authenticate_leaves_all_open(path):
    unauthenticated = AccessRules(authenticated=False, topology_digest=TOPOLOGY)
    assert OPEN.grants(path) == unauthenticated.grants(path) == ()


def test_nobody_is_let_in_where_no_topology_authenticates():
    rules = AccessRules(authenticated=True)
    assert rules.grants(f"/workerbeats/{ID}") == (CREATOR,)


def test_a_topology_with_a_digest_of_its_own(rules):
    own = digest_id("wc-1:secret")
    rules.admit(ID, own)
    assert rules.grants(f"/errors/{ID}/spout") == (CREATOR, Grant("digest", own, Permission.ALL))
    assert rules.grants("/errors/other")[1].id == TOPOLOGY


def test_a_topology_without_any(rules):
    rules.admit(ID, None)
    assert rules.grants(f"/errors/{ID}/spout") == (CREATOR,)


def test_admitting_changes_nothing_for_who_does_not_authenticate():
    # It is shared by all that are open.
    OPEN.admit(ID, TOPOLOGY)
    assert OPEN.grants(f"/errors/{ID}") == ()


@pytest.mark.parametrize("path", ["/errors/x/spout/e1", "/workerbeats/x/s-6700", "/backpressure/x"])
def test_a_worker_lets_the_daemons_at_what_it_makes(path):
    rules = AccessRules(
        authenticated=True, role=Role.WORKER, topology_digest=TOPOLOGY, super_acl=DAEMONS
    )
    rules.admit("x", TOPOLOGY)
    assert rules.grants(path) == (CREATOR, DAEMONS)


@pytest.mark.parametrize("payload", ["storm:secret", "storm:", "a:b:c", "stürm:geheim"])
def test_digests_are_zookeepers(payload):
    user, _, password = payload.partition(":")
    assert digest_id(payload) == make_digest_acl_credential(user, password)


def test_a_digest_is_of_a_user_and_a_password():
    with pytest.raises(ConfigError, match="no colon") as failure:
        digest_id("hush")
    assert "hush" not in str(failure.value)
    for payload in (4711, ["hush"], None):
        with pytest.raises(ConfigError, match="no colon"):
            digest_id(payload)
    with pytest.raises(ConfigError, match="not Unicode"):
        digest_id("storm:\ud800")
