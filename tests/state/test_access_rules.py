"""Who may do what, by path, and beside it who may in Storm."""

from typing import NamedTuple

import pytest
from kazoo.security import CREATOR_ALL_ACL, Permissions, make_acl, make_digest_acl_credential

from stormkeeper import paths
from stormkeeper.errors import ConfigError
from stormkeeper.state.storage import Role, digest_id
from stormkeeper.state.zookeeper.ensemble_settings import OPEN, AccessRules

ID = "wc-1-1700000000"
TOPOLOGY = digest_id("worker:hush")
DAEMONS = make_acl("sasl", "nimbus", all=True)
(CREATOR,) = CREATOR_ALL_ACL

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
    paths.CHECKPOINTS,
    paths.PROFILER_CONFIGS,
    paths.LEADER_LOCK,
    paths.LEADER_INFO,
    paths.SECRET_KEYS,
}


#: Permissions of Storm's lists, by who has them: the daemons, a topology's workers, everybody. A
#: worker's list has "workers" for its creator and "daemons" for ``storm.zookeeper.superACL``.
DAEMONS_OWN = {"daemons": "all"}
READ_TOO = {"daemons": "all", "workers": "read"}
WRITE_TOO = {"daemons": "all", "workers": "all"}
NOT_IN_STORM = None


class Row(NamedTuple):
    """A node, who makes it, and Storm's list beside ours."""

    path: str
    by: Role
    storm: dict[str, str] | None
    ours: dict[str, str]
    #: Where ours is another list than Storm's.
    why: str = ""


