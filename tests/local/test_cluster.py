"""What the processes of a local cluster are given to read."""

from types import SimpleNamespace

import pytest

from stormkeeper.conf import load
from stormkeeper.local import cluster
from stormkeeper.pacemaker.client.settings import access_of

KEY = "java.security.auth.login.config"


class NothingStartsError(Exception):
    """Raised in place of the first process."""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Returns what the Pacemakers of a run are given to read, by ``storm.yaml`` and overrides."""

    def nothing_starts(*_):
        raise NothingStartsError

    monkeypatch.setattr(cluster.Cluster, "_spawn", nothing_starts)

    def write(text, overrides):
        storm_yaml = tmp_path / "storm.yaml"
        storm_yaml.write_text(text)
        (tmp_path / "topology.py").write_text("")
        request = cluster.Request(tmp_path / "topology.py", overrides)
        view, signals = SimpleNamespace(note=print), SimpleNamespace()
        conf = load(files=[storm_yaml], overrides=overrides)
        one = cluster.Cluster(conf, request, view, signals, directory=tmp_path, mark="mark")
        with pytest.raises(NothingStartsError):
            one._start()
        return load(files=[tmp_path / "servers.yaml"])

    return write


@pytest.mark.parametrize(
    ("overrides", "counts"),
    [
        ([], "/of/the/option"),
        ([f"{KEY}=/commanded"], "/commanded"),
        ([f"pacemaker.childopts=-D{KEY}=/commanded"], "/commanded"),
    ],
)
def test_its_processes_read_the_login_file_that_counts(written, overrides, counts):
    conf = written(
        f"{KEY}: /of/the/key\npacemaker.childopts: -Xmx1g -D{KEY}=/of/the/option\n"
        "pacemaker.auth.method: DIGEST\n",
        overrides,
    )
    assert access_of(conf)[KEY] == counts


@pytest.mark.parametrize(("configured", "own"), [("null", None), ("9095", 0)])
def test_two_pacemakers_do_not_share_a_port_for_metrics(written, configured, own):
    conf = written(
        f"pacemaker.metrics.port: {configured}\npacemaker.metrics.bind.host: 10.0.0.1\n", []
    )
    assert conf["pacemaker.metrics.port"] == own
    assert conf["pacemaker.metrics.bind.host"] is None


def test_its_zookeeper_is_spoken_to_as_it_speaks(written):
    assert written("storm.zookeeper.ssl.enable: true\n", [])["storm.zookeeper.ssl.enable"] is False


@pytest.mark.parametrize(
    ("overrides", "tables"),
    [([], "run/tables"), (["pipeline.tables.dir=/kept"], "/kept")],
)
def test_the_folders_of_the_cluster_s_own_pipeline_are_left_alone(
    written, tmp_path, overrides, tables
):
    keys = ("pipeline.tables.dir", "pipeline.checkpoint.dir", "topology.checkpoint.dir")
    conf = written("".join(f"{key}: /data/{key}\n" for key in keys), overrides)
    assert [conf[key] for key in keys] == [tables.replace("run", str(tmp_path)), None, None]


def test_tables_that_miss_the_end_of_a_job_are_said_to_miss_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "START_SECS", 0.0)
    monkeypatch.setattr(cluster.Cluster, "_spawn", lambda *_: None)
    (tmp_path / "topology.py").write_text("")
    conf = load(files=(), overrides=[f"pipeline.tables.dir={tmp_path / 'kept'}"])
    said = []
    view = SimpleNamespace(note=said.append)
    signals = SimpleNamespace(wait=lambda _: False, stopped=False)
    request = cluster.Request(tmp_path / "topology.py")
    one = cluster.Cluster(conf, request, view, signals, directory=tmp_path, mark="mark")
    one._pipeline_conf = tmp_path / "cluster.yaml"
    one._have_end_written_down()
    (line,) = said
    assert f"the tables in {tmp_path / 'kept'} do not say that topology-1-" in line
