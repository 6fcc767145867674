import os
import pickle
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper import conf
from stormkeeper.conf import Address, Conf, load
from stormkeeper.errors import ConfigError


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "storm.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def fault(**arguments) -> str:
    with pytest.raises(ConfigError) as failure:
        load(**{"files": [], **arguments})
    message = str(failure.value)
    assert len(message.splitlines()) == 1
    return message


def warnings(**arguments) -> list[str]:
    told: list[str] = []
    load(**{"files": [], **arguments}, warn=told.append)
    return told


# --- layers ----------------------------------------------------------------------------------


def test_without_unknown_removes_only_named_unknown_keys():
    given = conf.load(overrides=["a.b=1", "input=x", "ui.port=1", "drpc.port=2"], unknown="keep")
    left = given.without_unknown(["input", "ui.port", "drpc.port"])
    assert set(given) - set(left) == {"input"}


def test_storms_defaults_hold_where_nothing_is_said():
    c = load(files=[])
    assert c == conf.defaults()
    assert c["pacemaker.port"] == 6699
    assert c["storm.zookeeper.servers"] == ["localhost"]
    assert c["supervisor.slots.ports"] == [6700, 6701, 6702, 6703]
    assert c["storm.meta.serialization.delegate"].endswith(".GzipThriftSerializationDelegate")


def test_override_wins_over_file_and_file_over_defaults(write):
    path = write("pacemaker.port: 1\nui.port: 2\n")
    c = load(files=[path], overrides=["ui.port=3", "topology.workers=4", "topology.workers=5"])
    assert (c["pacemaker.port"], c["ui.port"], c["topology.workers"]) == (1, 3, 5)


def test_later_files_win(write):
    files = [write("ui.port: 1\nnimbus.thrift.port: 1", "a"), write("ui.port: 2", "b")]
    c = load(files=files)
    assert (c["ui.port"], c["nimbus.thrift.port"]) == (2, 1)


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "null"])
def test_an_empty_file_says_nothing(write, text):
    assert load(files=[write(text)]) == conf.defaults()


def test_override_values_are_yaml():
    c = load(
        files=[],
        overrides=["spark.x=1", "spark.y='1'", "spark.z={a: [b, null]}", "spark.e=", "spark.t=a=b"],
    )
    assert [c[f"spark.{k}"] for k in "xyzet"] == [1, "1", {"a": ["b", None]}, None, "a=b"]


def test_a_scalar_is_a_list_of_one_where_a_list_is_due(write):
    c = load(files=[write("nimbus.seeds: a")], overrides=["pacemaker.servers=b:1"])
    assert c["nimbus.seeds"] == ["a"]
    assert c["pacemaker.servers"] == ["b:1"]


# --- where storm.yaml is found ---------------------------------------------------------------


def test_storm_conf_dir_comes_first(write, home):
    write("ui.port: 1", "home/.storm/storm.yaml")
    where = write("ui.port: 2", "etc/storm.yaml").parent
    environ = {"HOME": str(home), "STORM_CONF_DIR": str(where)}
    assert load(environ=environ)["ui.port"] == 2


@pytest.mark.parametrize("name", ["home/.storm/storm.yaml", "home/.storm"])
def test_then_the_users_own_directory_or_file(write, home, name):
    write("ui.port: 1", name)
    assert load(environ={"HOME": str(home)})["ui.port"] == 1
    assert load(environ={"HOME": str(home), "STORM_CONF_DIR": ""})["ui.port"] == 1


