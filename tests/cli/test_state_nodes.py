from stormkeeper.cli import state
from stormkeeper.state import survey
from stormkeeper.state.node_values import decode
from stormkeeper.thrift.records import StormBase, TopologyStatus
from stormkeeper.thrift.serialization import Compression, serialize
from support.memory_state import MemoryEnsemble

BASE = serialize(StormBase("wc", TopologyStatus.ACTIVE, 2, leader_epoch=7), Compression.PLAIN)


def found():
    session = MemoryEnsemble().session()
    session.mkdirs("/storms")
    session.set_data("/storms/wc-1", BASE)
    session.set_data("/storms/wc-1", BASE)
    session.set_ephemeral_node("/supervisors/sup-a", b"what")
    nodes = survey.read(session).nodes
    session.close()
    return nodes


def test_a_tree_is_indented_and_in_columns():
    lines = list(state.tree_lines(found(), "/"))
    assert [line.split() for line in lines] == [
        ["NODE", "HOLDS", "BYTES"],
        ["/", "directory", "0"],
        ["storms", "directory", "1"],
        ["wc-1", "StormBase", str(len(BASE))],
        ["supervisors", "directory", "1"],
        ["sup-a", "bytes", "4", "ephemeral,", "unreadable"],
    ]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 0, 2, 4, 2, 4]
    kinds = ["HOLDS", "dir", "dir", "StormBase", "dir", "bytes"]
    assert len({line.index(kind) for line, kind in zip(lines, kinds, strict=True)}) == 1


def test_the_tree_of_a_part_begins_with_its_whole_path():
    nodes = {path: node for path, node in found().items() if path.startswith("/storms")}
    lines = list(state.tree_lines(nodes, "/storms"))
    assert [line.split()[0] for line in lines] == ["NODE", "/storms", "wc-1"]
    assert lines[2].startswith("  wc-1")


def test_names_that_a_terminal_would_obey_are_escaped():
    node = found()["/storms"]
    (_, line) = state.tree_lines({"/a\u202eb": node}, "/a\u202eb")
    assert line.startswith("/a\\u202eb ")


def detail(path, node):
    return state.node_detail(path, node, decode(path, node.data))


def test_a_node_as_an_json_line():
    nodes = found()
    assert state.node_summary("/storms/wc-1", nodes["/storms/wc-1"]) == {
        "path": "/storms/wc-1",
        "kind": "StormBase",
        "bytes": len(BASE),
        "version": 1,
        "ephemeral": False,
        "children": 0,
        "unreadable": None,
    }
    reason = state.node_summary("/supervisors/sup-a", nodes["/supervisors/sup-a"])["unreadable"]
    assert reason.startswith("not a SupervisorInfo: ")
    assert state.node_summary("/storms", nodes["/storms"])["children"] == 1
    told = detail("/storms/wc-1", nodes["/storms/wc-1"])
    assert told.pop("value")["status"] == "ACTIVE"
    assert told == {
        "path": "/storms/wc-1",
        "kind": "StormBase",
        "version": 1,
        "ephemeral": False,
        "epoch": 7,
        "note": None,
    }
    told = detail("/supervisors/sup-a", nodes["/supervisors/sup-a"])
    assert (told["ephemeral"], told["value"]) == (
        True,
        {"hex": b"what".hex(), "text": "what"},
    )
    assert "not a SupervisorInfo" in told["note"]
