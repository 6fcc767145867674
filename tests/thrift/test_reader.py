"""The reader's own rules, on bytes put together by hand."""

import time
import tracemalloc
from struct import pack

import pytest
from hypothesis import given, settings

from stormkeeper.errors import SerializationError
from stormkeeper.thrift import pacemaker, records
from stormkeeper.thrift.reader import MAX_DEPTH, decode
from stormkeeper.thrift.writer import Release, encode
from support import reference_codec
from support.record_strategies import records as any_record

STOP = b"\x00"


def field(kind, field_id, value):
    return pack(">bh", kind, field_id) + value


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return pack(">i", len(data)) + data


# thriftpy2 has one spec for a field, i64 time_secs, and cannot read lists as keys of a map.
@pytest.mark.parametrize(
    "cls",
    [
        pacemaker.HBMessage,
        pacemaker.ServerInfo,
        records.ClusterWorkerHeartbeat,
        records.StormBase,
        records.SupervisorInfo,
        records.LogConfig,
        records.PrivateWorkerKey,
    ],
    ids=lambda cls: cls.__name__,
)
def test_the_reader_agrees_with_thriftpy2(cls):
    @settings(max_examples=50)
    @given(any_record(cls))
    def agrees(record):
        data = reference_codec.encode(record)
        assert encode(record, Release.STORM_3) == data
        assert decode(cls, data) == record == reference_codec.decode(cls, data)

    agrees()


def test_lists_that_are_keys_become_tuples():
    assignment = records.Assignment("/code", executor_start_time_secs={(1, 3): 5, (): 6})
    assert decode(records.Assignment, encode(assignment)).executor_start_time_secs == {
        (1, 3): 5,
        (): 6,
    }


@pytest.mark.parametrize(("kind", "value"), [(8, pack(">i", 7)), (10, pack(">q", 7))])
def test_integers_are_read_at_either_width(kind, value):
    narrow = field(8, 1, pack(">i", 1))
    for cls, data, name in [
        (records.ErrorInfo, field(11, 1, string("x")) + field(kind, 2, value), "error_time_secs"),
        (records.SupervisorInfo, field(kind, 1, value) + field(11, 2, string("h")), "time_secs"),
        (records.ExecutorInfo, narrow + field(kind, 2, value), "task_end"),
    ]:
        assert getattr(decode(cls, data + STOP), name) == 7


@pytest.mark.parametrize("value", [-(2**63), -(2**31) - 1, 2**31, 2**60])
def test_an_integer_that_does_not_fit_its_field_is_an_error(value):
    """Whoever takes it for what the field says, as columns of 32 bits do, would fail later."""
    wide = field(10, 1, pack(">q", 1)) + field(10, 2, pack(">q", value)) + STOP
    with pytest.raises(SerializationError, match=f"{value} where an i32 belongs"):
        decode(records.ExecutorInfo, wide)


def test_unknown_fields_are_skipped_whatever_they_hold():
    struct = field(11, 9, string("inner")) + field(2, 10, b"\x01") + STOP
    unknown = [
        (2, b"\x01"),
        (3, b"\xff"),
        (4, pack(">d", 1.5)),
        (6, pack(">h", 1)),
        (8, pack(">i", 1)),
        (10, pack(">q", 1)),
        (11, string(b"\xff\xfe")),
        (12, struct),
        (13, pack(">bbi", 11, 12, 2) + 2 * (string("key") + struct)),
        (13, pack(">bbi", 8, 10, 2) + bytes(2 * 12)),
        (13, pack(">bbi", 0, 0, 0)),
        (14, pack(">bi", 10, 3) + bytes(3 * 8)),
        (15, pack(">bi", 12, 2) + 2 * struct),
        (15, pack(">bi", 15, 2) + 2 * (pack(">bi", 2, 2) + b"\x00\x01")),
    ]
    data = b"".join(field(kind, 900 + n, value) for n, (kind, value) in enumerate(unknown))
    data += field(11, 1, string("split")) + data + field(11, 2, string("default"))
    assert decode(records.GlobalStreamId, data + STOP) == records.GlobalStreamId("split", "default")