def test_a_user_without_a_home_has_no_configuration_of_their_own(write, monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", none)
    assert load(environ={}) == conf.defaults()
    path = write("ui.port: 5", "etc/storm.yaml")
    assert load(environ={"STORM_CONF_DIR": str(path.parent)})["ui.port"] == 5


def test_neither_need_be_there(home):
    assert load(environ={"HOME": str(home)}) == conf.defaults()
    (home / ".storm").mkdir()
    assert load(environ={"HOME": str(home)}) == conf.defaults()


def test_a_storm_conf_dir_without_a_file_is_told_of(write, home, tmp_path):
    environ = {"HOME": str(home), "STORM_CONF_DIR": str(tmp_path / "etc")}
    told = warnings(files=None, environ=environ)
    assert told == [
        f"STORM_CONF_DIR is {tmp_path}/etc, but there is no {tmp_path}/etc/storm.yaml; "
        "using the defaults"
    ]
    own = write("ui.port: 1", "home/.storm/storm.yaml")
    assert warnings(files=None, environ=environ)[0].endswith(f"using {own}")
    assert load(environ=environ, warn=lambda _: None)["ui.port"] == 1


def test_named_files_replace_both(write, home):
    write("ui.port: 1", "home/.storm/storm.yaml")
    where = write("ui.port: 2", "etc/storm.yaml").parent
    environ = {"HOME": str(home), "STORM_CONF_DIR": str(where)}
    assert load(files=[write("", "empty")], environ=environ) == conf.defaults()


# --- read anew -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["etc/storm.yaml", "home/.storm/storm.yaml", "home/.storm"])
def test_a_file_that_was_read_before_and_is_gone_is_an_error(write, home, tmp_path, name):
    environ = {"HOME": str(home)}
    if name == "etc/storm.yaml":
        environ["STORM_CONF_DIR"] = str(tmp_path / "etc")
    path = write("ui.port: 1", name)
    before = load(environ=environ)
    assert load(environ=environ, instead_of=before) == before
    path.unlink()
    gone = f"{path}: is gone, and was read before: put it back and reload again, or restart to"
    assert fault(files=None, environ=environ, instead_of=before).startswith(gone)
    kept = before.with_values({"ui.port": 2}).without_unknown(["input"])
    assert fault(files=None, environ=environ, instead_of=kept).startswith(gone)
    assert load(environ=environ, warn=lambda _: None)["ui.port"] == 8080


def test_no_other_file_takes_the_place_of_one_that_is_gone(write, home, tmp_path):
    write("ui.port: 1", "home/.storm/storm.yaml")
    path = write("ui.port: 2", "etc/storm.yaml")
    environ = {"HOME": str(home), "STORM_CONF_DIR": str(tmp_path / "etc")}
    before = load(environ=environ)
    path.unlink()
    told: list[str] = []
    with pytest.raises(ConfigError, match=rf"^{path}: is gone"):
        load(environ=environ, instead_of=before, warn=told.append)
    assert told == []


def test_a_file_that_appears_is_read(write, home, tmp_path):
    environ = {"HOME": str(home), "STORM_CONF_DIR": str(tmp_path / "etc")}
    nothing = load(environ=environ, warn=lambda _: None)
    own = write("ui.port: 1", "home/.storm/storm.yaml")
    second = load(environ=environ, instead_of=nothing, warn=lambda _: None)
    assert (second["ui.port"], list(second.files)) == (1, [own])
    first = write("ui.port: 2", "etc/storm.yaml")
    third = load(environ=environ, instead_of=second)
    assert (third["ui.port"], list(third.files)) == (2, [first])


@pytest.mark.parametrize("is_named", [True, False])
def test_a_file_that_has_become_empty_is_an_error(write, home, is_named):
    path = write("ui.port: 1", "home/.storm/storm.yaml")
    found = {"files": [path]} if is_named else {"environ": {"HOME": str(home)}}
    before = load(**found)
    path.write_text("")
    says = f"{path}: is empty and was not before, as if it were being written: write it and reload"
    assert fault(**{"files": None, **found}, instead_of=before).startswith(says)
    path.write_text("# nothing\n")
    remark = load(**found, instead_of=before)
    assert remark == conf.defaults()
    path.write_text("")
    assert says in fault(**{"files": None, **found}, instead_of=remark)
    empty = load(**found)
    assert load(**found, instead_of=empty) == conf.defaults()


# --- what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pacemaker.port: many", "pacemaker.port: expected a whole number from 0 to 65535; got "),
        ("- a", "must hold `key: value` lines, but holds a list"),
        ("a", "must hold `key: value` lines, but holds a single value"),
        ("1: a", "the key 1 is not text"),
        ("ui.port: 1\nui.port: 2", "the key ui.port stands twice (line 2, column 1)"),
        ("ui.port: [", "it is not YAML"),
        ("ui.port: null", "ui.port: expected a whole number from 0 to 65535; got null"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(write, text, says):
    path = write(text)
    assert fault(files=[path]).startswith(f"{path}: {says}")


def test_an_unreadable_file(tmp_path, home):
    missing = tmp_path / "none.yaml"
    assert fault(files=[missing]) == f"{missing}: cannot be read: No such file or directory"
    assert fault(files=[tmp_path]) == f"{tmp_path}: cannot be read: Is a directory"
    (home / ".storm" / "storm.yaml").mkdir(parents=True)
    assert "Is a directory" in fault(files=None, environ={"HOME": str(home)})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file(write):
    path = write("ui.port: 1")
    path.chmod(0)
    assert fault(files=[path]) == f"{path}: cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("ui.port=70000", "-c: ui.port: expected a whole number from 0 to 65535; got 70000"),
        ("ui.port='80'", "-c: ui.port: expected a whole number from 0 to 65535; got the text '80'"),
        ("foo", "-c: expected KEY=VALUE; got foo"),
        ("foo:pw-of-nobody", "-c: expected KEY=VALUE; got foo…"),
        ("=1", "-c: expected KEY=VALUE; got no name"),
        ("ui.port=[1", "-c ui.port: it is not YAML"),
        ("storm.local.dir=", "-c: storm.local.dir: expected text that is not empty; got null"),
    ],
)
def test_a_wrong_override(override, says):
    assert fault(overrides=[override]).startswith(says)


