"""A topology on its way into a cluster."""

import json

import pytest

from stormkeeper import conf
from stormkeeper.client import package_builder
from stormkeeper.client.package_builder import SubmissionListener, SubmissionRequest
from stormkeeper.client.topology_submission import submit
from stormkeeper.errors import (
    ConfigError,
    OutcomeUnknownError,
    RefusedError,
    RpcOutcomeUnknownError,
    RpcRefusedError,
    StateError,
    TopologyError,
)
from stormkeeper.thrift.nimbus import InvalidTopologyException
from support.packages import STREAMING
from support.small_nimbus import SmallNimbus


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "plain_job.py"
    path.write_text(STREAMING)
    return path


@pytest.fixture
def told():
    return []


@pytest.fixture
def send(connected, script, told):
    """Submit the script, with configuration of the command line."""

    def run(*overrides, going_on_from=None, abandon=(), **given):
        settings = conf.load(files=[], overrides=overrides, unknown="keep")
        wanted = SubmissionRequest(code=script, **given)
        with (
            package_builder.collect_code(wanted) as code,
            package_builder.describing_code(wanted, code) as described,
        ):
            told_of = SubmissionListener(
                say=lambda text: told.append(("say", text)),
                sent=lambda arrived, size: told.append(("sent", arrived, size)),
                warn=lambda text: told.append(("warn", text)),
            )
            return submit(
                *(connected, settings, wanted, code, told_of),
                described=described,
                going_on_from=going_on_from,
                abandon=abandon,
            )

    return run


def test_nimbus_gets_the_package_the_conf_and_the_structure(send, nimbus, told):
    submitted = send("topology.workers=2", "nimbus.seeds=[a]", name="nightly")
    standing = nimbus.topologies["nightly"]
    assert (submitted.name, submitted.storm_id) == ("nightly", standing.id)
    assert nimbus.calls == [("submit", "nightly", "ACTIVE")]
    assert nimbus.packages["nightly"].manifest.name == "nightly"
    assert standing.conf == {"topology.workers": 2}
    assert [*standing.structure.spouts] == ["plain-job"]
    assert ("sent", submitted.package_bytes, submitted.package_bytes) in told
    assert [kind for kind, *_ in told].count("warn") == 1  # of the script's checkpoint


def test_a_name_that_is_taken_is_said_before_anything_is_sent(send, nimbus):
    nimbus.has("plain-job")
    with pytest.raises(RefusedError, match="there is a topology plain-job already: end it with"):
        send()
    assert nimbus.uploads == {}


@pytest.mark.parametrize("name", ["a.b", " ", "a\u202eb"])
def test_a_name_that_nimbus_refuses_is_not_called_taken(send, nimbus, name):
    with pytest.raises((RefusedError, TopologyError), match=r"is not valid|is no name for a top"):
        send(name=name)
    assert nimbus.uploads == {}


def test_a_fault_is_said_before_anything_is_sent(send, nimbus, script):
    script.write_text("def f(:\n")
    with pytest.raises(TopologyError, match=r"plain_job\.py, line 1"):
        send()
    assert nimbus.uploads == {}


def test_a_topologys_conf_is_checked_before_anything_is_sent(send, nimbus, script):
    script.write_text(
        "from stormkeeper.topology import Topology\n"
        "topology = Topology('t', conf={'topology.workers': 'many'})\n"
        "@topology.spout\n"
        "def a(spark): return spark.readStream.format('rate').load()\n"
        "@topology.bolt(a)\n"
        "def b(a): return a.writeStream.format('noop')\n"
    )
    with pytest.raises(ConfigError, match=r"the conf of the topology 't': topology\.workers"):
        send()
    assert nimbus.uploads == {}


def test_a_secret_is_said_before_anything_is_sent(send, nimbus):
    with pytest.raises(ConfigError, match=r"what may be a secret, .*: db\.password\."):
        send("db.password=x")
    assert nimbus.uploads == {}


def test_an_upload_that_ends_midway_begins_anew(send, nimbus, told):
    begin, refusals = nimbus.beginFileUpload, [StateError("not the leader")]

    def refuse_once():
        if refusals:
            raise refusals.pop()
        return begin()

    nimbus.beginFileUpload = refuse_once
    assert send().name == "plain-job"
    _, warning = [text for kind, text, *_ in told if kind == "warn"]
    assert warning.endswith("; the upload starts again")


def test_an_upload_that_always_ends_is_an_error(send, nimbus):
    def refuse():
        raise StateError("the disk is full")

    nimbus.beginFileUpload = refuse
    with pytest.raises(RpcRefusedError, match="beginFileUpload"):
        send()
    assert nimbus.calls == []


def test_a_submission_without_an_answer_is_looked_for(send, nimbus):
    nimbus.submitTopologyWithOpts = lost_after(nimbus, nimbus.submitTopologyWithOpts)
    assert send().storm_id == nimbus.topologies["plain-job"].id


def test_a_submission_that_was_lost_is_an_error(send, nimbus):
    nimbus.submitTopologyWithOpts = lost_after(nimbus, lambda *_: None)
    with pytest.raises(RpcOutcomeUnknownError, match="submitTopologyWithOpts"):
        send()


@pytest.fixture
def heir(cluster, nimbus):
    """A Nimbus that will lead, with what the other one has written; it has not its files."""
    heir = SmallNimbus()
    cluster(heir)
    heir.topologies = nimbus.topologies
    take = heir.submitTopologyWithOpts

    def check_and_take(name, location, *rest):
        if location not in heir.uploads:
            raise InvalidTopologyException(f"no file was uploaded as {location}")
        take(name, location, *rest)

    heir.submitTopologyWithOpts = check_and_take
    return heir


