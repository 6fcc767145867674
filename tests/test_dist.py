"""What `make dist` makes, installed without any extra where nothing else is."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

import pytest

from support.waiting import DEADLINE_SECS

PROJECT = Path(__file__).parents[1]
ENGINES = [f"stormkeeper/{room}/_compiled." for room in ("pacemaker/server", "pipeline/decoding")]

#: In millions of bytes: packages of the base, without pip.
LARGEST_MB = 52

#: Building, or installing: most of it is the machine's, or the line's.
INSTALL_SECS = 600

BEAT = """
import sys
from stormkeeper.conf import Address
from stormkeeper.pacemaker.client import PacemakerClient

host, _, port = sys.argv[1].rpartition(":")
with PacemakerClient(Address(host, int(port))) as client:
    client.send_pulse("/workerbeats/word-count-1-1700000000/node-1-6700", b"alive")
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * INSTALL_SECS)]


def run(*argv, deadline_secs=INSTALL_SECS, **options):
    ran = subprocess.run(
        argv, capture_output=True, text=True, timeout=deadline_secs, check=False, **options
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, PROJECT)
    [sdist], [wheel] = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def base(dist):
    """An environment that has the wheel and nothing that it does not need, not even pip.

    Each compiled module has the path of its source in it, so that a long one, as pytest's, makes
    1,300 files larger than they are in /opt/stormkeeper.
    """
    with tempfile.TemporaryDirectory(prefix="base-") as name:
        folder = Path(name)
        venv.create(folder, with_pip=False)
        python = folder / "bin" / "python"
        pins = PROJECT / "constraints.txt"
        pip = (sys.executable, "-m", "pip", "--python", python)
        run(*pip, "install", "--quiet", "--constraint", pins, dist[1])
        yield folder


@pytest.fixture
def environ(tmp_path):
    """The environment of a user who has configured nothing."""
    named = {"STORM_CONF_DIR", "PYTHONPATH"}
    return {k: v for k, v in os.environ.items() if k not in named} | {"HOME": str(tmp_path)}


def test_the_sdist_has_what_an_installation_needs(dist):
    with tarfile.open(dist[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "constraints.txt",
        "deploy/stormkeeper-pacemaker.service",
        "docs/pacemakers.md",
        "pyproject.toml",
        "setup.py",
        *(f"src/{engine}pyx" for engine in ENGINES),
    } <= names
    assert not {name for name in names if name.startswith("tests")}


@pytest.mark.parametrize("engine", ENGINES)
def test_wheel_has_a_compiled_engine_if_it_compiles(dist, engine):
    with zipfile.ZipFile(dist[1]) as wheel:
        found = {name for name in wheel.namelist() if name.startswith(engine)}
    compiled = {name for name in found if name.endswith(".so")}
    is_compiled_here = importlib.util.find_spec(engine.replace("/", ".").rstrip("."))
    assert len(compiled) == bool(is_compiled_here)
    assert found - compiled == {f"{engine}pyi"}


def test_the_base_is_light(base):
    [packages] = base.glob("lib/python*/site-packages")
    installed = {path.name for path in packages.iterdir()}
    assert "stormkeeper" in installed
    assert not installed & {"pyspark", "pandas", "pyarrow", "numpy", "pip"}
    size = sum(path.lstat().st_size for path in packages.rglob("*"))
    assert size / 1e6 < LARGEST_MB


def test_a_pacemaker_runs_from_the_base(base, environ, tmp_path):
    storm, python = base / "bin" / "storm", base / "bin" / "python"
    log = tmp_path / "log"
    with log.open("w") as errors:
        pacemaker = subprocess.Popen(
            [storm, "pacemaker", "-c", "pacemaker.bind.host=127.0.0.1", "-c", "pacemaker.port=0"],
            env=environ,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with pacemaker:
        try:
            ready = pacemaker.stdout.readline()
            assert ready.startswith("pacemaker listening on "), log.read_text()
            address = ready.split()[-1]
            options = {"deadline_secs": DEADLINE_SECS, "env": environ, "cwd": tmp_path}
            run(python, "-c", BEAT, address, **options)
            servers = f"pacemaker.servers={address}"
            listed = run(storm, "heartbeats", "list", "/workerbeats", "-c", servers, **options)
            assert "word-count-1-1700000000" in listed
            pacemaker.send_signal(signal.SIGTERM)
            assert pacemaker.wait(DEADLINE_SECS) == 0
        finally:
            pacemaker.kill()
    engine = "compiled" if any(base.rglob("pacemaker/server/_compiled.*.so")) else "interpreted"
    assert f" engine: {engine};" in log.read_text()


def test_a_command_of_an_extra_says_how_it_is_installed(base, environ, tmp_path):
    python = base / "bin" / "python"
    told = subprocess.run(
        [base / "bin" / "storm", "pipeline"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=False,
    )
    assert (told.returncode, told.stdout) == (69, "")
    assert told.stderr == (
        "storm: storm pipeline needs the extra spark, which is not installed (no pyspark, no"
        f" pandas, no pyarrow): {python} -m pip install 'stormkeeper[spark]'\n"
    )
    # As it stands there, it adds to what is installed, and gets no other stormkeeper.
    pip = (sys.executable, "-m", "pip", "--python", python)
    pins = PROJECT / "constraints.txt"
    planned = run(*pip, "install", "--dry-run", "--constraint", pins, "stormkeeper[spark]")
    assert "Requirement already satisfied: stormkeeper[spark]" in planned
    [would] = re.findall(r"^Would install .*", planned, re.MULTILINE)
    assert "pyspark" in would
    assert "stormkeeper" not in would
