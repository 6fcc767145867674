"""Wheels that can lie in a folder, and those that cannot."""

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.package.code import unpack_wheel
from support.packages import wheel


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_a_wheel_is_laid_out(tmp_path, folder):
    files = {"my_jobs/__main__.py": "x = 1", "my_jobs/deep/__main__.py": "", "alone.py": ""}
    requires = ["requests>=2", "more; extra == 'm'", "not a requirement"]
    laid_out = unpack_wheel(wheel(tmp_path, "my_jobs", "1.0", files, requires=requires), folder)
    assert (laid_out.name, laid_out.script) == ("my-jobs", folder / "my_jobs" / "__main__.py")
    assert laid_out.required is not None
    assert laid_out.required[0] == "requests>=2\nnot a requirement"
    assert laid_out.script.read_text() == "x = 1"
    assert (folder / "alone.py").is_file()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"mine/a.py": ""}, "must have one package with a __main__.py, .* and has none"),
        ({"a/__main__.py": "", "b/__main__.py": ""}, "and has a/__main__.py, b/__main__.py"),
        ({"a/__main__.py": "", "x-1.0.data/scripts/run": ""}, "it has a folder .data"),
        ({"a/__main__.py": "", "../b.py": ""}, r"'../b.py' has the part '..'"),
    ],
)
def test_a_wheel_that_cannot_be_sent(tmp_path, folder, files, said):
    with pytest.raises(TopologyError, match=said):
        unpack_wheel(wheel(tmp_path, "x", "1.0", files), folder)


def test_a_wheel_for_one_platform(tmp_path, folder):
    packed = wheel(tmp_path, "x", "1.0", {"x/__main__.py": ""}, tag="cp311-cp311-linux_x86_64")
    with pytest.raises(TopologyError, match="is for one platform: submit the script that uses it"):
        unpack_wheel(packed, folder)


def test_a_broken_wheel(tmp_path, folder):
    packed = wheel(tmp_path, "x", "1.0", {"x/__main__.py": "y = 1"})
    packed.write_bytes(packed.read_bytes().replace(b"y = 1", b"y = 2"))
    with pytest.raises(TopologyError, match="cannot be read: Bad CRC-32"):
        unpack_wheel(packed, folder)