def test_a_field_of_another_type_counts_as_unknown():
    data = field(8, 1, pack(">i", 30)) + field(11, 2, string("two"))
    assert decode(records.RebalanceOptions, data + STOP) == records.RebalanceOptions(wait_secs=30)


def test_the_last_of_a_repeated_field_counts():
    data = field(8, 1, pack(">i", 1)) + field(8, 1, pack(">i", 2))
    assert decode(records.KillOptions, data + STOP).wait_secs == 2


def test_bytes_after_the_record_are_ignored():
    data = encode(records.KillOptions(5))
    assert decode(records.KillOptions, data + b"anything at all") == records.KillOptions(5)


@pytest.mark.parametrize(("byte", "value"), [(0, False), (1, True), (2, False), (255, False)])
def test_a_bool_is_true_if_its_byte_is_one(byte, value):
    assert decode(records.DebugOptions, field(2, 1, bytes([byte])) + STOP).enable is value


def test_an_empty_map_may_name_any_types():
    data = field(13, 1, pack(">bbi", 0, 0, 0))
    assert decode(records.Credentials, data + STOP).creds == {}


def test_equal_keys_are_one_object_also_when_their_order_changes():
    one, two = (records.GlobalStreamId(name, "default") for name in ("one", "two"))
    counts = {
        "600": {one: 1, two: 2},
        "10800": {two: 3},
        "86400": {two: 4, one: 5},
        ":all-time": {},
    }
    stats = records.BoltStats(counts, {}, {}, {}, {})
    read = decode(records.BoltStats, encode(stats))
    assert read == stats
    assert [list(by_stream) for by_stream in read.acked.values()] == [
        [one, two],
        [two],
        [two, one],
        [],
    ]


def test_more_keys_than_are_remembered():
    counts = {
        window: {records.GlobalStreamId(f"c{n}", "default"): n for n in range(500)}
        for window in ("600", "10800")
    }
    stats = records.BoltStats(counts, {}, {}, {}, {})
    assert decode(records.BoltStats, encode(stats)) == stats


BOUNDLESS = 2**31 - 1


