import json
import platform
from importlib import metadata

import pytest

import stormkeeper
from stormkeeper.cli.config import as_java


def test_version_names_what_runs_here(storm):
    told = storm("version")
    assert told.returncode == 0
    assert told.stdout.splitlines()[:3] == [
        f"Stormkeeper {stormkeeper.__version__}",
        f"Python {platform.python_version()}",
        f"PySpark {metadata.version('pyspark')}",
    ]
    assert told.stdout.splitlines()[3].startswith("Java ")


def test_version_as_json(storm):
    told = json.loads(storm("version", "--json").stdout)
    assert list(told) == ["stormkeeper", "python", "pyspark", "java"]
    assert told["stormkeeper"] == stormkeeper.__version__


def test_version_without_java(storm, tmp_path):
    assert storm("version", JAVA_HOME=str(tmp_path)).stdout.endswith("Java not found\n")
    assert json.loads(storm("version", "--json", JAVA_HOME=str(tmp_path)).stdout)["java"] is None


def test_version_helps_where_the_configuration_is_broken(storm):
    assert storm("version", "--config", "none.yaml").returncode == 0


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("pacemaker.port", "pacemaker.port: 6699"),
        ("storm.zookeeper.servers", "storm.zookeeper.servers: [localhost]"),
        ("supervisor.slots.ports", "supervisor.slots.ports: [6700, 6701, 6702, 6703]"),
        ("pacemaker.host", "pacemaker.host: null"),
        ("storm.scheduler", "storm.scheduler: null"),
        ("spark.master", "spark.master: null"),
    ],
)
def test_localconfvalue_prints_as_storm_does(storm, key, line):
    told = storm("localconfvalue", key)
    assert (told.returncode, told.stdout, told.stderr) == (0, f"{line}\n", "")


def test_localconfvalue_of_what_is_set(storm):
    told = storm("localconfvalue", "storm.scheduler", "-c", "storm.scheduler=org.x.Y")
    assert told.stdout == "storm.scheduler: org.x.Y\n"
    told = storm("localconfvalue", "my.own", "-c", "my.own={a: [1, true]}", "--json")
    assert json.loads(told.stdout) == {"my.own": {"a": [1, True]}}


def test_localconfvalue_of_a_key_that_nobody_knows(storm):
    told = storm("localconfvalue", "pacemaker.prot")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == (
        "storm: there is no configuration key pacemaker.prot; is pacemaker.port meant?\n"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0.05, "0.05"),
        ("a b", "a b"),
        ([], "[]"),
        ([1, ["a", None]], "[1, [a, null]]"),
        ({"a": {"b": False}}, "{a={b=false}}"),
    ],
)
def test_values_are_written_as_java_writes_them(value, text):
    assert as_java(value) == text
