"""Records against the bytes that Storm 2.8 and 3 wrote, and against bytes that nobody should."""

import contextlib
import gzip
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.errors import SerializationError
from stormkeeper.thrift import pacemaker, records
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.serialization import (
    Codec,
    Compression,
    Release,
    activity_of,
    decompress,
    deserialize,
    heartbeat_release,
    serialize,
)
from stormkeeper.thrift.writer import encode
from support import vectors
from support.record_strategies import records as any_record

PLAIN = {
    vector["name"]: vector
    for name in ("pacemaker", "storm-2.8")
    for vector in vectors.load(name)
    if re.match(r"(2\.8\.)?thrift\.", vector["name"])
}
COMPRESSED = {
    vector["name"]: vector
    for name in ("pacemaker", "storm-2.8")
    for vector in vectors.load(name)
    if re.match(r"(2\.8\.)?(gzip|zstd)\.", vector["name"])
}
ZNODES = {
    vector["path"]: bytes.fromhex(vector["hex"])
    for name in ("znodes-gzip", "znodes-zstd")
    for vector in vectors.load(name)
    if vector["hex"] not in (None, "", "07")
}
CLASS_OF_DIRECTORY = {
    "assignments": records.Assignment,
    "credentials": records.Credentials,
    "errors": records.ErrorInfo,
    "logconfigs": records.LogConfig,
    "nimbuses": records.NimbusSummary,
    "profilerconfigs": records.ProfileRequest,
    "storms": records.StormBase,
    "supervisors": records.SupervisorInfo,
    "workerbeats": records.ClusterWorkerHeartbeat,
}
RECORD_CLASSES = [
    cls
    for module in (records, pacemaker)
    for cls in vars(module).values()
    if isinstance(cls, type) and hasattr(cls, "thrift_spec")
]


def record_class(name):
    """The class that a vector's name ends with, as in 2.8.thrift.StormBase.minimal."""
    return vectors.record_class(re.search(r"(thrift|gzip|zstd)\.(\w+)", name)[2])


def storm_of(name):
    return Release.STORM_2 if name.startswith("2.8.") else Release.STORM_3


def znode_class(path):
    return CLASS_OF_DIRECTORY[path.split("/")[2]]


def test_the_vectors_are_all_there():
    assert (len(PLAIN), len(COMPRESSED), len(ZNODES)) == (15, 25, 20)
    assert {record_class(name) for name in PLAIN} > {records.Assignment, records.StormBase}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_record_of_storm_decodes_to_its_value(name):
    vector = PLAIN[name]
    record = deserialize(record_class(name), bytes.fromhex(vector["hex"]))
    assert vectors.notation(record) == vector["json"]


@pytest.mark.parametrize("name", [name for name in PLAIN if "ClusterWorkerHeartbeat" in name])
def test_release_of_a_heartbeat_of_storm(name):
    assert heartbeat_release(bytes.fromhex(PLAIN[name]["hex"])) is storm_of(name)


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_record_of_storm_decodes_to_its_value(name):
    plain = PLAIN[re.sub("gzip|zstd", "thrift", name)]
    record = deserialize(record_class(name), bytes.fromhex(COMPRESSED[name]["hex"]))
    assert vectors.notation(record) == COMPRESSED[name].get("json", plain["json"])