BY_DAEMONS = [
    *(Row(path, Role.SERVER, DAEMONS_OWN, DAEMONS_OWN) for path in paths.DIRECTORIES),
    Row(f"/storms/{ID}", Role.SERVER, READ_TOO, READ_TOO),
    Row(f"/assignments/{ID}", Role.SERVER, READ_TOO, READ_TOO),
    Row(f"/credentials/{ID}", Role.SERVER, READ_TOO, READ_TOO),
    Row(f"/logconfigs/{ID}", Role.SERVER, READ_TOO, READ_TOO),
    Row(
        paths.CREDENTIALS,
        Role.SERVER,
        READ_TOO,
        DAEMONS_OWN,
        "Storm makes it with the list of the first topology that has credentials",
    ),
    Row(f"/workerbeats/{ID}", Role.SERVER, WRITE_TOO, WRITE_TOO),
    Row(f"/workerbeats/{ID}/s-1-6700", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row(f"/errors/{ID}", Role.SERVER, WRITE_TOO, WRITE_TOO),
    Row(f"/errors/{ID}/spout", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row(f"/errors/{ID}/spout/e0000000000", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row(f"/errors/{ID}/spout-last-error", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row(f"/backpressure/{ID}", Role.SERVER, WRITE_TOO, WRITE_TOO),
    Row(f"/backpressure/{ID}/s-1-6700", Role.SERVER, NOT_IN_STORM, DAEMONS_OWN, "as /workerbeats"),
    Row(paths.PROFILER_CONFIGS, Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row(f"/profilerconfigs/{ID}", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row(f"/profilerconfigs/{ID}/h_6700_JMAP_DUMP", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row("/supervisors/s-1", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row(f"/checkpoints/{ID}", Role.SERVER, NOT_IN_STORM, DAEMONS_OWN, "as /storms, for daemons"),
    Row("/nimbuses/h", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row("/leader-lock/_c_x-latch-0000000000", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row("/blobstore/key", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row("/blobstore/key/h:6627:0-1", Role.SERVER, DAEMONS_OWN, DAEMONS_OWN),
    Row(
        "/blobstoremaxkeysequencenumber/key",
        Role.SERVER,
        {"everybody": "all"},
        DAEMONS_OWN,
        "Storm leaves the counter open, and none but Nimbuses count",
    ),
    Row(
        "/blobstoremaxkeysequencenumber/key/h:6627:0-1",
        Role.SERVER,
        NOT_IN_STORM,
        DAEMONS_OWN,
        "as the counter",
    ),
    Row(f"/tasks/{ID}", Role.SERVER, NOT_IN_STORM, READ_TOO, "as the base, which it belongs to"),
    Row(
        f"/tasks/{ID}/7",
        Role.SERVER,
        NOT_IN_STORM,
        READ_TOO,
        "the leader writes a node for each task, and a worker reads those of its tasks",
    ),
    Row(f"/taskbeats/{ID}", Role.SERVER, NOT_IN_STORM, WRITE_TOO, "as /workerbeats"),
    Row(f"/taskbeats/{ID}/7", Role.SERVER, NOT_IN_STORM, DAEMONS_OWN, "as /workerbeats"),
    Row(f"/taskerrors/{ID}", Role.SERVER, NOT_IN_STORM, WRITE_TOO, "as /errors"),
    Row(f"/taskerrors/{ID}/7", Role.SERVER, NOT_IN_STORM, DAEMONS_OWN, "as /errors"),
]

BY_WORKERS = [
    Row(path, Role.WORKER, WRITE_TOO, WRITE_TOO)
    for path in (
        f"/workerbeats/{ID}/s-1-6700",
        f"/errors/{ID}/spout",
        f"/errors/{ID}/spout/e0000000000",
        f"/errors/{ID}/spout-last-error",
    )
] + [
    Row(path, Role.WORKER, NOT_IN_STORM, WRITE_TOO, "as /workerbeats and /errors")
    for path in (
        f"/backpressure/{ID}/s-1-6700",
        f"/taskbeats/{ID}/7",
        f"/taskerrors/{ID}/7",
        f"/taskerrors/{ID}/7/e0000000000",
    )
]


@pytest.mark.parametrize("row", [*BY_DAEMONS, *BY_WORKERS], ids=lambda row: row.path)
def test_lists_are_storms_or_narrower(row):
    """Storm's as its code gives them: with each call either the maker's list or a topology's."""
    rules = AccessRules(
        authenticated=True, role=row.by, topology_digest=TOPOLOGY, super_acl=DAEMONS
    )
    rights = {Permissions.READ: "read", Permissions.ALL: "all"}
    names = {
        CREATOR.id: "daemons" if row.by is Role.SERVER else "workers",
        DAEMONS.id: "daemons",
        ("digest", TOPOLOGY): "workers",
    }
    ours = {names[grant.id]: rights[grant.perms] for grant in rules.acl(row.path)}
    assert ours == row.ours
    assert bool(row.why) == (row.storm != row.ours)
    if row.storm is not None and "everybody" not in row.storm:
        for who, permission in ours.items():
            assert row.storm.get(who) in (permission, "all")


def test_every_directory_has_its_row():
    rows = [*BY_DAEMONS, *BY_WORKERS]
    # Nothing of ours writes these.
    untouched = {paths.LEADER_INFO, paths.SECRET_KEYS}
    assert {paths.first_level(row.path) for row in rows} == paths.FIRST_LEVEL - untouched


@pytest.fixture
def rules():
    """A daemon's, where topologies authenticate too."""
    return AccessRules(authenticated=True, topology_digest=TOPOLOGY)


def test_every_directory_is_decided():
    assert READ | ALL | DAEMONS_ONLY == paths.FIRST_LEVEL


@pytest.mark.parametrize("directory", sorted(READ))
@pytest.mark.parametrize("below", ["", "/1", "/1/2"])
def test_workers_read_what_is_theirs_to_know(rules, directory, below):
    granted = [CREATOR, make_acl("digest", TOPOLOGY, read=True)]
    assert rules.acl(f"{directory}/{ID}{below}") == granted


@pytest.mark.parametrize("directory", sorted(ALL))
def test_workers_own_their_reports_and_daemons_their_nodes(rules, directory):
    granted = [CREATOR, make_acl("digest", TOPOLOGY, all=True)]
    assert rules.acl(f"{directory}/{ID}") == granted
    for below in ("1", "1/2"):
        assert rules.acl(f"{directory}/{ID}/{below}") == [CREATOR]


@pytest.mark.parametrize("directory", sorted(paths.FIRST_LEVEL))
def test_a_directory_is_its_makers_alone(rules, directory):
    assert rules.acl(directory) == [CREATOR]


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
    assert rules.acl(path) == [CREATOR]


@pytest.mark.parametrize("path", ["/", "/storms", f"/storms/{ID}", f"/errors/{ID}/spout/e1"])
def test_who_does_not_authenticate_leaves_all_open(path):
    unauthenticated = AccessRules(authenticated=False, topology_digest=TOPOLOGY)
    assert OPEN.acl(path) is unauthenticated.acl(path) is None


def test_nobody_is_let_in_where_no_topology_authenticates():
    rules = AccessRules(authenticated=True)
    assert rules.acl(f"/workerbeats/{ID}") == [CREATOR]


def test_a_topology_with_a_digest_of_its_own(rules):
    own = digest_id("wc-1:secret")
    granted = rules.acl(f"/errors/{ID}", own)
    assert granted == [CREATOR, make_acl("digest", own, all=True)]
    assert rules.acl("/errors/other")[1].id.id == TOPOLOGY
    assert rules.acl("/errors", own) == rules.acl("/supervisors/s-1", own) == [CREATOR]
    assert OPEN.acl(f"/errors/{ID}", own) is None


@pytest.mark.parametrize("path", ["/errors/x/spout/e1", "/workerbeats/x/s-6700", "/backpressure/x"])
def test_a_worker_lets_the_daemons_at_what_it_makes(path):
    rules = AccessRules(
        authenticated=True, role=Role.WORKER, topology_digest=TOPOLOGY, super_acl=DAEMONS
    )
    assert rules.acl(path) == rules.acl(path, TOPOLOGY) == [CREATOR, DAEMONS]


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
