"""The commands that ask Nimbus, with Nimbus's own service on ZooKeeper."""

import json

import pytest
from click.testing import CliRunner

from stormkeeper import conf
from stormkeeper.cli.commands import storm as command
from stormkeeper.state.storm.cluster import connect
from support.nimbus_service import nimbuses
from support.waiting import until

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def nimbus(zookeeper_settings, tmp_path):
    """A Nimbus that leads."""
    session = connect(conf.defaults().with_values(zookeeper_settings()))
    with nimbuses(tmp_path, session) as (leader,):
        yield leader


@pytest.fixture
def run(environ, nimbus):
    def invoke(*arguments, given=None):
        told = CliRunner(env=environ).invoke(
            command, [*arguments, "-c", f"nimbus.seeds=['127.0.0.1:{nimbus.port}']"], input=given
        )
        assert told.exception is None or isinstance(told.exception, SystemExit), told.exception
        return told

    return invoke


def test_a_blob_of_several_pieces(run, nimbus):
    data = bytes(range(256)) * 3_000
    assert run("blobstore", "create", "rates", given=data).exit_code == 0
    assert run("blobstore", "cat", "rates").stdout_bytes == data
    (listed,) = json.loads(run("blobstore", "list", "--json").stdout)
    assert (listed["key"], listed["acl"]) == ("rates", ["o::rwa"])
    assert run("blobstore", "update", "rates", given=b"newer").exit_code == 0
    assert run("blobstore", "cat", "rates").stdout_bytes == b"newer"
    (updated,) = json.loads(run("blobstore", "list", "rates", "--json").stdout)
    assert updated["version"] != listed["version"]
    until(lambda: nimbus.code.store.get("rates"))
    assert run("blobstore", "replication", "rates").stdout == "Current replication factor 1\n"
    refused = run("blobstore", "replication", "rates", "-r", "3")
    assert refused.exit_code == 1
    assert "every Nimbus keeps a copy" in refused.stderr
    told = run("blobstore", "create", "rates", given=b"")
    assert (told.exit_code, told.stderr) == (1, "storm: there is a blob rates already\n")
    assert run("blobstore", "delete", "rates").exit_code == 0
    assert run("blobstore", "list").stdout == ""


def test_a_bad_key_is_refused_with_the_reason(run):
    told = run("blobstore", "create", "a/b", given=b"x")
    assert told.exit_code == 1
    assert "is no key of a blob" in told.stderr


def test_a_topology_with_its_credentials_errors_and_components(run, nimbus):
    storm_id = nimbus.submit("wc")
    told = run("upload-credentials", "wc", "-f", "-", given="user=bob\n")
    assert told.exit_code == 0
    assert told.stdout.startswith("Uploaded new creds to topology: wc\nIts workers read them")
    assert nimbus.storm.credentials(storm_id).creds == {"user": "bob"}
    told = run("get-errors", "wc")
    assert json.loads(told.stdout) == {"Topology Name": "wc", "Comp-Errors": {}}
    assert run("get-errors", "cw").exit_code == 1
    # It runs nowhere.
    told = run("monitor", "wc", "--json")
    assert (told.exit_code, told.stdout) == (1, "")
    assert "wc runs nowhere now" in told.stderr
    told = run("monitor", "wc", "-m", "words")
    assert told.stderr == "storm: wc has no component words; it has none, as it runs nowhere\n"
    told = run("blobstore", "delete", f"{storm_id}-stormconf.ser")
    assert told.exit_code == 1
    assert "under active topology" in told.stderr


def test_what_is_configured_there(run, nimbus):
    root = nimbus.conf["storm.zookeeper.root"]
    told = run("remoteconfvalue", "storm.zookeeper.root")
    assert (told.exit_code, told.stdout) == (0, f"storm.zookeeper.root: {root}\n")
