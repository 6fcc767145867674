"""Structs that a record has many times are read once, and nothing is taken for what it is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import SerializationError
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.records import Assignment, DebugOptions, NodeInfo, StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Compression, serialize


def encoded(record):
    return serialize(record, Compression.PLAIN)


def assignment(places):
    executors = {(task, task): NodeInfo(*place) for task, place in enumerate(places)}
    return Assignment("/dir", executor_node_port=executors)


def test_equal_parts_are_one_object():
    read = decode(Assignment, encoded(assignment([("a", {1}), ("b", {1}), ("a", {1})])))
    first, second, third = read.executor_node_port.values()
    assert first is third
    assert first is not second


def test_two_records_share_nothing():
    data = encoded(assignment([("a", {1})]))
    first, second = decode(Assignment, data), decode(Assignment, data)
    assert first == second
    assert first.executor_node_port[0, 0] is not second.executor_node_port[0, 0]


@pytest.mark.parametrize(
    "places",
    [
        # More lengths, and more places, than are remembered; places longer than those that are.
        [("n" * (task % 40), {task}) for task in range(400)],
        [(f"node-{task % 1500}", {6700}) for task in range(3000)],
        [("n" * 1_000, {6700})] * 3,
        # The beginning of one is the whole of another's node.
        [("node", {1}), ("node-1", {1}), ("node-1", {1, 2}), ("node", {1})],
        [("", set()), ("", {0}), ("", set())],
    ],
    ids=["lengths", "places", "long", "alike", "empty"],
)
def test_read_record_equals_the_written_one(places):
    written = assignment(places)
    assert decode(Assignment, encoded(written)) == written


@given(st.lists(st.tuples(st.text(max_size=3), st.sets(st.integers(0, 3), max_size=2)), max_size=9))
def test_slots_are_read_as_written(places):
    written = assignment(places)
    assert decode(Assignment, encoded(written)) == written


def test_a_known_part_is_not_found_in_a_record_that_ends_in_it():
    data = encoded(assignment([("node", {1}), ("node", {1})]))
    for cut in range(1, len(data)):
        with pytest.raises(SerializationError):
            decode(Assignment, data[:cut])


def test_parts_that_differ_in_what_is_left_out():
    options = {
        "a": DebugOptions(),
        "b": DebugOptions(enable=True),
        "c": DebugOptions(enable=True, samplingpct=1.0),
        "d": DebugOptions(samplingpct=1.0),
        "e": DebugOptions(),
    }
    base = StormBase("wc", TopologyStatus.ACTIVE, 1, component_debug=options)
    assert decode(StormBase, encoded(base)) == base
