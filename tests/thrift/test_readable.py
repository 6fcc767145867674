"""Records as text for operators and as JSON."""

import json
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.thrift import records as r
from stormkeeper.thrift.readable import key_text, render, to_builtins
from support import vectors
from support.record_strategies import records as any_record

RECORD_CLASSES = [cls for cls in vars(r).values() if hasattr(cls, "thrift_spec")]
VECTORS = {
    vector["name"]: vectors.build(vector["json"])
    for name in ("pacemaker", "storm-2.8")
    for vector in vectors.load(name)
    if re.match(r"(2\.8\.)?thrift\.", vector["name"])
}


def beat(executor_stats, storm_id="wc-1", time_secs=1_700_000_300, uptime_secs=4242):
    return r.ClusterWorkerHeartbeat(storm_id, executor_stats, time_secs, uptime_secs)


def test_a_heartbeat_is_a_table_for_each_executor():
    text = render(VECTORS["2.8.thrift.ClusterWorkerHeartbeat"])
    assert (
        text
        == """\
storm-id     wc-1-1700000000
time-secs    1700000300 (2023-11-14 22:18:20 UTC)
uptime-secs  4242 (1:10:42)
executors    2

executor [1-1]  spout  rate 1
  statistic        stream          600       10800       86400   :all-time
  emitted          default  5000000002  5000000003  5000000004  5000000005
  transferred      default  5000000004  5000000006  5000000008  5000000010
  acked            default         246         369         492         615
  failed           -                 -           -           -           -
  complete-ms-avg  default       6.500       9.750      13.000      16.250

executor [2-2]  bolt  rate 0.05
  statistic       stream           600  10800  86400  :all-time
  emitted         default         3000   4000   5000       6000
  emitted         sécond            60     80    100        120
  transferred     default         6000   8000  10000      12000
  acked           split:default     21     28     35         42
  acked           spout:default   2970   3960   4950       5940
  failed          spout:default      3      4      5          6
  process-ms-avg  spout:default  0.375  0.500  0.625      0.750
  executed        spout:default   2973   3964   4955       5946
  execute-ms-avg  spout:default  3.100  4.100  5.100      6.100"""
    )


def test_a_heartbeat_without_executors():
    assert render(beat({})).splitlines()[-1] == "executors    0"


def test_fields_of_our_workers_are_shown_if_set():
    spout = r.ExecutorSpecificStats(spout=r.SpoutStats({}, {}, {}))
    stats = r.ExecutorStats({"600": {"a": 7}}, {}, spout, 1.0, partial_batches={"600": 3})
    record = beat({r.ExecutorInfo(1, 1): stats})
    record.completed = record.inactive = True
    record.waiting = "no executor\x1b"
    record.jvm_silent_ms = 12_000
    record.queries = [r.QueryActivity("totals", 6, 40, 7, 900), r.QueryActivity("new")]
    shown = render(record)
    assert "totals, batch 6 ended 40 ms before, batch 7 runs for 900 ms\n" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["completed", "true"] in lines
    assert ["inactive", "true"] in lines
    assert ["jvm-silent", "12000", "ms"] in lines
    assert ["query", "new"] in lines
    assert ["waiting", "no", r"executor\x1b"] in lines
    assert lines[-1] == ["partial-batches", "-", "3"]


def test_the_order_of_a_heartbeats_maps_does_not_show():
    stats = {"10800": {"b": 2, "a": 1}, ":all-time": {"a": 1}, "600": {"a": 1}, "60": {}}
    reversed_stats = {
        window: dict(reversed(by_stream.items())) for window, by_stream in reversed(stats.items())
    }

    def executors(numbers, emitted):
        spout = r.ExecutorSpecificStats(spout=r.SpoutStats({}, {}, {}))
        return {r.ExecutorInfo(n, n): r.ExecutorStats(emitted, {}, spout, 1.0) for n in numbers}

    one = beat(executors([2, 10, 1], stats))
    other = beat(executors([1, 2, 10], reversed_stats))
    assert render(one) == render(other)
    assert json.dumps(to_builtins(one)) == json.dumps(to_builtins(other))
    lines = render(one).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("executor ")] == [
        "[1-1]",
        "[2-2]",
        "[10-10]",
    ]
    assert lines[6].split() == ["statistic", "stream", "60", "600", "10800", ":all-time"]
    assert lines[7].split() == ["emitted", "a", "-", "1", "1", "1"]
    assert lines[8].split() == ["emitted", "b", "-", "-", "2", "-"]


