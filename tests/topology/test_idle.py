"""Scripts of which the source says that they start nothing."""

import zipfile
from pathlib import Path

import pytest

from stormkeeper.errors import TopologyError
from stormkeeper.topology.script_source import check_starts
from support.packages import STREAMING, tree

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def fault(tmp_path):
    """What is said of a script with modules beside it."""

    def judge(script, beside=None, **more):
        folder = tree(tmp_path, {"job.py": script, **(beside or {})})
        try:
            check_starts(folder / "job.py", **more)
        except TopologyError as error:
            return str(error)
        return None

    return judge


@pytest.mark.parametrize(
    ("script", "beside"),
    [
        ("", {}),
        ("print(1)\n", {}),
        ("import sys, json\nfrom pyspark.sql import SparkSession\nSparkSession.builder.x()\n", {}),
        ("from helper import f\nf()\n", {"helper.py": "def f(): return 1\n"}),
        ("import parts.one\n", {"parts/__init__.py": "", "parts/one.py": "x = 1\n"}),
    ],
)
def test_without_a_stream_there_is_nothing_to_run(fault, script, beside):
    assert "starts no streaming query: there is nothing to run" in fault(script, beside)


@pytest.mark.parametrize(
    ("script", "beside"),
    [
        (STREAMING, {}),
        ("import helper\n", {"helper.py": STREAMING}),
        ("from parts import one\n", {"parts/__init__.py": "", "parts/one.py": STREAMING}),
        # A module from elsewhere may start one, and so may what only running it would tell.
        ("from yaml import safe_load\nsafe_load('')\n", {}),
        ("import nowhere_to_be_found\n", {}),
        ("from importlib import import_module\nimport_module('a')\n", {}),
        ("frame = 1\ngetattr(frame, 'write' + 'Stream')\n", {}),
        ("spark = 1\nspark._jvm.org.Job.main()\n", {}),
        ("import helper\n", {"helper.py": "def f(:\n"}),
        ("def f(:\n", {}),
    ],
)
def test_where_anything_is_open_nothing_is_said(fault, script, beside):
    assert fault(script, beside) is None


def test_what_comes_along_counts(fault, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    module = tmp_path / "elsewhere" / "brought.py"
    archive = tmp_path / "elsewhere" / "brought.zip"
    module.write_text(STREAMING)
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("zipped.py", STREAMING)
    assert fault("import brought\n", py_files=[module]) is None
    assert fault("import zipped\n", py_files=[archive]) is None
    module.write_text("x = 1\n")
    assert "nothing to run" in fault("import brought\n", py_files=[module])


def test_a_script_in_a_package_has_relative_imports(tmp_path):
    files = {"jobs/__init__.py": "", "jobs/__main__.py": "from . import one\n"}
    folder = tree(tmp_path, files | {"jobs/one.py": STREAMING})
    check_starts(folder / "jobs" / "__main__.py", [folder])
    tree(folder, {"jobs/one.py": "x = 1\n"})
    with pytest.raises(TopologyError, match="nothing to run"):
        check_starts(folder / "jobs" / "__main__.py", [folder])
    tree(folder, {"jobs/__init__.py": STREAMING})
    check_starts(folder / "jobs" / "__main__.py", [folder])


def test_a_compiled_module_cannot_be_read(fault, tmp_path):
    (tmp_path / "fast.cpython-311-x86_64-linux-gnu.so").write_bytes(b"\x7fELF")
    (tmp_path / "fast.abi3.so").write_bytes(b"\x7fELF")
    assert fault("import fast\n") is None


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_the_examples_start_something(example):
    check_starts(example)
