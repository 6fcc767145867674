"""The conf that is sent, and the one that is saved, without a secret."""

import json

import pytest

from stormkeeper import conf
from stormkeeper.conf.keys import is_secret, storm_keys
from stormkeeper.nimbus.service import topology_checks
from stormkeeper.thrift.nimbus import InvalidTopologyException


def read(**values):
    return topology_checks.read_conf(json.dumps(values))


def refusal(text):
    with pytest.raises(InvalidTopologyException) as error:
        topology_checks.read_conf(text)
    return error.value.msg


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no JSON"),
        ('{"a": NaN}', "NaN is no number"),
        ("[1]", "no mapping"),
        ("[" * 100_000, "no JSON"),
        ('{"a": ' + "9" * 5000 + "}", "no JSON"),
    ],
)
def test_it_is_a_mapping_in_json(text, why):
    assert why in refusal(text)


def test_what_is_sent_is_kept():
    sent = {"topology.workers": 2, "own": [1, {"a": None}], "spark.app": "x", "java.x": 1.5}
    assert read(**sent) == sent


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("storm.zookeeper.servers", ["elsewhere"]),
        ("storm.local.dir", "/tmp/x"),
        ("pacemaker.servers", ["elsewhere"]),
        ("nimbus.seeds", ["elsewhere"]),
        ("storm.zookeeper.root", "/other"),
    ],
)
def test_what_is_the_clusters_is_refused(key, value):
    assert f"the topology's conf has {key}, which only" in refusal(json.dumps({key: value}))
    with pytest.raises(InvalidTopologyException, match="it is the cluster's"):
        topology_checks.read_overrides(json.dumps({key: value}))


@pytest.mark.parametrize("folder", ["../../x", "checkpoints", "./a", ""])
def test_checkpoints_are_where_all_machines_look_for_them(folder):
    assert "topology.checkpoint.dir" in refusal(json.dumps({"topology.checkpoint.dir": folder}))


@pytest.mark.parametrize("folder", ["/a/b", "~/a", "s3a://bucket/a", None])
def test_checkpoints_may_be_in_a_whole_path_or_url(folder):
    read(**{"topology.checkpoint.dir": folder})


def test_what_is_null_of_keys_that_are_read_is_not_set():
    assert read(**{"topology.workers": None, "own": None}) == {"own": None}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("topology.workers", 0, "Field topology.workers must be a Positive Number"),
        ("topology.workers", -1, "Field topology.workers must be a Positive Number"),
        ("topology.workers", 1.5, "Field topology.workers must be an Integer within type range."),
        (
            "topology.workers",
            "two",
            "Field topology.workers must be of type class java.lang.Number."
            " Object: two actual type: class java.lang.String",
        ),
        (
            "topology.message.timeout.secs",
            True,
            "Field topology.message.timeout.secs must be of type class java.lang.Number."
            " Object: True actual type: class java.lang.Boolean",
        ),
        (
            "topology.name",
            5,
            "Field topology.name must be of type class java.lang.String."
            " Object: 5 actual type: class java.lang.Long",
        ),
        (
            "storm.zookeeper.ssl.enable",
            [],
            "Field storm.zookeeper.ssl.enable must be of type class java.lang.Boolean."
            " Object: [] actual type: class java.util.ArrayList",
        ),
    ],
)
def test_a_wrong_value_is_told_in_storms_words(key, value, text):
    assert refusal(json.dumps({key: value})).startswith(text)


@pytest.mark.parametrize("key", ["spark.hadoop.fs.s3a.secret.key", "my.password", "apiToken"])
def test_a_secret_is_refused_and_not_shown(key):
    message = refusal(json.dumps({key: "hunter2"}))
    assert key in message
    assert "credential" in message
    assert "hunter2" not in message
    assert read(**{key: ""}) == {key: ""}, "nothing is no secret"
    assert read(**{key: 12}) == {key: 12}


def test_cluster_keys_of_storms_clients_are_dropped():
    sent = {
        "storm.zookeeper.topology.auth.scheme": "digest",
        "storm.zookeeper.topology.auth.payload": "user:password",
        "storm.zookeeper.superACL": "sasl:nimbus",
        "storm.local.hostname": "laptop",
        "topology.auto-credentials": "a.b.C",
        "topology.debug": True,
    }
    assert read(**sent) == {"topology.auto-credentials": "a.b.C", "topology.debug": True}


def saved(own, cluster):
    return topology_checks.saved_conf(own, cluster, storm_id="wc-1-1", name="wc", user="storm")


def test_saved_conf_is_the_topologys_over_defaults():
    cluster = conf.defaults().with_values(
        {"topology.workers": 3, "topology.restart": "always", "nimbus.thrift.port": 7}
    )
    found = saved({"topology.workers": 5, "own": 1, "topology.name": "x"}, cluster)
    assert found["topology.workers"] == 5
    assert found["topology.restart"] == "always"
    assert found["own"] == 1
    assert (found["storm.id"], found["topology.name"]) == ("wc-1-1", "wc")
    assert (found["topology.submitter.principal"], found["topology.submitter.user"]) == (
        "",
        "storm",
    )
    assert not [key for key in found if key.startswith(("nimbus.", "storm.zookeeper"))]
    assert conf.defaults().with_values(found)["topology.workers"] == 5, "a worker reads it"


def test_no_secret_of_the_cluster_is_saved_or_shown():
    secrets = {key: "hunter2" for key in storm_keys() if is_secret(key)}
    secrets["topology.own.password"] = "hunter2"
    cluster = {**conf.defaults(), **secrets}
    assert "hunter2" not in json.dumps(saved({}, cluster))
    shown = topology_checks.without_secrets(cluster)
    assert "hunter2" not in json.dumps(shown)
    assert shown["nimbus.thrift.port"] == 6627