def test_other_records_are_fields_and_indented_maps():
    assert (
        render(VECTORS["thrift.StormBase"])
        == """\
name                     wc
status                   ACTIVE
num-workers              2
component-executors
  __acker  1
  split    2
  spout    1
launch-time-secs         1700000000
owner                    alice
topology-action-options
  kill-options
    wait-secs  30
prev-status              INACTIVE
component-debug
  wc-1-1700000000
    enable       true
    samplingpct  10.0
principal                alice@EXAMPLE.COM
topology-version         1.2.3"""
    )


def test_text_of_several_lines_is_a_block():
    assert (
        render(VECTORS["thrift.ErrorInfo"])
        == """\
error
  java.lang.RuntimeException: boom ☃
      at Bolt.execute(Bolt.java:1)
error-time-secs  1700000200
host             h1.example
port             6700"""
    )


def test_lists_sets_and_empty_maps():
    text = render(VECTORS["2.8.thrift.SupervisorInfo"])
    assert "used-ports      6700, 6701\n" in text
    assert render(r.NodeInfo("n", {6701, 6700})) == "node  n\nport  6700, 6701"
    assert render(VECTORS["thrift.StormBase.minimal"]).endswith("component-debug  none")


def test_text_of_a_heartbeat_is_escaped():
    hostile = "\x1b[2Jwc\r\n\u202egnp\u2028"
    spout = r.ExecutorSpecificStats(spout=r.SpoutStats({hostile: {hostile: 1}}, {}, {}))
    executors = {r.ExecutorInfo(1, 1): r.ExecutorStats({}, {}, spout, 1.0)}
    for record in (
        beat(executors, storm_id=hostile),
        r.ErrorInfo(hostile, 1, hostile),
        r.Credentials({hostile: hostile}),
    ):
        text = render(record)
        assert text.replace("\n", "").isprintable()
        assert "\\x1b[2Jwc" in text


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), sys.float_info.max, float("nan")])
def test_numbers_that_are_no_times_are_shown_all_the_same(number):
    spout = r.ExecutorSpecificStats(spout=r.SpoutStats({}, {}, {"600": {"default": number}}))
    executors = {r.ExecutorInfo(1, 1): r.ExecutorStats({}, {}, spout, number)}
    secs = number if isinstance(number, int) else 0
    assert str(secs) in render(beat(executors, time_secs=secs, uptime_secs=secs))


def test_statistics_of_an_unknown_kind_are_left_out():
    executors = {r.ExecutorInfo(1, 1): r.ExecutorStats({}, {}, r.ExecutorSpecificStats(), 1.0)}
    assert "executor [1-1]  unknown  rate 1" in render(beat(executors))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("600", "600"),
        (r.ExecutorInfo(4, 4), "[4-4]"),
        ((4, 7), "[4-7]"),
        (r.GlobalStreamId("split", "default"), "split:default"),
        (r.GlobalStreamId("a:b%", "c:d"), "a%3Ab%25:c:d"),
        (r.NodeInfo("sup-1", {6701, 6700}), "sup-1:6700,6701"),
    ],
)
def test_keys_have_the_operators_form(key, text):
    assert key_text(key) == text


def test_to_builtins_of_a_heartbeat():
    assert to_builtins(VECTORS["2.8.thrift.ClusterWorkerHeartbeat"])["executor_stats"]["[2-2]"][
        "specific"
    ]["bolt"]["acked"]["600"] == {"split:default": 21, "spout:default": 2970}


def test_to_builtins_of_enums_sets_and_binary():
    request = r.ProfileRequest(r.NodeInfo("n", {2, 1}), r.ProfileAction.JMAP_DUMP)
    assert to_builtins(request) == {
        "nodeInfo": {"node": "n", "port": [1, 2]},
        "action": "JMAP_DUMP",
    }
    assert to_builtins(r.PrivateWorkerKey(b"\x01\xff", "u", 3))["key"] == "01ff"


def test_numbers_that_json_lacks_are_null():
    assert to_builtins(r.DebugOptions(samplingpct=float("nan"))) == {"samplingpct": None}
    assert to_builtins(r.DebugOptions(samplingpct=float("-inf"))) == {"samplingpct": None}


@given(st.sampled_from(RECORD_CLASSES).flatmap(any_record))
def test_every_record_can_be_shown(record):
    json.dumps(to_builtins(record), allow_nan=False)
    text = render(record)
    assert text.replace("\n", "").isprintable()
    assert not any(line.endswith(" ") for line in text.split("\n"))


def test_only_records_are_rendered():
    with pytest.raises(TypeError, match="dict is not a record"):
        render({})


def test_additional_pairs_stand_with_the_times():
    lines = render(beat({}), [("age-secs", "2.5"), ("server", "a:6699")]).splitlines()
    assert lines[:-2] == render(beat({})).splitlines()
    assert lines[-2:] == ["age-secs     2.5", "server       a:6699"]
