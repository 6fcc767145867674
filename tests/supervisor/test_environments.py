"""Environments: built once from wheels, over the Python of the tests, and shared."""

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from stormkeeper.errors import EnvironmentBuildError
from stormkeeper.supervisor import environments
from stormkeeper.supervisor.environments import Environments
from stormkeeper.topology.package.environment import Base
from stormkeeper.topology.package.manifest import WHEELS, PackageManifest, PackedFile, Versions
from support.packages import wheel
from support.waiting import DEADLINE_SECS, until

BASE = Base.here()

TINY = {
    "tiny/__init__.py": "import helper\nVALUE = helper.VALUE\n",
    "tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny.run:main\n",
    "tiny/run.py": "import sys\ndef main():\n    print('run by', sys.executable)\n",
}


def requiring(folder, *requirements):
    """The manifest of a package with these requirements and the wheels of its folder."""
    packed = sorted((folder / WHEELS).glob("*.whl"))
    return PackageManifest(
        version=1,
        name="t",
        entry_point="code/t.py",
        arguments=(),
        py_files=(),
        jars=(),
        wheels=tuple(WHEELS + file.name for file in packed),
        jvm_packages=(),
        requirements=requirements,
        made_with=Versions("3.11", "0.1.0", None),
        files=tuple(PackedFile(WHEELS + file.name, 1, "0" * 64) for file in packed),
    )


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of a package with two wheels, one of which requires the other."""
    folder = tmp_path_factory.mktemp("package")
    (folder / WHEELS).mkdir()
    wheel(folder / WHEELS, "tiny", "1.0", TINY, requires=["helper"])
    wheel(folder / WHEELS, "helper", "2.0", {"helper.py": "VALUE = 7\n"})
    return folder


@pytest.fixture
def made(tmp_path):
    environments = Environments(tmp_path / "environments", BASE)
    yield environments
    environments.close()


def python(environments, folder, *requirements):
    return environments.python(requiring(folder, *requirements), folder, wait_secs=DEADLINE_SECS)


def said(*command):
    run = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=DEADLINE_SECS, check=True
    )
    return run.stdout.strip()


def left_in(tmp_path):
    return sorted(path.name for path in (tmp_path / "environments").iterdir())


def test_nothing_is_built_where_nothing_is_required(made, unpacked, tmp_path):
    assert python(made, unpacked) == Path(sys.executable)
    assert made.identity(requiring(unpacked)) is None
    assert left_in(tmp_path) == []


def test_one_is_built_of_wheels_and_kept(made, unpacked, tmp_path, caplog):
    caplog.set_level("INFO")
    pins = ("helper==2.0", "tiny==1.0")
    built = python(made, unpacked, *pins)
    name = made.identity(requiring(unpacked, *pins))
    installing = "pip: Installing collected packages: helper, tiny"
    assert f"the environment {name} is being built: {installing}" in caplog.messages
    assert made.progress(name) == "", "it is built"
    assert built == tmp_path / "environments" / name / "bin" / "python"
    assert left_in(tmp_path) == [name]
    program = "import pyspark, stormkeeper, sys, tiny; print(tiny.VALUE, tiny.__file__, sys.prefix)"
    value, file, prefix = said(built, "-P", "-c", program).split()
    assert value == "7"
    assert prefix == str(built.parents[1])
    assert Path(file).is_relative_to(prefix)
    # What it stands on is where it was (this package by a link of its own, as it is installed in
    # place), and the programs that were installed know where they are.
    versions = "import pyspark, stormkeeper; print(pyspark.__version__, stormkeeper.__version__)"
    assert said(built, "-P", "-c", versions) == f"{BASE.pyspark} {BASE.stormkeeper}"
    assert said(built.with_name("tiny")) == f"run by {built}"
    record = json.loads((built.parents[1] / "environment.json").read_bytes())
    assert record == {"requirements": [*pins], "base": msgspec.to_builtins(BASE)}

    before = built.parents[1].stat()
    assert python(made, unpacked, *reversed(pins)) == built
    again = Environments(tmp_path / "environments", BASE)
    assert python(again, unpacked, *pins) == built
    assert built.parents[1].stat().st_ino == before.st_ino
    assert again.remove_unused(lambda: {name}) == []
    assert again.remove_unused(lambda: ()) == [name]
    assert left_in(tmp_path) == []


def test_what_cannot_be_installed(made, unpacked, tmp_path):
    with pytest.raises(EnvironmentBuildError) as error:
        python(made, unpacked, "not-there==1.0")
    assert "pip ended with exit code 1:\n" in str(error.value)
    assert "No matching distribution found for not-there==1.0" in str(error.value)
    assert left_in(tmp_path) == []


def test_the_base_cannot_be_replaced(made, tmp_path):
    (tmp_path / WHEELS).mkdir()
    wheel(tmp_path / WHEELS, "pyspark", "9.9", {"pyspark.py": ""})
    with pytest.raises(EnvironmentBuildError, match=r"pyspark==9\.9"):
        python(made, tmp_path, "pyspark==9.9")
    assert left_in(tmp_path) == []


def test_what_breaks_the_base_is_not_handed_out(made, tmp_path):
    (tmp_path / WHEELS).mkdir()
    wheel(tmp_path / WHEELS, "breaking", "1.0", {"py4j.py": "raise ImportError('broken here')"})
    with pytest.raises(
        EnvironmentBuildError, match=r"import of PySpark beside .*\n[^$]*broken here"
    ):
        python(made, tmp_path, "breaking==1.0")
    assert left_in(tmp_path) == []


class Held(Environments):
    """Builds nothing itself: each build waits until it is let go."""

    def __init__(self, *given, **settings):
        super().__init__(*given, **settings)
        self.builds = 0
        self.go = threading.Event()
        self.fault = None

    def _build(self, place, *_):
        self.builds += 1
        assert self.go.wait(DEADLINE_SECS)
        if self.fault is not None:
            raise self.fault
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "python").symlink_to(sys.executable)


@pytest.fixture
def held(tmp_path):
    return Held(tmp_path / "environments", BASE)


class Caller(threading.Thread):
    """Asks for an environment in a thread, and keeps what comes of it."""

    def __init__(self, environments, *requirements, wait_secs=DEADLINE_SECS):
        super().__init__(daemon=True)
        self._ask = (environments, requirements, wait_secs)
        self.result = None
        self.start()

    def run(self):
        environments, requirements, wait_secs = self._ask
        manifest = requiring(Path("nowhere"), *requirements)
        try:
            self.result = environments.python(manifest, Path("nowhere"), wait_secs=wait_secs)
        except Exception as error:
            self.result = error

    def done(self):
        self.join(DEADLINE_SECS)
        assert not self.is_alive()
        return self.result


def test_one_builds_and_the_others_wait(held):
    callers = [Caller(held, "six==1.0") for _ in range(4)]
    until(lambda: held.builds == 1)
    held.go.set()
    assert len({caller.done() for caller in callers}) == 1
    assert callers[0].result.exists()
    assert held.builds == 1


@pytest.mark.parametrize("fault", [EnvironmentBuildError("no such package"), OSError("disk full")])
def test_those_who_wait_are_told_why_there_is_none(held, fault, tmp_path):
    held.fault = fault
    first = Caller(held, "six==1.0")
    until(lambda: held.builds == 1)
    # Whether it waits for the first or comes after it, it is told the same.
    second = Caller(held, "six==1.0")
    held.go.set()
    for caller in (first, second):
        assert isinstance(caller.done(), EnvironmentBuildError)
        assert str(fault) in str(caller.result)
    assert left_in(tmp_path) == []
    held.fault = None
    assert Caller(held, "six==1.0").done().exists()


def test_a_wait_ends(held):
    first = Caller(held, "six==1.0")
    until(lambda: held.builds == 1)
    second = Caller(held, "six==1.0", wait_secs=0.01)
    assert "is still being built after 0 s" in str(second.done())
    held.go.set()
    assert first.done().exists()


def test_others_are_built_meanwhile(held):
    callers = [Caller(held, "six==1.0"), Caller(held, "six==2.0")]
    until(lambda: held.builds == 2)
    held.go.set()
    assert callers[0].done() != callers[1].done()


@pytest.mark.parametrize("fault", ["python", "record", "other record"])
def test_a_broken_one_is_built_again(held, fault, caplog):
    held.go.set()
    built = Caller(held, "six==1.0").done()
    if fault == "python":
        built.unlink()
        built.symlink_to("/nowhere/python")
    elif fault == "record":
        (built.parents[1] / "environment.json").unlink()
    else:
        (built.parents[1] / "environment.json").write_text("{}")
    assert Caller(held, "six==1.0").done() == built
    assert held.builds == 2
    assert built.exists()
    assert "is broken: it is built again" in caplog.text


def test_what_is_being_built_is_not_removed(held, tmp_path):
    caller = Caller(held, "six==1.0")
    until(lambda: held.builds == 1)
    assert held.remove_unused(lambda: ()) == []
    held.go.set()
    built = caller.done()
    assert held.remove_unused(lambda: [built.parents[1].name]) == []
    assert held.remove_unused(lambda: ()) == [built.parents[1].name]
    assert left_in(tmp_path) == []


def test_what_somebody_is_about_to_get_is_not_removed(held, monkeypatch):
    held.go.set()
    built = Caller(held, "six==1.0").done()
    looks, go, is_whole = threading.Event(), threading.Event(), environments._is_whole

    def slow(*given):
        looks.set()
        assert go.wait(DEADLINE_SECS)
        return is_whole(*given)

    monkeypatch.setattr(environments, "_is_whole", slow)
    caller = Caller(held, "six==1.0")
    until(looks.is_set)
    assert held.remove_unused(lambda: ()) == []
    go.set()
    assert caller.done() == built
    assert built.exists()
    assert held.builds == 1


def test_what_a_killed_supervisor_has_left(tmp_path):
    for name in (".removing-y", "kept"):
        (tmp_path / "environments" / name / "bin").mkdir(parents=True)
    Environments(tmp_path / "environments", BASE)
    assert left_in(tmp_path) == ["kept"]


@pytest.mark.parametrize("why", ["closed", "deadline"])
def test_a_build_that_does_not_end(tmp_path, why):
    """pip waits for a package's own code, which never ends."""
    (tmp_path / "package" / WHEELS).mkdir(parents=True)
    source = tmp_path / "source"
    (source / "waiting-1.0").mkdir(parents=True)
    started = tmp_path / "started"
    (source / "waiting-1.0" / "backend.py").write_text(
        f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep(3600)\n"
    )
    (source / "waiting-1.0" / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    packages = tmp_path / "package" / WHEELS
    shutil.make_archive(str(packages / "waiting-1.0"), "gztar", source, "waiting-1.0")
    manifest = msgspec.structs.replace(
        requiring(tmp_path / "package", "waiting==1.0"), wheels=("wheels/waiting-1.0.tar.gz",)
    )
    made = Environments(
        tmp_path / "environments", BASE, build_secs=DEADLINE_SECS if why == "closed" else 2.0
    )
    results = []

    def ask():
        try:
            made.python(manifest, tmp_path / "package", wait_secs=DEADLINE_SECS)
        except EnvironmentBuildError as error:
            results.append(str(error))

    caller = threading.Thread(target=ask, daemon=True)
    caller.start()
    if why == "closed":
        until(started.exists)
        made.close()
    caller.join(DEADLINE_SECS)
    expected = "when it was cancelled" if why == "closed" else "after 2 s"
    assert [result.partition(":")[0] for result in results] == [f"pip was ended {expected}"]
    assert left_in(tmp_path) == []


def test_a_machine_without_pip(made, unpacked, monkeypatch):
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentBuildError, match=r"has no pip, .*-m ensurepip"):
        python(made, unpacked, "tiny==1.0")