@pytest.mark.parametrize("path", ZNODES)
def test_a_znode_of_storm_decodes_to_the_vector_of_its_kind(path):
    cls = znode_class(path)
    noted = vectors.notation(deserialize(cls, ZNODES[path]))
    if cls is records.ProfileRequest:  # the kinds that have no plain vector, or other values in it
        assert noted["action"] == {"$enum": "JPROFILE_STOP", "value": 0}
        assert noted["nodeInfo"]["port"] == {"$set": [6700]}
    elif cls is records.ErrorInfo:
        assert noted["error"].startswith("java.lang.RuntimeException: boom ☃\n\tat org.")
        assert noted["error_time_secs"] > 1_700_000_000
    elif cls is records.LogConfig:
        assert noted["named_logger_level"]["$map"][0][0] == "ROOT"
    else:
        prefix = "2.8." if cls is records.SupervisorInfo else ""
        assert noted == PLAIN[f"{prefix}thrift.{cls.__name__}"]["json"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_record_encodes_to_the_bytes_that_storm_wrote(name):
    """Every vector's order is defined: its maps are ours in the order of the JSON, its sets have
    one element."""
    vector = PLAIN[name]
    built = vectors.build(vector["json"])
    data = serialize(built, Compression.PLAIN, release=storm_of(name))
    assert data.hex() == vector["hex"]


def test_decoding_keeps_the_order_of_maps():
    name = "thrift.ClusterWorkerHeartbeat"
    data = bytes.fromhex(PLAIN[name]["hex"])
    beat = deserialize(records.ClusterWorkerHeartbeat, data)
    assert serialize(beat, Compression.PLAIN, release=Release.STORM_3) == data


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("name", PLAIN)
def test_what_is_written_is_read_back(name, compression):
    built = vectors.build(PLAIN[name]["json"])
    assert deserialize(type(built), serialize(built, compression)) == built


def test_heartbeats_are_written_for_storm_2_with_gzip_by_default():
    beat = vectors.build(PLAIN["2.8.thrift.ClusterWorkerHeartbeat"]["json"])
    data = serialize(beat)
    assert gzip.decompress(data).hex() == PLAIN["2.8.thrift.ClusterWorkerHeartbeat"]["hex"]


def test_a_time_beyond_storm_2_is_written_for_storm_3_only():
    beat = records.ClusterWorkerHeartbeat("wc-1", {}, 2**31, 0)
    with pytest.raises(SerializationError, match=r"time_secs: 2147483648 does not fit i32"):
        serialize(beat)
    assert deserialize(type(beat), serialize(beat, release=Release.STORM_3)) == beat


def test_the_same_record_gives_the_same_bytes():
    built = [vectors.build(PLAIN["thrift.StormBase"]["json"]) for _ in range(2)]
    for compression in Compression:
        assert serialize(built[0], compression) == serialize(built[1], compression)


def test_directory_value_is_named_in_the_error():
    with pytest.raises(
        SerializationError, match=r"^not a StormBase: the single byte 07.*directory"
    ):
        deserialize(records.StormBase, b"\x07")


def test_no_bytes_are_no_record():
    with pytest.raises(SerializationError, match=r"^not a StormBase: no bytes at all"):
        deserialize(records.StormBase, b"")


def test_java_serialisation_is_no_record():
    (vector,) = [v for v in vectors.load("pacemaker") if v["name"] == "java.NimbusInfo"]
    with pytest.raises(SerializationError, match="not a NimbusSummary"):
        deserialize(records.NimbusSummary, bytes.fromhex(vector["hex"]))


def test_other_bytes_like_objects_are_read():
    data = bytes.fromhex(COMPRESSED["gzip.StormBase"]["hex"])
    expected = deserialize(records.StormBase, data)
    assert deserialize(records.StormBase, bytearray(data)) == expected
    assert deserialize(records.StormBase, memoryview(data)) == expected


def test_the_limit_holds_for_every_compression():
    built = vectors.build(PLAIN["thrift.ClusterWorkerHeartbeat"]["json"])
    size = len(serialize(built, Compression.PLAIN))
    for compression in Compression:
        data = serialize(built, compression, release=Release.STORM_2)
        assert deserialize(type(built), data, limit=size) == built
        with pytest.raises(
            SerializationError, match=r"^not a ClusterWorkerHeartbeat: .*limit|more"
        ):
            deserialize(type(built), data, limit=size - 1)


def test_a_heartbeat_is_for_the_storm_that_can_read_it():
    """Storm 2 wants its time in four bytes and has no zstd, Storm 3 wants eight."""
    built = vectors.build(PLAIN["thrift.ClusterWorkerHeartbeat"]["json"])
    two, three = (serialize(built, Compression.PLAIN, release=release) for release in Release)
    assert two != three
    assert serialize(built, Compression.PLAIN) == two
    assert gzip.decompress(serialize(built, Compression.GZIP)) == two
    assert decompress(serialize(built, Compression.ZSTD)) == three


@pytest.mark.parametrize("cls", RECORD_CLASSES, ids=lambda cls: cls.__name__)
def test_every_record_survives_a_round_trip(cls):
    @settings(max_examples=25)
    @given(any_record(cls), st.sampled_from(Compression))
    def survives(record, compression):
        assert deserialize(cls, serialize(record, compression)) == record

    survives()


@pytest.mark.parametrize("name", [*PLAIN, *COMPRESSED])
def test_a_record_cut_at_any_byte_is_an_error(name):
    cls = record_class(name)
    data = bytes.fromhex((PLAIN | COMPRESSED)[name]["hex"])
    for end in range(len(data)):
        with pytest.raises(SerializationError, match=f"^not an? {cls.__name__}: "):
            deserialize(cls, data[:end])


@pytest.mark.parametrize("name", [*PLAIN, *COMPRESSED])
def test_damage_is_survived(name):
    cls = record_class(name)
    data = bytes.fromhex((PLAIN | COMPRESSED)[name]["hex"])

    @settings(max_examples=60)
    @given(
        st.lists(
            st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), min_size=1, max_size=4
        )
    )
    def survives(changes):
        damaged = bytearray(data)
        for place, value in changes:
            damaged[place] = value
        try:
            record = deserialize(cls, damaged)
        except SerializationError:
            return
        assert isinstance(record, cls)

    survives()


@given(st.sampled_from(RECORD_CLASSES), st.binary(max_size=200))
def test_noise_is_survived(cls, data):
    with contextlib.suppress(SerializationError):
        assert isinstance(deserialize(cls, data), cls)


@given(any_record(records.ClusterWorkerHeartbeat), st.sampled_from(Release))
def test_activity_after_the_statistics_of_a_heartbeat(beat, release):
    found = decode(
        records.WorkerActivity, activity_of(serialize(beat, Compression.GZIP, release=release))
    )
    for name in vars(found):
        assert getattr(found, name) == getattr(beat, name)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"\0"])
def test_only_a_whole_heartbeat_says_anything(damage):
    query = records.QueryActivity("q", 7, 3, 8, 1)
    beat = records.ClusterWorkerHeartbeat("wc-1-1", {}, 17, 9, queries=[query])
    plain = decompress(serialize(beat))
    expected = encode(records.WorkerActivity(9, queries=[query]))
    assert activity_of(plain) == expected
    if damage(plain) < plain:
        with pytest.raises(SerializationError):
            activity_of(damage(plain))
    else:  # what follows a record is ignored, as everywhere
        assert activity_of(damage(plain)) == expected


def test_expected_records_are_read_once_without_decoding():
    codec, record = Codec(), records.Assignment("/code")
    data = codec.write(record)
    codec.expect(data, record)
    assert codec.read(records.Assignment, data) is record
    again = codec.read(records.Assignment, data)
    assert again == record
    assert again is not record
    codec.expect(data, records.StormBase("wc", records.TopologyStatus.ACTIVE, 1))
    assert codec.read(records.Assignment, data) == record


def test_expected_records_are_limited():
    codec, record = Codec(), records.Assignment("/code")
    for number in range(10_000):
        codec.expect(b"%d" % number, record)
    assert len(codec._expected) <= 500
    assert codec.read(records.Assignment, b"9999") is record
