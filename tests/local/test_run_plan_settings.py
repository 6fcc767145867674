"""What the processes of a local run are given to read."""

import pytest

from stormkeeper.conf import Address, load
from stormkeeper.errors import ConfigError
from stormkeeper.local import run_plan
from stormkeeper.pacemaker.client.client_settings import access_of

ZOOKEEPER = Address("127.0.0.1", 41000)
PACEMAKERS = (Address("127.0.0.1", 41001), Address("127.0.0.1", 41002))
NIMBUSES = (Address("127.0.0.1", 41003), Address("127.0.0.1", 41004))
PLACES = run_plan.ServerAddresses(ZOOKEEPER, PACEMAKERS, NIMBUSES)
KEY = "java.security.auth.login.config"


@pytest.fixture
def written(tmp_path):
    """Returns what the processes of a run read in its file, by ``storm.yaml`` and overrides."""

    def write(text, overrides=()):
        storm_yaml, file = tmp_path / "storm.yaml", tmp_path / "cluster.yaml"
        storm_yaml.write_text(text)
        conf = load(files=[storm_yaml], overrides=overrides, unknown="keep")
        run_plan.run_conf(conf, overrides, tmp_path / "run", PLACES).write(file)
        return load(files=[file], strict=True)

    return write


@pytest.mark.parametrize(
    ("overrides", "counts"),
    [
        ([], "/of/the/option"),
        ([f"{KEY}=/commanded"], "/commanded"),
        ([f"pacemaker.childopts=-D{KEY}=/commanded"], "/commanded"),
    ],
)
def test_the_login_file_that_counts(written, overrides, counts):
    conf = written(
        f"{KEY}: /of/the/key\npacemaker.childopts: -Xmx1g -D{KEY}=/of/the/option\n"
        "pacemaker.auth.method: DIGEST\n",
        overrides,
    )
    assert access_of(conf)[KEY] == counts


@pytest.mark.parametrize(("configured", "own"), [("null", None), ("9095", 0)])
@pytest.mark.parametrize("who", ["pacemaker", "nimbus"])
def test_two_of_a_kind_do_not_share_a_port_for_metrics(written, who, configured, own):
    conf = written(f"{who}.metrics.port: {configured}\n{who}.metrics.bind.host: 10.0.0.1\n")
    assert conf[f"{who}.metrics.port"] == own
    assert conf[f"{who}.metrics.bind.host"] is None


@pytest.mark.parametrize(("configured", "own"), [("null", None), ("8000", 0)])
def test_supervisors_have_their_own_ports_on_the_loopback(written, configured, own):
    conf = written(f"logviewer.port: {configured}\nsupervisor.bind.host: 10.0.0.1\n")
    assert (conf["logviewer.port"], conf["supervisor.bind.host"]) == (own, "127.0.0.1")


def test_its_zookeeper_is_spoken_to_as_it_speaks(written):
    assert written("storm.zookeeper.ssl.enable: true\n")["storm.zookeeper.ssl.enable"] is False


CLUSTERS = """\
pipeline.tables.dir: /data/tables
pipeline.checkpoint.dir: /data/checkpoint
pipeline.metrics.port: 9096
pipeline.metrics.bind.host: 10.0.0.1
supervisor.slots.ports: [1, 2, 3]
topology.checkpoint.dir: /data/topologies
"""


def test_run_leaves_the_pipeline_of_the_cluster_alone(written, tmp_path):
    conf = written(CLUSTERS)
    assert conf["pipeline.tables.dir"] == str(tmp_path / "run" / "tables")
    others = [line.partition(":")[0] for line in CLUSTERS.splitlines()[1:-1]]
    assert [conf[key] for key in others] == [load(files=())[key] for key in others]
    # Both supervisors have the same.
    assert conf["topology.checkpoint.dir"] == str(tmp_path / "run" / "checkpoints")
    assert conf["topology.checkpoint.shared"] is True


def test_statistics_are_made_as_often_as_liveness(written):
    assert written("pipeline.statistics.secs: 60\n")["pipeline.statistics.secs"] == 0
    conf = written("", ["pipeline.statistics.secs=60"])
    assert conf["pipeline.statistics.secs"] == 60


def test_what_the_user_gives_the_run_is_used(written):
    conf = written(CLUSTERS, ["pipeline.tables.dir=/kept", "pipeline.metrics.port=0"])
    assert conf["pipeline.tables.dir"] == "/kept"
    assert conf["pipeline.metrics.port"] == 0


@pytest.mark.parametrize("url", ["s3a://bucket/tables", "s3:/bucket/tables"])
def test_tables_are_not_kept_at_a_url(tmp_path, url):
    conf = load(files=(), overrides=[f"pipeline.tables.dir={url}"])
    with pytest.raises(ConfigError, match=f"not a URL as '{url}'"):
        run_plan.tables_folder(conf, tmp_path)


def test_what_only_the_topology_knows_is_not_for_the_servers(written):
    written("", ["input=/data", "task.heartbeat.frequency.secs=1"])


def test_the_processes_find_each_other(written):
    conf = written("")
    assert conf.pacemaker_servers() == PACEMAKERS
    assert conf["nimbus.seeds"] == [str(address) for address in NIMBUSES]
    assert conf["storm.zookeeper.servers"] == ["127.0.0.1"]
    assert conf["storm.zookeeper.port"] == 41000


def test_the_topology_gets_all_but_what_the_run_has_of_its_own():
    overrides = ["input=/data", " pacemaker.port = 1", "storm.local.dir=/x", "spark.master=local"]
    assert run_plan.topology_overrides(overrides) == ["input=/data", "spark.master=local"]
    assert run_plan.ignored_keys(overrides) == ["pacemaker.port", "storm.local.dir"]


def test_topology_gets_its_own_keys_and_the_overrides(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["input=/data", "topology.checkpoint.dir=here", "pacemaker.port=1"]
    conf = load(files=(), overrides=overrides, unknown="keep")
    chosen = run_plan.topology_conf(conf, overrides, ["input"], strict=True, warn=print)
    assert {key: chosen[key] for key in chosen if chosen.is_override(key)} == {
        "input": "/data",
        "topology.checkpoint.dir": str(tmp_path / "here"),
    }
    with pytest.raises(ConfigError, match="unknown key input"):
        run_plan.topology_conf(conf, overrides, [], strict=True, warn=print)
    said = []
    run_plan.topology_conf(conf, overrides, [], strict=False, warn=said.append)
    assert said == ["-c: unknown key input"]


@pytest.mark.parametrize("key", sorted(run_plan.OWN_KEYS))
def test_what_nobody_can_give_it_is_known(key):
    assert key in load(files=())
