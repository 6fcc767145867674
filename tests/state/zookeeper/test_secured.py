"""Sessions with real ZooKeeper servers that ask who one is, and the lists that nodes are made with.

What nodes are granted is read back by a client that is not ours.
"""

import re

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl_credential

from stormkeeper import conf as configuration
from stormkeeper.errors import (
    AccessDeniedError,
    NoNodeError,
    StateAuthenticationError,
    StateUnavailableError,
    TransactionError,
)
from stormkeeper.state.backends import connect, heartbeat_sender
from stormkeeper.state.storage import ConnectionState, Role, digest_id
from support.certificates import certificates
from support.proxy import Proxy
from support.secure_zookeeper import (
    USERS,
    SecureZooKeeper,
    digest_conf,
    pem_store,
    sasl_conf,
    topology_conf,
)
from support.transactions import Transaction
from support.waiting import DEADLINE_SECS, until
from support.zookeeper import expire_session

pytestmark = pytest.mark.zookeeper

DAEMON, WORKER = "storm:very secret", "wc-1:hush"
ID = "wc-1-1700000000"

OPEN = {"world:anyone:cdrwa"}
SERVERS = f"digest:{make_digest_acl_credential('storm', 'very secret')}:cdrwa"
WORKERS = f"digest:{make_digest_acl_credential('wc-1', 'hush')}"
BY_SASL = "sasl:nimbus:cdrwa"

