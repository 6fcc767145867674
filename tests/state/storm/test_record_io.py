"""Records to bytes and back, who wrote them, and what is done where they are none."""

import pytest

from stormkeeper import paths
from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError, SerializationError
from stormkeeper.state.storm.record_io import stamped
from stormkeeper.thrift import records
from stormkeeper.thrift.idl import schema_of
from stormkeeper.thrift.records import Assignment, StormBase, TopologyStatus
from stormkeeper.thrift.serialization import (
    Codec,
    Compression,
    Release,
    decompress,
    deserialize,
    serialize,
)

ID = "wc-1-1700000000"
BASE = StormBase("wc", TopologyStatus.ACTIVE, 2, {"split": 3})
DELEGATE = "storm.meta.serialization.delegate"
RELEASE = "storm.meta.serialization.release"


@pytest.mark.parametrize("compression", Compression)
def test_every_form_is_read_and_the_configured_one_is_written(compression):
    codec = Codec(compression)
    data = codec.write(BASE)
    assert data == serialize(BASE, compression)
    assert Codec().read(StormBase, data) == BASE


def test_the_form_is_the_configured_one():
    conf = {
        **defaults(),
        DELEGATE: "org.apache.storm.serialization.ZstdBridgeThriftSerializationDelegate",
    }
    assert Codec.from_conf(conf).write(BASE).startswith(bytes.fromhex("28b52ffd"))
    assert Codec.from_conf(defaults()).write(BASE).startswith(bytes.fromhex("1f8b"))
    with pytest.raises(ConfigError, match=DELEGATE):
        Codec.from_conf({**conf, DELEGATE: "no.such.Delegate"})


@pytest.mark.parametrize(
    ("delegate", "configured", "release"),
    [
        ("Gzip", None, 2),
        ("", None, 2),
        ("Zstd", None, 3),
        ("Gzip", 3, 3),
        ("", 3, 3),
        ("Zstd", 2, 2),
    ],
)
def test_a_heartbeat_is_for_the_storm_that_reads_it(delegate, configured, release):
    """Storm 2 wants its time in four bytes and has no zstd, Storm 3 wants eight."""
    name = f"org.apache.storm.serialization.{delegate}ThriftSerializationDelegate"
    conf = {**defaults(), DELEGATE: name, RELEASE: configured}
    beat = records.ClusterWorkerHeartbeat(ID, {}, 1_700_000_000, 1)
    codec = Codec.from_conf(conf)
    data = decompress(codec.write(beat))
    assert data == serialize(beat, Compression.PLAIN, release=Release(release))
    assert codec.release is Release(release)


def test_a_stamp_is_on_a_copy():
    ours = stamped(BASE, 7)
    assert (ours.leader_epoch, BASE.leader_epoch) == (7, None)
    assert stamped(ours, 8).leader_epoch == 8
    ours.leader_epoch = None
    assert ours == BASE


def test_the_records_that_a_leader_writes_can_say_which():
    say = {
        name
        for name in records.__dict__
        if hasattr(getattr(records, name), "thrift_spec")
        and any(field.name == "leader_epoch" for field in schema_of(getattr(records, name)).fields)
    }
    assert say == {
        "Assignment",
        "Checkpoints",
        "Credentials",
        "LogConfig",
        "ProfileRequest",
        "StormBase",
        "TaskInfo",
    }


@pytest.mark.parametrize("data", [b"", b"\x07", b"\x1f\x8bno", b"\xac\xed\x00\x05"])
def test_an_error_of_a_single_read_says_where(storm, memory, data):
    memory.set_data(paths.assignment(ID), data)
    for read in (storm.assignment_info, storm.assignment_info_with_version):
        with pytest.raises(SerializationError, match=f"^/assignments/{ID}: not an Assignment"):
            read(ID)
    assert storm.unreadable == 0


def test_reads_of_many_skip_and_count_unreadable_values(storm, leader, memory, caplog):
    leader.set_assignment("a", Assignment("/a"))
    memory.set_data(paths.assignment("b"), b"nonsense")
    for _ in range(3):
        assert list(storm.assignments_info()) == ["a"]
    assert storm.unreadable == 1
    assert caplog.text.count("/assignments/b is left out: not an Assignment") == 1
    memory.set_data(paths.assignment("b"), b"other nonsense")
    assert list(storm.assignments_info()) == ["a"]
    assert storm.unreadable == 2


def test_what_is_remembered_of_the_unreadable_is_bounded(storm, memory, monkeypatch):
    monkeypatch.setattr("stormkeeper.state.storm.record_io.MOST_UNREADABLE", 3)
    for number in range(10):
        memory.set_data(paths.assignment(f"t{number}"), b"nonsense")
        storm.assignments_info()
    assert storm.unreadable >= 10
    assert len(storm._unread) <= 3


def test_what_is_written_is_a_record_for_every_reader(leader, memory):
    leader.activate_storm(ID, BASE)
    data = memory.get_data(paths.storm(ID))
    assert deserialize(StormBase, data) == stamped(BASE, leader.fence.epoch)
