"""What travels of a script, a folder and a wheel, and which script runs."""

from pathlib import Path

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.package.code import collect
from support.packages import SCRIPT, tree, wheel

TOPOLOGY = """\
from stormkeeper.topology import Topology

topology = Topology("t")

@topology.bolt("liens")
def words(lines):
    return lines
"""


@pytest.fixture
def empty(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def travelling(code):
    return sorted(file.relative_to(code.root).as_posix() for file in code.files)


def test_a_script_alone(tmp_path, empty):
    tree(tmp_path, {"my_job.py": SCRIPT, "other.py": "", "data.csv": ""})
    code = collect(tmp_path / "my_job.py", empty)
    assert travelling(code) == ["my_job.py"]
    assert (code.root, code.script) == (tmp_path, tmp_path / "my_job.py")
    assert code.name == "my-job"
    assert code.requirements({}) == ()


def test_script_brings_the_modules_that_it_imports(tmp_path, empty):
    tree(
        tmp_path,
        {
            "job.py": "import json\nimport first\ndef later():\n    import folder.inner\n",
            "first.py": "from second import x",
            "second.py": "x = 1",
            "third.py": "",
            "folder/__init__.py": "from . import beside",
            "folder/inner.py": "import loose.part",
            "folder/beside.py": "",
            "folder/data.csv": "",
            "folder/__pycache__/inner.pyc": "",
            "loose/part.py": "",
            "json/no_package.txt": "",
            "unused/__init__.py": "",
        },
    )
    assert travelling(collect(tmp_path / "job.py", empty)) == [
        "first.py",
        "folder/__init__.py",
        "folder/beside.py",
        "folder/data.csv",
        "folder/inner.py",
        "job.py",
        "loose/part.py",
        "second.py",
    ]


def test_a_script_that_is_a_link(tmp_path, empty):
    tree(tmp_path, {"code/job.py": "import helpers", "code/helpers.py": ""})
    (tmp_path / "link.py").symlink_to("code/job.py")
    code = collect(tmp_path / "link.py", empty)
    assert (travelling(code), code.script.name) == (["helpers.py", "job.py"], "job.py")


def test_the_requirements_beside_a_script(tmp_path, empty):
    tree(tmp_path, {"job.py": SCRIPT, "requirements.txt": "pyspark\nRequests==2.32.5\n-e .\n"})
    code = collect(tmp_path / "job.py", empty)
    assert travelling(code) == ["job.py", "requirements.txt"]
    with pytest.raises(TopologyError, match=r"^.*requirements.txt, line 3: pip's option -e"):
        code.requirements({"pyspark": "4.3.0"})
    tree(tmp_path, {"requirements.txt": "pyspark\nRequests==2.32.5\n"})
    (required,) = collect(tmp_path / "job.py", empty).requirements({"pyspark": "4.3.0"})
    assert (required.text, required.line) == ("requests==2.32.5", 2)


@pytest.mark.parametrize(
    ("files", "script"),
    [
        (["__main__.py", "topology.py", "a.py"], "__main__.py"),
        (["topology.py", "a.py", "sub/__main__.py"], "topology.py"),
        (["only.py", "sub/a.py", "sub/b.py"], "only.py"),
    ],
)
def test_the_script_of_a_folder(tmp_path, empty, files, script):
    folder = tree(tmp_path / "my jobs", dict.fromkeys([*files, "data/x.csv"], ""))
    code = collect(folder, empty)
    assert travelling(code) == sorted([*files, "data/x.csv"])
    assert (code.script, code.name) == (folder / script, "my-jobs")


@pytest.mark.parametrize(
    ("files", "said"), [(["a.py", "b.py"], "but a.py, b.py: give"), (["x"], "and no other script")]
)
def test_a_folder_without_the_script(tmp_path, empty, files, said):
    folder = tree(tmp_path / "folder", dict.fromkeys(files, ""))
    with pytest.raises(TopologyError, match=rf"no __main__.py and no topology.py .*, {said}"):
        collect(folder, empty)


def test_a_script_of_a_folder_that_is_a_link(tmp_path, empty):
    """Here Python would look for its modules where the link leads, and in the cluster beside it."""
    folder = tree(tmp_path / "folder", {"src/job.py": "import helpers", "src/helpers.py": ""})
    (folder / "topology.py").symlink_to("src/job.py")
    with pytest.raises(TopologyError, match=r"topology\.py is a link, .* put the script itself"):
        collect(folder, empty)


def test_the_folder_in_which_one_stands(tmp_path, empty, monkeypatch):
    folder = tree(tmp_path / "jobs", {"topology.py": "import a", "a.py": "", "sub/b": ""})
    monkeypatch.chdir(folder)
    code = collect(Path(), empty)
    assert travelling(code) == ["a.py", "sub/b", "topology.py"]
    assert code.name == "jobs"


def test_a_module_that_the_script_needs_stays_behind(tmp_path, empty):
    folder = tree(
        tmp_path / "folder",
        {"topology.py": "import helpers", "helpers.py": "", ".stormignore": "helpers.py"},
    )
    with pytest.raises(TopologyError, match=r"topology.py imports helpers, and .* stays behind"):
        collect(folder, empty)


@pytest.mark.parametrize(
    ("source", "line", "said"),
    [
        ("x = (\n", 1, r"'\(' was never closed"),
        ("import sys\nimport not_there_at_all\n", 2, "No module named 'not_there_at_all'"),
    ],
)
def test_a_fault_is_told_with_file_and_line(tmp_path, empty, source, line, said):
    tree(tmp_path, {"job.py": source, "folder/topology.py": source})
    with pytest.raises(TopologyError, match=rf"^{tmp_path}/job.py, line {line}: {said}"):
        collect(tmp_path / "job.py", empty)
    with pytest.raises(
        TopologyError, match=rf"^{tmp_path}/folder/topology.py, line {line}: {said}"
    ):
        collect(tmp_path / "folder", empty)
    packed = wheel(tmp_path, "mine", "1.0", {"mine/__main__.py": source})
    with pytest.raises(TopologyError, match=rf"^{packed}/mine/__main__.py, line {line}: {said}"):
        collect(packed, empty)


def test_a_module_of_py_files_is_there(tmp_path, empty):
    tree(tmp_path, {"job.py": "import helpers", "elsewhere/helpers.py": ""})
    with pytest.raises(TopologyError, match="No module named 'helpers'"):
        collect(tmp_path / "job.py", empty)
    code = collect(tmp_path / "job.py", empty, [tmp_path / "elsewhere" / "helpers.py"])
    assert travelling(code) == ["job.py"]


def test_a_wheel(tmp_path, empty):
    files = {"mine/__init__.py": "", "mine/__main__.py": "import mine.steps", "mine/steps.py": ""}
    requires = ["requests (>=2)", "extra-only==1 ; extra == 'more'", "tzdata; os_name == 'nt'"]
    code = collect(wheel(tmp_path, "mine", "1.0", files, requires=requires), empty)
    assert [name for name in travelling(code) if "dist-info" not in name] == sorted(files)
    assert code.script == empty / "mine" / "__main__.py"
    assert code.name == "mine"
    assert [r.text for r in code.requirements({})] == ["requests>=2", 'tzdata; os_name == "nt"']


def test_the_requirements_of_a_wheel_that_cannot_be_sent(tmp_path, empty):
    requires = ["x @ https://u:secret@host/x.whl"]
    code = collect(
        wheel(tmp_path, "mine", "1.0", {"mine/__main__.py": ""}, requires=requires), empty
    )
    with pytest.raises(TopologyError, match=r"^the METADATA of .*whl, line 1: the address") as said:
        code.requirements({})
    assert "secret" not in str(said.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.py", "cannot be read: No such file"),
        ("none", "is not there: name a script"),
        ("text.txt", "is no topology: name a script"),
        ("bad.whl", "does not have the name of a wheel"),
        ("x-1.0-py3-none-any.whl", "cannot be read: File is not a zip file"),
    ],
)
def test_what_cannot_be_submitted(tmp_path, empty, name, said):
    tree(tmp_path, {"text.txt": "", "bad.whl": "", "x-1.0-py3-none-any.whl": "no zip"})
    with pytest.raises(TopologyError, match=said):
        collect(tmp_path / name, empty)


def test_what_is_to_be_installed_need_not_be_here(tmp_path):
    files = {"job.py": "import not_there_at_all\n", "requirements.txt": "not-there==1\n"}
    folder = tree(tmp_path / "code", files)
    assert collect(folder / "job.py", tmp_path).script.name == "job.py"
    assert collect(folder, tmp_path).script.name == "job.py"
    (folder / "requirements.txt").unlink()
    required = ("not-there==1\n", "mine.txt")
    assert collect(folder / "job.py", tmp_path, (), required).required == required


@pytest.mark.parametrize("named", ["", "spark-pipeline.yml"])
def test_a_project_of_declarative_pipelines_is_refused(tmp_path, empty, named):
    folder = tree(tmp_path / "lake", {"spark-pipeline.yml": "name: lake", "topology.py": SCRIPT})
    with pytest.raises(TopologyError, match=r"Pipelines .* are not supported: .* Supported are"):
        collect(folder / named, empty)
