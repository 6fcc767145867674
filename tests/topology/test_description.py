"""A topology's description: made from it, sent as JSON, believed only as far as it is right."""

import datetime
import enum
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import SerializationError, TopologyError
from stormkeeper.topology import Topology, description
from stormkeeper.topology.description import (
    MAX_BYTES,
    decode,
    encode,
    of_script,
    of_topology,
    with_parallelism,
)
from stormkeeper.topology.plan import plan
from stormkeeper.topology.topology import on_declared
from support.topologies import graphs, make

CONFS = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


def word_count(**conf):
    return make({"lines": ((), 1), "words": (("lines",), 2), "out": (("words",), 1)}, conf)


@given(graphs().filter(bool), CONFS, st.booleans(), st.booleans())
def test_it_is_read_as_it_was_written(graph, conf, needs_session, session_first):
    described = of_topology(
        make(graph, conf), needs_session=needs_session, session_first=session_first
    )
    read = decode(encode(described))
    assert read == described
    assert read.conf == conf
    assert (read.needs_session, read.session_first) == (needs_session, session_first)
    hints = {component.id: 3 for component in described.components}
    assert with_parallelism(described, hints).session_first is session_first


@given(graphs().filter(bool))
def test_its_plan_is_the_topologys(graph):
    topology = make(graph)
    described = decode(encode(of_topology(topology)))
    assert described.plan() == plan(topology)


def test_what_it_looks_like():
    assert json.loads(encode(of_topology(word_count(a=(1, "x"))))) == {
        "version": 1,
        "kind": "topology",
        "name": "t",
        "conf": {"a": [1, "x"]},
        "needs_session": False,
        "session_first": False,
        "components": [
            {"id": "lines", "kind": "spout", "inputs": [], "parallelism": 1},
            {"id": "words", "kind": "bolt", "inputs": ["lines"], "parallelism": 2},
            {"id": "out", "kind": "bolt", "inputs": ["words"], "parallelism": 1},
        ],
        "queries": [{"id": "out", "components": ["lines", "words", "out"]}],
        "executors": [
            {"component": "lines", "query": "out", "task_start": 1, "task_end": 1},
            {"component": "out", "query": "out", "task_start": 2, "task_end": 2},
            {"component": "words", "query": "out", "task_start": 3, "task_end": 4},
        ],
    }


def test_a_script_is_in_one_worker_as_a_whole():
    described = decode(encode(of_script(Path("my job.v2.py"))))
    assert (described.kind, described.name) == ("script", "my-job-v2")
    assert described.plan().queries == ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (datetime.date(2026, 1, 1), r"the conf of the topology 't'\['a'\] is .* \(date\)"),
        (float("nan"), r"\['a'\] is nan \(float\), which JSON does not have: use text"),
        (2**63, r"\['a'\] is 9223372036854775808 \(int\)"),
        ([1, {"b": {2}}], r"\['a'\]\[1\]\['b'\] is \{2\} \(set\)"),
        ({1: 2}, r"\['a'\] has the key 1: keys are text"),
        ("\ud800", r"\['a'\] is '\\ud800' \(str\)"),
    ],
)
def test_what_json_does_not_have(value, said):
    with pytest.raises(TopologyError, match=said):
        of_topology(word_count(a=value))


class Level(enum.IntEnum):
    LOW = 3


class Mode(str, enum.Enum):  # noqa: UP042 - whose `str` is not its text
    FAST = "fast"


def test_members_of_enums_are_what_they_stand_for():
    described = of_topology(word_count(level=Level.LOW, mode=Mode.FAST, table={Mode.FAST: 1}))
    assert decode(encode(described)).conf == {"level": 3, "mode": "fast", "table": {"fast": 1}}
    assert type(described.conf["mode"]) is str


def test_a_conf_that_contains_itself():
    conf = {}
    conf["a"] = conf
    with pytest.raises(TopologyError, match="is nested more than 32 deep"):
        of_topology(word_count(**conf))


def test_line_that_is_too_long():
    described = of_topology(word_count(table="x" * MAX_BYTES))
    with pytest.raises(TopologyError, match=r"1,0\d\d,\d\d\d bytes, and may have 1,048,576: bring"):
        encode(described)
    with pytest.raises(SerializationError, match="may have 1,048,576 bytes, not 1,048,577"):
        decode(b" " * (MAX_BYTES + 1))


def changed(**fields):
    return json.dumps(json.loads(encode(of_topology(word_count()))) | fields).encode()


COMPONENTS = json.loads(changed())["components"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no description of a topology: Input data was truncated"),
        (b"\xff", "no description"),
        (b"[" * 100_000, "no description"),
        (b"[]", "no description"),
        (changed(version=2), "has the version 2, and this release .* reads version 1: submit"),
        (changed(name=7), r"Expected `str`, got `int` - at `\$.name`"),
        (changed(more=1), "unknown field `more`"),
        (changed(name="no/name"), "'no/name' is no name for a topology"),
        (changed(name="no/name", kind="script"), "'no/name' is no name for a topology"),
        (changed(kind="script"), "its components are others"),
        (changed(queries=[]), "its queries are others"),
        (changed(executors=[]), "its executors are others"),
        (changed(components=[]), "the topology 't' is empty"),
        (changed(components=COMPONENTS[1:]), "the input 'lines' is unknown"),
        (changed(components=[COMPONENTS[0] | {"parallelism": 0}]), "a whole number of 1 or more"),
        (changed(components=[COMPONENTS[0] | {"id": "a/b"}]), "'a/b' is no id for a spout"),
        (
            changed(components=[COMPONENTS[0] | {"inputs": ["lines"]}, *COMPONENTS[1:]]),
            "its components are others",
        ),
        (changed(conf={"a": 2**64}), r"its conf\['a'\] is 18446744073709551616"),
    ],
)
def test_what_is_no_description(data, said):
    with pytest.raises(SerializationError, match=said):
        decode(data)


def test_reading_one_declares_no_topology():
    heard = []
    data = encode(of_topology(word_count()))
    token = on_declared.set(heard.append)
    try:
        decode(data).plan()
    finally:
        on_declared.reset(token)
    assert heard == []


def test_function_of_a_description_raises():
    rebuilt = description._rebuilt(of_topology(word_count()))
    assert isinstance(rebuilt, Topology)
    with pytest.raises(NotImplementedError, match="a description has no functions"):
        rebuilt.components["words"](None)


def test_another_parallelism_gives_other_tasks_and_nothing_else():
    before = of_topology(make({"a": ((), 1), "b": (("a",), 2)}, {"x": 1}))
    after = description.with_parallelism(before, {"b": 4, "not there": 2})
    assert [(each.component, each.task_start, each.task_end) for each in after.executors] == [
        ("a", 1, 1),
        ("b", 2, 5),
    ]
    assert (after.name, after.conf, after.queries) == (before.name, before.conf, before.queries)
    assert decode(encode(after)) == after
    assert description.with_parallelism(before, {"a": 1, "b": 2}) is before


def test_a_script_has_no_parallelism_to_change():
    script = of_script(Path("job.py"))
    assert description.with_parallelism(script, {"job": 3}) is script
