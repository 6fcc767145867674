import json
from pathlib import Path

import pytest

from stormkeeper.conf import defaults
from stormkeeper.conf.folders import checkpoint_root
from stormkeeper.errors import ConfigError
from stormkeeper.topology import Topology
from stormkeeper.worker import worker_conf
from stormkeeper.worker.worker_conf import slot_share


@pytest.fixture
def files(tmp_path):
    file = tmp_path / "storm.yaml"
    file.write_text("topology.workers: 2\nui.port: 1\ninput: from the file\n")
    return [file]


def test_command_line_beats_topology_beats_file(files):
    topology = Topology(
        "t", {"input": "the topology's", "topology.workers": 3, "spark.master": "local[1]"}
    )
    conf = worker_conf.merged(
        topology, files=files, overrides=["topology.workers=4", " spark.x = 1"]
    )
    assert conf["input"] == "the topology's"
    assert conf["topology.workers"] == 4
    assert conf["spark.master"] == "local[1]"
    assert conf["spark.x"] == 1
    assert conf["ui.port"] == 1
    assert conf["topology.name"] == "t"


def test_saved_values_beat_all_but_command_line(files, caplog):
    topology = Topology("t", {"input": "its own", "topology.workers": 3, "spark.x": 1})
    saved = {"input": "saved", "topology.workers": 5, "topology.name": "other", "new": [1]}
    conf = worker_conf.merged(topology, files=files, overrides=["topology.workers=4"], saved=saved)
    assert conf["input"] == "saved"
    assert conf["topology.workers"] == 4
    assert conf["topology.name"] == "other"
    assert conf["new"] == [1]
    assert conf["spark.x"] == conf["ui.port"] == 1
    assert caplog.records == []


def test_own_keys_of_the_topology_are_known(files, caplog):
    conf = worker_conf.merged(Topology("t", {"input": 1}), files=files, overrides=["input=2"])
    assert conf["input"] == 2
    assert caplog.records == []


def test_unknown_key_is_warned_of_with_the_nearest_known(files, caplog):
    worker_conf.merged(Topology("t", {"input": 1}), files=files, overrides=["inptu=2"])
    assert "unknown key inptu; is input meant?" in caplog.text


def test_strict_makes_it_an_error(files):
    with pytest.raises(ConfigError, match="inptu"):
        worker_conf.merged(
            Topology("t", {"input": 1}), files=files, overrides=["inptu=2"], strict=True
        )


def test_wrong_value_in_the_topology_says_where():
    with pytest.raises(ConfigError, match=r"conf of the topology 't': topology.workers: expected"):
        worker_conf.with_topology(defaults(), Topology("t", {"topology.workers": 0}))


def test_without_a_topology_the_configuration_stands():
    conf = defaults()
    assert worker_conf.with_topology(conf, None) is conf


def test_pacemakers_that_no_heartbeat_goes_to_are_warned_of(caplog):
    worker_conf.warn_of_silent_pacemakers(defaults())
    named = defaults().with_values({"pacemaker.servers": ["host"]})
    store = "org.apache.storm.cluster.PaceMakerStateStorageFactory"
    worker_conf.warn_of_silent_pacemakers(named.with_values({"storm.cluster.state.store": store}))
    assert caplog.records == []
    worker_conf.warn_of_silent_pacemakers(named)
    [record] = caplog.records
    assert f"storm.cluster.state.store={store}" in record.getMessage()


def test_what_spark_is_asked_for():
    conf = {"spark.master": "local[3]", "topology.workers": 1, **PATHS}
    asked = worker_conf.spark_values(conf, {"spark.master": "local[1]", "spark.app.name": "mine"})
    assert asked["spark.master"] == "local[3]"
    assert asked["spark.app.name"] == "mine"
    assert "topology.workers" not in asked
    assert asked["spark.sql.streaming.stopTimeout"] == "20s"


def test_slot_share_is_the_lowest_layer():
    share = {"spark.master": "local[2]", "spark.driver.memory": "1024m", "spark.cores": "2"}
    conf = {"spark.master": "local[3]", **PATHS}
    asked = worker_conf.spark_values(conf, {"spark.driver.memory": "3g"}, share)
    assert asked["spark.master"] == "local[3]"
    assert asked["spark.driver.memory"] == "3g"
    assert asked["spark.cores"] == "2"


PATHS = {"topology.checkpoint.dir": None, "storm.local.dir": "/local"}


