"""What the processes of a local cluster are given to read."""

from types import SimpleNamespace

import pytest

from stormkeeper.conf import load
from stormkeeper.local import cluster
from stormkeeper.pacemaker.client.settings import access_of

KEY = "java.security.auth.login.config"


class NothingStartsError(Exception):
    """Raised in place of the first process."""


@pytest.mark.parametrize(
    ("overrides", "counts"),
    [
        ([], "/of/the/option"),
        ([f"{KEY}=/commanded"], "/commanded"),
        ([f"pacemaker.childopts=-D{KEY}=/commanded"], "/commanded"),
    ],
)
def test_its_processes_read_the_login_file_that_counts(tmp_path, monkeypatch, overrides, counts):
    def nothing_starts(*_):
        raise NothingStartsError

    monkeypatch.setattr(cluster.Cluster, "_spawn", nothing_starts)
    storm_yaml = tmp_path / "storm.yaml"
    storm_yaml.write_text(
        f"{KEY}: /of/the/key\npacemaker.childopts: -Xmx1g -D{KEY}=/of/the/option\n"
        "pacemaker.auth.method: DIGEST\n"
    )
    conf = load(files=[storm_yaml], overrides=overrides)
    (tmp_path / "topology.py").write_text("")
    request = cluster.Request(tmp_path / "topology.py", overrides)
    view, signals = SimpleNamespace(note=print), SimpleNamespace()
    one = cluster.Cluster(conf, request, view, signals, directory=tmp_path, mark="mark")
    with pytest.raises(NothingStartsError):
        one._start()
    assert access_of(load(files=[tmp_path / "servers.yaml"]))[KEY] == counts
