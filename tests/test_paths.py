import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stormkeeper import paths
from stormkeeper.errors import InvalidPathError
from stormkeeper.names import path_fault

VECTORS = Path(__file__).parent / "vectors"
ID = "wc-1-1700000000"


def storm_wrote():
    """The paths that a running Storm made, without its root."""
    lines = (VECTORS / "znodes-gzip.jsonl").read_text().splitlines()
    return {json.loads(line)["path"].removeprefix("/stormgz") or "/" for line in lines}


@pytest.mark.parametrize(
    "path",
    [
        paths.assignment(ID),
        paths.storm(ID),
        paths.supervisor("sup-aaaa-10.0.0.1"),
        paths.workerbeats(ID),
        paths.workerbeat(ID, "sup-aaaa-10.0.0.1", 6700),
        paths.errors(ID),
        paths.component_errors(ID, "split bolt/é"),
        paths.error_prefix(ID, "split bolt/é") + "0000000000",
        paths.last_error(ID, "split bolt/é"),
        paths.nimbus("nimbus1.example:6627:0"),
        paths.blob(f"{ID}-stormcode.ser"),
        paths.blob_holder(f"{ID}-stormcode.ser", "nimbus1.example:6627:0", 1),
        paths.credentials(ID),
        paths.log_config(ID),
        paths.profiler_configs(ID),
        paths.profiler_config(ID, "sup-aaaa-10.0.0.1", 6700, "JPROFILE_STOP"),
        paths.backpressure_of_topology(ID),
    ],
)
def test_paths_are_where_storm_has_them(path):
    assert path in storm_wrote()


def test_directories_are_those_that_storm_makes():
    assert set(paths.DIRECTORIES) <= storm_wrote()


def test_paths_of_unobserved_writes():
    assert paths.blob_key_sequence("k") == "/blobstoremaxkeysequencenumber/k"
    assert paths.blob_record("k", "h:6627:0", 2) == f"{paths.blob_key_sequence('k')}/h:6627:0-2"
    assert paths.backpressure(ID, "node", 6700) == f"/backpressure/{ID}/node-6700"
    assert paths.tasks(ID) == f"/tasks/{ID}"
    assert paths.task(ID, 7) == f"/tasks/{ID}/7"
    assert paths.taskbeats(ID) == f"/taskbeats/{ID}"
    assert paths.taskbeat(ID, 7) == f"/taskbeats/{ID}/7"
    assert paths.taskerrors(ID) == f"/taskerrors/{ID}"
    assert paths.task_errors(ID, 7) == f"/taskerrors/{ID}/7"
    assert paths.task_error_prefix(ID, 7) == f"/taskerrors/{ID}/7/e"
    assert paths.LEADER_LOCK == "/leader-lock"


def test_every_node_of_storm_is_below_a_known_tree():
    assert {paths.first_level(path) for path in storm_wrote()} - {"/"} <= paths.FIRST_LEVEL
    assert set(paths.DIRECTORIES) <= paths.FIRST_LEVEL


@pytest.mark.parametrize(
    ("path", "level"),
    [("/", "/"), ("/storms", "/storms"), ("/storms/a", "/storms"), ("/a/b/c/d", "/a")],
)
def test_first_levels(path, level):
    assert paths.first_level(path) == level


names = st.text(
    st.characters(exclude_categories=["C"], exclude_characters="/"), min_size=1, max_size=20
).filter(lambda name: path_fault(f"/{name}") is None)


@given(names, names, st.integers(0, 65535))
def test_workerbeats_are_read_back(storm_id, node, port):
    path = paths.workerbeat(storm_id, node, port)
    assert paths.parse_workerbeat(path) == (storm_id, node, port)


@pytest.mark.parametrize(
    "path",
    [
        "/workerbeats",
        f"/workerbeats/{ID}",
        f"/workerbeats/{ID}/node",
        f"/workerbeats/{ID}/-6700",
        f"/workerbeats/{ID}/node-",
        f"/workerbeats/{ID}/node-67x",
        f"/workerbeats/{ID}/node-६७",
        f"/workerbeats/{ID}/node-6700/below",
        "/workerbeats//node-6700",
        f"/workerbeatsx/{ID}/node-6700",
        f"/storms/{ID}/node-6700",
    ],
)
def test_other_paths_are_no_workerbeat(path):
    assert paths.parse_workerbeat(path) is None


@given(names, st.integers(0, 65535))
def test_slots_are_read_back(node, port):
    assert paths.parse_slot(f"{node}-{port}") == paths.Slot(node, port)


@example(".")
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_ended_queries_are_read_back_and_are_no_workers(query):
    path = paths.query_end(ID, query)
    assert paths.check(path) == path
    assert paths.parse_query_end(path.rpartition("/")[2]) == query
    assert paths.parse_workerbeat(path) is None


