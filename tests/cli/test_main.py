import subprocess
import sys
from pathlib import Path

import pytest

import stormkeeper
from support.command import HEAVY, imported_by

COMMANDS = {
    *("pacemaker", "dev-zookeeper", "pipeline", "local", "heartbeats", "state"),
    *("version", "localconfvalue"),
}


def test_help_names_every_command(storm):
    told = storm("--help")
    assert told.returncode == 0
    assert {line.split()[0] for line in told.stdout.splitlines() if line.strip()} > COMMANDS


def test_the_version_is_an_option_too(storm):
    told = storm("--version")
    assert (told.returncode, told.stdout) == (0, f"Stormkeeper {stormkeeper.__version__}\n")
    assert told.stdout == storm("version").stdout.splitlines(keepends=True)[0]


@pytest.mark.parametrize(
    "command",
    [
        *[[name] for name in COMMANDS],
        ["heartbeats", "list"],
        ["heartbeats", "get"],
        ["heartbeats", "top"],
        *[["state", name] for name in ("tree", "list", "get", "watch", "check")],
    ],
)
def test_every_command_has_help_with_examples(storm, command):
    told = storm(*command, "--help")
    assert told.returncode == 0
    assert f"  storm {' '.join(command)}" in told.stdout.partition("Examples:")[2]
    for option in ("-c KEY=VALUE", "--config FILE", "--strict"):
        assert option in told.stdout


def test_help_imports_nothing_heavy(environ):
    modules = imported_by(["--help"], environ)
    assert not modules & (HEAVY | {"yaml", "msgspec"})
    assert "click" in modules


def test_a_command_is_called_as_it_was_invoked(environ, tmp_path):
    both = [Path(sys.executable).with_name(name) for name in ("storm", "stormkeeper")]
    for command, name in [
        ([str(both[0])], "storm"),
        ([str(both[1])], "stormkeeper"),
        ([sys.executable, "-m", "stormkeeper"], "storm"),
    ]:
        told = subprocess.run(
            [*command, "--help"],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert told.stdout.startswith(f"Usage: {name} ")


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["version", "extra"], ["localconfvalue"], ["--nonsense"]]
)
def test_wrong_usage_is_exit_code_2(storm, arguments):
    told = storm(*arguments)
    assert told.returncode == 2
    assert told.stdout == ""
    assert "Usage: storm" in told.stderr
