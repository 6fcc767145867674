"""What the processes of a local cluster are given to read, and when none is started at all."""

import os
import subprocess
import sys
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


def test_a_fault_in_the_source_is_said_before_anything_starts(tmp_path):
    """As one line, by a command that has loaded neither PySpark nor anything else that is slow."""
    script = tmp_path / "job.py"
    script.write_text("import os\nimport no_such_module\n")
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "stormkeeper", "local", str(script)],
        capture_output=True, text=True, check=False, timeout=60,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    imports = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
    said = [line for line in told.stderr.splitlines() if not line.startswith("import time:")]
    assert told.returncode == 1
    assert said == [
        f"storm: {script}, line 2: No module named 'no_such_module': install it in the Python "
        f"that runs storm ({sys.executable} -m pip install no_such_module), or bring it with "
        "--py-files"
    ]
    assert "stormkeeper.topology.source" in imports
    assert not imports & {"pyspark", "pandas", "kazoo.client"}
    assert list(tmp_path.iterdir()) == [script]