@given(names, st.integers(0, 10**9 - 1))
def test_slots_are_no_ended_queries(node, port):
    assert paths.parse_query_end(f"{node}-{port}") is None


@given(names, st.integers(0, 10**9 - 1))
def test_blob_holders_are_read_back(nimbus_id, version):
    path = paths.blob_holder("key", nimbus_id, version)
    assert paths.parse_blob_holder(path.rpartition("/")[2]) == (nimbus_id, version)


@pytest.mark.parametrize("name", ["", "-1", "node", "node-", "node-x", "node-६७", "n-1234567890"])
def test_other_names_are_no_slot_and_no_holder(name):
    assert paths.parse_slot(name) is None
    assert paths.parse_blob_holder(name) is None


@pytest.mark.parametrize(
    ("name", "task"), [("7", 7), ("0", 0), ("", None), ("-1", None), ("e7", None), ("٣", None)]
)
def test_tasks_are_read_back(name, task):
    assert paths.parse_task(name) == task


@pytest.mark.parametrize(
    "path",
    [
        paths.storm(ID),
        paths.assignment(ID),
        paths.workerbeats(ID),
        paths.workerbeat(ID, "node", 6700),
        paths.last_error(ID, "split"),
        paths.error_prefix(ID, "split"),
        paths.credentials(ID),
        paths.log_config(ID),
        paths.profiler_config(ID, "node", 6700, "JMAP_DUMP"),
        paths.backpressure(ID, "node", 6700),
        paths.task(ID, 7),
        paths.taskbeat(ID, 7),
        paths.task_error_prefix(ID, 7),
    ],
)
def test_whose_a_node_is(path):
    assert paths.storm_id_of(path) == ID


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/storms",
        "/storms/",
        f"/{ID}",
        paths.supervisor(ID),
        paths.nimbus(ID),
        paths.blob(ID),
        paths.blob_key_sequence(ID),
        f"{paths.LEADER_LOCK}/{ID}",
    ],
)
def test_paths_of_no_topology(path):
    assert paths.storm_id_of(path) is None


@given(names, st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_errors_are_a_topologys_whatever_the_component_is_called(storm_id, component):
    for path in (
        paths.last_error(storm_id, component),
        paths.component_errors(storm_id, component),
    ):
        assert paths.check(path) == path
        assert paths.storm_id_of(path) == storm_id
        assert path.count("/") == 3


def test_a_component_whose_name_nothing_can_encode():
    with pytest.raises(InvalidPathError, match=r"'split.ud800' cannot be the name of a component"):
        paths.component_errors("t", "split\ud800")


def test_components_are_encoded_as_java_does():
    assert paths.component_errors("t", "a b*c~d_e-f.g") == "/errors/t/a+b*c%7Ed_e-f.g"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1.example:6627:6628", ("n1.example", 6627, 6628)),
        ("n1.example:6627", ("n1.example", 6627, 0)),
        ("[::1]:6627:0", ("::1", 6627, 0)),
        ("n1.example", None),
        ("n1:x", None),
        ("n1:6627:", None),
        ("n1:6627:0:1", None),
        ("n1:٦٦٢٧", None),
        ("n1:" + "6" * 5000, None),
        ("", None),
    ],
)
def test_nimbus_ids(text, expected):
    assert paths.parse_nimbus_id(text) == expected


def test_a_nimbus_id_is_written_as_storm_3_does():
    assert str(paths.NimbusId("n1", 6627, 0)) == "n1:6627:0"


@pytest.mark.parametrize("host", ["n1", "10.0.0.1", "::1", "fe80::1%eth0"])
def test_a_nimbus_id_is_read_as_it_is_written(host):
    nimbus = paths.NimbusId(host, 6627, 0)
    assert paths.parse_nimbus_id(str(nimbus)) == nimbus


@pytest.mark.parametrize("name", ["a/b", "", ".", "..", "a\nb"])
def test_names_that_would_leave_their_place(name):
    with pytest.raises(InvalidPathError):
        paths.assignment(name)


def test_parents():
    assert paths.parent("/a/b") == "/a"
    assert paths.parent("/a") == "/"
    assert paths.parent("/") == "/"


@pytest.mark.parametrize(
    ("path", "top", "expected"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/ab", "/a", False),
        ("/a", "/a/b", False),
        ("/a", "/", True),
        ("/", "/", True),
    ],
)
def test_trees(path, top, expected):
    assert paths.is_at_or_below(path, top) is expected


@pytest.mark.parametrize("name", [None, 4711])
def test_other_types_are_no_name_and_no_path(name):
    with pytest.raises(TypeError):
        paths.storm(name)
    with pytest.raises(TypeError):
        paths.component_errors("wc-1", name)
    with pytest.raises(TypeError):
        paths.check(name)
