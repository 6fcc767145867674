import pytest

from stormkeeper.conf import access_control, defaults, load
from stormkeeper.conf.keys import storm_keys
from stormkeeper.errors import ConfigError

AUTH = "org.apache.storm.security.auth"

#: Values that Storm's own ``defaults.yaml`` has had in one release or another.
STORMS_DEFAULTS = {
    "storm.thrift.transport": f"{AUTH}.SimpleTransportPlugin",
    "storm.principal.tolocal": f"{AUTH}.DefaultPrincipalToLocal",
    "storm.group.mapping.service": f"{AUTH}.ShellBasedGroupsMapping",
    "storm.group.mapping.service.params": None,
    "storm.auth.simple-white-list.users": [],
    "storm.auth.simple-acl.users.commands": [],
    "storm.messaging.netty.authentication": False,
    "nimbus.thrift.tls.port": 0,
    "nimbus.thrift.tls.transport": f"{AUTH}.tls.TlsTransportPlugin",
    "nimbus.thrift.tls.client.auth.required": True,
    "nimbus.impersonation.authorizer": "backtype.storm.security.auth.authorizer"
    ".ImpersonationAuthorizer",
    "nimbus.credential.renewers.freq.secs": 600,
    "storm.nimbus.zookeeper.acls.check": True,
    "supervisor.run.worker.as.user": False,
    "ui.filter": None,
    "ui.users": None,
    "ui.http.creds.plugin": f"{AUTH}.DefaultHttpCredentialsPlugin",
    "drpc.https.port": -1,
    "drpc.https.keystore.password": "",
    "drpc.https.keystore.type": "JKS",
    "drpc.authorizer.acl.filename": "drpc-auth-acl.yaml",
    "drpc.authorizer.acl.strict": False,
}


def test_defaults_ask_for_nothing():
    assert access_control.asks(defaults()) == []
    assert access_control.asks(STORMS_DEFAULTS) == []
    old = {
        key: str(value).replace(AUTH, "backtype.storm.security.auth")
        for key, value in STORMS_DEFAULTS.items()
        if AUTH in str(value) and "tls" not in key
    }
    assert access_control.asks(old) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("storm.thrift.transport", f"{AUTH}.kerberos.KerberosSaslTransportPlugin"),
        ("nimbus.thrift.transport", "com.example.Transport"),
        ("nimbus.authorizer", f"{AUTH}.authorizer.SimpleACLAuthorizer"),
        ("nimbus.impersonation.acl", {"a": {"hosts": ["*"], "groups": ["*"]}}),
        ("nimbus.admins", ["root"]),
        ("nimbus.thrift.tls.port", 6628),
        ("nimbus.thrift.tls.server.keystore.path", "/etc/k.jks"),
        ("nimbus.thrift.tls.client.cert.path", "/etc/c.pem"),
        ("supervisor.thrift.tls.client.truststore.path", "/etc/t.jks"),
        ("storm.messaging.netty.authentication", True),
        ("storm.messaging.netty.tls.keystore.path", "/etc/k.jks"),
        ("supervisor.run.worker.as.user", True),
        ("ui.filter", "com.example.Filter"),
        ("ui.https.truststore.path", "/etc/t.jks"),
        ("logviewer.https.need.client.auth", True),
        ("drpc.authorizer", f"{AUTH}.authorizer.DRPCSimpleACLAuthorizer"),
    ],
)
def test_what_asks_for_access_control(key, value):
    assert access_control.asks({key: value, **STORMS_DEFAULTS} | {key: value}) == [key]


def test_the_keys_are_storms():
    assert set(access_control._ASKS) | set(access_control._NOWHERE) <= storm_keys()


def test_a_pacemakers_and_zookeepers_own_keys_are_supported():
    assert (
        access_control.asks(
            {
                "pacemaker.auth.method": "KERBEROS",
                "pacemaker.kerberos.users": ["nimbus"],
                "nimbus.daemon.user": "nimbus",
                "java.security.auth.login.config": "/etc/jaas.conf",
                "storm.zookeeper.auth.scheme": "digest",
                "storm.zookeeper.auth.payload": "a:b",
                "storm.zookeeper.superACL": "sasl:nimbus",
                "storm.zookeeper.ssl.enable": True,
                "storm.zookeeper.ssl.keystore.path": "/etc/k.pem",
            }
        )
        == []
    )


def test_each_key_is_named_with_its_place(tmp_path):
    file = tmp_path / "storm.yaml"
    file.write_text("# ours\nui.filter: a.B\n'nimbus.admins': [root]\n")
    conf = load(files=[file], overrides=["ui.users=[me]"])
    with pytest.raises(ConfigError) as refused:
        access_control.check(conf)
    for named in (
        f"ui.filter ({file}, line 2)",
        f"nimbus.admins ({file}, line 3)",
        "ui.users (-c)",
    ):
        assert named in str(refused.value)
    (warning,) = access_control.check(conf.with_values({access_control.IGNORE: True}))
    assert "without effect: nimbus.admins (" in warning
    assert access_control.check(defaults()) == []


def test_servers_that_nothing_connects_to_are_named():
    conf = load(files=(), overrides=["drpc.servers=[a]", "nimbus.host=a", "nimbus.seeds=[b]"])
    drpc, host = access_control.without_effect(conf)
    assert drpc == "drpc.servers (-c) has no effect: there is no DRPC here"
    assert host == "nimbus.host (-c) has no effect: nimbus.seeds is set, to b"
    assert list(access_control.without_effect(load(files=(), overrides=["nimbus.host=a"]))) == []


def test_a_readable_file_with_passwords_is_named(tmp_path):
    file = tmp_path / "storm.yaml"
    file.write_text("storm.zookeeper.auth.payload: a:b\nnimbus.credential.renewers.classes: [x]\n")
    file.chmod(0o640)
    assert list(access_control.readable_secrets(load(files=[file]))) == []
    file.chmod(0o644)
    warnings = list(access_control.readable_secrets(load(files=[file])))
    # Where a folder above it is closed, as pytest's may be, nobody gets there.
    is_open = all(folder.stat().st_mode & 0o001 for folder in file.resolve().parents)
    assert len(warnings) == is_open
    assert all("holds storm.zookeeper.auth.payload: chmod o=" in line for line in warnings)
    file.write_text("storm.zookeeper.auth.payload: ''\nui.port: 1\n")
    assert list(access_control.readable_secrets(load(files=[file]))) == []
