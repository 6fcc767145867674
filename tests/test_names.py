"""The names of files, topologies, blobs and nodes; and foreign text as it is shown."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.names import (
    blob_key_fault,
    clash,
    file_fault,
    host_port,
    printable,
    root_fault,
    topology_fault,
    topology_name,
)

PARTS = st.sampled_from(["a", "..", ".", "", "~", "C:", "é", "\\", "\0", "x" * 300]) | st.text()


@pytest.mark.parametrize(
    "name", ["a", "code/my_job.py", "code/.hidden", "code/a..b", "code/daten für.csv", "x" * 255]
)
def test_a_name_that_a_file_may_have(name):
    assert file_fault(name) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("/etc/passwd", "is absolute"),
        ("../x", "has the part '..'"),
        ("code/../../x", "has the part '..'"),
        ("code/./x", "has the part '.'"),
        ("code//x", "has the part ''"),
        ("code/", "has the part ''"),
        ("", "has the part ''"),
        ("code\\..\\x", r"has the character '\\'"),
        ("code/x\0.py", r"has the character '\x00'"),
        ("code/x\n", r"has the character '\n'"),
        ("code/x\x9b2J", r"has the character '\x9b'"),
        ("code/a\u202egpj.py", r"has the character '\u202e'"),
        ("code/a\u200b.py", r"has the character '\u200b'"),
        ("code/\udcff", "is no UTF-8"),
        ("code/" + "x" * 256, "has a part of more than 255 bytes"),
        ("code/" + "é" * 128, "has a part of more than 255 bytes"),
        ("x/" * 600 + "x", "has 1,201 bytes, and may have 1,024"),
        ("x/" * 64 + "x", "has 65 parts, and may have 64"),
    ],
)
def test_a_name_that_no_file_may_have(name, said):
    assert said in file_fault(name)


@given(st.lists(PARTS, max_size=5).map("/".join))
def test_a_good_name_is_inside_of_its_folder(name):
    if file_fault(name) is None:
        place = Path("/folder", name)
        assert ".." not in place.parts
        assert place.is_relative_to("/folder")
        assert place != Path("/folder")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "a"], "two files named 'a' would be the same file"),
        (["a", "a/b"], "'a' would be both a file and the folder of 'a/b'"),
        (["a/b/c/d", "a/b"], "'a/b' would be both a file and the folder of 'a/b/c/d'"),
    ],
)
def test_files_in_each_others_place(names, said):
    assert said in clash(names)


def test_files_beside_each_other():
    assert clash(["a/b", "a/c", "b", "ab", "a.b", "c/a"]) is None


@pytest.mark.parametrize("name", ["wc", "word count", "a_b-c", "wörter", "9", "a  b"])
def test_topologies_may_have_the_names_that_storm_allows(name):
    assert topology_fault(name) is None


@pytest.mark.parametrize("name", ["", "a.b", "a/b", "a:b", "a\\b"])
def test_refused_names_have_storms_words(name):
    assert topology_fault(name) == (
        f"Topology name '{name}' is not valid. It can't be null and it must match ^[^/.:\\\\]+$"
    )


@pytest.mark.parametrize("name", ["a@b", "a\nb", "x" * 220, "a\u202eb", "a\x1b[31m"])
def test_a_topology_has_no_name_under_which_no_code_is_kept(name):
    fault = topology_fault(name)
    assert "as its code is kept under it" in fault
    assert fault.isprintable()


@pytest.mark.parametrize("name", [" ", " a", "a\t", "\u3000"])
def test_a_topology_has_no_name_with_a_blank_at_an_end(name):
    assert topology_fault(name).endswith("it begins or ends with a blank")


def test_no_key_of_a_blob_is_blank():
    assert blob_key_fault(" ") is not None
    assert blob_key_fault("a b") is None


@pytest.mark.parametrize("root", ["/", "/storm", "/a/b"])
def test_a_root_in_zookeeper(root):
    assert root_fault(root) is None


@pytest.mark.parametrize(
    "root", ["", "storm", "/a/", "//a", "/a/../b", "/./a", "/a b", "/a\0", "/a\u202eb", "/\ufeff"]
)
def test_bad_roots_in_zookeeper(root):
    assert root_fault(root) is not None


@given(st.text())
def test_printable_text_is_visible(text):
    assert printable(text).isprintable()
    assert set(printable(text + "\n", keep="\n")) - set(printable(text)) <= {"\n"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe", "größe"),
        ("\x1b[31mred\x00", r"\x1b[31mred\x00"),
        ("a\u202eb\nc", r"a\u202eb\nc"),
        ("\ud800", r"\ud800"),
    ],
)
def test_terminal_control_characters_are_escaped(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("host", "written"), [("a", "a:67"), ("10.0.0.1", "10.0.0.1:67"), ("::1", "[::1]:67")]
)
def test_a_host_and_its_port_in_one_word(host, written):
    assert host_port(host, 67) == written


@pytest.mark.parametrize(
    ("storm_id", "name"),
    [
        ("word-count-1-1700000000", "word-count"),
        ("a-2-3-4", "a-2"),
        ("no-number-x", "no-number-x"),
        ("-1-2", "-1-2"),
    ],
)
def test_a_topologys_name_is_in_its_id(storm_id, name):
    assert topology_name(storm_id) == name