@pytest.mark.parametrize(
    ("place", "local"),
    [
        (None, True),
        ("checkpoints", True),
        ("/a/b", True),
        ("file:/a/b", True),
        ("file:///a/b", True),
        ("hdfs://host/a", False),
        ("s3a://bucket/a", False),
    ],
)
def test_checkpoints_on_a_local_disk_are_written_by_system_calls(place, local):
    asked = worker_conf.spark_values({**PATHS, "topology.checkpoint.dir": place}, {})
    assert ("spark.sql.streaming.checkpointFileManagerClass" in asked) == local


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (None, "/local/checkpoints/wc-1-1/totals"),
        ("/a/b/", "/a/b/wc-1-1/totals"),
        ("hdfs://host/a/", "hdfs://host/a/wc-1-1/totals"),
        ("file:///a", "file:///a/wc-1-1/totals"),
        ("here", f"{Path.cwd()}/here/wc-1-1/totals"),
        ("~/here", f"{Path.home()}/here/wc-1-1/totals"),
    ],
)
def test_where_a_checkpoint_is(place, expected):
    conf = {**PATHS, "topology.checkpoint.dir": place, "topology.checkpoint.from": None}
    assert worker_conf.checkpoint(conf, "wc-1-1", "totals") == expected


def test_who_goes_on_from_checkpoints_has_their_folder():
    conf = {"topology.checkpoint.dir": "/a", "topology.checkpoint.from": "wc-1-1"}
    assert worker_conf.checkpoint(conf, "wc-2-9", "totals") == "/a/wc-1-1/totals"


def test_checkpoints_are_in_the_daemons_folder():
    conf = {**PATHS, "storm.local.dir": "~/storm"}
    assert checkpoint_root(conf) == f"{Path.home()}/storm/checkpoints"


def test_unshared_checkpoints_are_warned_of(caplog):
    for shared in (
        {"topology.checkpoint.dir": "/a", "topology.checkpoint.shared": True},
        {"topology.checkpoint.dir": "hdfs://host/a"},
    ):
        worker_conf.warn_of_own_checkpoints(defaults().with_values(shared))
    assert caplog.records == []
    worker_conf.warn_of_own_checkpoints(defaults().with_values({"topology.checkpoint.dir": "/a/b"}))
    assert "/a/b" in caplog.text
    assert "topology.checkpoint.shared" in caplog.text


@pytest.mark.parametrize(
    ("cores", "slots", "master"),
    [(16, 4, "local[4]"), (7, 2, "local[3]"), (2, 4, "local[1]"), (5, 0, "local[5]")],
)
def test_a_slot_has_its_share_of_the_cores(cores, slots, master):
    conf = defaults().with_values({"supervisor.slots.ports": [*range(6700, 6700 + slots)]})
    assert slot_share(conf, cores)["spark.master"] == master


@pytest.mark.parametrize(
    ("memory", "master"), [(1024, "local[1]"), (2048, "local[6]"), (4096, "local[16]")]
)
def test_slots_memory_limits_its_cores(memory, master):
    conf = defaults().with_values({"topology.worker.memory.mb": memory})
    assert slot_share(conf, 128)["spark.master"] == master


@pytest.mark.parametrize(("memory", "heap"), [(8192, "4096m"), (2049, "1024m"), (600, "512m")])
def test_the_heap_is_half_of_the_memory_and_enough_for_spark(memory, heap):
    conf = defaults().with_values({"topology.worker.memory.mb": memory})
    assert slot_share(conf, 2)["spark.driver.memory"] == heap


def test_by_default_the_heap_is_that_of_spark():
    assert slot_share(defaults(), 2)["spark.driver.memory"] == "1024m"


def test_what_is_in_the_file(tmp_path):
    file = tmp_path / "overrides.json"
    values = {"topology.workers": 3, "input": ["a", {"b": None}], "spark.x": True}
    file.write_text(json.dumps(values))
    assert worker_conf.read_overrides(file) == values


@pytest.mark.parametrize("text", ["", "[]", '{"a": ', '"secret"', '{"pass": "secret"'])
def test_error_of_bad_overrides_hides_content(tmp_path, text):
    file = tmp_path / "overrides.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"overrides\.json: expected a JSON object") as refused:
        worker_conf.read_overrides(file)
    assert "secret" not in str(refused.value)


def test_no_such_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        worker_conf.read_overrides(tmp_path / "none.json")


def test_they_win_but_over_what_is_kept():
    values = {"topology.workers": 3, "spark.x": 1}
    conf = worker_conf.with_overrides(defaults(), values, keep={"spark.x"})
    assert conf["topology.workers"] == 3
    assert "spark.x" not in conf


def test_a_wrong_value_says_where():
    with pytest.raises(ConfigError, match=r"saved configuration: topology\.workers: expected"):
        worker_conf.with_overrides(defaults(), {"topology.workers": 0})


def test_credentials_win():
    conf = defaults().with_values({"token": "old", "spark.x": 1})
    assert worker_conf.with_credentials(conf, {"token": "new", "spark.y": "2"})["token"] == "new"


def test_a_credential_that_is_refused_is_not_shown():
    with pytest.raises(ConfigError, match="a credential of the topology") as refused:
        worker_conf.with_credentials(defaults(), {"topology.workers": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert refused.value.__suppress_context__
