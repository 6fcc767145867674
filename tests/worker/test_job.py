from pathlib import Path

import pytest

from stormkeeper.errors import WorkerError
from stormkeeper.topology import Topology, description
from stormkeeper.topology.package import archive
from stormkeeper.topology.package.archive import unpack
from stormkeeper.topology.package.code import collect
from stormkeeper.topology.plan import Claim
from stormkeeper.worker.job import Job, read_package
from support.packages import of_folder, packed, tree


@pytest.fixture
def lay_out(tmp_path):
    """Lays out a package, and reads it as a worker does."""

    def lay(what):
        file, _ = packed(what)
        unpack(file, tmp_path / "package")
        return read_package(tmp_path / "package")

    return lay


def job(package, script="code/topology.py", **more):
    return Job(script=Path(script), storm_id="t-1-1", node="n", port=1, package=package, **more)


def test_what_a_package_has_for_its_worker(lay_out, tmp_path):
    brought = tree(tmp_path / "brought", {"single.py": "", "a.jar": "", "b.jar": ""})
    folder = tree(tmp_path / "mine", {"topology.py": "", "beside.py": ""})
    package = lay_out(
        of_folder(
            folder,
            arguments=("--day", "1"),
            py_files=(brought / "single.py",),
            jars=(brought / "b.jar", brought / "a.jar"),
            jvm_packages=("org.example:more:1.0",),
        )
    )
    place = tmp_path / "package"
    assert package.code == place / "code"
    of_worker = job(package)
    assert of_worker.script_file == place / "code" / "topology.py"
    assert of_worker.root == place / "code"
    assert of_worker.all_arguments == ("--day", "1")
    assert of_worker.all_py_files == [place / "py-files" / "single.py"]
    assert all(file.is_file() for file in (of_worker.script_file, *of_worker.all_py_files))
    given = {"spark.x": "1", "spark.jars": "/mine.jar"}
    assert package.with_jars(given) == {
        "spark.x": "1",
        "spark.jars": f"{place}/jars/b.jar,{place}/jars/a.jar,/mine.jar",
        "spark.jars.packages": "org.example:more:1.0",
    }
    assert job(package, arguments=["mine"]).all_arguments == ["mine"]


def test_without_jars_nothing_is_added(lay_out, tmp_path):
    assert lay_out(of_folder(tree(tmp_path / "mine", {}))).with_jars({"a": 1}) == {"a": 1}


def test_a_script_is_one_query_whatever_it_is_called(lay_out, tmp_path):
    package = lay_out(of_folder(tree(tmp_path / "mine", {"topology.py": "print()\n"})))
    assert package.is_script
    assert job(package).script_id == "topology"
    assert job(package).script_claim is None
    claimed = job(package, claims={"daily": Claim(1, 2)})
    assert claimed.script_id == "daily"
    assert claimed.script_claim == Claim(1, 2)
    assert claimed.reported == ["daily"]


def test_of_a_topology_those_queries_run_that_have_claims(lay_out, tmp_path):
    topology = Topology("both")
    spout = topology.spout(lambda spark: spark, name="rows")
    for name in ("one", "two"):
        topology.bolt(spout, name=name)(lambda rows: rows)
    code = collect(tree(tmp_path / "mine", {"topology.py": ""}), tmp_path)
    package = lay_out(archive.PackageContents(code, description.of_topology(topology)))
    assert not package.is_script
    assert package.queries == ("one", "two")
    assert job(package).chosen == []
    assert job(package).reported == ["one", "two"]
    claimed = job(package, claims={"two": Claim(1, 2)})
    assert claimed.chosen == claimed.reported == ["two"]
    assert (claimed.script_id, claimed.script_claim) == (None, None)


def test_without_a_package_claims_choose_nothing():
    of_worker = Job(
        script=Path("a.py"), storm_id="t-1-1", node="n", port=1, claims={"q": Claim(1, 2)}
    )
    assert of_worker.chosen == []
    assert of_worker.script_file == Path("a.py")
    assert (of_worker.root, of_worker.script_id, of_worker.script_claim) == (None, None, None)


def test_a_script_that_is_not_in_the_package(lay_out, tmp_path):
    package = lay_out(of_folder(tree(tmp_path / "mine", {})))
    elsewhere = job(package, "jars/topology.py")
    with pytest.raises(WorkerError, match=r"is not in .*/package/code"):
        _ = elsewhere.script_file


def test_a_folder_without_a_package(tmp_path):
    with pytest.raises(WorkerError, match="there is no topology's package in"):
        read_package(tmp_path)
    tree(tmp_path, {"manifest.json": "{}", "description.json": "{}"})
    with pytest.raises(WorkerError, match=r"no topology's package in .* no manifest"):
        read_package(tmp_path)
