"""The record of a topology, out of its description."""

from pathlib import Path

from stormkeeper.client.topology_submission import storm_topology
from stormkeeper.thrift import nimbus
from stormkeeper.thrift.reader import decode
from stormkeeper.thrift.records import GlobalStreamId
from stormkeeper.thrift.writer import encode
from stormkeeper.topology import description
from support.topologies import make


def test_components_and_what_they_read():
    described = description.of_topology(
        make({"lines": ((), 2), "words": (("lines",), 3), "totals": (("words", "lines"), 1)})
    )
    topology = storm_topology(described, "code/job.py")
    assert topology.spouts.keys() == {"lines"}
    assert topology.bolts.keys() == {"words", "totals"}
    words, totals = topology.bolts["words"].common, topology.bolts["totals"].common
    assert topology.spouts["lines"].common.parallelism_hint == 2
    assert topology.spouts["lines"].common.inputs == {}
    assert words.parallelism_hint == 3
    assert words.streams.keys() == {"default"}
    assert totals.inputs.keys() == {
        GlobalStreamId("words", "default"),
        GlobalStreamId("lines", "default"),
    }
    assert totals.streams == {}
    assert topology.bolts["words"].bolt_object.shell.script == "code/job.py"


def test_one_that_is_read_twice_is_one_input():
    described = description.of_topology(make({"a": ((), 1), "b": (("a", "a"), 1)}))
    inputs = storm_topology(described, "code/job.py").bolts["b"].common.inputs
    assert [*inputs] == [GlobalStreamId("a", "default")]


def test_a_plain_script_is_one_spout():
    described = description.of_script(Path("plain_streaming.py"))
    topology = storm_topology(described, "code/plain_streaming.py")
    assert [*topology.spouts] == ["plain-streaming"]
    assert topology.bolts == {}


def test_it_goes_over_the_wire():
    described = description.of_topology(make({"a": ((), 1), "b": (("a",), 1)}))
    topology = storm_topology(described, "code/job.py")
    assert decode(nimbus.StormTopology, encode(topology)) == topology