@pytest.mark.parametrize("loses", [False, True])
def test_what_a_former_leader_was_sent_is_sent_to_the_next(send, nimbus, heir, told, loses):
    def end_the_reign(*_):
        nimbus.leader = heir.leader
        if loses:
            nimbus.cut()
        raise StateError("this process does not lead any more")

    nimbus.submitTopologyWithOpts = end_the_reign
    assert send().storm_id == heir.topologies["plain-job"].id
    assert [*heir.packages] == ["plain-job"]
    _, warning = [text for kind, text, *_ in told if kind == "warn"]
    assert warning.endswith("; another Nimbus leads now: the package is sent there")


@pytest.mark.parametrize("reigns_on", [False, True])
def test_topology_taken_by_a_lost_leader_is_not_refused(send, nimbus, heir, told, reigns_on):
    take = nimbus.submitTopologyWithOpts

    def take_and_fail(*arguments):
        take(*arguments)
        if not reigns_on:
            nimbus.leader = heir.leader
        raise OutcomeUnknownError("the connection was lost")

    nimbus.submitTopologyWithOpts = take_and_fail
    assert send().storm_id == nimbus.topologies["plain-job"].id
    assert heir.packages == {}
    assert [kind for kind, *_ in told].count("warn") == 1  # of the script's checkpoint


def test_leader_lost_after_taking_a_topology_is_no_failure(send, nimbus, heir):
    def go(_name):
        nimbus.leader = heir.leader
        nimbus.cut()

    nimbus.getTopologySummaryByName = go
    assert send().storm_id == nimbus.topologies["plain-job"].id


def lost_after(nimbus, submit_topology):
    """Return what carries a submission out and ends the connection instead of answering."""

    def run(*arguments):
        submit_topology(*arguments)
        nimbus.cut()

    return run


TOPOLOGY = """
from stormkeeper.topology import Topology
topology = Topology("t")
@topology.spout
def a(spark): return spark.readStream.format("rate").load()
@topology.bolt(a)
def b(a): return a.writeStream.format("noop")
@topology.bolt(a)
def c(a): return a.writeStream.format("noop")
"""


def test_what_it_goes_on_from_is_sent_and_differences_are_told(send, nimbus, script, told):
    script.write_text(TOPOLOGY)
    take = nimbus.submitTopologyWithOpts

    def submit_topology(*arguments):
        take(*arguments)
        nimbus.topologies["t"].conf["topology.checkpoint.queries"] = ["b", "z"]

    nimbus.submitTopologyWithOpts = submit_topology
    send(going_on_from="old")
    assert nimbus.topologies["t"].conf["topology.checkpoint.from"] == "old"
    assert [text for kind, text, *_ in told if kind == "warn"] == [
        "c: starts afresh, as old has no checkpoint of that name",
        "z: old has a checkpoint of that name, which no query continues",
    ]


def test_what_it_gives_up_is_sent_and_told(send, nimbus, script, told):
    script.write_text(TOPOLOGY)
    send(going_on_from="old", abandon=["c"])
    assert nimbus.topologies["t"].conf["topology.checkpoint.abandon"] == ["c"]
    assert [text for kind, text, *_ in told if kind == "warn"] == [
        "c: starts afresh, as its checkpoint is given up: rows that it has written before may be"
        " written again",
        "b: starts afresh, as old has no checkpoint of that name",
    ]


def test_a_script_with_its_own_checkpoints_goes_on_by_itself(send, nimbus, script):
    script.write_text(STREAMING.replace(".start", '.option("checkpointLocation", "/c").start'))
    with pytest.raises(TopologyError, match=r"plain_job.py .* names its own .* without --from$"):
        send(going_on_from="old")
    with pytest.raises(TopologyError, match="names its own checkpoints"):
        send("topology.checkpoint.from=old")
    assert nimbus.uploads == {}
    send()
    assert nimbus.topologies["plain-job"].conf == {"topology.checkpoint.scripts": False}


def test_submit_warns_of_a_script_without_checkpoint(send, nimbus, script, told):
    send("topology.checkpoint.scripts=false")
    send(going_on_from="old", name="again")
    assert nimbus.topologies["again"].conf == {"topology.checkpoint.from": "old"}
    said = [text for kind, text, *_ in told if kind == "warn"]
    assert len(said) == 3
    assert all(f"{script} names no checkpointLocation" in text for text in said[:2])
    assert "begins at batch 0 whenever its worker starts again" in said[0]
    assert "has its checkpoint in the topology's folder" in said[1]


def test_a_data_source_whose_jar_does_not_come_along_is_told(send, script, told):
    script.write_text(STREAMING.replace('"rate"', '"kafka"'))
    send()
    send("spark.jars=/a.jar", name="other")
    send(jvm_packages=("a:b:1",), name="third")
    said = [text for kind, text, *_ in told if kind == "warn" and "kafka" in text]
    assert len(said) == 1
    assert "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:" in said[0]


@pytest.mark.parametrize("override", ["spark.remote=sc://host", "spark.api.mode=connect"])
def test_spark_connect_is_refused(send, nimbus, override):
    with pytest.raises(ConfigError, match="Spark Connect is not supported"):
        send(override)
    assert nimbus.uploads == {}


def test_the_conf_is_json_for_nimbus(send, nimbus):
    send("input=/ü", "limits=[1, 2]")
    assert json.loads(json.dumps(nimbus.topologies["plain-job"].conf)) == {
        "input": "/ü",
        "limits": [1, 2],
    }
