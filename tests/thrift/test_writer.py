"""What does not fit its field is refused, with the path to it."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import SerializationError
from stormkeeper.thrift import records as r
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.writer import Encoded, Release, encode, encode_around
from support.record_strategies import records as any_record

STREAM = r.GlobalStreamId("split", "default")


def heartbeat(executors=None, time_secs=1, **changes):
    beat = r.ClusterWorkerHeartbeat("wc-1", executors or {}, time_secs, 2)
    vars(beat).update(changes)
    return beat


def executor_stats(specific):
    return {r.ExecutorInfo(1, 1): r.ExecutorStats({}, {}, specific, 1.0)}


def test_the_release_decides_the_width_of_time_secs():
    narrow, wide = (encode(heartbeat(time_secs=7), release) for release in Release)
    assert len(wide) - len(narrow) == 4
    assert b"\x08\x00\x03\x00\x00\x00\x07" in narrow
    assert b"\x0a\x00\x03\x00\x00\x00\x00\x00\x00\x00\x07" in wide


def test_sets_are_written_in_ascending_order():
    assert encode(r.NodeInfo("n", {6703, 6700, 6701})) == encode(
        r.NodeInfo("n", {6701, 6700, 6703})
    )


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (heartbeat(storm_id=None), r"^ClusterWorkerHeartbeat.storm_id: is required, but None"),
        (heartbeat(storm_id=b"wc"), r"^ClusterWorkerHeartbeat.storm_id: must be a str, not bytes"),
        (heartbeat(storm_id="\ud800"), r"^ClusterWorkerHeartbeat.storm_id: cannot be .* UTF-8"),
        (heartbeat(executor_stats=[]), r"executor_stats: must be a dict, not list"),
        (
            heartbeat(executor_stats={1: 2}),
            r"executor_stats: must be of class ExecutorInfo, not int",
        ),
        (heartbeat(time_secs=1.0), r"time_secs: must be an int, not float"),
        (heartbeat(time_secs=True), r"time_secs: must be an int, not bool"),
        (heartbeat(uptime_secs=-(2**31) - 1), r"uptime_secs: -2147483649 does not fit i32"),
        (
            heartbeat(executor_stats(r.ExecutorSpecificStats())),
            r"executor_stats.specific: ExecutorSpecificStats must have exactly one member, has 0",
        ),
        (
            heartbeat(
                executor_stats(
                    r.ExecutorSpecificStats(
                        bolt=r.BoltStats({}, {}, {}, {"600": {STREAM: "1"}}, {})
                    )
                )
            ),
            r"Heartbeat.executor_stats.specific.bolt.executed: must be an int, not str",
        ),
        (
            r.TopologyActionOptions(r.KillOptions(), r.RebalanceOptions()),
            r"^TopologyActionOptions: TopologyActionOptions must have exactly one member, has 2",
        ),
        (r.SupervisorInfo(2**63, "h"), r"time_secs: 9223372036854775808 does not fit i64"),
        (
            r.Assignment("/a", executor_node_port={"1-1": r.NodeInfo("n", {1})}),
            r"executor_node_port: must be a list or tuple, not str",
        ),
        (r.SupervisorInfo(1, "h", meta={6700}), r"meta: must be a list or tuple, not set"),
        (
            r.SupervisorInfo(1, "h", resources_map={"cpu": "1"}),
            r"resources_map: must be a float, not",
        ),
        (r.SupervisorInfo(1, "h", resources_map={"cpu": 10**400}), r"too large for a double"),
        (r.NodeInfo("n", [6700]), r"^NodeInfo.port: must be a set, not list"),
        (r.NodeInfo("n", {6700, "x"}), r"^NodeInfo.port: a set of values of different types"),
        (r.StormBase("n", 9, 1), r"^StormBase.status: 9 is no TopologyStatus"),
        (r.DebugOptions(enable=1), r"^DebugOptions.enable: must be a bool, not int"),
        (r.PrivateWorkerKey("key", "u", 1), r"^PrivateWorkerKey.key: must be bytes, not str"),
    ],
)
def test_what_does_not_fit_is_refused(record, reason):
    with pytest.raises(SerializationError, match=reason):
        encode(record)


def test_credentials_are_not_told_in_an_error():
    with pytest.raises(SerializationError) as error:
        encode(r.Credentials({"password": b"hunter2"}))
    assert "hunter2" not in str(error.value)


def test_enums_are_taken_by_value_too():
    assert encode(r.StormBase("n", 1, 1)) == encode(r.StormBase("n", r.TopologyStatus.ACTIVE, 1))


def test_only_records_can_be_encoded():
    with pytest.raises(TypeError, match="not a record class"):
        encode({"storm_id": "wc"})


def test_encoded_parts_are_copied_in_the_records_place():
    launches = [
        r.WorkerLaunch("sup", port, r.LaunchClaim(7, 1), ["q"], 1, 512.0) for port in (1, 2, 3)
    ]
    whole = encode(r.Assignment("/code", launches=launches))
    parts = [Encoded(r.WorkerLaunch, encode(each)[:9], encode(each)[9:]) for each in launches]
    assert encode(r.Assignment("/code", launches=[launches[0], *parts[1:]])) == whole
    assert [each.decoded() for each in parts] == launches
    other = [Encoded(r.LaunchClaim, encode(launches[0].claim))]
    with pytest.raises(SerializationError, match="must be of class WorkerLaunch, not Encoded"):
        encode(r.Assignment("/code", launches=other))


def test_a_record_is_encoded_around_an_i32():
    beat = heartbeat(executor_stats(r.ExecutorSpecificStats(spout=r.SpoutStats({}, {}, {}))))
    before, after = encode_around(beat, "uptime_secs")
    assert before + b"\x00\x00\x00\x02" + after == encode(beat)
    for name in ("storm_id", "jvm_silent_ms"):
        with pytest.raises(SerializationError, match=f"ClusterWorkerHeartbeat.{name} has no i32"):
            encode_around(beat, name)


@given(any_record(r.NodeInfo), any_record(r.NodeInfo), st.lists(st.booleans()))
def test_values_that_are_one_object_are_written_as_equal_ones(first, second, choices):
    shared = {(n, n): second if choice else first for n, choice in enumerate(choices)}
    copied = {tasks: copy.copy(place) for tasks, place in shared.items()}
    times = {tasks: 2**40 if place is first else 7 for tasks, place in shared.items()}
    plain = encode(r.Assignment("/code", executor_node_port=copied))
    assert encode(r.Assignment("/code", executor_node_port=shared)) == plain
    record = r.Assignment("/code", {}, shared, times)
    assert decode(r.Assignment, encode(record)) == record
