"""Packages that are made on the submitter's machine."""

import pytest

from stormkeeper.client import package_builder
from stormkeeper.client.package_builder import SubmissionRequest
from stormkeeper.errors import TopologyError
from stormkeeper.topology.package import archive
from support.packages import STREAMING, tree, wheel

TOPOLOGY = """
import sys
from stormkeeper.topology import Topology

topology = Topology("word-count", conf={"arguments": sys.argv[1:]})

@topology.spout(parallelism=2)
def lines(spark):
    return spark.readStream.format("rate").load()

@topology.bolt(lines)
def totals(lines):
    return lines.writeStream.format("noop")
"""


def pack(given):
    """Return a package and what was said while it was made."""
    said = []
    with (
        package_builder.collect_code(given) as code,
        package_builder.describing_code(given, code) as described,
    ):
        description = described()
        with package_builder.build_package(given, code, description, said.append) as packed:
            package = archive.read_package(packed.file)
            assert packed.manifest == package.manifest
            assert packed.description == package.description
            return package, said


def test_a_topology_with_what_comes_along(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(TOPOLOGY)
    tree(tmp_path, {"helper.py": "x = 1\n", "a.jar": b"PK"})
    package, said = pack(
        SubmissionRequest(
            code=script,
            name="nightly",
            arguments=("--day", "1"),
            py_files=(tmp_path / "helper.py",),
            jars=(tmp_path / "a.jar",),
            jvm_packages=("org.x:y:1.0",),
        )
    )
    manifest = package.manifest
    assert manifest.name == "nightly"
    assert manifest.entry_point == "code/job.py"
    assert manifest.arguments == ("--day", "1")
    assert manifest.py_files == ("py-files/helper.py",)
    assert manifest.jars == ("jars/a.jar",)
    assert manifest.jvm_packages == ("org.x:y:1.0",)
    assert package.description.conf == {"arguments": ["--day", "1"]}
    assert [query.id for query in package.description.queries] == ["totals"]
    assert said == ["packing"]


def test_without_a_name_it_is_called_as_it_calls_itself(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(TOPOLOGY)
    assert pack(SubmissionRequest(code=script))[0].manifest.name == "word-count"


def test_a_plain_script_is_called_after_its_file(tmp_path):
    script = tmp_path / "plain_job.py"
    script.write_text(STREAMING)
    package, _ = pack(SubmissionRequest(code=script))
    assert package.manifest.name == "plain-job"
    assert package.description.kind == "script"


def test_a_wheel_imports_its_own_package(tmp_path):
    files = {
        "counting/__init__.py": "",
        "counting/naming.py": "NAME = 'of-a-wheel'\n",
        "counting/__main__.py": (
            "from .naming import NAME\nimport counting\n" + TOPOLOGY.replace('"word-count"', "NAME")
        ),
    }
    package, _ = pack(SubmissionRequest(code=wheel(tmp_path, "counting", "1.0", files)))
    assert package.manifest.name == "of-a-wheel"
    assert package.manifest.entry_point == "code/counting/__main__.py"


def test_a_topology_in_a_module_beside_the_script_of_a_wheel(tmp_path):
    files = {
        "counting/__init__.py": "",
        "counting/__main__.py": "from .counts import topology\n",
        "counting/counts.py": TOPOLOGY,
    }
    package, _ = pack(SubmissionRequest(code=wheel(tmp_path, "counting", "1.0", files)))
    assert (package.description.kind, package.manifest.name) == ("topology", "word-count")


@pytest.mark.parametrize(
    ("files", "given", "said"),
    [
        ({"job.py": "def f(:\n"}, {}, r"job\.py, line 1: invalid syntax"),
        ({"job.py": "import nowhere_to_be_found\n"}, {}, r"job\.py, line 1: .*nowhere_to_be_found"),
        (
            {"job.py": "", "requirements.txt": "# what it needs\n-e ../mine\n"},
            {},
            r"requirements\.txt, line 2: pip's option -e cannot be sent",
        ),
        ({"job.py": ""}, {"name": "a/b"}, r"'a/b' is no name for a topology"),
    ],
)
def test_faults_are_found_before_anything_is_made(tmp_path, files, given, said):
    folder = tree(tmp_path, files)
    with (
        pytest.raises(TopologyError, match=said),
        package_builder.collect_code(SubmissionRequest(code=folder / "job.py", **given)),
    ):
        pass


def test_requirements_from_another_file(tmp_path):
    folder = tree(
        tmp_path, {"job.py": "", "requirements.txt": "-e no\n", "mine.txt": "ok\n==bad\n"}
    )
    given = SubmissionRequest(code=folder / "job.py", requirements=folder / "mine.txt")
    with (
        pytest.raises(TopologyError, match=r"mine\.txt, line 2: '==bad' is no requirement"),
        package_builder.collect_code(given),
    ):
        pass


def test_a_file_of_requirements_that_is_not_there(tmp_path):
    folder = tree(tmp_path, {"job.py": ""})
    given = SubmissionRequest(code=folder / "job.py", requirements=folder / "gone.txt")
    with (
        pytest.raises(TopologyError, match=r"gone\.txt cannot be read"),
        package_builder.collect_code(given),
    ):
        pass


def test_what_the_cluster_has_is_not_asked_of_pip(tmp_path):
    folder = tree(tmp_path, {"job.py": STREAMING, "requirements.txt": "pyspark\n"})
    package, said = pack(SubmissionRequest(code=folder / "job.py"))
    assert package.manifest.requirements == ()
    assert said == ["packing"]


def test_wheels_come_along(tmp_path, monkeypatch):
    index = tree(tmp_path / "index", {"nothing": ""})
    wheel(index, "tiny", "1.0", {"x.py": ""})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    folder = tree(tmp_path / "mine", {"job.py": STREAMING, "requirements.txt": "tiny\n"})
    package, said = pack(SubmissionRequest(code=folder / "job.py", with_wheels=True))
    assert package.manifest.requirements == ("tiny==1.0",)
    assert package.manifest.wheels == ("wheels/tiny-1.0-py3-none-any.whl",)
    choosing = f"choosing versions for {(folder / 'requirements.txt').resolve()}"
    assert said == [choosing, "gathering wheels", "packing"]