#: Nodes of Storm's layout: how they are made, and what a topology's workers may there.
LAYOUT = {
    "/": (None, ""),
    "/storms": ("mkdirs", ""),
    "/assignments": ("mkdirs", ""),
    "/supervisors": ("mkdirs", ""),
    "/workerbeats": ("mkdirs", ""),
    "/errors": ("mkdirs", ""),
    "/blobstore": ("mkdirs", ""),
    "/nimbuses": ("mkdirs", ""),
    "/logconfigs": ("mkdirs", ""),
    "/backpressure": ("mkdirs", ""),
    f"/credentials/{ID}": ("set_data", "r"),
    # Made with its first child, and not the topology's.
    "/credentials": (None, ""),
    f"/storms/{ID}": ("set_data", "r"),
    f"/assignments/{ID}": ("transaction", "r"),
    f"/logconfigs/{ID}": ("set_data", "r"),
    f"/tasks/{ID}": ("mkdirs", "r"),
    f"/tasks/{ID}/7": ("transaction", "r"),
    f"/workerbeats/{ID}": ("mkdirs", "cdrwa"),
    f"/workerbeats/{ID}/s-1-6700": ("set_data", ""),
    f"/taskbeats/{ID}/7": ("set_data", ""),
    f"/taskbeats/{ID}": (None, "cdrwa"),
    f"/taskerrors/{ID}": ("mkdirs", "cdrwa"),
    f"/errors/{ID}/spout-last-error": ("set_data", ""),
    f"/errors/{ID}": (None, "cdrwa"),
    f"/errors/{ID}/spout/e": ("create_sequential", ""),
    f"/errors/{ID}/spout": (None, ""),
    f"/backpressure/{ID}": ("mkdirs", "cdrwa"),
    f"/backpressure/{ID}/s-1-6700": ("set_ephemeral_node", ""),
    f"/profilerconfigs/{ID}/h_6700_JPROFILE_STOP": ("set_data", ""),
    f"/profilerconfigs/{ID}": (None, ""),
    "/profilerconfigs": (None, ""),
    "/supervisors/s-1": ("set_ephemeral_node", ""),
    "/nimbuses/h:6627:0": ("set_ephemeral_node", ""),
    "/blobstore/key/h:6627:0-1": ("set_ephemeral_node", ""),
    "/blobstoremaxkeysequencenumber/key": ("set_data", ""),
    "/leader-lock/_c_x-latch-": ("create_sequential", ""),
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A server with SASL on its plain port, and certificates on both sides of its other one."""
    folder = tmp_path_factory.mktemp("zookeeper") / "secured"
    with SecureZooKeeper(folder, certificates().server, client_auth="need") as server:
        yield server


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A server that wants SASL of all, and whose certificate is for another name than its own."""
    folder = tmp_path_factory.mktemp("zookeeper") / "elsewhere"
    certificate = certificates().elsewhere
    with SecureZooKeeper(folder, certificate, client_auth="none", sasl_required=True) as server:
        yield server


@pytest.fixture
def open_state(zookeeper_root):
    """Opens sessions by configuration values, under this test's root; closes them."""
    sessions = []

    def open_state(*parts, role=Role.SERVER, **values):
        conf = configuration.defaults().with_values(
            {
                "storm.zookeeper.root": zookeeper_root,
                "storm.zookeeper.connection.timeout": 10_000,
                "storm.zookeeper.session.timeout": 10_000,
            }
        )
        for part in parts:
            conf = conf.with_values(part)
        sessions.append(connect(conf.with_values(values), role=role))
        return sessions[-1]

    yield open_state
    for session in sessions:
        session.close()


@pytest.fixture
def server(zookeeper_settings):
    """Configuration values for the shared server, on which digests are believed like everywhere."""
    return zookeeper_settings()


@pytest.fixture
def daemon(open_state, server):
    return open_state(server, digest_conf(DAEMON), topology_conf(WORKER))


@pytest.fixture
def worker(open_state, server, daemon):
    """A worker of the topology whose nodes `daemon` has made."""
    for directory in ("storms", "assignments", "credentials", "workerbeats", "errors"):
        daemon.set_data(f"/{directory}/{ID}", b"the daemon's")
    return open_state(server, topology_conf(WORKER), SUPER, role=Role.WORKER)


SUPER = {"storm.zookeeper.superACL": SERVERS.removesuffix(":cdrwa")}


def make(state, how, path):
    """Make a node in one of the ways that there are; return its path."""
    match how:
        case None:
            pass
        case "mkdirs":
            state.mkdirs(path)
        case "create_sequential":
            return state.create_sequential(path, b"x")
        case "transaction":
            Transaction(state.commit).create(path, b"x").commit()
        case _:
            getattr(state, how)(path, b"x")
    return path


def granted(state, path):
    """Read who may do what with a node, past our own client's calls."""
    acl, _ = state._connection._client.get_acls(state._node(path))
    return {f"{entry.id.scheme}:{entry.id.id}:{letters(entry.perms)}" for entry in acl}


def letters(permissions):
    return "".join(
        letter
        for letter, bit in (("c", 4), ("d", 8), ("r", 1), ("w", 2), ("a", 16))
        if permissions & bit
    )


def for_workers(creator, permissions):
    return {creator, f"{WORKERS}:{permissions}"} if permissions else {creator}


def test_every_node_is_made_with_storms_list(daemon):
    for path, (how, permissions) in LAYOUT.items():
        made = make(daemon, how, path)
        assert granted(daemon, made) == for_workers(SERVERS, permissions), path


def test_with_sasl_the_lists_name_its_user(secured, open_state, tmp_path):
    login = sasl_conf(tmp_path, "nimbus", USERS["nimbus"])
    state = open_state(secured.conf(), login, topology_conf(WORKER))
    for path, (how, permissions) in LAYOUT.items():
        made = make(state, how, path)
        assert granted(state, made) == for_workers(BY_SASL, permissions), path


def test_with_sasl_and_a_digest_the_lists_name_both(secured, open_state, tmp_path):
    login = sasl_conf(tmp_path, "nimbus", USERS["nimbus"])
    state = open_state(secured.conf(), login, digest_conf(DAEMON))
    state.mkdirs("/storms")
    assert granted(state, "/storms") == {SERVERS, BY_SASL}


def test_without_credentials_all_is_open(open_state, server):
    state = open_state(server)
    for path, (how, _) in LAYOUT.items():
        assert granted(state, make(state, how, path)) == OPEN, path


def test_a_topology_with_a_digest_of_its_own(daemon):
    own = digest_id("own:secret")
    daemon.set_data(f"/storms/{ID}", b"x", workers_digest=own)
    daemon.mkdirs(f"/workerbeats/{ID}", workers_digest=own)
    Transaction(daemon.commit).create("/storms/third", b"x", workers_digest=own).commit()
    daemon.set_data("/storms/other", b"x")
    own = f"digest:{make_digest_acl_credential('own', 'secret')}:r"
    assert granted(daemon, f"/storms/{ID}") == granted(daemon, "/storms/third") == {SERVERS, own}
    assert granted(daemon, f"/workerbeats/{ID}") == {SERVERS, f"{own.removesuffix('r')}cdrwa"}
    assert granted(daemon, "/storms") == granted(daemon, "/workerbeats") == {SERVERS}
    assert granted(daemon, "/storms/other") == for_workers(SERVERS, "r")


def test_a_registration_that_is_made_again_is_nobody_elses(daemon):
    daemon.set_ephemeral_node("/supervisors/s-1", b"x")
    expire_session(daemon)
    assert daemon.get_data("/supervisors/s-1") == b"x"
    assert granted(daemon, "/supervisors/s-1") == {SERVERS}


OPERATIONS = {
    "read": lambda state: state.get_data(f"/storms/{ID}"),
    "read many": lambda state: state.read_many([f"/storms/{ID}"]),
    "list": lambda state: state.get_children("/storms"),
    "list with values": lambda state: state.children_data("/storms"),
    "write": lambda state: state.set_data(f"/storms/{ID}", b"mine"),
    "make": lambda state: state.set_data("/storms/mine", b"mine"),
    "make an ephemeral": lambda state: state.set_ephemeral_node("/storms/mine", b"mine"),
    "make a directory": lambda state: state.mkdirs("/mine"),
    "number": lambda state: state.create_sequential("/storms/mine", b"mine"),
    "delete": lambda state: state.delete_node(f"/storms/{ID}"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_stranger_is_denied_and_told_as_whom(daemon, open_state, server, operation):
    daemon.set_data(f"/storms/{ID}", b"the daemon's")
    stranger = open_state(server, digest_conf("storm:wrong"))
    with pytest.raises(AccessDeniedError, match=re.escape(f"digest:{digest_id('storm:wrong')}")):
        OPERATIONS[operation](stranger)
    assert daemon.get_data(f"/storms/{ID}") == b"the daemon's"
    assert daemon.get_children("/storms") == [ID]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_who_does_not_authenticate_is_denied_and_told_so(daemon, open_state, server, operation):
    daemon.set_data(f"/storms/{ID}", b"the daemon's")
    nobody = open_state(server)
    with pytest.raises(AccessDeniedError, match=r"see storm\.zookeeper\.auth\.scheme"):
        OPERATIONS[operation](nobody)


def test_a_transaction_that_is_denied_does_nothing(worker, daemon):
    transaction = Transaction(worker.commit).create(f"/errors/{ID}/spout", b"")
    with pytest.raises(TransactionError) as failure:
        transaction.create("/storms/mine", b"").commit()
    assert failure.value.index == 1
    assert isinstance(failure.value.reason, AccessDeniedError)
    assert daemon.get_children(f"/errors/{ID}") == []


def test_a_worker_reads_its_topology_and_no_more(worker, daemon):
    daemon.set_data("/assignments/other", b"x", workers_digest=digest_id("others:secret"))
    for directory in ("storms", "assignments", "credentials"):
        assert worker.get_data(f"/{directory}/{ID}") == b"the daemon's"
        with pytest.raises(AccessDeniedError):
            worker.set_data(f"/{directory}/{ID}", b"mine")
        with pytest.raises(AccessDeniedError):
            worker.get_children(f"/{directory}")
    with pytest.raises(AccessDeniedError):
        worker.get_data("/assignments/other")


def test_worker_writes_its_reports_and_daemons_delete_them(worker, daemon):
    worker.set_data(f"/workerbeats/{ID}/s-1-6700", b"beat")
    made = worker.create_sequential(f"/errors/{ID}/spout/e", b"error")
    for path in (f"/workerbeats/{ID}/s-1-6700", f"/errors/{ID}/spout", made):
        assert granted(worker, path) == {f"{WORKERS}:cdrwa", SERVERS}
    assert daemon.get_data(f"/workerbeats/{ID}/s-1-6700") == b"beat"
    assert daemon.get_data(made) == b"error"
    daemon.delete_node(f"/errors/{ID}")
    daemon.delete_node(f"/workerbeats/{ID}")


def test_a_worker_makes_no_directory_of_the_clusters(worker):
    with pytest.raises(AccessDeniedError):
        worker.set_data(f"/backpressure/{ID}/s-1-6700", b"x")


@pytest.mark.usefixtures("worker")
def test_a_worker_beats_with_its_topologys_digest(daemon, server):
    conf = configuration.defaults().with_values(
        {**server, **SUPER, **topology_conf(WORKER), **digest_conf("not:for workers")}
    )
    sender = heartbeat_sender(conf)
    try:
        sender.beat(f"/workerbeats/{ID}/s-1-6700", b"beat")
    finally:
        sender.close()
    assert granted(daemon, f"/workerbeats/{ID}/s-1-6700") == {f"{WORKERS}:cdrwa", SERVERS}


def test_a_worker_does_not_make_the_root(open_state, server, zookeeper_server, zookeeper_root):
    with pytest.raises(NoNodeError, match=f"there is nothing at {zookeeper_root} in ZooKeeper"):
        open_state(server, topology_conf(WORKER), SUPER, role=Role.WORKER)
    other = KazooClient(hosts=str(zookeeper_server.address))
    other.start(timeout=DEADLINE_SECS)
    try:
        assert other.exists(zookeeper_root) is None
    finally:
        other.stop()
        other.close()


def test_who_one_is_holds_in_the_next_connection(secured, open_state, tmp_path):
    login = sasl_conf(tmp_path, "nimbus", USERS["nimbus"])
    with Proxy(secured.address) as proxy:
        state = open_state(
            secured.conf(),
            login,
            digest_conf(DAEMON),
            **{"storm.zookeeper.port": proxy.address.port},
        )
        state.set_data("/storms/a", b"before")
        proxy.cut()
        until(lambda: state.connection is not ConnectionState.CONNECTED)
        proxy.mend()
        until(lambda: state.connection is ConnectionState.CONNECTED)
        assert state.get_data("/storms/a") == b"before"
        state.set_data("/storms/b", b"after")
        assert granted(state, "/storms/b") == {SERVERS, BY_SASL}


@pytest.mark.parametrize(("user", "password"), [("nimbus", "wrong"), ("nobody", "pass word")])
def test_a_wrong_sasl_login_fails_the_start(secured, open_state, tmp_path, user, password):
    login = sasl_conf(tmp_path, user, password)
    with pytest.raises(StateAuthenticationError, match=f"sasl:{user}") as failure:
        open_state(secured.conf(), login)
    assert password not in str(failure.value).replace(user, "")


def test_a_server_without_sasl_fails_the_start(server, open_state, tmp_path):
    with pytest.raises(StateAuthenticationError, match="sasl:nimbus"):
        open_state(server, sasl_conf(tmp_path, "nimbus", USERS["nimbus"]))


def test_a_server_that_wants_sasl_says_so(elsewhere, open_state):
    with pytest.raises(StateAuthenticationError, match="does not authenticate"):
        open_state(elsewhere.conf())


def test_with_tls_and_certificates_on_both_sides(secured, open_state, tmp_path):
    store = pem_store(tmp_path / "client.pem", certificates().client)
    state = open_state(
        secured.tls_conf(certificates().server),
        digest_conf(DAEMON),
        **{
            "storm.zookeeper.ssl.keystore.path": str(store),
            "storm.zookeeper.ssl.hostnameVerification": True,
        },
    )
    names = [f"/storms/wc-{i}" for i in range(50)]
    for name in names:
        state.set_data(name, name.encode())
    assert [found.data for found in state.read_many(names)] == [name.encode() for name in names]
    # ZooKeeper counts the certificate among what the session has proved.
    assert {entry.split(":")[0] for entry in granted(state, "/storms")} == {"digest", "x509"}


def test_with_tls_and_sasl(elsewhere, open_state, tmp_path):
    login = sasl_conf(tmp_path, "nimbus", USERS["nimbus"])
    state = open_state(elsewhere.tls_conf(certificates().elsewhere), login)
    state.mkdirs("/storms")
    assert granted(state, "/storms") == {BY_SASL}


QUICK = {"storm.zookeeper.connection.timeout": 3_000}


def test_a_server_that_is_not_trusted_is_named_at_the_start(secured, open_state, tmp_path):
    store = pem_store(tmp_path / "client.pem", certificates().client)
    own = {"storm.zookeeper.ssl.keystore.path": str(store)}
    with pytest.raises(StateUnavailableError, match=r"certificate is not trusted.*truststore"):
        open_state(secured.tls_conf(certificates().stranger), own, QUICK)


def test_a_servers_name_counts_where_that_is_set(elsewhere, open_state, tmp_path):
    login = sasl_conf(tmp_path, "nimbus", USERS["nimbus"])
    checked = {"storm.zookeeper.ssl.hostnameVerification": True}
    with pytest.raises(StateUnavailableError, match=r"hostnameVerification"):
        open_state(elsewhere.tls_conf(certificates().elsewhere), login, checked, QUICK)


@pytest.mark.parametrize("shown", ["nothing", "a stranger's"])
def test_who_shows_no_certificate_that_is_trusted_is_told_of_it(
    secured, open_state, tmp_path, shown
):
    own = {}
    if shown != "nothing":
        store = pem_store(tmp_path / "stranger.pem", certificates().stranger)
        own = {"storm.zookeeper.ssl.keystore.path": str(store)}
    with pytest.raises(StateUnavailableError, match=r"TLS.*ssl\.keystore\.path"):
        open_state(secured.tls_conf(certificates().server), own, QUICK)


def test_tls_with_a_port_that_has_none_is_told_of_it(secured, open_state):
    conf = secured.tls_conf(certificates().server)
    with pytest.raises(StateUnavailableError, match="no TLS with the server"):
        open_state(conf, QUICK, **{"storm.zookeeper.port": secured.port})


def test_a_port_that_has_tls_without_it_is_told_of_it(secured, open_state):
    servers = secured.tls_conf(certificates().server)
    del servers["storm.zookeeper.ssl.enable"]
    with pytest.raises(StateUnavailableError, match=r"set storm\.zookeeper\.ssl\.enable"):
        open_state(servers, QUICK)
