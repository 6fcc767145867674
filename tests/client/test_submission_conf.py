"""The conf that a topology is submitted with."""

import re

import pytest

from stormkeeper import conf
from stormkeeper.cli.submit import submit
from stormkeeper.cli.topologies import rebalance
from stormkeeper.client import package_builder
from stormkeeper.errors import ConfigError


def command(*overrides):
    return conf.load(files=[], overrides=overrides, unknown="keep")


def test_the_command_line_wins_over_the_topology():
    own = {"input": "/a", "topology.workers": 1}
    given = command("input=/b", "limit=3")
    assert package_builder.conf_to_send(own, given, "wc") == {
        "input": "/b",
        "topology.workers": 1,
        "limit": 3,
    }


def test_what_the_machine_is_configured_for_is_not_sent(tmp_path):
    file = tmp_path / "storm.yaml"
    file.write_text("storm.local.dir: /here\nnimbus.seeds: [a]\n")
    given = conf.load(files=[file], overrides=["topology.workers=2"])
    assert package_builder.conf_to_send({}, given, "wc") == {"topology.workers": 2}


def test_the_way_to_nimbus_is_not_sent():
    given = command(
        "nimbus.seeds=[a]", "nimbus.thrift.port=1", "storm.nimbus.retry.times=0", "a.key=1"
    )
    assert package_builder.conf_to_send({}, given, "wc") == {"a.key": 1}


@pytest.mark.parametrize("command", [submit, rebalance])
def test_help_says_what_is_not_sent(command):
    said = re.sub(r"\s+", " ", command.help)
    *most, last = (f"{prefix}*" for prefix in package_builder.CONNECTION_PREFIXES)
    assert f"{', '.join(most)} and {last} concern the connection to Nimbus, and are not" in said


def test_a_value_that_its_key_cannot_have_is_refused():
    with pytest.raises(ConfigError, match=r"the conf of the topology 'wc': topology.workers"):
        package_builder.conf_to_send({"topology.workers": "many"}, command(), "wc")


@pytest.mark.parametrize("folder", ["checkpoints", "./a", "../a/b"])
def test_a_folder_for_checkpoints_is_whole(folder):
    says = (
        rf"topology 'wc': topology\.checkpoint\.dir is '{folder}', .*: give a whole path,"
        r" one below ~, or a URL"
    )
    with pytest.raises(ConfigError, match=says):
        package_builder.conf_to_send({"topology.checkpoint.dir": folder}, command(), "wc")
    with pytest.raises(ConfigError, match=says):
        package_builder.conf_to_send({}, command(f"topology.checkpoint.dir={folder}"), "wc")


@pytest.mark.parametrize("folder", ["/a", "~/a", "s3a://b/c", "file:/a", None])
def test_a_folder_for_checkpoints_that_is_the_same_everywhere(folder):
    own = {"topology.checkpoint.dir": folder}
    assert package_builder.conf_to_send(own, command(), "wc") == own


def test_what_may_be_a_secret_is_refused():
    own = {"db.password": "x", "input": "secret"}
    with pytest.raises(
        ConfigError, match=r"by the name of the key: db\.password, fs\.secret\.key\."
    ):
        package_builder.conf_to_send(own, command("fs.secret.key=y"), "wc")


@pytest.mark.parametrize(
    "own",
    [
        {"api.token": None},
        {"api.token": ""},
        {"secret.rounds": 3},
        {"storm.zookeeper.auth.payload": "u:p"},  # Storm's own, which Nimbus leaves out
    ],
)
def test_what_nimbus_takes_is_sent(own):
    assert package_builder.conf_to_send(own, command(), "wc") == own