@pytest.mark.parametrize(
    ("cls", "data", "reason"),
    [
        (
            records.ErrorInfo,
            field(11, 1, pack(">i", BOUNDLESS) + b"abc"),
            "length of 2147483647 with 3",
        ),
        (records.ErrorInfo, field(11, 1, pack(">i", -1) + b"abc"), "length of -1 "),
        (records.PrivateWorkerKey, field(11, 1, pack(">i", -5)), "length of -5 "),
        (records.PrivateWorkerKey, field(11, 1, pack(">i", 2**30)), "length of 1073741824 "),
        (records.SupervisorInfo, field(15, 4, pack(">bi", 10, BOUNDLESS)), "count of 2147483647 "),
        (records.SupervisorInfo, field(15, 4, pack(">bi", 10, -1)), "count of -1 "),
        (
            records.SupervisorInfo,
            field(15, 4, pack(">bi", 10, 2) + bytes(15)),
            "count of 2 with 15",
        ),
        (records.SupervisorInfo, field(15, 4, pack(">bi", 1, BOUNDLESS)), "elements of type 1 "),
        (records.NodeInfo, field(14, 2, pack(">bi", 0, BOUNDLESS)), "elements of type 0 "),
        (
            records.Credentials,
            field(13, 1, pack(">bbi", 11, 11, BOUNDLESS)),
            "count of 2147483647 ",
        ),
        (records.Credentials, field(13, 1, pack(">bbi", 11, 11, -3)), "count of -3 "),
        (records.Credentials, field(13, 1, pack(">bbi", 1, 1, BOUNDLESS)), "a map of types 1, 1 "),
        (records.KillOptions, field(11, 9, pack(">i", BOUNDLESS)), "length of 2147483647 "),
        (records.KillOptions, field(15, 9, pack(">bi", 2, BOUNDLESS)), "count of 2147483647 "),
        (records.KillOptions, field(15, 9, pack(">bi", 2, -1)), "count of -1 "),
        (
            records.KillOptions,
            field(15, 9, pack(">bi", 0, BOUNDLESS)),
            "elements of unknown type 0",
        ),
        (records.KillOptions, field(13, 9, pack(">bbi", 12, 7, BOUNDLESS)), "of unknown type 7"),
        (
            records.KillOptions,
            field(13, 9, pack(">bbi", 12, 12, BOUNDLESS)),
            "count of 2147483647 ",
        ),
        (records.KillOptions, field(7, 9, b""), "field of unknown type 7"),
        (records.KillOptions, field(255 - 256, 9, b""), "field of unknown type 255"),
    ],
)
def test_announced_lengths_cost_nothing(cls, data, reason):
    decode(records.KillOptions, STOP)
    tracemalloc.start()
    start = time.thread_time()
    try:
        with pytest.raises(SerializationError, match=f"^not an? {cls.__name__}: .*{reason}"):
            decode(cls, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # To go through as many as are announced would take minutes.
    assert time.thread_time() - start < 5.0
    assert peak < 2**20


@pytest.mark.parametrize(
    ("cls", "data", "reason"),
    [
        (records.ErrorInfo, field(11, 1, string(b"ab\xff")) + STOP, r"not UTF-8 \(at byte 9\)"),
        (records.ErrorInfo, field(11, 1, string("ab")) + STOP, "required field 2, error_time_secs"),
        (records.StormBase, field(8, 2, pack(">i", 9)) + STOP, "9 is no TopologyStatus"),
        (records.KillOptions, b"", "after 0 bytes"),
        (records.KillOptions, field(8, 1, b"\x00\x00"), "ends in the middle of the record"),
        (
            records.TopologyActionOptions,
            field(12, 1, STOP) + field(12, 2, STOP) + STOP,
            "TopologyActionOptions with more than one member",
        ),
    ],
)
def test_malformed_record_is_refused(cls, data, reason):
    with pytest.raises(SerializationError, match=f"^not an? {cls.__name__}: .*{reason}"):
        decode(cls, data)


def test_a_union_of_an_unknown_member_is_empty():
    data = field(12, 77, STOP) + STOP
    assert decode(records.TopologyActionOptions, data) == records.TopologyActionOptions()


@pytest.mark.parametrize("kind", [12, 15])
def test_deep_nesting_of_unknown_fields_ends(kind):
    step = pack(">bh", 12, 1) if kind == 12 else pack(">bi", 15, 1)
    allowed = field(kind, 9, step * (MAX_DEPTH - 1) + bytes(5)) + STOP * MAX_DEPTH
    assert decode(records.KillOptions, allowed) == records.KillOptions()
    for depth in (MAX_DEPTH + 1, 1_000_000):
        with pytest.raises(SerializationError, match="nested deeper than 64"):
            decode(records.KillOptions, field(kind, 9, step * depth + bytes(100)))


def test_only_records_can_be_decoded():
    with pytest.raises(TypeError, match="not a record class"):
        decode(dict, STOP)


def work(data):
    start = time.thread_time()
    decode(records.ClusterWorkerHeartbeat, data)
    return time.thread_time() - start


def test_time_grows_with_the_size_and_not_with_its_square():
    def beat(streams):
        counts = {":all-time": {f"stream-{n}": n for n in range(streams)}}
        stats = records.ExecutorStats(
            counts, {}, records.ExecutorSpecificStats(spout=records.SpoutStats({}, {}, {})), 1.0
        )
        return encode(
            records.ClusterWorkerHeartbeat("wc", {records.ExecutorInfo(1, 1): stats}, 1, 1)
        )

    small, large = beat(5_000), beat(80_000)
    assert min(work(large) for _ in range(3)) < 100 * min(work(small) for _ in range(3))
