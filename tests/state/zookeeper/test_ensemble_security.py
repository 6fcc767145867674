import pytest
from kazoo.security import CREATOR_ALL_ACL, Permissions, make_acl

from stormkeeper import conf as configuration
from stormkeeper.errors import ConfigError
from stormkeeper.sasl.digest_md5 import DigestServer
from stormkeeper.state.storage import Role, digest_id
from stormkeeper.state.zookeeper.ensemble_settings import (
    SASL_DIGEST_URI,
    SASL_REALM,
    EnsembleSettings,
    Security,
)
from support.certificates import certificates

SERVER = {
    "storm.zookeeper.auth.scheme": "digest",
    "storm.zookeeper.auth.payload": "storm:very secret",
}
TOPOLOGY = {
    "storm.zookeeper.topology.auth.scheme": "digest",
    "storm.zookeeper.topology.auth.payload": "wc-1:hush",
}
SUPER = {"storm.zookeeper.superACL": "sasl:nimbus"}
CREATOR = CREATOR_ALL_ACL[0]


def security(*parts, role=Role.SERVER, **values):
    conf = configuration.defaults()
    for part in parts:
        conf = conf.with_values(part)
    return Security.from_conf(conf.with_values(values), role)


def jaas(tmp_path, text):
    path = tmp_path / "jaas.conf"
    path.write_text(text)
    return {"java.security.auth.login.config": str(path)}


def login(tmp_path, section="Client", options='username="nimbus" password="hush hush"'):
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    return jaas(tmp_path, f"{section} {{ {module} {options}; }};")


def test_nothing_is_secured_as_it_comes():
    assert security() == Security()
    assert not security().authenticated
    assert security().rules.acl("/storms/wc-1") is None


def test_daemons_prove_who_they_are_with_their_digest():
    daemon = security(SERVER)
    assert daemon.digests == (("digest", "storm:very secret"),)
    assert daemon.identities == (f"digest:{digest_id('storm:very secret')}",)
    assert daemon.authenticated
    assert daemon.rules.acl("/storms/wc-1") == daemon.rules.acl("/") == CREATOR_ALL_ACL


def test_workers_prove_who_they_are_with_their_topologys_alone():
    worker = security(SERVER, TOPOLOGY, SUPER, role=Role.WORKER)
    assert worker.digests == (("digest", "wc-1:hush"),)
    assert worker.identities == (f"digest:{digest_id('wc-1:hush')}",)
    assert worker.rules.acl("/errors/wc-1/spout/e1") == [
        CREATOR,
        make_acl("sasl", "nimbus", all=True),
    ]


def test_a_worker_whose_topology_has_no_digest_is_nobody():
    worker = security(SERVER, role=Role.WORKER)
    assert worker == Security()
    assert worker.rules.acl("/errors/wc-1") is None


def test_daemons_let_workers_in():
    daemon = security(SERVER, TOPOLOGY)
    worker = digest_id("wc-1:hush")
    assert daemon.rules.acl("/storms/wc-1") == [CREATOR, make_acl("digest", worker, read=True)]
    assert daemon.rules.acl("/errors/wc-1") == [CREATOR, make_acl("digest", worker, all=True)]
    assert daemon.rules.acl("/errors/wc-1/spout") == [CREATOR]
    assert daemon.rules.acl("/credentials") == CREATOR_ALL_ACL


def test_permissions_are_zookeepers():
    every = [
        permission.perms for permission in security(SERVER, TOPOLOGY).rules.acl("/errors/wc-1")
    ]
    assert every == [Permissions.ALL, Permissions.ALL]


def test_sasl_comes_from_the_section_client(tmp_path):
    daemon = security(login(tmp_path))
    assert daemon.identities == ("sasl:nimbus",)
    assert daemon.rules.acl("/storms/wc-1") == CREATOR_ALL_ACL
    assert daemon.mechanism is not None
    server = DigestServer({"nimbus": "hush hush"}.get, realm=SASL_REALM, digest_uri=SASL_DIGEST_URI)
    client = daemon.mechanism()
    proof = server.step(client.step(server.start()))
    assert client.step(proof) is None
    assert client.complete
    assert server.complete


def test_each_connection_has_a_mechanism_of_its_own(tmp_path):
    mechanism = security(login(tmp_path)).mechanism
    assert mechanism() is not mechanism()


def test_sasl_and_a_digest_together(tmp_path):
    daemon = security(SERVER, login(tmp_path))
    assert daemon.identities == (f"digest:{digest_id('storm:very secret')}", "sasl:nimbus")


def test_a_jaas_file_for_a_pacemaker_alone_is_no_login(tmp_path):
    assert security(login(tmp_path, section="PacemakerDigest")) == Security()


