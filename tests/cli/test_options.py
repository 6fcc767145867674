import json
import subprocess
import sys

import pytest

from stormkeeper.cli.options import Fault
from support.command import AS_ANY_USER, needs_any_user

KEY = "nimbus.thrift.port"


def value(told) -> object:
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)[KEY]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["localconfvalue", KEY], 6627),
        (["-c", f"{KEY}=1", "localconfvalue", KEY], 1),
        (["localconfvalue", "-c", f"{KEY}=2", KEY], 2),
        (["localconfvalue", KEY, "-c", f"{KEY}=3"], 3),
        (["-c", f"{KEY}=1", "localconfvalue", KEY, "-c", f"{KEY}=2", "-c", f"{KEY}=3"], 3),
        (["-c", f"{KEY}=1", "-c", "ui.port=9", "localconfvalue", KEY], 1),
    ],
)
def test_overrides_stand_before_and_after_the_command(storm, arguments, expected):
    assert value(storm(*arguments, "--json")) == expected


@pytest.mark.parametrize("before", [True, False])
def test_a_file_is_named_before_or_after_the_command(storm, tmp_path, before):
    (tmp_path / "a.yaml").write_text(f"{KEY}: 7")
    config, command = ["--config", "a.yaml"], ["localconfvalue", KEY, "--json"]
    assert value(storm(*config, *command) if before else storm(*command, *config)) == 7


def test_files_and_overrides_are_merged_in_order(storm, tmp_path):
    (tmp_path / "a.yaml").write_text(f"{KEY}: 1\nui.port: 1")
    (tmp_path / "b.yaml").write_text(f"{KEY}: 2")
    command = ["--config", "a.yaml", "localconfvalue", "--json", "--config", "b.yaml"]
    assert value(storm(*command, KEY)) == 2
    assert json.loads(storm(*command, "ui.port").stdout) == {"ui.port": 1}
    assert value(storm("-c", f"{KEY}=3", *command, KEY)) == 3


def test_storm_yaml_is_found(storm, tmp_path):
    for name, port in [("home/.storm", 1), ("etc", 2)]:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "storm.yaml").write_text(f"{KEY}: {port}")
    command = ["localconfvalue", KEY, "--json"]
    assert value(storm(*command)) == 1
    assert value(storm(*command, STORM_CONF_DIR=str(tmp_path / "etc"))) == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-c", "ui.port=x"], "-c: ui.port: expected a whole number from 0 to 65535; got the te"),
        (["-c", "ui.port"], "-c: expected KEY=VALUE; got ui.port"),
        (["--config", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["--config", "bad.yaml"], "bad.yaml: it is not YAML"),
        (["-c", "pacemaker.prot=1", "--strict"], "-c: unknown key pacemaker.prot; is pacemaker.p"),
    ],
)
def test_wrong_configuration_is_one_line_and_exit_code_2(storm, tmp_path, arguments, line):
    (tmp_path / "bad.yaml").write_text("a: [")
    command = ["localconfvalue", "ui.port"]
    for told in (storm(*arguments, *command), storm(*command, *arguments)):
        assert told.returncode == 2
        assert told.stdout == ""
        assert told.stderr.startswith(f"storm: {line}")
        assert len(told.stderr.splitlines()) == 1


@needs_any_user
@pytest.mark.parametrize("as_json", [False, True])
def test_a_file_that_may_not_be_read_is_one_line_as_well(tmp_path, as_json):
    path = tmp_path / "forbidden.yaml"
    path.touch(0)
    command = [sys.executable, "-m", "stormkeeper", "pacemaker", "--config", str(path)]
    command = [*AS_ANY_USER, *command, *(["--log-json"] if as_json else [])]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout) == (2, "")
    [line] = told.stderr.splitlines()
    says = f"{path}: cannot be read: Permission denied"
    if as_json:
        assert (json.loads(line)["level"], json.loads(line)["message"]) == ("ERROR", says)
    else:
        assert line == f"storm: {says}"


@pytest.mark.parametrize(
    "command",
    [
        *(["pacemaker"], ["nimbus"], ["pipeline"], ["dev-zookeeper"], ["heartbeats", "get", "/"]),
        *(["local", "t.py"], ["supervisor"], ["kill_workers"], ["node-health-check"]),
    ],
)
def test_no_command_starts_with_wrong_configuration(storm, tmp_path, command):
    (tmp_path / "t.py").touch()
    told = storm(*command, "-c", "ui.port=x")
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("storm: -c: ui.port: expected ")


def test_options_of_a_group_stand_between_too(storm):
    told = storm("heartbeats", "-c", "ui.port=x", "list", "/")
    assert told.stderr.startswith("storm: -c: ui.port: ")


def test_an_unknown_key_is_a_warning_on_stderr(storm):
    told = storm("-c", "pacemaker.prot=1", "localconfvalue", "pacemaker.port")
    assert told.returncode == 0
    assert told.stdout == "pacemaker.port: 6699\n"
    assert told.stderr == (
        "storm: warning: -c: unknown key pacemaker.prot; is pacemaker.port meant?\n"
    )


def test_a_password_is_never_shown(storm, tmp_path):
    (tmp_path / "secret.yaml").write_text("storm.zookeeper.auth.payload: [hush]")
    for arguments in (
        ["-c", "storm.zookeeper.auth.payload=[hush]"],
        ["-c", "storm.zookeeper.auth.payload:hush"],
        ["--config", "secret.yaml"],
    ):
        told = storm(*arguments, "localconfvalue", "ui.port")
        assert told.returncode == 2
        assert "hush" not in told.stderr + told.stdout


def test_a_daemon_that_logs_json_says_what_is_wrong_as_json(storm):
    told = storm("pacemaker", "--log-json", "-c", "storm.cluster.mod=x", "-c", "pacemaker.port=x")
    assert told.returncode == 2
    assert told.stdout == ""
    warning, error = map(json.loads, told.stderr.splitlines())
    assert (warning["level"], warning["logger"]) == ("WARNING", "storm")
    assert "unknown key storm.cluster.mod" in warning["message"]
    assert error["level"] == "ERROR"
    assert "pacemaker.port: expected a whole number" in error["message"]


def test_what_a_fault_quotes_does_nothing_to_a_terminal(capsys):
    Fault("Nimbus says: \x1b[2J\u202egone\nsecond line").show()
    assert capsys.readouterr().err == "storm: Nimbus says: \\x1b[2J\\u202egone\nsecond line\n"