def test_a_long_value_is_cut():
    assert len(fault(overrides=[f"ui.port={'x' * 10_000}"])) < 200


@pytest.mark.parametrize(
    "override",
    [
        "storm.zookeeper.auth.payload=[hush]",
        "storm.zookeeper.auth.payload=[hush",
        "storm.zookeeper.auth.payload=*hush",
        "storm.zookeeper.auth.payload:hush",
        "storm.zookeeper.topology.auth.payload={a: hush}",
    ],
)
def test_messages_show_no_password(override, write):
    assert "hush" not in fault(overrides=[override])
    assert "hush" not in fault(files=[write(override.replace("=", ": ", 1))])


def test_a_conf_shows_no_values():
    c = load(files=[], overrides=["storm.zookeeper.auth.payload=hush", "ui.port=1"])
    assert repr(c) == "<Conf with storm.zookeeper.auth.payload, ui.port>"


# --- unknown keys ----------------------------------------------------------------------------


def test_an_unknown_key_is_told_of_with_the_nearest_and_kept(write):
    path = write("pacemaker.prot: 1\ninput: x\nstorm.scheduler: y")
    told: list[str] = []
    c = load(files=[path], warn=told.append)
    assert told == [
        f"{path}: unknown key pacemaker.prot; is pacemaker.port meant?",
        f"{path}: unknown key input",
    ]
    assert (c["pacemaker.prot"], c["input"], c["storm.scheduler"]) == (1, "x", "y")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("pacemaker:\n  port: 7000", "pacemaker: keys are written flat: pacemaker.port: 7000"),
        (
            "storm:\n  zookeeper:\n    servers: [a, b]",
            "storm: keys are written flat: storm.zookeeper.servers: [a, b]",
        ),
        (
            "pacemaker.auth: {method: SCRAM, writes: true}",
            "pacemaker.auth: keys are written flat: pacemaker.auth.method: SCRAM",
        ),
        (
            "storm: {zookeeper: {auth: {payload: 'u:hush'}}}",
            "storm: keys are written flat: storm.zookeeper.auth.payload: …",
        ),
        (
            "spark: {sql.shuffle.partitions: 2}",
            "spark: keys are written flat: spark.sql.shuffle.partitions: 2",
        ),
        (
            "storm.daemon: {metrics: {reporter: {plugin: {a: {b: 1}}}}}",
            "storm.daemon: keys are written flat: storm.daemon.metrics.reporter.plugin.a.b: 1",
        ),
        ("own: {one: 1}", "own: keys are written flat: own.one: 1"),
    ],
)
def test_a_key_with_levels_in_place_of_dots_is_an_error(write, text, meant):
    path = write(text)
    assert fault(files=[path], also_known=["own.one"]) == f"{path}: {meant}"


