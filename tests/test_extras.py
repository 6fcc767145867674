"""What is installed without any extra, and what is said where one is missing."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import stormkeeper
from stormkeeper import extras
from support.command import STORM
from support.packages import STREAMING, tree
from support.small_nimbus import SmallNimbus, serving
from support.waiting import DEADLINE_SECS

PACKAGE = Path(stormkeeper.__file__).parent
SPARKS_ROOMS = {"history", "local", "pipeline", "worker"}
SPARKS_MODULES = {f"daemon/{name}.py" for name in ("spark", "spark_archive", "spark_callbacks")}
ABSENT = {"duckdb", "numpy", "pandas", "plotext", "py4j", "pyarrow", "pyspark", "zlib_ng"}
UNAVAILABLE = 69

PROJECT = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]

#: Nothing of ours imports these: PySpark does, for data sources in Python and transformWithState.
PYSPARKS_OWN = {"pandas", "protobuf"}

#: Of Spark's extra, and used by the base where it is installed.
WELCOME = {"zlib-ng"}


def modules():
    return [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]


def is_sparks(module):
    return module.parts[0] in SPARKS_ROOMS or str(module) in SPARKS_MODULES


def name_of(module):
    parts = ("stormkeeper", *module.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture
def bare(tmp_path):
    """Runs a program where Spark's extra is not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({sorted(ABSENT)}))\n"
    )

    def run(*argv):
        return subprocess.run(
            argv,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECS,
            check=False,
        )

    return run


def test_the_base_is_imported_without_spark(bare):
    names = [name_of(module) for module in modules() if not is_sparks(module)]
    names.remove("stormkeeper.__main__")
    gssapis = {"stormkeeper.sasl.gssapi"}
    program = (
        "import importlib\n"
        f"for name in {sorted(set(names) - gssapis)!r}:\n"
        "    importlib.import_module(name)\n"
    )
    ran = bare(sys.executable, "-c", program)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(names) > 100


def test_help_of_every_command_works_without_spark(bare):
    program = """
import click
from stormkeeper.cli.commands import storm

def commands(command, path):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command, info_name="storm")
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), [*path, name])

for path in commands(storm, []):
    try:
        storm.main([*path, "--help"], prog_name="storm")
    except SystemExit as end:
        assert end.code == 0, path
"""
    ran = bare(sys.executable, "-c", program)
    assert (ran.returncode, ran.stderr) == (0, "")
    usages = re.findall(r"(?m)^Usage: storm (\w[\w -]*?) \[", ran.stdout)
    assert {"heartbeats top", "local", "pacemaker", "state check"} <= set(usages)


@pytest.mark.parametrize(
    "arguments",
    [("local", "job.py"), ("pipeline",), ("supervisor",), ("dev-zookeeper",)],
)
def test_command_names_its_missing_extra(bare, tmp_path, arguments):
    (tmp_path / "job.py").write_text("import pyspark\n")
    ran = bare(STORM, *arguments)
    assert (ran.returncode, ran.stdout) == (UNAVAILABLE, "")
    assert ran.stderr.startswith(f"storm: storm {arguments[0]} needs the extra spark")
    assert ran.stderr.endswith(f": {sys.executable} -m pip install 'stormkeeper[spark]'\n")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("files", "who"),
    [
        (
            {"job.py": "from stormkeeper.topology import Topology\n"},
            "job.py, which has to be run to see what it defines, needs",
        ),
        (
            {"job.py": STREAMING, "requirements.txt": "requests\n"},
            "an environment for topologies needs",
        ),
    ],
)
def test_submission_names_the_missing_extra(bare, tmp_path, files, who):
    tree(tmp_path, files)
    ran = bare(STORM, "submit", "job.py")
    assert (ran.returncode, ran.stdout) == (UNAVAILABLE, "")
    assert f"{who} the extra spark, which is not installed" in ran.stderr


def test_a_plain_script_is_submitted_without_the_extra(bare, tmp_path):
    tree(tmp_path, {"job.py": STREAMING})
    nimbus = SmallNimbus()
    with serving(nimbus) as seed:
        ran = bare(STORM, "submit", "job.py", "-c", f"nimbus.seeds=[{seed}]")
    assert (ran.returncode, ran.stdout) == (0, "Finished submitting topology: job\n"), ran.stderr
    assert nimbus.packages["job"].description.kind == "script"


def test_worker_names_its_missing_extra(bare):
    slot = ("--storm-id", "job-1-1700000000", "--node", "node-1", "--port", "6700")
    ran = bare(sys.executable, "-m", "stormkeeper.worker", "job.py", *slot)
    assert ran.returncode == UNAVAILABLE
    assert ran.stderr == (
        "a worker needs the extra spark, which is not installed (no pyspark, no pandas, no"
        f" pyarrow): {sys.executable} -m pip install 'stormkeeper[spark]'\n"
    )


@pytest.mark.parametrize("module", ["pyspark_pacemaker", "stormkeeper.pipeline.tables"])
def test_pipeline_names_its_missing_extra(bare, module):
    program = f"try:\n    import {module}\nexcept ImportError as error:\n    print(error)\n"
    ran = bare(sys.executable, "-c", program)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("the heartbeat pipeline, with the data source pacemaker, needs ")
    assert ran.stdout.endswith(" -m pip install 'stormkeeper[spark]'\n")


def test_a_topology_is_described_without_spark(bare):
    program = (
        "from stormkeeper.topology import Topology\n"
        "topology = Topology('job')\n"
        "@topology.spout\n"
        "def rows(spark, conf): ...\n"
    )
    ran = bare(sys.executable, "-c", program)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_installed_extra_is_not_missing():
    extras.require("spark", "a test")


def distributions(requirements):
    named = {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements}
    return {name.lower().replace("_", "-") for name in named}


def imported(paths):
    """The distributions of what is imported there, wherever in a module the import stands."""
    found = set()
    known = metadata.packages_distributions()
    for path in paths:
        for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            for name in names:
                top = name.partition(".")[0]
                if top not in sys.stdlib_module_names and top != "stormkeeper":
                    found |= set(known.get(top, [top]))
    return {name.lower().replace("_", "-") for name in found}


def test_what_a_module_imports_is_installed_with_it():
    base = distributions(PROJECT["dependencies"])
    spark = distributions(PROJECT["optional-dependencies"]["spark"])
    kerberos = distributions(PROJECT["optional-dependencies"]["kerberos"])
    of_base = imported(module for module in modules() if not is_sparks(module))
    of_spark = imported(filter(is_sparks, modules()))
    assert spark >= WELCOME
    assert of_base <= base | kerberos | WELCOME
    # py4j comes with PySpark, whose own part it is.
    assert of_spark - {"py4j"} <= base | spark
    assert base | spark | kerberos <= of_base | of_spark | PYSPARKS_OWN


def test_every_extra_in_the_code_can_be_installed():
    assert extras.MODULES.keys() <= PROJECT["optional-dependencies"].keys()