def test_a_workers_sasl_user_keeps_what_it_makes(tmp_path):
    worker = security(login(tmp_path), role=Role.WORKER)
    assert worker.rules.acl("/errors/wc-1/spout/e1") == CREATOR_ALL_ACL


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ('username="nimbus"', r'jaas\.conf:1: section Client has no password="…"'),
        ('password="hush hush"', r'jaas\.conf:1: section Client has no username="…"'),
    ],
)
def test_a_section_that_lacks_something(tmp_path, options, match):
    with pytest.raises(ConfigError, match=match) as failure:
        security(login(tmp_path, options=options))
    assert "hush hush" not in str(failure.value)


def test_kerberos_to_zookeeper_is_refused(tmp_path):
    text = (
        "Client { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true"
        ' keyTab="/k" principal="nimbus/h@R"; };'
    )
    with pytest.raises(ConfigError, match="only DIGEST-MD5 is spoken to ZooKeeper"):
        security(jaas(tmp_path, text))


def test_a_jaas_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        security(**{"java.security.auth.login.config": str(tmp_path / "none")})


@pytest.mark.parametrize("prefix", ["storm.zookeeper.auth", "storm.zookeeper.topology.auth"])
@pytest.mark.parametrize(
    ("scheme", "payload", "match"),
    [
        ("sasl", "storm:secret", "digest is the only scheme that is spoken"),
        ("digest", None, r"scheme is set and \S+payload is not: set it to user:password"),
        (None, "storm:secret", r"payload is set and \S+scheme is not: set it to digest"),
        ("digest", "secret", "payload: expected user:password"),
        ("digest", ":secret", "payload: expected user:password"),
        ("digest", "secret:", "payload: expected user:password"),
    ],
)
def test_half_a_digest(prefix, scheme, payload, match):
    with pytest.raises(ConfigError, match=match) as failure:
        security(SERVER, SUPER, **{f"{prefix}.scheme": scheme, f"{prefix}.payload": payload})
    assert prefix in str(failure.value)
    assert payload is None or "secret" not in str(failure.value)


@pytest.mark.parametrize("payload", [4711, ["a:4711"]])
def test_a_digest_in_a_configuration_that_nobody_checked(payload):
    conf = {"storm.zookeeper.auth.scheme": "digest", "storm.zookeeper.auth.payload": payload}
    with pytest.raises(ConfigError, match="payload: expected user:password") as failure:
        Security.from_conf(conf)
    assert "4711" not in str(failure.value)


def test_topologies_that_authenticate_want_daemons_that_do():
    with pytest.raises(ConfigError, match=r"set storm\.zookeeper\.auth\.scheme and"):
        security(TOPOLOGY)


def test_daemons_with_sasl_serve_topologies_with_digests(tmp_path):
    daemon = security(TOPOLOGY, login(tmp_path))
    assert len(daemon.rules.acl("/errors/wc-1")) == 2


def test_a_worker_wants_to_know_the_daemons():
    with pytest.raises(ConfigError, match=r"superACL is not: the daemons could not read"):
        security(TOPOLOGY, role=Role.WORKER)


@pytest.mark.parametrize("value", ["nimbus", "sasl:", ":nimbus"])
def test_a_super_acl_that_names_nobody(value):
    with pytest.raises(ConfigError, match=rf"superACL: expected scheme:id.*got '{value}'"):
        security(TOPOLOGY, role=Role.WORKER, **{"storm.zookeeper.superACL": value})


def test_a_super_acl_may_be_a_digest():
    own = f"digest:{digest_id('storm:very secret')}"
    worker = security(TOPOLOGY, role=Role.WORKER, **{"storm.zookeeper.superACL": own})
    granted = make_acl("digest", digest_id("storm:very secret"), all=True)
    assert worker.rules.acl("/errors/wc-1") == [CREATOR, granted]


def test_tls_is_on_where_it_is_set():
    authority = str(certificates().server.authority)
    values = {
        "storm.zookeeper.ssl.enable": True,
        "storm.zookeeper.ssl.truststore.path": authority,
    }
    secured = security(**values)
    assert secured.contexts is not None
    assert len(secured.contexts().get_ca_certs()) == 1
    # A certificate proves who one is to ZooKeeper, but nodes are kept only by who says so.
    assert not secured.authenticated


@pytest.mark.parametrize(
    ("parts", "role", "asked", "made"),
    [
        ([], Role.SERVER, True, True),
        ([], Role.SERVER, False, False),
        ([SERVER], Role.SERVER, True, True),
        ([], Role.WORKER, True, True),
        ([TOPOLOGY, SUPER], Role.WORKER, True, False),
    ],
)
def test_who_makes_the_root(parts, role, asked, made):
    conf = configuration.defaults()
    for part in parts:
        conf = conf.with_values(part)
    assert EnsembleSettings.from_conf(conf, role, make_root=asked).make_root is made