def test_other_unknown_mappings_are_taken_as_they_are(write):
    path = write("my: {port: 1}\npace: {port: 1}\npacemaker: 7000\nui: {}")
    c = load(files=[path], warn=lambda _: None)
    assert (c["my"], c["pacemaker"]) == ({"port": 1}, 7000)


def test_strict_makes_it_an_error():
    overrides = ["pacemaker.prot=1"]
    says = "-c: unknown key pacemaker.prot; is pacemaker.port meant?"
    assert fault(overrides=overrides, strict=True) == says
    assert fault(overrides=overrides, unknown="error") == says
    assert fault(overrides=overrides, unknown="keep", strict=True) == says


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("spark.sql.shuffle.partitons", "spark.sql.shuffle.partitions"),
        ("spark.driver.memroy", "spark.driver.memory"),
        ("spark.executor.memoryMB", "spark.executor.memory"),
        ("spark.core.max", "spark.cores.max"),
        ("spark.sql.shufflePartitions", "spark.sql.shuffle.partitions"),
        ("spark.sql.streaming.checkpointlocation", "spark.sql.streaming.checkpointLocation"),
    ],
)
def test_a_misspelt_setting_of_spark_gets_a_warning(key, meant):
    said = []
    load(files=[], overrides=[f"{key}=1"], warn=said.append)
    assert said == [f"-c: unknown key {key}; is {meant} meant?"]
    assert [*conf.mistyped([key])] == [f"unknown key {key}; is {meant} meant?"]


@pytest.mark.parametrize(
    "key",
    [
        *("spark.sql.shuffle.partitions", "spark.hadoop.fs.s3a.acces.key", "spark.imports.input"),
        *("spark.executorEnv.SPARK_LOCAL_DIR", "spark.sql.catalog.lake.typ", "spark.app.mine"),
        *("spark.rapids.sql.enabled", "spark.kubernetes.driver.label.x", "spark.redis.host"),
        *("spark.shuffle.io.maxRetry", "spark.databricks.delta.retentionDurationCheck.enabled"),
        *("spark.cassandra.connection.host", "spark.mongodb.read.connection.uri", "spark.x"),
        *("spark.kafka.consumer.cache.timeout", "spark.my.app.name", "spark.es.nodes"),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled",
    ],
)
def test_spark_settings_and_foreign_keys_get_no_warning(key):
    load(files=[], overrides=[f"{key}=1"], warn=pytest.fail)


def test_a_topologys_own_keys_are_told_from_mistyped_ones():
    keys = ["topology.workrs", "topology.mine", "nimbus.seds", "input", "mine.port", "spark.x"]
    assert [*conf.mistyped([*keys, "topology.workers", "topology.checkpoint.dir"])] == [
        "unknown key topology.workrs; is topology.workers meant?",
        "unknown key topology.mine",
        "unknown key nimbus.seds; is nimbus.seeds meant?",
    ]


def test_unknown_keys_can_be_kept_in_silence():
    assert warnings(overrides=["input=x"], unknown="keep") == []
    assert load(files=[], overrides=["input=x"], unknown="keep")["input"] == "x"


def test_further_keys_can_be_known():
    assert warnings(overrides=["input=x", "outptu=y"], also_known=["input", "output"]) == [
        "-c: unknown key outptu; is output meant?"
    ]


