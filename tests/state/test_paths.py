import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import InvalidPathError
from stormkeeper.state import paths

VECTORS = Path(__file__).parent.parent / "vectors"
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


def test_paths_that_storm_did_not_write_when_it_was_watched():
    assert paths.blob_key_sequence("k") == "/blobstoremaxkeysequencenumber/k"
    assert paths.backpressure(ID, "node", 6700) == f"/backpressure/{ID}/node-6700"
    assert paths.tasks(ID) == f"/tasks/{ID}"
    assert paths.task(ID, 7) == f"/tasks/{ID}/7"
    assert paths.taskbeats(ID) == f"/taskbeats/{ID}"
    assert paths.taskbeat(ID, 7) == f"/taskbeats/{ID}/7"
    assert paths.task_errors(ID, 7) == f"/taskerrors/{ID}/7"


names = st.text(
    st.characters(exclude_categories=["C"], exclude_characters="/"), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..") and not paths._FORBIDDEN.search(name))


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
def test_what_is_no_workerbeat(path):
    assert paths.parse_workerbeat(path) is None


@given(names, st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_errors_are_read_back(storm_id, component):
    parsed = paths.parse_component_errors(paths.last_error(storm_id, component))
    assert parsed == (storm_id, component, True)
    if not component.endswith("-last-error"):
        parsed = paths.parse_component_errors(paths.component_errors(storm_id, component))
        assert parsed == (storm_id, component, False)


def test_components_are_encoded_as_java_does():
    assert paths.component_errors("t", "a b*c~d_e-f.g") == "/errors/t/a+b*c%7Ed_e-f.g"
    assert paths.parse_component_errors("/errors/t") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n1.example:6627:6628", ("n1.example", 6627, 6628)),
        ("n1.example:6627", ("n1.example", 6627, 0)),
        ("[::1]:6627:0", ("[::1]", 6627, 0)),
        ("n1.example", None),
        ("n1:x", None),
        ("", None),
    ],
)
def test_nimbus_ids(text, expected):
    assert paths.parse_nimbus_id(text) == expected


def test_a_nimbus_id_is_written_as_storm_3_does():
    assert str(paths.NimbusId("n1", 6627, 0)) == "n1:6627:0"


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
