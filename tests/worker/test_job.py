import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stormkeeper.conf import defaults
from stormkeeper.conf.folders import checkpoint_root
from stormkeeper.errors import ConfigError, WorkerError
from stormkeeper.topology import Topology, description
from stormkeeper.topology.package import archive
from stormkeeper.topology.package.archive import unpack
from stormkeeper.topology.package.code import collect
from stormkeeper.topology.plan import Claim
from stormkeeper.worker.job import (
    Job,
    checkpoint_location,
    merged_conf,
    read_overrides,
    read_package,
    with_credentials,
    with_overrides,
    with_topology,
)
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


def test_package_of_a_worker(lay_out, tmp_path):
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


def test_script_is_one_query(lay_out, tmp_path):
    package = lay_out(of_folder(tree(tmp_path / "mine", {"topology.py": "print()\n"})))
    assert package.is_script
    assert job(package).script_id == "topology"
    assert job(package).script_claim is None
    claimed = job(package, claims={"daily": Claim(1, 2)})
    assert claimed.script_id == "daily"
    assert claimed.script_claim == Claim(1, 2)
    assert claimed.reported == ["daily"]


def test_claimed_queries_of_a_topology_run(lay_out, tmp_path):
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


FILES = {
    "topology.py": "import parts.one\n",
    "beside.py": "NAME = 'beside'\n",
    "parts/one.py": "NAME = 'one'\n",
    "parts/data.txt": "some data\n",
}


@pytest.fixture
def package(tmp_path):
    file, _ = packed(of_folder(tree(tmp_path / "mine", FILES)))
    unpack(file, tmp_path / "package")
    return read_package(tmp_path / "package")


def test_another_python_imports_from_it_also_without_init_files(package, tmp_path):
    archive = package.write_code(tmp_path)
    code = (
        "import pkgutil, sys; sys.path.insert(1, sys.argv[1]); import beside, parts.one;"
        "print(beside.NAME, parts.one.NAME,"
        " beside.__loader__.get_data(sys.argv[1] + '/parts/data.txt').decode())"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(archive)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["beside", "one", "some", "data"]


def test_archive_has_only_files_of_the_package(package, tmp_path):
    # As Python leaves it there when the driver has imported a module.
    tree(package.code, {"__pycache__/beside.pyc": "cached"})
    with zipfile.ZipFile(package.write_code(tmp_path)) as archive:
        assert sorted(archive.namelist()) == sorted(["parts/", *FILES])


@pytest.fixture
def files(tmp_path):
    file = tmp_path / "storm.yaml"
    file.write_text("topology.workers: 2\nui.port: 1\ninput: from the file\n")
    return [file]


def test_command_line_beats_topology_beats_file(files):
    topology = Topology(
        "t", {"input": "the topology's", "topology.workers": 3, "spark.master": "local[1]"}
    )
    conf = merged_conf(topology, files=files, overrides=["topology.workers=4", " spark.x = 1"])
    assert conf["input"] == "the topology's"
    assert conf["topology.workers"] == 4
    assert conf["spark.master"] == "local[1]"
    assert conf["spark.x"] == 1
    assert conf["ui.port"] == 1
    assert conf["topology.name"] == "t"


def test_saved_values_beat_all_but_command_line(files, caplog):
    topology = Topology("t", {"input": "its own", "topology.workers": 3, "spark.x": 1})
    saved = {"input": "saved", "topology.workers": 5, "topology.name": "other", "new": [1]}
    conf = merged_conf(topology, files=files, overrides=["topology.workers=4"], saved=saved)
    assert conf["input"] == "saved"
    assert conf["topology.workers"] == 4
    assert conf["topology.name"] == "other"
    assert conf["new"] == [1]
    assert conf["spark.x"] == conf["ui.port"] == 1
    assert caplog.records == []


def test_own_keys_of_the_topology_are_known(files, caplog):
    conf = merged_conf(Topology("t", {"input": 1}), files=files, overrides=["input=2"])
    assert conf["input"] == 2
    assert caplog.records == []


def test_unknown_key_is_warned_of_with_the_nearest_known(files, caplog):
    merged_conf(Topology("t", {"input": 1}), files=files, overrides=["inptu=2"])
    assert "unknown key inptu; is input meant?" in caplog.text


def test_strict_makes_it_an_error(files):
    with pytest.raises(ConfigError, match="inptu"):
        merged_conf(Topology("t", {"input": 1}), files=files, overrides=["inptu=2"], strict=True)


def test_wrong_value_in_the_topology_says_where():
    with pytest.raises(ConfigError, match=r"conf of the topology 't': topology.workers: expected"):
        with_topology(defaults(), Topology("t", {"topology.workers": 0}))


def test_without_a_topology_the_configuration_stands():
    conf = defaults()
    assert with_topology(conf, None) is conf


PATHS = {"topology.checkpoint.dir": None, "storm.local.dir": "/local"}


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (None, "/local/checkpoints/wc-1-1/totals"),
        ("/a/b/", "/a/b/wc-1-1/totals"),
        ("hdfs://host/a/", "hdfs://host/a/wc-1-1/totals"),
        ("file:///a", "file:///a/wc-1-1/totals"),
        ("here", f"{Path.cwd()}/here/wc-1-1/totals"),
        ("~/here", f"{Path.home()}/here/wc-1-1/totals"),
    ],
)
def test_where_a_checkpoint_is(place, expected):
    conf = {**PATHS, "topology.checkpoint.dir": place, "topology.checkpoint.from": None}
    assert checkpoint_location(conf, "wc-1-1", "totals") == expected


def test_continued_checkpoints_keep_their_folder():
    conf = {"topology.checkpoint.dir": "/a", "topology.checkpoint.from": "wc-1-1"}
    assert checkpoint_location(conf, "wc-2-9", "totals") == "/a/wc-1-1/totals"


def test_checkpoints_are_in_the_daemons_folder():
    conf = {**PATHS, "storm.local.dir": "~/storm"}
    assert checkpoint_root(conf) == f"{Path.home()}/storm/checkpoints"


def test_overrides_are_read_from_a_file(tmp_path):
    file = tmp_path / "overrides.json"
    values = {"topology.workers": 3, "input": ["a", {"b": None}], "spark.x": True}
    file.write_text(json.dumps(values))
    assert read_overrides(file) == values


@pytest.mark.parametrize("text", ["", "[]", '{"a": ', '"secret"', '{"pass": "secret"'])
def test_error_of_bad_overrides_hides_content(tmp_path, text):
    file = tmp_path / "overrides.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"overrides\.json: expected a JSON object") as refused:
        read_overrides(file)
    assert "secret" not in str(refused.value)


def test_no_such_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        read_overrides(tmp_path / "none.json")


def test_overrides_win_except_for_kept_keys():
    values = {"topology.workers": 3, "spark.x": 1}
    conf = with_overrides(defaults(), values, keep={"spark.x"})
    assert conf["topology.workers"] == 3
    assert "spark.x" not in conf


def test_a_wrong_value_says_where():
    with pytest.raises(ConfigError, match=r"saved configuration: topology\.workers: expected"):
        with_overrides(defaults(), {"topology.workers": 0})


def test_credentials_win():
    conf = defaults().with_values({"token": "old", "spark.x": 1})
    assert with_credentials(conf, {"token": "new", "spark.y": "2"})["token"] == "new"


def test_a_credential_that_is_refused_is_not_shown():
    with pytest.raises(ConfigError, match="a credential of the topology") as refused:
        with_credentials(defaults(), {"topology.workers": "hunter2"})
    assert "hunter2" not in str(refused.value)
    assert refused.value.__suppress_context__