def test_the_storm_yaml_of_a_real_cluster_is_taken_as_it_is(write):
    path = write("""
storm.zookeeper.servers: ["zk1", "zk2", "zk3"]
nimbus.seeds: ["nimbus1", "nimbus2"]
storm.local.dir: "/var/storm"
storm.cluster.state.store: "org.apache.storm.pacemaker.pacemaker_state_factory"
pacemaker.servers: ["pm1", "pm2"]
pacemaker.base.threads: 10
java.security.auth.login.config: /etc/storm/jaas.conf
java.library.path: "/usr/local/lib"
nimbus.childopts: "-Xmx1024m"
supervisor.childopts: "-Djava.net.preferIPv4Stack=true"
supervisor.slots.ports:
    - 6700
    - 6701
worker.childopts: "-Xmx%HEAP-MEM%m"
drpc.servers: [drpc1]
topology.kryo.register:
    - org.mycompany.MyType
    - org.mycompany.MyType2: org.mycompany.MyType2Serializer
topology.metrics.consumer.register:
  - class: "org.apache.storm.metric.LoggingMetricsConsumer"
    parallelism.hint: 1
storm.log.dir: /var/log/storm
storm.thrift.transport: org.apache.storm.security.auth.kerberos.KerberosSaslTransportPlugin
ui.filter: null
ui.filter.params: {type: kerberos}
logviewer.port: 8000
nimbus.impersonation.acl: {user: {hosts: [h], groups: [g]}}
""")
    assert warnings(files=[path], strict=True) == []
    assert load(files=[path])["nimbus.impersonation.acl"]["user"]["hosts"] == ["h"]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("nimbus.seeds=[]", ["localhost"]),
        ("nimbus.seeds=", ["localhost"]),
        ("supervisor.slots.ports=", [6700, 6701, 6702, 6703]),
        ("pacemaker.servers=", []),
        ("pacemaker.kerberos.users=", []),
        ("java.security.auth.login.config=''", None),
        ("nimbus.daemon.user=''", None),
        ("pacemaker.host=''", None),
        ("storm.local.hostname=''", None),
        ("storm.zookeeper.auth.payload=''", None),
    ],
)
def test_what_storm_takes_for_not_set_is_not_set(override, expected, write):
    key, _, value = override.partition("=")
    path = write(f"{key}: {value}")
    lower = write("nimbus.seeds: [a]\nsupervisor.slots.ports: [1]\nnimbus.daemon.user: a", "a")
    for c in (load(files=[path]), load(files=[lower], overrides=[override])):
        assert c[key] == expected
        assert key not in c.changed()


@pytest.mark.parametrize(
    "override",
    [
        "storm.zookeeper.servers=[]",
        "storm.zookeeper.servers=",
        "pacemaker.servers=['']",
        "pacemaker.tls.ca.file=''",
        "supervisor.slots.ports=''",
        "nimbus.seeds={}",
        "nimbus.daemon.user=false",
        "storm.cluster.state.store=",
        "storm.cluster.state.store=''",
        "storm.cluster.state.store=zookeeper",
        "storm.cluster.state.store=com..Store",
        "storm.cluster.state.store=[com.my.Store]",
        "storm.meta.serialization.delegate=com.my.Delegate (old)",
    ],
)
def test_what_storm_cannot_use_either_is_wrong(override):
    key = override.partition("=")[0]
    assert fault(overrides=[override]).startswith(f"-c: {key}: expected ")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("storm.cluster.state.store", "com.my.Store"),
        (
            "storm.meta.serialization.delegate",
            "org.apache.storm.serialization.DefaultSerializationDelegate",
        ),
    ],
)
def test_a_class_that_only_storm_has_is_kept(key, name, write):
    c = load(files=[write(f"{key}: {name}")], strict=True)
    assert c[key] == name
    assert c.changed() == {key: name}


# --- Pacemakers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "servers"),
    [
        ([], []),
        (["pacemaker.servers=[a, 'b:7000', '[::1]']"], ["a:6699", "b:7000", "[::1]:6699"]),
        (["pacemaker.servers=a", "pacemaker.port=7"], ["a:7"]),
        (["pacemaker.host=a"], ["a:6699"]),
        (["pacemaker.host=a:7", "pacemaker.port=8"], ["a:7"]),
        (["pacemaker.host=a", "pacemaker.servers=b"], ["b:6699"]),
    ],
)
def test_pacemaker_servers(overrides, servers):
    addresses = load(files=[], overrides=overrides).pacemaker_servers()
    assert [str(address) for address in addresses] == servers
    assert all(isinstance(address, Address) for address in addresses)


