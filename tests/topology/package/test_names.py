"""Names of files: the same file everywhere, and inside of the package's folder."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.topology.package.names import clash, fault

PARTS = st.sampled_from(["a", "..", ".", "", "~", "C:", "é", "\\", "\0", "x" * 300]) | st.text()


@pytest.mark.parametrize(
    "name", ["a", "code/my_job.py", "code/.hidden", "code/a..b", "code/daten für.csv", "x" * 255]
)
def test_a_name_that_a_file_may_have(name):
    assert fault(name) is None


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
        ("code/\udcff", "is no UTF-8"),
        ("code/" + "x" * 256, "has a part of more than 255 bytes"),
        ("code/" + "é" * 128, "has a part of more than 255 bytes"),
        ("x/" * 600 + "x", "has 1,201 bytes, and may have 1,024"),
        ("x/" * 64 + "x", "has 65 parts, and may have 64"),
    ],
)
def test_a_name_that_no_file_may_have(name, said):
    assert said in fault(name)


@given(st.lists(PARTS, max_size=5).map("/".join))
def test_a_good_name_is_inside_of_its_folder(name):
    if fault(name) is None:
        place = Path("/folder", name)
        assert ".." not in place.parts
        assert place.is_relative_to("/folder")
        assert place != Path("/folder")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "a"], "'a' and 'a' would be the same file"),
        (["code/A.py", "code/a.py"], "'code/A.py' and 'code/a.py' would be the same file"),
        (["stra\u00dfe", "STRASSE"], "would be the same file"),
        (["\u00e9", "e\u0301"], "would be the same file"),
        (["a", "a/b"], "'a' would be both a file and the folder of 'a/b'"),
        (["A/b/c/d", "a/B"], "'a/B' would be both a file and the folder of 'A/b/c/d'"),
    ],
)
def test_files_in_each_others_place(names, said):
    assert said in clash(names)


def test_files_beside_each_other():
    assert clash(["a/b", "a/c", "b", "ab", "a.b", "c/a"]) is None
