"""Making a package: the same bytes of the same, and nothing that nobody would read."""

import io
import os
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology import description
from stormkeeper.topology.package import archive, manifest
from stormkeeper.topology.package.code import collect
from support.packages import MADE_WITH, contents, of_folder, packed, tree
from support.topologies import make

FILES = {"topology.py": "x = 1\n", "data/b.csv": "1,2\n" * 100, "data/a.bin": bytes(range(256))}


def test_the_same_bytes_of_the_same(tmp_path):
    first = tree(tmp_path / "first" / "job", FILES)
    second = tree(tmp_path / "second" / "job", dict(reversed(FILES.items())))
    for file in second.rglob("*"):
        os.utime(file, (1, 1))
        file.chmod(0o700 if file.is_dir() else 0o640)
    assert packed(of_folder(first))[0].getvalue() == packed(of_folder(second))[0].getvalue()


@pytest.mark.parametrize("change", ["content", "mode", "name", "argument", "requirement"])
def test_other_bytes_of_something_else(tmp_path, change):
    folder = tree(tmp_path, FILES)
    before = packed(of_folder(folder))[0].getvalue()
    more = {}
    if change == "content":
        tree(folder, {"topology.py": "x = 2\n"})
    elif change == "mode":
        (folder / "topology.py").chmod(0o755)
    elif change == "name":
        more["name"] = "other"
    elif change == "argument":
        more["arguments"] = ("1",)
    else:
        more["requirements"] = ("six==1.17.0",)
    assert packed(of_folder(folder, **more))[0].getvalue() != before


def test_what_is_in_it(tmp_path):
    folder = tree(tmp_path / "job", FILES)
    brought = tree(tmp_path, {"helpers.py": "", "vendored.zip": "", "c.jar": "", "s.whl": ""})
    file, manifest = packed(
        of_folder(
            folder,
            arguments=("--day", "1"),
            requirements=("six==1.17.0",),
            py_files=(brought / "vendored.zip", brought / "helpers.py"),
            jars=(brought / "c.jar",),
            wheels=(brought / "s.whl",),
            jvm_packages=("a:b:1",),
        )
    )
    assert zipfile.ZipFile(file).namelist() == [
        "code/data/a.bin",
        "code/data/b.csv",
        "code/topology.py",
        "description.json",
        "jars/c.jar",
        "py-files/helpers.py",
        "py-files/vendored.zip",
        "wheels/s.whl",
        "manifest.json",
    ]
    assert manifest.py_files == ("py-files/vendored.zip", "py-files/helpers.py")
    assert manifest.entry_point == "code/topology.py"
    assert manifest.arguments == ("--day", "1")
    assert manifest.made_with == MADE_WITH


def test_what_a_topology_is_called(tmp_path):
    (tmp_path / "jobs").mkdir()
    code = of_folder(tmp_path / "jobs").code
    described = description.of_topology(make({"a": ((), 1), "b": (("a",), 1)}))
    assert contents(code).topology_name == "jobs"
    assert archive.PackageContents(code, described).topology_name == "t"
    assert archive.PackageContents(code, described, name="mine").topology_name == "mine"
    with pytest.raises(TopologyError, match="'no/name' is no name for a topology"):
        packed(contents(code, name="no/name"))


def test_a_script_in_a_folder(tmp_path):
    code = collect(tree(tmp_path, {"topology.py": "", "a/b.py": ""}), tmp_path)
    assert contents(code).entry_point == "code/topology.py"


def test_two_that_are_brought_under_one_name(tmp_path):
    tree(tmp_path, {"job/a": "", "one/x.py": "", "two/x.py": ""})
    brought = (tmp_path / "one" / "x.py", tmp_path / "two" / "x.py")
    with pytest.raises(TopologyError, match=r"one/x.py and .*two/x.py have the same name"):
        packed(of_folder(tmp_path / "job", py_files=brought))


def test_a_name_that_is_no_text(tmp_path):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    with pytest.raises(TopologyError, match="is no UTF-8"):
        packed(of_folder(tmp_path))


def test_a_file_that_is_gone(tmp_path):
    what = of_folder(tree(tmp_path, FILES))
    (tmp_path / "data" / "b.csv").unlink()
    with pytest.raises(TopologyError, match=r"cannot be packed: .*No such file .*data/b.csv"):
        packed(what)


def test_more_than_a_package_may_have(tmp_path):
    sparse = tmp_path / "table"
    with sparse.open("wb") as file:
        file.truncate(manifest.MAX_BYTES)
    what = of_folder(tmp_path)
    with pytest.raises(TopologyError, match="bytes, and may have 2,000,000,000"):
        packed(what)
    os.truncate(sparse, manifest.FREE_BYTES)
    with pytest.raises(TopologyError, match="may have 100 times the"):
        packed(what)
    os.truncate(sparse, manifest.FREE_BYTES // 2)
    assert packed(what)[1].files[0].size == manifest.FREE_BYTES // 2


def test_times_and_modes_are_fixed(tmp_path):
    file = io.BytesIO()
    archive.write(file, of_folder(tree(tmp_path, FILES)), MADE_WITH)
    info = zipfile.ZipFile(file).getinfo("manifest.json")
    assert info.date_time == (1980, 1, 1, 0, 0, 0)
    assert info.external_attr >> 16 == 0o100644


def test_the_versions_of_this_process():
    assert archive.versions().pyspark == metadata.version("pyspark")