def test_the_newest_layer_says_which_pacemakers(write):
    path = write("pacemaker.servers: [a, b]")
    c = load(files=[path], overrides=["pacemaker.host=c"])
    assert [s.host for s in c.pacemaker_servers()] == ["c"]
    c = load(files=[write("pacemaker.host: a")], overrides=["pacemaker.servers=b"])
    assert [s.host for s in c.with_values({"ui.port": 1}).pacemaker_servers()] == ["b"]
    assert [s.host for s in c.with_values({"pacemaker.host": "d"}).pacemaker_servers()] == ["d"]


def test_port_0_is_no_address_to_connect_to():
    c = load(files=[], overrides=["pacemaker.port=0", "pacemaker.servers=[a:1, b]"])
    with pytest.raises(ConfigError, match="Pacemaker b has no port"):
        c.pacemaker_servers()


# --- as a value ------------------------------------------------------------------------------


def test_it_cannot_be_changed():
    c = load(files=[], overrides=["spark.map={a: [1]}"])
    c["supervisor.slots.ports"].append(1)
    c["spark.map"]["a"].append(2)
    c.changed()["spark.map"]["a"].append(3)
    assert c["supervisor.slots.ports"] == conf.defaults()["supervisor.slots.ports"]
    assert c["spark.map"] == {"a": [1]}
    with pytest.raises(TypeError):
        c["ui.port"] = 1


def test_with_values_checks_them():
    c = conf.defaults().with_values({"ui.port": 1, "nimbus.seeds": "a", "input": [1]})
    assert (c["ui.port"], c["nimbus.seeds"], c["input"]) == (1, ["a"], [1])
    assert conf.defaults()["ui.port"] == 8080
    with pytest.raises(ConfigError, match=r"^ui\.port: expected .*; got the text x$"):
        c.with_values({"ui.port": "x"})
    with pytest.raises(ConfigError, match=r"^storm\.local\.dir: expected text"):
        c.with_values({"storm.local.dir": Path("/tmp")})


def test_it_can_be_sent_to_another_process():
    c = load(files=[], overrides=["ui.port=1"])
    assert pickle.loads(pickle.dumps(c)) == c


words = st.text(st.characters(exclude_categories=["Cs"]))
given_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.from_regex(r"\Aspark\.[a-z]{1,5}\Z"), given_values))
def test_overrides_and_yaml_give_the_same_configuration(values):
    c = conf.defaults().with_values({"ui.port": 1, **values})
    overrides = [f"{key}={conf.yaml_text.write_value(value)}" for key, value in c.changed().items()]
    assert load(files=[], overrides=overrides) == c
    assert conf.defaults().with_values(conf.yaml_text.read(c.to_yaml())) == c


@pytest.mark.parametrize("as_given", [Path, str])
def test_written_file_has_all_values_and_is_private(tmp_path, as_given):
    c = load(files=[], overrides=["storm.zookeeper.auth.payload='u:hush'", "ui.port=1"])
    path = tmp_path / "child.yaml"
    path.write_text("old")
    path.chmod(0o644)
    c.write(as_given(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load(files=[as_given(path)]) == c
    assert conf.check(as_given(path)) == (["storm.zookeeper.auth.payload", "ui.port"], [])
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError, match="directory"):
        Conf({}).write(target)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    ("text", "overrides", "seeds"),
    [
        ("nimbus.host: a", [], ["a"]),
        ("nimbus.host: 'a:6628'", [], ["a:6628"]),
        ("nimbus.host: ''", [], ["localhost"]),
        ("nimbus.host: a\nnimbus.seeds: [b, c]", [], ["b", "c"]),
        ("nimbus.host: a\nnimbus.seeds: []", [], ["a"]),
        ("nimbus.seeds: [b]", ["nimbus.host=a"], ["a"]),
        ("nimbus.host: a", ["nimbus.seeds=[b]"], ["b"]),
    ],
)
def test_nimbus_host_is_the_only_seed(write, text, overrides, seeds):
    read = load(files=[write(text)], overrides=overrides)
    assert read["nimbus.seeds"] == seeds
    assert load(files=[write(read.to_yaml())])["nimbus.seeds"] == seeds
