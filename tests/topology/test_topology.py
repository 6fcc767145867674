import subprocess
import sys

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology import Topology
from stormkeeper.topology.plan import plan
from stormkeeper.topology.topology import on_declared, spread
from support.topologies import make


@pytest.fixture
def topology():
    return Topology("word-count")


@pytest.fixture
def lines(topology):
    @topology.spout
    def lines(spark, conf):
        """Lines of text."""
        return (spark, conf)

    return lines


def test_components_are_named_after_their_functions_and_in_order(topology, lines):
    @topology.bolt(lines)
    def words(lines):
        return lines

    @topology.bolt("words", lines, parallelism=4, name="joined")
    def both(words, lines):
        return words, lines

    assert list(topology.components) == ["lines", "words", "joined"]
    assert topology.components["joined"].inputs == ("words", "lines")
    assert topology.components["joined"].parallelism == 4
    assert [c.kind for c in topology.components.values()] == ["spout", "bolt", "bolt"]


def test_spout_with_settings(topology):
    @topology.spout(parallelism=3, name="source")
    def lines(spark):
        return spark

    assert lines.id == "source"
    assert lines.parallelism == 3


def test_decorated_function_is_still_a_function(lines):
    assert lines("session", {"a": 1}) == ("session", {"a": 1})
    assert lines.__name__ == "lines"
    assert lines.__doc__ == "Lines of text."


def test_same_input_twice(topology, lines):
    @topology.bolt(lines, lines)
    def pairs(left, right):
        return left, right

    assert pairs.inputs == ("lines", "lines")


def test_conf_is_an_immutable_copy():
    given = {"input": "/x"}
    topology = Topology("t", given)
    given["input"] = "/y"
    assert topology.conf["input"] == "/x"
    with pytest.raises(TypeError):
        topology.conf["input"] = "/z"


def test_who_listens_hears_of_each_topology():
    heard = []
    token = on_declared.set(heard.append)
    try:
        made = [Topology("a"), Topology("b")]
    finally:
        on_declared.reset(token)
    Topology("c")
    assert heard == made


@pytest.mark.parametrize("name", ["", "a b", "a/b", ".a", "-a", "ä", 5, None])
def test_wrong_topology_name(name):
    with pytest.raises(TopologyError, match="is no name for a topology"):
        Topology(name)


@pytest.mark.parametrize(("conf", "said"), [([1], "must be a mapping"), ({1: 2}, "keys are text")])
def test_wrong_conf(conf, said):
    with pytest.raises(TopologyError, match=said):
        Topology("t", conf)


def test_duplicate_id(topology, lines):
    with pytest.raises(TopologyError, match="has a spout 'lines' already"):

        @topology.bolt(lines, name="lines")
        def other(lines):
            return lines


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-a", 7])
def test_wrong_component_id(topology, name):
    with pytest.raises(TopologyError, match="is no id for a spout"):
        topology.spout(name=name)(lambda: None)


def test_lambda_has_no_name_of_its_own(topology):
    with pytest.raises(TopologyError, match=r"'<lambda>' is no id .*name='words'"):
        topology.spout(lambda spark: spark)


def test_storms_own_ids_are_reserved(topology):
    with pytest.raises(TopologyError, match="are Storm's"):
        topology.spout(name="__acker")(lambda: None)


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, True, "2"])
def test_wrong_parallelism(topology, parallelism):
    with pytest.raises(TopologyError, match="whole number of 1 or more, not"):
        topology.spout(parallelism=parallelism, name="s")(lambda: None)


@pytest.mark.usefixtures("lines")
def test_unknown_input_gets_the_nearest_known(topology):
    with pytest.raises(TopologyError, match=r"'liens' is unknown; is 'lines' meant\?"):
        topology.bolt("liens")


@pytest.mark.usefixtures("lines")
def test_unknown_input_like_no_other_gets_all_known(topology):
    with pytest.raises(TopologyError, match=r"'xyz' is unknown.*components so far: lines"):
        topology.bolt("xyz")


def test_input_of_another_topology(lines):
    with pytest.raises(TopologyError, match="another topology, not of 'second'"):
        Topology("second").bolt(lines)


def test_bolt_without_parentheses(topology):
    def words(lines):
        return lines

    with pytest.raises(TopologyError, match="'words' is no component yet"):
        topology.bolt(words)


@pytest.mark.usefixtures("lines")
def test_bolt_without_inputs(topology):
    with pytest.raises(TopologyError, match=r"'words' reads from nothing.*@topology.bolt\(lines\)"):

        @topology.bolt()
        def words():
            return None


def test_inputs_in_a_list(topology, lines):
    with pytest.raises(TopologyError, match=r"several arguments: @topology.bolt\(left, right\)"):
        topology.bolt([lines, lines])


def test_spout_with_an_input(topology, lines):
    with pytest.raises(TopologyError, match=r"a spout reads from no component.*'lines'"):
        topology.spout(lines)


def test_component_cannot_be_decorated_again(topology, lines):
    with pytest.raises(TopologyError, match="'lines' is a spout already"):
        topology.bolt(lines)(lines)


def test_what_is_no_function(topology, lines):
    with pytest.raises(TopologyError, match="a spout is a function, not 5"):
        topology.spout(5)
    with pytest.raises(TopologyError, match="a bolt is a function, not None"):
        topology.bolt(lines)(None)


def test_import_of_the_topology_room_leaves_out_pyspark():
    code = "import sys, stormkeeper.topology.plan; print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"


def test_components_are_given_another_parallelism():
    topology = make({"a": ((), 1), "b": (("a",), 2)})
    spread(topology, {"a": 3, "b": 1, "not there": 7})
    tasks = {each.component.id: each.task_end for each in plan(topology).executors}
    assert tasks == {"a": 3, "b": 4}
